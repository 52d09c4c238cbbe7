"""The report: one JSON document by a schema, and the page that is made from it.

Belongs here: rows as the report has them, the document, its check and its page. Nothing in it names a host, a user, a
container or a path: rows carry figures and fixed words only, and UUIDs are shortened.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from vgpu.config.errors import VgpuError, shown

VERSION = 1
PASS, FAIL, INFO, NOT_APPLICABLE, NOT_JUDGED = "pass", "fail", "info", "not applicable", "not judged"
VERDICTS = (PASS, FAIL, INFO, NOT_APPLICABLE, NOT_JUDGED)
EXIT = {PASS: 0, FAIL: 1, NOT_APPLICABLE: 3}
SCHEMA = os.path.join(os.path.dirname(__file__), "report.schema.json")
SHORT = 12  #: characters of a UUID
WIDTH = 120


@dataclass(frozen=True)
class Row:
    """One line of the report. `source` is the sentence from which the limits of the verdict come, "" without any."""

    id: str
    promised: str
    measured: str
    verdict: str
    source: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def result(rows: Iterable[Row]) -> str:
    """FAIL if a row fails; PASS if one passes and all others could be judged; otherwise NOT_APPLICABLE."""
    verdicts = {row.verdict for row in rows}
    if FAIL in verdicts:
        return FAIL
    return PASS if PASS in verdicts and NOT_JUDGED not in verdicts else NOT_APPLICABLE


def document(head: Mapping[str, Any], rows: Iterable[Row]) -> dict[str, Any]:
    listed = list(rows)
    made = {**head, "version": VERSION, "result": result(listed), "rows": [vars(row) for row in listed]}
    check(made, "the report")
    return made


def check(made: object, source: str) -> None:
    """VgpuError unless `made` is a report of this version."""
    with open(SCHEMA, encoding="utf-8") as file:
        schema = json.load(file)
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(made))
    if error:
        where = "/".join(map(str, error.absolute_path)) or "the document"
        raise VgpuError(f"{source}: {where}", expected="a report of vgpuctl selftest", found=shown(error.message))


def read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            made: dict[str, Any] = json.load(file)
    except OSError as error:
        raise VgpuError(shown(path), expected="a report", found=error.strerror) from error
    except ValueError as error:
        raise VgpuError(shown(path), expected="a report", found=f"no JSON: {error}") from error
    check(made, shown(path))
    return made


def page(made: Mapping[str, Any]) -> str:
    """The report for people."""
    card = made["card"]
    lines = [
        f"vgpu self-test: {made['result']}",
        f"{card['name']} ({card['uuid']}), {card['memory'] >> 20} MiB, driver {made['driver']}, CUDA {made['cuda']}; "
        f"vgpu {made['vgpu']}, {made['way']}, {made['depth']}, {made['date']}, {made['seconds']:.0f} s",
    ]
    for verdict in VERDICTS:
        rows = [row for row in made["rows"] if row["verdict"] == verdict]
        if rows:
            lines += ["", f"{verdict} ({len(rows)})"]
        for row in rows:
            lines += _wrapped(
                f"  {row['id']}: ",
                f"promised {row['promised']}; measured {row['measured']}" if row["promised"] else row["measured"],
            )
            if verdict == FAIL and row["source"]:
                lines += _wrapped("    limits: ", row["source"])
    if made["notes"]:
        lines += ["", "notes", *(line for note in made["notes"] for line in _wrapped("  ", note))]
    return "\n".join(lines) + "\n"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent="    ")


def short(uuid: str) -> str:
    return uuid[:SHORT]
