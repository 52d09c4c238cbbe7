"""The figures of containers at rest in all programs, against what each container sees, and against the whole card."""

from __future__ import annotations

import json
import os
import random

import nodes
import pytest
from container_site import GIB, INFO, Site, pairs
from daemons import wait_for

from vgpu.config import rounds
from vgpu.config.errors import VgpuError
from vgpu.plugin.exporter.snapshot import Container, Snapshot, of_record

pytestmark = pytest.mark.root

CONTAINERS = 8
SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))


def last_round(node: nodes.SimulatedNode) -> Snapshot:
    try:
        return of_record(rounds.read(node.settings.run_dir))
    except VgpuError:
        return Snapshot("")


def figures(node: nodes.SimulatedNode) -> str:
    """What differs, for a failure's message."""
    snapshot = last_round(node)
    cards = [(card.index, card.fields.number("memory_used")) for card in snapshot.cards]
    return f"cards {cards}, containers {[(one.id, used(one)) for one in snapshot.containers]}"


def used(one: Container) -> list[float]:
    return [share.memory_used() or 0 for share in one.shares]


def cards_agree(node: nodes.SimulatedNode) -> bool:
    """Whether the memory of the containers, all on the first card, adds up to what NVML reports of it, to the byte."""
    snapshot = last_round(node)
    whole = {card.index: card.fields.number("memory_used") for card in snapshot.cards}
    held = [sum(used(one)) for one in snapshot.containers if one.shares[0].index == "0"]
    if len(held) != CONTAINERS or not all(held):
        return False
    return whole["0"] == sum(held)


def test_eight_containers_agree_with_themselves_and_with_their_cards(site: Site) -> None:
    kept = [str(8 + number) for number in range(CONTAINERS)]
    started = [site.start(site.bundle(cores="10", memory="1Gi"), "cudaprobe", "hold", mib, "/end") for mib in kept]
    site.start_daemon()
    wait_for(lambda: cards_agree(site.node), timeout=600, what=lambda: figures(site.node))
    found = {one.id: one.shares[0] for one in last_round(site.node).containers}
    for verb in ("status", "ps"):
        rows = json.loads(site.node.vgpuctl(verb, "--output", "json").stdout)["containers"]
        told = {row["container"]: row["memory_used"] for row in rows}
        assert told == {one: share.memory_used() for one, share in found.items()}, verb
    for container in started:
        free = int(pairs(site.execute(container, *INFO))["card0.info_free"])
        context = found[container].memory_by_kind()["driver"]
        assert GIB - free == (found[container].memory_used() or 0) + context, "the one who looks has a context, too"
        site.delete(container)
    wait_for(lambda: not last_round(site.node).containers, timeout=600, what="the dead are still shown")
    sums = {str(one["container_name"]): one["core_seconds"] for one in rounds.read(site.node.settings.run_dir)["held"]}  # type: ignore[attr-defined]
    rows = json.loads(site.node.vgpuctl("report", "--output", "json").stdout)
    assert {row["container"]: row["core_seconds"] for row in rows} == pytest.approx(sums, abs=0.1)
    assert set(sums) == set(started)


def told(node: nodes.SimulatedNode, verb: str) -> dict[str, float | None]:
    rows = json.loads(node.vgpuctl(verb, "--output", "json").stdout)["containers"]
    return {str(row["container"]): row["memory_used"] for row in rows}


def compared(node: nodes.SimulatedNode, living: set[str]) -> tuple[bool, bool]:
    """Whether all know each living container, and whether all tell the same.

    The record, from which exporter and page read, `status` and `ps` tell it of each container, NVML and the simulator's
    own ledger the sum of each card. A reader that gets no processor for a while knows a figure in the next round.
    """
    snapshot = last_round(node)
    shares = {one.id: [share.memory_used() for share in one.shares] for one in snapshot.containers}
    figures = {name: sum(one or 0 for one in each) for name, each in shares.items()}
    verbs = [told(node, verb) for verb in ("status", "ps")]
    truth = {card["uuid"]: card["used"] for card in node.read_cards()}
    cards = {card.fields.text("uuid"): card.fields.number("memory_used") for card in snapshot.cards}
    sums = {
        uuid: sum(share.memory_used() or 0 for one in snapshot.containers for share in one.shares if share.uuid == uuid)
        for uuid in cards
    }
    known = set(figures) == living and all(map(all, shares.values())) and None not in [*cards.values()]
    known = known and all(set(one) == living and None not in one.values() for one in verbs)
    return known, sums == cards == truth and all(figures == one for one in verbs)


def rounds_of(node: nodes.SimulatedNode) -> float:
    return last_round(node).fields.inner("vgpud").number("rounds") or 0


@pytest.mark.parametrize("samples", [4, pytest.param(200, marks=pytest.mark.long)])
def test_after_each_change_all_programs_tell_the_same(site: Site, samples: int) -> None:
    """To the byte, as soon as vgpud's next rounds have seen it, and at rest it stays so."""
    chance = random.Random(SEED)
    site.start_daemon()
    living: list[str] = []

    def text() -> str:
        return f"{SEED}: {figures(site.node)}"

    def at_rest() -> bool:
        known, equal = compared(site.node, set(living))
        assert equal or not known, text()
        return known

    for _ in range(samples):
        if living and (len(living) == CONTAINERS or chance.random() < 0.4):
            site.delete(living.pop(chance.randrange(len(living))))
        else:
            mib = str(chance.randrange(1, 600))
            living.append(site.start(site.bundle(cores="10", memory="1Gi"), "cudaprobe", "hold", mib, "/end"))
        wait_for(lambda: all(compared(site.node, set(living))), timeout=600, what=text)
        then = rounds_of(site.node)
        wait_for(lambda then=then: rounds_of(site.node) > then, 600)  # type: ignore[misc]
        wait_for(at_rest, 600, text)
