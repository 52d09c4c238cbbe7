"""Printing of results: tables for people and JSON for programs, from the same rows.

Belongs here: rendering. Does not belong here: collecting the rows, which each verb does. A verb passes raw values. A
value with a unit has a type of its own (`Bytes`): JSON contains the number, the table a rounded size with its unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click
from tabulate import tabulate

FORMATS = ("table", "json")

#: `--output table|json`, passed to the verb as `output`.
output_option = click.option(
    "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Form of the result."
)


class Bytes(int):
    """A size. JSON shows bytes, a table the largest binary unit that fits."""

    def __str__(self) -> str:
        value, unit = float(self), "B"
        for name in ("KiB", "MiB", "GiB", "TiB"):
            if abs(value) < 1024:
                break
            value, unit = value / 1024, name
        return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"


def print_table(rows: Iterable[Sequence[object]], headers: Sequence[str], output: str = "table") -> None:
    """Print `rows` to stdout. As JSON they are a list of objects, whose keys are `headers` in snake_case."""
    if output == "json":
        print_json([dict(zip(map(_key, headers), row)) for row in rows])
        return
    cells = [[_cell(value) for value in row] for row in rows]
    click.echo(tabulate(cells, headers=list(headers), tablefmt="simple", disable_numparse=True))


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2))


def _key(header: str) -> str:
    return header.lower().replace(" ", "_")


def _cell(value: object) -> str:
    """A cell's text, on one line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value)) or "-"
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
