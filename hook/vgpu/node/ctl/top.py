"""`vgpuctl top`: the cards and the containers with cards, again and again.

Belongs here: the options, the order of the containers, the terminal and its keys. Does not belong here: the text of a
screen (vgpu.node.ctl.top_screen), and collecting the figures (vgpu.node.ctl.snapshot).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

import click

from vgpu.config import settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.placement.placement import Commitment
from vgpu.node.ctl import ps, snapshot
from vgpu.node.ctl.output import Id, fields, output_option, print_json, terminal_width
from vgpu.node.ctl.snapshot import Share, Snapshot

CARDS = (
    "card", "uuid", "name", "cores held", "cores used", "memory held", "memory used", "memory", "holders",
)  # fmt: skip
SORTS = ("cores", "memory", "name", "card", "since")
KEYS = {"c": "cores", "m": "memory", "n": "name", "d": "card", "s": "since"}
LOOK = 0.25  #: seconds after which the terminal's size is looked at again
PIPE_WIDTH = 160  #: columns of output that is no terminal
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  #: the alternate screen, without a cursor
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command()
@click.option("--once", is_flag=True, help="Print one screen and exit, as with output that is no terminal.")
@click.option("--sort", type=click.Choice(SORTS), default="cores", show_default=True, help="Order of the containers.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--interval", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, metavar="SECONDS",
              help="Time between two screens.")  # fmt: skip
@output_option
@click.pass_obj
def top(config_path: str, once: bool, sort: str, reverse: bool, interval: float, output: str) -> None:
    """Show what the cards and the containers with cards use, again and again.

    The keys c, m, n, d and s sort by cores, memory, name, card and start; r reverses the order; q quits. With
    `--output json` it prints one document and exits.
    """
    node = settings.read(config_path)
    order = Order(sort, reverse)
    if output == "json":
        print_json(_as_json(snapshot.take(node), order))
    elif once or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        _write(_screen(snapshot.take(node), order, terminal_width() or PIPE_WIDTH, 0, "") + "\n")
    else:
        with contextlib.suppress(KeyboardInterrupt), _own_screen() as key:
            Live(node, order, interval, key).run()


class Order:
    """The order of the containers."""

    def __init__(self, sort: str, reverse: bool) -> None:
        self.sort = sort
        self.reverse = reverse

    def press(self, key: str) -> None:
        """Change the order as the key says. Another key changes nothing."""
        self.sort = KEYS.get(key, self.sort)
        self.reverse ^= key == "r"

    def applied(self, shares: list[Share]) -> list[Share]:
        """`shares` in this order: the greatest use first, or by name, card or start. Ended containers are left out."""
        rows = sorted((row for row in shares if row.state != ps.STOPPED), key=_default_rank)
        return sorted(rows, key=_RANKS[self.sort], reverse=self.reverse)

    def footer(self) -> str:
        arrow = ", reversed" if self.reverse else ""
        return f"sorted by {self.sort}{arrow} | c cores  m memory  n name  d card  s since  r reverse  q quit"


class Live:
    """Screens until the key q. `key` waits for a key for some seconds and returns it, or "" after that time."""

    def __init__(self, node: Settings, order: Order, interval: float, key: Callable[[float], str]) -> None:
        self.node = node
        self.order = order
        self.interval = interval
        self.key = key
        self.found = snapshot.take(node)
        self.error = ""

    def run(self) -> None:
        while self._show_until(time.monotonic() + self.interval):
            try:
                self.found, self.error = snapshot.take(self.node), ""
            except (VgpuError, OSError) as error:  # such as an inventory that is being replaced: the last figures stay
                self.error = str(error)

    def _show_until(self, due: float) -> bool:
        """Show the figures until it is time for the next ones. False: the user quits."""
        shown: object = None
        while (left := due - time.monotonic()) > 0:
            size = shutil.get_terminal_size()
            state = size, self.order.sort, self.order.reverse
            if state != shown:
                footer = f"error: {self.error}" if self.error else self.order.footer()
                lines = _screen(self.found, self.order, size.columns, size.lines, footer).split("\n")[: size.lines]
                _write(HOME + "\r\n".join(CLEAR_LINE + line for line in lines) + CLEAR_BELOW)
                shown = state
            pressed = self.key(min(left, LOOK))
            if pressed == "q":
                return False
            self.order.press(pressed)
        return True


def _screen(found: Snapshot, order: Order, width: int, height: int, footer: str) -> str:
    from vgpu.node.ctl.top_screen import View, draw  # noqa: PLC0415 - --help and JSON do without rich

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    view = View(width, height, colour, "utf" in (sys.stdout.encoding or "").lower(), footer)
    return draw(found, order.applied(found.shares), view)


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


@contextlib.contextmanager
def _own_screen() -> Iterator[Callable[[float], str]]:
    """The terminal's alternate screen, for the block; the function that waits for a key. SIGTERM ends the block."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else -1
    before = termios.tcgetattr(keyboard) if keyboard >= 0 else []
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def key(seconds: float) -> str:
        if keyboard < 0:
            time.sleep(seconds)
            return ""
        if not select.select([keyboard], [], [], seconds)[0]:
            return ""
        return os.read(keyboard, 64)[:1].decode("latin-1") or "q"  # nothing: the terminal is gone

    try:
        if keyboard >= 0:
            tty.setcbreak(keyboard)
        _write(ENTER)
        yield key
    finally:
        _write(LEAVE)
        if keyboard >= 0:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _default_rank(row: Share) -> tuple[str, str, str]:
    return f"{row.card!s:>8}", row.name, row.claim.container


def _cores_rank(row: Share) -> float:
    return -float(row.cores_used) if isinstance(row.cores_used, (int, float)) else 1.0


_RANKS: dict[str, Callable[[Share], Any]] = {
    "cores": _cores_rank,
    "memory": lambda row: 1 if row.memory_used is None else -row.memory_used,
    "name": lambda row: row.name or row.claim.container,
    "card": _default_rank,
    "since": lambda row: row.claim.created,
}


def _as_json(found: Snapshot, order: Order) -> dict[str, object]:
    cards = []
    for card in found.cards:
        held, (cores, memory) = found.committed.get(card.uuid, Commitment()), found.card_use(card.uuid)
        row = [card.index, Id(card.uuid), card.name, held.cores, cores,
               card.memory if held.exclusive else held.memory, memory, card.memory, list(held.holders)]  # fmt: skip
        cards.append(fields(CARDS, row))
    containers = [ps.as_json(row, found) for row in order.applied(found.shares)]
    return {"cards": cards, "containers": containers, "warnings": found.warnings}
