"""`vgpuctl ps`: the containers with cards, a line for each container and card.

Belongs here: the table, and which containers it has. Does not belong here: collecting the figures
(vgpu.node.ctl.snapshot).
"""

from __future__ import annotations

import click

from vgpu.config import settings
from vgpu.node.ctl import snapshot
from vgpu.node.ctl.output import Id, Time, fields, output_option, print_json, print_table, print_warnings, wide_option
from vgpu.node.ctl.snapshot import Share, Snapshot
from vgpu.node.ctl.status import memory_limit, memory_used

CONTAINERS = (
    "pid", "container", "namespace", "pod", "name", "card", "uuid", "cores", "core limit", "cores used", "memory used",
    "memory limit", "processes", "state", "since",
)  # fmt: skip
#: Columns that a narrow terminal does not show, the first to go first.
OPTIONAL = ("uuid", "since", "processes", "core limit", "state", "namespace")
STOPPED = "stopped"


@click.command()
@click.option("--all", "ended", is_flag=True, help="Print containers that have ended and still have a claim, too.")
@click.option("--card", "cards", multiple=True, metavar="CARD", help="Only on this card: its index or its uuid.")
@output_option
@wide_option
@click.pass_obj
def ps(config_path: str, ended: bool, cards: tuple[str, ...], output: str, wide: bool) -> None:
    """List the containers with cards: their processes, shares, limits and use.

    Outside Kubernetes a container has no namespace and no pod, and its name is what podman or Docker calls it.
    """
    found = snapshot.take(settings.read(config_path))
    print_warnings(found.warnings)
    shares = [row for row in found.shares if (ended or row.state != STOPPED) and _is_on(row, cards)]
    if output == "json":
        print_json({"containers": [as_json(row, found) for row in shares], "warnings": found.warnings})
        return
    at = CONTAINERS.index("processes")
    rows = [_row(row, found) for row in shares]
    counted = [[*row[:at], _count(row[at]), *row[at + 1 :]] for row in rows]
    print_table(counted, CONTAINERS, wide=wide, optional=OPTIONAL)


def as_json(row: Share, found: Snapshot) -> dict[str, object]:
    """A line as the object that JSON shows."""
    return fields(CONTAINERS, _row(row, found))


def parts(row: Share) -> tuple[str, str, str]:
    """(namespace, pod, container's name); outside Kubernetes the first two are ""."""
    names = row.claim.name.split("/")
    return (names[0], names[1], names[2]) if len(names) == 3 else ("", "", row.name)


def _is_on(row: Share, cards: tuple[str, ...]) -> bool:
    return not cards or any(card in (str(row.card), row.limit.uuid) for card in cards)


def _row(row: Share, found: Snapshot) -> list[object]:
    return [
        row.claim.pid, Id(row.claim.container), *parts(row), row.card, Id(row.limit.uuid), row.limit.cores,
        row.limit.core_limit, row.cores_used, memory_used(row), memory_limit(row.limit), found.pids(row.claim),
        row.state, Time(row.claim.created),
    ]  # fmt: skip


def _count(pids: object) -> int:
    return len(pids) if isinstance(pids, list) else 0
