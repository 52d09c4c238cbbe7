"""`vgpuctl gc`: removes what ended containers, killed programs and earlier drivers have left on this node.

Belongs here: what counts as left, how long to wait for it, and the table. Does not belong here: when a record may go,
which vgpud's reaper decides (vgpu.node.daemon.reaper) and this verb has it do. Beside a running vgpud there is hardly
anything to do. Grants are no leftovers: they end with their pod.
"""

from __future__ import annotations

import io
import shutil
import time
from dataclasses import dataclass

import click

from vgpu.config import inventory as inventories
from vgpu.config import paths, settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.ctl.output import Id, output_option, print_json, print_table, wide_option
from vgpu.node.daemon import copy_removal
from vgpu.node.daemon.reaper import GRACE, Reaper
from vgpu.node.service.log import Conditions, Log

CLAIM, DAMAGED, TEMPORARY, COPY = "claim", "damaged claim", "temporary file", "copy of libvcuda"
LOOK = 0.5  #: seconds between two rounds
PATIENCE = GRACE + 3.0  #: seconds; a hook holds the ledger's lock for less
HEADERS = ("kind", "what", "why")


@dataclass(frozen=True)
class Leftover:
    """`what` is a container's id or a path. `wait` says why it stays for now, or "" if it may go."""

    kind: str
    what: str
    why: str
    wait: str = ""

    def row(self) -> tuple[str, str, str]:
        return self.kind, Id(self.what), f"{self.why}; {self.wait}" if self.wait else self.why


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@output_option
@wide_option
@click.pass_obj
def gc(config_path: str, dry_run: bool, output: str, wide: bool) -> None:
    """Remove what ended containers and killed programs have left on this node.

    These are claims of containers whose poststop hook did not run, damaged records of containers that are gone,
    temporary files, and copies of libvcuda for a driver and a package that are no longer there. vgpud removes the same
    all the time. Nothing of a living container is touched, and a claim goes only if its container has been dead for
    some seconds.
    """
    node = settings.read(config_path)
    reaper = Reaper(node, Conditions(Log(io.StringIO())))
    before = leftovers(node, reaper)
    if dry_run:
        removed, kept = [item for item in before if not item.wait], [item for item in before if item.wait]
    else:
        kept = collect(node, reaper)
        left = {(item.kind, item.what) for item in kept}
        removed = [item for item in before if (item.kind, item.what) not in left]
    if output == "json":
        print_json({"dry_run": dry_run, "removed": _json(removed), "kept": _json(kept)})
    else:
        _print("would be removed" if dry_run else "removed", removed, wide)
        if kept:
            _print("kept", kept, wide)


def leftovers(node: Settings, reaper: Reaper) -> list[Leftover]:
    """All that is left, in the order of the kinds."""
    return [*_claims(node, reaper), *_damaged(node, reaper), *_temporary(reaper), *_copies(node, reaper)]


def collect(node: Settings, reaper: Reaper) -> list[Leftover]:
    """Remove what may go. Returns what is left."""
    deadline = time.monotonic() + PATIENCE
    reaper.look()
    left = leftovers(node, reaper)
    if _is_to_go(left):
        click.echo(f"waiting {GRACE:.0f} s for the hooks of containers that have just ended ...", err=True)
    while _is_to_go(left) and time.monotonic() < deadline:
        time.sleep(LOOK)
        reaper.look()
        left = leftovers(node, reaper)
    for item in left:
        if item.kind == COPY and not item.wait:
            shutil.rmtree(item.what)
    return leftovers(node, reaper)


def _is_to_go(left: list[Leftover]) -> bool:
    """Whether the reaper may still remove something."""
    return any(not item.wait and item.kind != COPY for item in left)


def _claims(node: Settings, reaper: Reaper) -> list[Leftover]:
    ledger = Ledger(node, [], reaper.proc)
    return [
        Leftover(
            CLAIM, claim.container, f"its init {claim.pid} has died, and no poststop hook released it",
            "" if claim.ready else "its hook may still run: vgpud removes it after a minute",
        )
        for claim in reaper.found()[0]
        if not ledger.lives(claim)
    ]  # fmt: skip


def _damaged(node: Settings, reaper: Reaper) -> list[Leftover]:
    return [
        Leftover(DAMAGED, name, error or "left by a hook that was killed",
                 reaper.reason_to_keep(name, paths.container(node.run_dir, name), missing=not error))
        for name, error in reaper.found()[1].items()
    ]  # fmt: skip


def _temporary(reaper: Reaper) -> list[Leftover]:
    return [Leftover(TEMPORARY, path, "its writer died") for path in reaper.temporary_files()]


def _copies(node: Settings, reaper: Reaper) -> list[Leftover]:
    """Copies that fit nothing. vgpud knows which containers may have one. Here they stay while any container lives."""
    try:
        found = inventories.read(node.run_dir)
    except VgpuError:
        return []
    readable, damaged = reaper.found()
    holders = len(damaged) + sum(map(Ledger(node, [], reaper.proc).lives, readable))
    wait = f"{holders} containers may have it: vgpud removes it when they have ended" if holders else ""
    return [
        Leftover(COPY, f"{paths.all_limiter_copies(node.state_dir)}/{name}", "fits neither driver nor package", wait)
        for name in copy_removal.unfit_copies(node, found)
    ]


def _json(items: list[Leftover]) -> list[dict[str, str]]:
    return [dict(zip(HEADERS, item.row())) for item in items]


def _print(title: str, items: list[Leftover], wide: bool) -> None:
    if not items:
        click.echo(f"nothing {title}")
        return
    click.echo(f"{title}:")
    print_table([item.row() for item in items], HEADERS, wide=wide)
