"""`vgpuctl status`: the cards of this node and the containers that hold them.

Belongs here: the two tables. Does not belong here: collecting their figures (vgpu.node.ctl.snapshot).
"""

from __future__ import annotations

import click

from vgpu.config import settings
from vgpu.config.inventory import Card
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.hook.placement.placement import Commitment
from vgpu.node.ctl import snapshot
from vgpu.node.ctl.output import (
    Bytes,
    Id,
    Time,
    fields,
    output_option,
    print_json,
    print_table,
    print_text,
    print_warnings,
    wide_option,
)
from vgpu.node.ctl.snapshot import Share

CARDS = ("card", "uuid", "name", "cores held", "memory held", "memory", "context", "holders")
CONTAINERS = (
    "container", "name", "card", "cores", "core limit", "cores used", "cores lent", "memory limit", "memory used",
    "state", "since",
)  # fmt: skip
#: Columns that a narrow terminal does not show, the first to go first.
OPTIONAL = ("since", "cores lent")


@click.command()
@output_option
@wide_option
@click.pass_obj
def status(config_path: str, output: str, wide: bool) -> None:
    """Show the cards with what is committed of them, and the containers with what they hold and use."""
    found = snapshot.take(settings.read(config_path))
    print_warnings(found.warnings)
    card_rows = [_card_row(card, found.committed.get(card.uuid, Commitment())) for card in found.cards]
    if output == "json":
        containers = [{**fields(CONTAINERS, _container_row(row)), "pod": row.claim.name} for row in found.shares]
        shown = [fields(CARDS, row) for row in card_rows]
        print_json({"cards": shown, "containers": containers, "daemon": found.daemon, "warnings": found.warnings})
        return
    print_text(found.daemon_line, wide)
    click.echo()
    print_table(card_rows, CARDS, wide=wide)
    click.echo()
    print_table([_container_row(row) for row in found.shares], CONTAINERS, wide=wide, optional=OPTIONAL)


def _card_row(card: Card, held: Commitment) -> list[object]:
    memory = Bytes(card.memory if held.exclusive else held.memory)
    context = Bytes(card.context) if card.context else None
    holders = [Id(holder) for holder in held.holders]  # ids and names
    return [card.index, Id(card.uuid), card.name, held.cores, memory, Bytes(card.memory), context, holders]


def _container_row(row: Share) -> list[object]:
    return [
        Id(row.claim.container), row.name, row.card, row.limit.cores, row.limit.core_limit, row.cores_used,
        row.cores_lent, memory_limit(row.limit), memory_used(row), row.state, Time(row.claim.created),
    ]  # fmt: skip


def memory_limit(card: CardLimit) -> object:
    return "whole card" if card.memory == UNLIMITED else Bytes(card.memory)


def memory_used(row: Share) -> object:
    return None if row.memory_used is None else Bytes(row.memory_used)
