"""Draws what `vgpuctl top` shows: tables of cards and of containers, with bars.

Belongs here: the text of one screen, as a function of a snapshot and of the size. Does not belong here: the terminal,
its keys and the time between two screens (vgpu.node.ctl.top). This module loads rich, which no other verb needs.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from vgpu.config.errors import escaped
from vgpu.config.inventory import Card
from vgpu.config.limits import UNLIMITED
from vgpu.hook.placement.placement import Commitment
from vgpu.node.ctl.output import Bytes, Id
from vgpu.node.ctl.snapshot import Share, Snapshot

MIDDLE = 100  #: columns from which the screen has more of each container
BROAD = 130
HIGH, FULL = 0.75, 0.95  #: parts of a limit from which a bar is yellow, and red
MOST_WARNINGS = 2
UNKNOWN = "-"


@dataclasses.dataclass(frozen=True)
class View:
    """How to draw. `height` 0 has room for all lines. `blocks`: the terminal can show block characters."""

    width: int
    height: int = 0
    colour: bool = False
    blocks: bool = True
    footer: str = ""


class Bar:
    """A bar as wide as its column, filled up to `part` of it (0 to 1)."""

    def __init__(self, part: float, view: View) -> None:
        self.part = min(max(part, 0.0), 1.0)
        self.view = view

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        full, rest = ("█", "░") if self.view.blocks else ("#", ".")
        filled = int(options.max_width * self.part + 0.5)
        colour = "red" if self.part >= FULL else "yellow" if self.part >= HIGH else "green"
        yield Segment(full * filled, Style.parse(colour))
        yield Segment(rest * (options.max_width - filled), Style.parse("bright_black"))


def draw(found: Snapshot, shares: list[Share], view: View) -> str:
    """The screen: `shares` are the containers in the order in which they are shown."""
    console = Console(
        file=io.StringIO(), width=view.width, force_terminal=view.colour, legacy_windows=False, highlight=False,
        color_system="standard" if view.colour else None, emoji=False, markup=False,
    )  # fmt: skip
    warnings = found.warnings[:MOST_WARNINGS]
    lines = 6 + len(warnings) + bool(view.footer)  # all but the rows of the two tables
    card_room = max(view.height // 2 - 2, 1)
    cards = found.cards if not view.height else found.cards[:card_room]
    room = max(view.height - lines - len(cards), 1) if view.height else len(shares)
    with console.capture() as capture:
        _print(console, found.daemon_line)
        for warning in warnings:
            _print(console, f"warning: {warning}", "yellow")
        console.print()
        console.print(_cards(found, cards, view))
        _print(console, _more(len(found.cards) - len(cards), "card"))
        console.print(_containers(shares[:room], view))
        _print(console, _more(len(shares) - room, "container"))
        if view.footer:
            _print(console, view.footer, "bold")
    text: str = capture.get() if view.blocks else capture.get().replace("…", "~")
    return "\n".join(line.rstrip() for line in text.splitlines())


def _cards(found: Snapshot, cards: list[Card], view: View) -> Table:
    table = _table(("card", "name", "cores", "", "memory", "") + (("held",) if view.width >= MIDDLE else ()))
    for card in cards:
        held = found.committed.get(card.uuid, Commitment())
        cores, memory = found.card_use(card.uuid)
        cells: list[Text | Bar] = [
            _text(card.index), _text(card.name), Bar((cores or 0) / 100, view), _text(f"{_number(cores)} of 100 %"),
            Bar((memory or 0) / card.memory if card.memory else 0, view), _text(_sizes(memory, card.memory)),
        ]  # fmt: skip
        if view.width >= MIDDLE:
            whole = f"whole, by {len(held.holders)}" if held.exclusive else ""
            cells.append(_text(whole or f"{held.cores} %, {Bytes(held.memory)}, by {len(held.holders)}"))
        table.add_row(*cells)
    return table


def _containers(shares: list[Share], view: View) -> Table:
    middle, broad = view.width >= MIDDLE, view.width >= BROAD
    heads = ("container", "card", "cores", "", "memory", "")
    table = _table((("pid",) if middle else ()) + heads + (("limit", "lent", "state", "id") if broad else ()))
    for row in shares:
        limit, cores = row.limit, row.cores_used if isinstance(row.cores_used, (int, float)) else None
        whole = limit.memory == UNLIMITED
        used = (row.memory_used or 0) / limit.memory if limit.memory and not whole else 0
        cells: list[Text | Bar] = [
            _text(row.name or Id(row.claim.container).short()), _text(row.card),
            Bar((cores or 0) / (limit.core_limit or 100), view), _text(f"{_number(cores)} of {limit.cores} %"),
            Bar(used, view), _text("whole card" if whole else _sizes(row.memory_used, limit.memory)),
        ]  # fmt: skip
        before = [_text(row.claim.pid)] if middle else []
        after = [_percent(limit.core_limit), _percent(row.cores_lent), _text(row.state),
                 _text(Id(row.claim.container).short())] if broad else []  # fmt: skip
        table.add_row(*before, *cells, *after)
    return table


def _table(heads: tuple[str, ...]) -> Table:
    """A table without lines. The column before one without a head is a bar, and the one without a head its figures."""
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for head, following in zip(heads, (*heads[1:], "end")):
        if not following:
            table.add_column(head, ratio=2, no_wrap=True)
        elif head in ("container", "name"):
            table.add_column(head, ratio=4, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(head, justify="left" if head else "right", no_wrap=True, overflow="ellipsis")
    return table


def _print(console: Console, text: str, style: str = "") -> None:
    """Print one line, cut at the width."""
    console.print(Text(escaped(text), style=style), no_wrap=True, overflow="ellipsis")


def _more(count: int, noun: str) -> str:
    """A line that is empty unless something is left out."""
    return f"and {count} more {noun}{'s' * (count > 1)}" if count > 0 else ""


def _text(value: object) -> Text:
    return Text(escaped(str(value)))


def _percent(value: object) -> Text:
    return _text(UNKNOWN if value is None else f"{value} %")


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _sizes(used: int | None, limit: int) -> str:
    return f"{UNKNOWN if used is None else Bytes(used)} of {Bytes(limit)}"
