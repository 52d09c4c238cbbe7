"""What the cards of this node and the containers with cards hold and use at one moment.

Belongs here: the records of one moment, from the inventory, claims, limits files, usage regions and vgpud's answer.
Does not belong here: printing them, which `vgpuctl status`, `ps` and `top` do.

vgpuctl reads the memory that a container uses from that container's usage region, through the container's root by file
descriptor, and leaves out what ended processes held; the container itself writes that figure. A container may block
this, so a reader does it, and a container that does not answer in time is a warning. vgpud reports the core time that
each container used in the last round, which is also the container's own figure, and the percent that is lent to it now.
"""

from __future__ import annotations

import dataclasses
import time

from vgpu.config import inventory as inventories
from vgpu.config import limits, paths, records, usage
from vgpu.config.claims import Claim, one_of_each_budget
from vgpu.config.errors import VgpuError, escaped
from vgpu.config.inventory import Card
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.placement.placement import Commitment
from vgpu.node.ctl import health
from vgpu.node.daemon import reader, usage_regions
from vgpu.node.daemon.container_names import Names

LIMIT = 1.0  #: seconds for the answer of a container, which takes some milliseconds
TOTAL = 5.0  #: seconds for all answers

Used = dict[str, list[int]]  #: [bytes in all, bytes without the driver's own memory] by card uuid


@dataclasses.dataclass(frozen=True)
class Share:
    """What a container holds and uses of one card.

    `name` is namespace/pod/container, or what podman or Docker calls the container, or "". `card` is the card's index,
    or its uuid if the inventory does not have the card. `limit` is in force. `memory_used` is None where it is not
    known, and so are `cores_used` and `cores_lent`.
    """

    claim: Claim
    name: str
    card: int | str
    limit: CardLimit
    state: str
    memory_used: int | None
    cores_used: object
    cores_lent: object


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """`shares` are in the order of the claims. `daemon` is vgpud's answer, or None, and `daemon_line` is for people."""

    cards: list[Card]
    committed: dict[str, Commitment]
    shares: list[Share]
    living: ContainerProcesses
    daemon: dict[str, object] | None
    daemon_line: str
    warnings: list[str]

    def pids(self, claim: Claim) -> list[int]:
        """The host's pids of the container's processes, [] if it has ended."""
        return [pid for pid, _ in self.living.of(claim)] if claim in self.living.claims else []

    def card_use(self, uuid: str) -> tuple[float | None, int | None]:
        """(percent, bytes) that the containers on a card report together; None where none of them reports anything."""
        counted = {claim.container for claim in one_of_each_budget(self.living.claims)}
        there = [row for row in self.shares if row.limit.uuid == uuid and row.claim.container in counted]
        cores = [row.cores_used for row in there if isinstance(row.cores_used, (int, float))]
        memory = [row.memory_used for row in there if row.memory_used is not None]
        return (round(sum(cores), 1) if cores else None), (sum(memory) if memory else None)


def take(node: Settings) -> Snapshot:
    """The present snapshot of the node."""
    cards = inventories.read(node.run_dir).cards
    ledger = Ledger(node, cards)
    committed = ledger.commitments()
    held = ledger.claims()
    living = ContainerProcesses([claim for claim in held if ledger.lives(claim)])
    names = Names()
    used, silent = _memory_used(living)
    uncovered = [
        f"{_label(claim, names)}: {escaped(line)}" for claim in living.claims for line in claim.uncovered
    ]  # fmt: skip
    warnings = list(
        dict.fromkeys([*ledger.notes, *(_does_not_answer(claim, names) for claim in silent), *uncovered])
    )  # fmt: skip
    daemon_line, answer = health.status_line(node.run_dir)
    cores = health.core_use(answer)
    index = {card.uuid: card.index for card in cards}
    shares = [
        Share(
            claim, names.of(claim), index.get(limit.uuid, limit.uuid), limit, _state(claim, living),
            _in_use(used.get(claim.container, {}).get(limit.uuid), driver),
            *cores.get((claim.container, limit.uuid), (None, None)),
        )
        for claim in held
        for limit, driver in _in_force(claim, node.run_dir)
    ]  # fmt: skip
    return Snapshot(cards, committed, shares, living, answer, daemon_line, warnings)


def _state(claim: Claim, living: ContainerProcesses) -> str:
    if claim not in living.claims:
        return "stopped"
    return "running" if claim.ready else "starting"


def _in_use(holdings: list[int] | None, driver: int) -> int | None:
    return None if holdings is None else usage.memory_in_use(holdings[0], holdings[1], driver)


def _memory_used(living: ContainerProcesses) -> tuple[dict[str, Used], list[Claim]]:
    """What the programs of each container hold, and the containers that did not answer."""
    shares = [claim for claim in living.claims if not claim.exclusive]

    def held(index: int) -> Used:
        claim = shares[index]
        return usage_regions.holdings(claim.pid, claim.start_time, lambda: living.of_budget(claim)) or {}

    asked = reader.each(len(shares), held, LIMIT, TOTAL)
    answers = {
        shares[index].container: limits.with_own_uuids(answer, shares[index].cards)
        for index, answer in asked.answers.items()
    }
    used = {container: answer for container, answer in answers.items() if isinstance(answer, dict)}
    return used, [shares[index] for index in asked.silent]


def _does_not_answer(claim: Claim, names: Names) -> str:
    return (
        f"{_label(claim, names)}: the memory that it uses is not known: expected its usage region in {LIMIT:g} s, "
        "found that a program in it blocks the host; look for FUSE mounts and fanotify there, or end it"
    )


def _label(claim: Claim, names: Names) -> str:
    name = names.of(claim)
    return f"container {claim.container} ({name})" if name else f"container {claim.container}"


def _in_force(claim: Claim, run_dir: str) -> list[tuple[CardLimit, int]]:
    """The limits that libvcuda reads, with the driver's memory by the host's figure; else the claim's own limits."""
    path = paths.limits(run_dir, claim.container)
    try:
        return limits.in_force(records.read_bounded(path, limits.SIZE), int(time.time()), path)
    except (OSError, VgpuError):
        return [(card, 0) for card in claim.cards]
