"""`vgpuctl health`: the status of vgpud and of this node, and the processes of each container.

Belongs here: printing the answers of vgpud. `vgpuctl status` uses `status_line` and `core_use` of them. Does not belong
here: collecting the answers, which vgpu.node.daemon.main does.
"""

from __future__ import annotations

import click

from vgpu.config import settings
from vgpu.config.errors import VgpuError, escaped
from vgpu.node.ctl.output import Id, Time, output_option, print_json, print_table, wide_option
from vgpu.node.daemon import client

PROCESSES = ("container", "name", "init", "processes")


@click.command()
@output_option
@click.option("--processes", is_flag=True, help="Print the host's processes of each container instead.")
@wide_option
@click.pass_obj
def health(config_path: str, output: str, processes: bool, wide: bool) -> None:
    """Print the status of vgpud and of this node. The exit status is 1 if vgpud does not answer."""
    node = settings.read(config_path)
    answer = client.ask(node.run_dir, "processes" if processes else "health")
    if output == "json":
        print_json(answer)
    elif processes:
        print_table([_row(item) for item in _objects(answer, "containers")], PROCESSES, wide=wide)
    else:
        print_table(_facts(answer), ("what", "found"), wide=wide)
        for warning in _texts(answer, "warnings"):
            click.echo(f"warning: {warning}", err=True)


def status_line(run_dir: str) -> tuple[str, dict[str, object] | None]:
    """(one line about vgpud, its answer or None)."""
    try:
        answer = client.ask(run_dir, "health")
    except VgpuError as error:
        return f"vgpud: does not answer ({error.found}); containers start and run without it", None
    facts = dict(_facts(answer))
    warnings = _texts(answer, "warnings")
    suffix = f"; warnings: {'; '.join(warnings)}" if warnings else ""
    return f"vgpud: running for {facts['running for']}, inventory {facts['inventory']}{suffix}", answer


def core_use(answer: dict[str, object] | None) -> dict[tuple[str, str], tuple[object, object]]:
    """(percent of the card used in the last round, percent lent now) by container and card; `answer` is vgpud's."""
    rows = _objects(answer or {}, "cores")
    return {(str(row.get("container")), str(row.get("card"))): (_percent(row, "used"), row.get("lent")) for row in rows}


def _percent(row: dict[str, object], name: str) -> object:
    value = row.get(name)
    return round(value, 1) if isinstance(value, (int, float)) else None


def _facts(answer: dict[str, object]) -> list[tuple[str, object]]:
    inventory, reaper, claims, devices = (
        _object(answer, name) for name in ("inventory", "reaper", "claims", "devices")
    )
    foreign = _object(answer, "foreign")
    foreign_users = [f"{uuid}: {_users(users)}" for uuid, users in foreign.items()]
    return [
        ("version", answer.get("version")),
        ("pid", answer.get("pid")),
        ("running for", _duration(answer.get("uptime"))),
        ("inventory", inventory.get("error") or inventory.get("state")),
        ("driver", inventory.get("driver_version")),
        ("cards", inventory.get("cards")),
        ("inventory taken", _when(inventory.get("taken"))),
        ("last look of the reaper", _when(reaper.get("last"))),
        ("released by the reaper", reaper.get("released")),
        ("claims", ", ".join(f"{count} {name}" for name, count in claims.items())),
        ("containers whose devices were allowed again", devices.get("reopened")),
        ("users of cards without a claim", foreign_users),
        ("core shares", [_share(row) for row in _objects(answer, "cores")]),
    ]


def _share(row: dict[str, object]) -> str:
    """One container's use of one card, in percent of the card."""
    figures = [f"{name} {_percent(row, name)}" for name in ("used", "seen", "lent") if _percent(row, name) is not None]
    penalty = ", penalized" if row.get("doubted") else ""
    return f"{row.get('container')} on {row.get('card')}: {', '.join(figures)}{penalty}"


def _users(users: object) -> str:
    found = users if isinstance(users, list) else []
    return " and ".join(f"{user.get('command')} ({user.get('pid')})" for user in found if isinstance(user, dict))


def _row(item: dict[str, object]) -> list[object]:
    pids = [entry.get("pid") for entry in _objects(item, "processes")]
    return [Id(item.get("container") or ""), item.get("name"), item.get("pid"), pids]


def _object(answer: dict[str, object], name: str) -> dict[str, object]:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}


def _objects(answer: dict[str, object], name: str) -> list[dict[str, object]]:
    found = answer.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _texts(answer: dict[str, object], name: str) -> list[str]:
    found = answer.get(name)
    return [escaped(str(item)) for item in found] if isinstance(found, list) else []


def _when(value: object) -> str:
    if not isinstance(value, (int, float)) or not value:
        return "never"
    return str(Time(value))


def _duration(value: object) -> str:
    """Seconds in the two largest units: 3 d 4 h, 5 min 6 s."""
    left = int(value) if isinstance(value, (int, float)) else 0
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2]) or "0 s"
