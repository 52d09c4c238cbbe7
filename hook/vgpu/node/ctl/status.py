"""`vgpuctl status`: the cards of this node and the containers that hold them.

Belongs here: the two tables, from claims, grants and usage regions. vgpuctl reads the memory that a container uses from
that container's usage region, through the container's root by file descriptor, and leaves out what ended processes
held; the container itself writes that figure. A container may block this, so a reader does it, and a container that
does not answer in time is a warning.
vgpud reports the core time that each container used in the last round, which is also the container's own figure, and
the percent that is lent to it now. Does not belong here: asking vgpud, which vgpu.node.ctl.health does.
"""

from __future__ import annotations

import click

from vgpu.config import inventory as inventories
from vgpu.config import limits, paths, records, settings
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Card
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.placement.placement import Commitment
from vgpu.node.ctl import health
from vgpu.node.ctl.names import Names
from vgpu.node.ctl.output import (
    Bytes,
    Id,
    Time,
    fields,
    output_option,
    print_json,
    print_table,
    print_text,
    wide_option,
)
from vgpu.node.daemon import reader, usage_regions

CARDS = ("card", "uuid", "name", "cores held", "memory held", "memory", "context", "holders")
CONTAINERS = (
    "container", "name", "card", "cores", "core limit", "cores used", "cores lent", "memory limit", "memory used",
    "state", "since",
)  # fmt: skip
#: Columns that a narrow terminal does not show, the first to go first.
OPTIONAL = ("since", "cores lent")
LIMIT = 1.0  #: seconds for the answer of a container, which takes some milliseconds
TOTAL = 5.0  #: seconds for all answers

Used = dict[str, int]  #: bytes by card uuid


@click.command()
@output_option
@wide_option
@click.pass_obj
def status(config_path: str, output: str, wide: bool) -> None:
    """Show the cards with what is committed of them, and the containers with what they hold and use."""
    node = settings.read(config_path)
    cards = inventories.read(node.run_dir).cards
    ledger = Ledger(node, cards)
    committed = ledger.commitments()
    held = ledger.claims()
    living = ContainerProcesses([claim for claim in held if ledger.lives(claim)])
    names = Names()
    used, silent = _memory_used(living)
    warnings = list(dict.fromkeys([*ledger.notes, *(_does_not_answer(claim, names) for claim in silent)]))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    card_rows = [_card_row(card, committed.get(card.uuid, Commitment())) for card in cards]
    daemon_line, answer = health.status_line(node.run_dir)
    cores = health.core_use(answer)
    rows = [
        (claim, _container_rows(claim, names.of(claim), cards, living, used, node.run_dir, cores)) for claim in held
    ]
    if output == "json":
        containers = [{**fields(CONTAINERS, row), "pod": claim.name} for claim, found in rows for row in found]
        shown = [fields(CARDS, row) for row in card_rows]
        print_json({"cards": shown, "containers": containers, "daemon": answer, "warnings": warnings})
        return
    print_text(daemon_line, wide)
    click.echo()
    print_table(card_rows, CARDS, wide=wide)
    click.echo()
    print_table([row for _, found in rows for row in found], CONTAINERS, wide=wide, optional=OPTIONAL)


def _card_row(card: Card, held: Commitment) -> list[object]:
    memory = Bytes(card.memory if held.exclusive else held.memory)
    context = Bytes(card.context) if card.context else None
    holders = [Id(holder) for holder in held.holders]  # ids and names
    return [card.index, Id(card.uuid), card.name, held.cores, memory, Bytes(card.memory), context, holders]


def _container_rows(
    claim: Claim,
    name: str,
    cards: list[Card],
    living: ContainerProcesses,
    used: dict[str, Used],
    run_dir: str,
    cores: dict[tuple[str, str], tuple[object, object]],
) -> list[list[object]]:
    lives = claim in living.claims
    figures = used.get(claim.container, {})
    state = "stopped" if not lives else "running" if claim.ready else "starting"
    index = {card.uuid: card.index for card in cards}
    return [
        [
            Id(claim.container), name, index.get(card.uuid, card.uuid), card.cores, card.core_limit,
            *cores.get((claim.container, card.uuid), (None, None)), _memory(card), _used(figures, card), state,
            Time(claim.created),
        ]
        for card in _in_force(claim, run_dir)
    ]  # fmt: skip


def _memory_used(living: ContainerProcesses) -> tuple[dict[str, Used], list[Claim]]:
    """The memory that each container uses, and the containers that did not answer."""
    shares = [claim for claim in living.claims if not claim.exclusive]

    def held(index: int) -> Used:
        claim = shares[index]
        return usage_regions.held(claim.pid, claim.start_time, lambda: living.of(claim))

    asked = reader.each(len(shares), held, LIMIT, TOTAL)
    answers = {shares[index].container: answer for index, answer in asked.answers.items()}
    used = {container: answer for container, answer in answers.items() if isinstance(answer, dict)}
    return used, [shares[index] for index in asked.silent]


def _does_not_answer(claim: Claim, names: Names) -> str:
    name = names.of(claim)
    label = f"container {claim.container} ({name})" if name else f"container {claim.container}"
    return (
        f"{label}: the memory that it uses is not known: expected its usage region in {LIMIT:g} s, "
        "found that a program in it blocks the host; look for FUSE mounts and fanotify there, or end it"
    )


def _in_force(claim: Claim, run_dir: str) -> list[CardLimit]:
    """The limits that libvcuda reads, or the claim's own limits if the file cannot be read."""
    path = paths.limits(run_dir, claim.container)
    try:
        return limits.decode(records.read_bounded(path, limits.SIZE), path)[1]
    except (OSError, VgpuError):
        return claim.cards


def _memory(card: CardLimit) -> object:
    return "whole card" if card.memory == UNLIMITED else Bytes(card.memory)


def _used(used: dict[str, int], card: CardLimit) -> object:
    return Bytes(used[card.uuid]) if card.uuid in used else None
