"""The doctor's check of the cards' health: every reason that vgpud can give has a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_tree import Tree, only

from vgpu.config import health
from vgpu.config.clock import since_boot
from vgpu.hook.linux import staleness
from vgpu.node.cards import health_monitor
from vgpu.node.cards.health_rules import ACTIONS, CardState, Fault, Look, fault_of_xid
from vgpu.node.cards.xids import RESET
from vgpu.node.doctor.card_health import OTHER, card_health, remedy
from vgpu.node.doctor.findings import FAILURE, OK, WARNING

LOOKS = [
    Look("NVML reports: GPU is lost", gone=True), Look(health_monitor.HANGS), Look(rows=True), Look(pages=True),
    Look(health_monitor.NOT_LOADED_TEXT, gone=True), Look(health_monitor.MISMATCH_TEXT, gone=True),
    Look("its device node /dev/nvidia1 is gone", gone=True), *(Look(action=number) for number in ACTIONS),
]  # fmt: skip
FAULTS = [Fault("uncorrectable memory error", 1.0, False), *(fault_of_xid(number, 1.0) for number in (*RESET, 54))]


def reasons() -> list[str]:
    found = [CardState(fault).reason() for fault in FAULTS]
    for look in LOOKS:
        state = CardState()
        state.saw(look, 1.0)
        found.append(state.reason())
    return found


@pytest.mark.parametrize("reason", reasons())
def test_each_reason_has_a_remedy(reason: str) -> None:
    assert reason
    assert remedy(reason) != OTHER


def test_the_card_its_reason_and_its_address_are_named(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert only(card_health, tree.context).status == WARNING
    boot = staleness.boot_id(tree.context.path("/proc"))
    for reasons_of, known, status in (({}, True, OK), ({}, False, WARNING), ({"GPU-1": "Xid 79"}, True, FAILURE)):
        health.write(tree.settings.run_dir, health.Health(reasons_of, known, since_boot(), [], []), boot)
        found = only(card_health, tree.context)
        assert found.status == status
    assert found.found == "GPU-1: Xid 79"
