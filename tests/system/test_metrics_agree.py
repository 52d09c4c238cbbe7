"""The figures of containers at rest in all programs, against what each container sees, and against the whole card."""

from __future__ import annotations

import json

import nodes
import pytest
from container_site import GIB, INFO, Site, pairs
from daemons import wait_for

from vgpu.config import rounds
from vgpu.config.errors import VgpuError
from vgpu.plugin.exporter.snapshot import Container, Snapshot, of_record

pytestmark = pytest.mark.root

CONTAINERS = 8


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
