"""`vgpuctl selftest`: proves on this node's own card what vgpu promises, and prints the report.

Belongs here: options, progress on stderr, signals, exit statuses, and changing a share as `vgpuctl set` does. Does not
belong here: what is measured (vgpu.node.selftest).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import Any

import click

from vgpu.config import claims, inventory, paths, settings
from vgpu.config.errors import VgpuError
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.node.ctl import set as ctl_set
from vgpu.node.ctl.output import output_option, print_errors_as_json, print_json
from vgpu.node.selftest import bare, clients, container, place, report, run
from vgpu.node.selftest.program import NAME, NotJudged
from vgpu.node.selftest.way import Way
from vgpu.node.service import installation

NOT_JUDGED = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
TIMEOUTS = {run.QUICK: 900, run.FULL: 3600}  #: seconds; a run takes a fifth of that on a card that works


@click.command()
@click.option("--quick/--full", "quick", default=True, show_default=True, help="Within a minute; or every row.")
@click.option("--card", default="", metavar="UUID", help="The card to test, by the beginning of its UUID.")
@click.option("--runtime", "name", default="", metavar="NAME", help=f"One of {', '.join(clients.NAMES)}.")
@click.option("--bare", "is_bare", is_flag=True, help="Without containers and root: libvcuda by the loader's path.")
@click.option("--row", "only", multiple=True, metavar="ID", help="Only rows that begin so; may be repeated.")
@click.option("--report", "path", default="", metavar="FILE", help="Write the report to FILE, as JSON.")
@click.option("--show", default="", metavar="FILE", help="Print the page of a report, and test nothing.")
@output_option
@click.pass_context
def selftest(
    ctx: click.Context, quick: bool, card: str, name: str, is_bare: bool, only: tuple[str, ...], path: str, show: str,
    output: str,
) -> None:  # fmt: skip
    """Show on this node's own card whether what vgpu promises holds, and print the report.

    It takes a card that nobody uses, or says who is on it and stops. The exit status is 0 if all rows pass, 1 if one
    fails, and 3 if nothing could be judged.
    """
    try:
        if path:
            _check(path)
        made = (
            report.read(show) if show else _tested(ctx.obj, run.QUICK if quick else run.FULL, card, name, is_bare, only)
        )
        if path:
            _write(path, made)
    except (NotJudged, Stopped) as error:
        click.echo(f"vgpuctl: {error}", err=True)
        print_errors_as_json(ctx, [str(error)])
        ctx.exit(NOT_JUDGED)
    if output == "json":
        print_json(made)
    else:
        click.echo(report.page(made), nl=False)
    ctx.exit(report.EXIT[made["result"]])


def _check(path: str) -> None:
    """NotJudged if a report cannot be written there; before a run, which takes minutes."""
    was_there = os.path.exists(path)
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise NotJudged("--report", expected="a file to write", found=error.strerror) from error
    if not was_there:
        os.unlink(path)


def _write(path: str, made: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.write("\n")


def _tested(config_path: str, depth: str, card: str, name: str, is_bare: bool, only: tuple[str, ...]) -> dict[str, Any]:
    for number in SIGNALS:
        signal.signal(number, _stop)
    signal.alarm(TIMEOUTS[depth])
    try:
        if is_bare:
            node = settings.read_or_default(config_path)
            with place.taken(bare.places(), lambda _directory: None) as directory:
                return _run(
                    bare.Bare(directory, _program(node), node.text("paths.libvcuda"), node.run_dir), card, depth, only
                )
        return _by_containers(config_path, card, depth, name, only)
    finally:
        signal.alarm(0)


def _by_containers(config_path: str, card: str, depth: str, name: str, only: tuple[str, ...]) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise NotJudged("vgpuctl selftest", expected="root", found=f"uid {os.geteuid()}", do="run as root, or --bare")
    runtime = clients.chosen(name)
    try:
        node = settings.read(config_path)
        known = inventory.read(node.run_dir)
    except VgpuError as error:
        raise NotJudged(error.what, expected=error.expected, found=error.found, do=error.do) from error

    def change(container_id: str, wanted: list[CardLimit]) -> None:
        ledger = Ledger(node, known.cards)
        with Lock(node.run_dir):
            ctl_set.change(ledger, claims.read(node.run_dir, container_id), wanted)

    with place.taken([paths.selftest(node.run_dir)], clients.end) as directory:
        client = clients.make(runtime, directory, node, f"{installation.programs()}/vgpu-hook", config_path)
        way = container.Containers(directory, _program(node), runtime, client, node, known, change)
        return _run(way, card, depth, only)


def _program(node: Settings) -> str:
    """The measuring program: beside libvcuda's directory, or where a checkout has it."""
    places = os.path.dirname(node.text("paths.libvcuda")), installation.programs()
    found = shutil.which(NAME, path=os.pathsep.join(places))
    if not found:
        raise NotJudged(NAME, expected="vgpu's program", found="none", do=installation.install_again())
    return found


def _run(way: Way, card: str, depth: str, only: tuple[str, ...]) -> dict[str, Any]:
    return run.run(way, card, depth, only, lambda line: click.echo(f"selftest: {line}", err=True))


class Stopped(BaseException):
    """A signal ended the run. Not an Exception, so that no row takes it for its own error."""


def _stop(number: int, _frame: object) -> None:
    """The first signal ends the run, and further ones do not disturb the end."""
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped("self-test: it took too long" if number == signal.SIGALRM else "self-test: stopped")
