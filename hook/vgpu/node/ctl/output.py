"""Printing of results: tables for people and JSON for programs, from the same rows.

Belongs here: rendering. Does not belong here: collecting the rows, which each verb does. A verb passes raw values. A
value that a table shows in another form than JSON has a type of its own: `Bytes`, `Id`, `Time`.

A table on a terminal fits its width: ids are shortened, headers and cells are wrapped, and a verb may name columns that
are left out first. --wide turns that off. Output that is no terminal is read by programs and kept in files, which have
no width, so it is always wide; with COLUMNS in the environment it fits that many columns.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

Verb = TypeVar("Verb", bound=Callable[..., Any])

FORMATS = ("table", "json")
SHORT_ID = 12
LEAST_HEX = 32  #: of hexadecimal digits in an id that a program made
LEAST_WIDTH = 4  #: of a column whose cells are wrapped
GAP = 2  #: between two columns

_FORMAT = "vgpu.output"  #: in the context's meta, which all contexts of one command share


def _remember(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    ctx.meta[_FORMAT] = value
    return value


def output_option_of(formats: Sequence[str] = FORMATS, default: str = "table") -> Callable[[Verb], Verb]:
    """`--output`, passed to the verb as `output`."""
    return click.option(
        "--output", type=click.Choice(formats), default=default, show_default=True, help="Form of the result.",
        callback=_remember,
    )  # fmt: skip


output_option = output_option_of()
#: `--wide`, passed to the verb as `wide`.
wide_option = click.option(
    "--wide", is_flag=True, help="Print whole ids and all columns, however wide the terminal is."
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


class Id(str):
    """The id of a container, card or grant. A table that has to fit a terminal shows the first SHORT_ID characters.

    A name that a person gave stays whole: ctr's and runc's users choose ids themselves.
    """

    __slots__ = ()

    def short(self) -> str:
        made = len(self) >= LEAST_HEX and not set(self) - set("0123456789abcdef")
        return self[:SHORT_ID] if made or self.startswith(("GPU-", "MIG-")) else self


class Time(float):
    """Seconds since 1970. JSON and tables show the local time with its zone, JSON in the form of ISO 8601."""

    def __str__(self) -> str:
        return datetime.datetime.fromtimestamp(self).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")

    def iso(self) -> str:
        return datetime.datetime.fromtimestamp(self).astimezone().isoformat(timespec="seconds")


def print_table(
    rows: Iterable[Sequence[object]],
    headers: Sequence[str],
    output: str = "table",
    wide: bool = False,
    optional: Sequence[str] = (),
) -> None:
    """Print `rows` to stdout. As JSON they are a list of objects, whose keys are `headers` in snake_case.

    `optional` are the headers of columns that are left out, in this order, where the table does not fit otherwise.
    """
    if output == "json":
        print_json([fields(headers, row) for row in rows])
        return
    room = 0 if wide else terminal_width()
    values = [list(row) for row in rows]
    cells = [[_cell(value, room > 0) for value in row] for row in values]
    left_out: list[str] = []
    if room:
        ids = {headers[at] for row in values for at, value in enumerate(row) if isinstance(value, Id)}
        headers, cells, left_out = _fitted(headers, cells, room, optional, ids)
    click.echo(_drawn(headers, cells))
    if left_out:
        click.echo(f"(--wide also shows: {', '.join(left_out)})")


def terminal_width() -> int:
    """The columns that a table may take; 0 if there is no limit."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return 0


def print_text(text: str, wide: bool = False) -> None:
    """Print a line of text, in several lines if the terminal is narrower."""
    room = 0 if wide else terminal_width()
    click.echo(textwrap.fill(text, room, break_on_hyphens=False) if room else text)


def print_warnings(warnings: Sequence[str]) -> None:
    """Print each warning to stderr."""
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    click.echo(json.dumps(_plain(value), indent=2))


def print_errors_as_json(ctx: click.Context, lines: Sequence[str]) -> None:
    """Print the errors that ended a verb, if its caller has asked for JSON."""
    if ctx.meta.get(_FORMAT) == "json":
        print_json({"errors": list(lines)})


def fields(headers: Sequence[str], row: Sequence[object]) -> dict[str, object]:
    """A row as the object that JSON shows."""
    return dict(zip((header.lower().replace(" ", "_") for header in headers), row))


def _plain(value: object) -> object:
    if isinstance(value, Time):
        return value.iso()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _cell(value: object, short: bool = False) -> str:
    """A cell's text, on one line."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item, short) for item in value) or "-"
    text = value.short() if short and isinstance(value, Id) else str(value)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _drawn(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate  # noqa: PLC0415 - --help does without it

    rule = ["-" * width for width in _widths(headers, cells)]
    text = tabulate([list(headers), rule, *cells], tablefmt="plain", disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _widths(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    columns = zip(headers, *cells) if cells else ((header,) for header in headers)
    return [max(len(line) for text in column for line in text.split("\n")) for column in columns]


def _fitted(
    headers: Sequence[str], cells: Sequence[Sequence[str]], room: int, optional: Sequence[str], ids: set[str]
) -> tuple[list[str], list[list[str]], list[str]]:
    """(headers, cells, headers of the columns that are left out) of a table that is at most `room` wide.

    The columns `ids` are not broken within the first SHORT_ID characters, unless there is no other way.
    """
    names = list(headers)
    shown = list(range(len(names)))
    left_out: list[str] = []
    for name in (None, *optional):
        if name is not None:
            left_out.append(name)
            shown = [at for at in shown if names[at] != name]
        wrapped = [names[at].replace(" ", "\n") for at in shown]
        body = [[row[at] for at in shown] for row in cells]
        widths = _widths(wrapped, body)
        if _total(widths) <= room:
            break
    least = [SHORT_ID if names[at] in ids else LEAST_WIDTH for at in shown]
    limits = _shrunk(_shrunk(widths, room, least), room, [1] * len(least))
    return _wrapped(wrapped, limits), [_wrapped(row, limits) for row in body], left_out


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _shrunk(widths: Sequence[int], room: int, least: Sequence[int]) -> list[int]:
    """Widths whose total is at most `room`, if `least` permits: the widest column gives first."""
    left = list(widths)
    while _total(left) > room:
        give = [at for at, width in enumerate(left) if width > least[at]]
        if not give:
            break
        left[max(give, key=lambda at: left[at])] -= 1
    return left


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return ["\n".join(_lines(text, width)) for text, width in zip(row, widths)]


def _lines(text: str, width: int) -> list[str]:
    parts = text.split("\n")
    return [line for part in parts for line in textwrap.wrap(part, width, break_on_hyphens=False) or [""]]
