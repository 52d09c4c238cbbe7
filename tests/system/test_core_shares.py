"""Core shares end to end: containers by runc that flood one card, the hook's schedules, libvcuda's throttle, loans.

The tests run in real time, so the bounds are wide. The benchmark measures how exact shares are (tests/bench/cores.py).
Shares are measured by the simulator's ledger. Where the host of a virtual machine takes a third of its processors for
some seconds (steal in /proc/stat), two containers that always have work got 70 percent of a card together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import daemons
import nodes
import pytest
from flooded_card import FloodedCard

pytestmark = [
    pytest.mark.root,
    pytest.mark.flaky(reruns=1),  # real time: other programs of the machine may delay a measurement
]

SETTLE_S = 1.5


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(node)
    yield made
    made.kill()


def test_hard_shares_without_any_daemon(card: FloodedCard) -> None:
    _, first = card.flood(cores="60")
    _, second = card.flood(cores="30")
    time.sleep(SETTLE_S)
    card.assert_shares({first: 60, second: 30})


def test_a_soft_share_uses_an_idle_card_and_gives_it_back(card: FloodedCard, daemon: daemons.Daemon) -> None:
    daemon.start().ready()
    _, soft = card.flood(cores="30", core_limit="100")
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})
    owner_id, owner = card.flood(cores="70")
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 30, owner: 70})
    card.runtime.delete(owner_id)
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})


def test_a_soft_share_uses_an_idle_card_without_any_daemon(card: FloodedCard) -> None:
    _, soft = card.flood(cores="30", core_limit="100")
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})
    owner_id, owner = card.flood(cores="70")
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 30, owner: 70})
    card.runtime.delete(owner_id)
    time.sleep(SETTLE_S)
    card.assert_shares({soft: 95})


def test_a_changed_share_takes_effect_at_once(card: FloodedCard) -> None:
    container, changed = card.flood(cores="20")
    time.sleep(SETTLE_S)
    card.assert_shares({changed: 20})
    card.node.vgpuctl("set", container, "--cores", "80")
    time.sleep(0.2)
    card.assert_shares({changed: 80})
