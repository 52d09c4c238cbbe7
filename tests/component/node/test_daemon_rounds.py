"""What vgpud does between two rounds: it uses the answers of its workers, and the rest of a round has time."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest

from vgpu.node.daemon import main
from vgpu.node.daemon.main import Daemon
from vgpu.node.service.log import Log
from vgpu.node.service.sd_notify import Notifier

BETWEEN = 10.0  #: seconds between two rounds here: the workers answer before that, also on a busy machine


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    node = nodes.SimulatedNode(tmp_path / "node", "t4x1")
    for name, value in node.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(main, "TICK", BETWEEN)
    made = Daemon(str(node.config), Log(io.StringIO(), levels=False), Notifier({}, 0))
    yield made
    made.close()


def test_answers_of_workers_make_no_round_but_the_inventory_does(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.round()
    began = time.monotonic()
    daemon._sleep()
    assert daemon.inventory.found is not None
    assert time.monotonic() - began < BETWEEN, "a whole round follows the inventory"
    daemon.round()
    assert (daemon.rounds, daemon.card_use.use()) == (2, {}), "a worker asks for the use of the cards"
    monkeypatch.setattr(daemon, "_record_round", None)
    ends_when(daemon, monkeypatch)
    daemon._sleep()
    (use,) = daemon.card_use.use().values()
    assert use[0] >= 0
    assert daemon.rounds == 2


def ends_when(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's sleep ends when the use of the cards is known, or with the time between two rounds."""
    watch = daemon._watch

    def watched() -> None:
        watch()
        daemon.stopping = bool(daemon.card_use.use())

    monkeypatch.setattr(daemon, "_watch", watched)
