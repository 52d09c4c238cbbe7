"""`vgpuctl report`: what containers have held of the cards in a time, for chargeback.

Belongs here: the time that the user means, and the sums over it. The times with their amounts are vgpud's
(vgpu.node.daemon.held_time): its log, and its record of what is held now. What containers use of it is not in them.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Iterator
from typing import Any

import click

from vgpu.config import paths, records, settings
from vgpu.config.errors import VgpuError
from vgpu.config.request import WHOLE_CARD
from vgpu.node.ctl.output import output_option, print_table, wide_option
from vgpu.node.daemon.held_time import MAX_LOG, MAX_RECORD, Held

COLUMNS = ("namespace", "pod", "container", "core seconds", "memory byte seconds", "card hours", "GiB hours")
PARTS = ("namespace", "pod", "container")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
HOUR, GIB = 3600, 1 << 30


def moment(text: str, now: float) -> float:
    """Seconds since 1970 of a time like 36h or 7d before now, or of a date with or without a time of day."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found:
        return now - int(found[1]) * UNITS[found[2]]
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise VgpuError("time", expected="such as 36h, 7d, 2026-11-01 or 2026-11-01T12:00", found=text) from None


@click.command()
@click.option("--since", default="24h", show_default=True, metavar="TIME", help="A date, or how long ago: 36h, 7d.")
@click.option("--until", default="0s", show_default="now", metavar="TIME", help="The same, for the end.")
@click.option("--by", type=click.Choice(PARTS), default="container", show_default=True, help="What makes one line.")
@output_option
@wide_option
@click.pass_obj
def report(config_path: str, since: str, until: str, by: str, output: str, wide: bool) -> None:
    """Print for how long containers have held how much of the cards: cards times hours, and GiB times hours.

    The amounts are those that containers hold, whether or not they use them, of running and of ended containers.
    """
    node, now = settings.read(config_path), time.time()
    print_table(rows(node.run_dir, node.state_dir, moment(since, now), moment(until, now), by), COLUMNS, output, wide)


def rows(run_dir: str, state_dir: str, since: float, until: float, by: str) -> list[list[object]]:
    """A row for each namespace, pod or container, by name."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for line in _lines(run_dir, state_dir):
        seconds = min(line["end"], until) - max(line["start"], since)
        if seconds > 0:
            names = (line["namespace"], line["pod"], line["name"])[: PARTS.index(by) + 1]
            one = sums.setdefault((*names, "", "")[:3], [0.0, 0.0])
            one[0] += line["cores"] / WHOLE_CARD * seconds
            one[1] += line["memory"] * seconds
    return [
        [*names, round(cores, 1), round(memory), round(cores / HOUR, 3), round(memory / GIB / HOUR, 3)]
        for names, (cores, memory) in sorted(sums.items())
    ]


def names(run_dir: str, state_dir: str) -> dict[str, str]:
    """The names of containers by id, also of ended ones: namespace/pod/container, or podman's or Docker's name."""
    found = {line["container"]: [line[part] for part in ("namespace", "pod", "name")]
             for line in _lines(run_dir, state_dir)}  # fmt: skip
    return {container: "/".join(filter(None, parts)) for container, parts in found.items() if parts[2] != container}


def _lines(run_dir: str, state_dir: str) -> Iterator[dict[str, Any]]:
    """Each time with its amounts once: vgpud writes one a second time if it was killed after the first."""
    seen = set()
    log = paths.held_log(state_dir)
    for line in (*_logged(log + ".1"), *_logged(log), *_open(run_dir, state_dir)):
        key = (line["container"], line["pid"], line["start_time"], line["began"])
        if key not in seen:
            seen.add(key)
            yield line


def _logged(path: str) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        for text in records.read_bounded(path, 2 * MAX_LOG).splitlines():
            with contextlib.suppress(VgpuError, KeyError, TypeError, ValueError):
                found = records.decode_object(text, path)
                yield _checked(found)


def _open(run_dir: str, state_dir: str) -> Iterator[dict[str, Any]]:
    """What is held now, as of vgpud's last round; after a reboot as of its last copy."""
    for path in (paths.held_time(run_dir), paths.held_time(state_dir)):
        with contextlib.suppress(FileNotFoundError, VgpuError, KeyError, TypeError, ValueError):
            found: dict[str, Any] = records.read(path, limit=MAX_RECORD)
            yield from [Held(**one).line() for one in found["held"]]
            return


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    numbers = [line[key] for key in ("start", "end", "cores", "memory", "began", "pid", "start_time")]
    texts = [line[key] for key in ("namespace", "pod", "name", "container")]
    if all(isinstance(one, (int, float)) for one in numbers) and all(isinstance(one, str) for one in texts):
        return line
    raise ValueError("a line of another form")
