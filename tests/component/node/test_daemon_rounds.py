"""What vgpud does between two rounds: it uses the answers of its workers, and the rest of a round has time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
from daemons import wait_for

from vgpu.node.daemon import main
from vgpu.node.daemon.main import Daemon
from vgpu.node.service.log import Log
from vgpu.node.service.sd_notify import Notifier

BETWEEN = 300.0  #: seconds between two rounds here: the workers answer before that, also on a busy machine


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
    collect, collected = daemon._collect, []
    monkeypatch.setattr(daemon, "_collect", lambda: collected.append(collect()) or collected[-1])
    daemon._sleep()
    assert daemon.inventory.found is not None
    assert collected[-1], "a whole round follows the inventory, and does not wait for its time"
    daemon.round()
    assert daemon.rounds == 2
    monkeypatch.setattr(daemon, "_record_round", None)
    monkeypatch.setattr(main, "TICK", 1.0)
    wait_for(lambda: daemon._sleep() or daemon.card_use.use(), BETWEEN)
    (use,) = daemon.card_use.use().values()
    assert use[0] >= 0
    assert daemon.rounds == 2


def test_the_settings_of_a_newer_version_are_read_with_a_warning(tmp_path: Path) -> None:
    node = nodes.SimulatedNode(tmp_path / "node", "t4x1")
    warning = node.compiled_by_a_newer_version()
    log = io.StringIO()
    made = Daemon(str(node.config), Log(log, levels=False), Notifier({}, 0))
    made.close()
    assert log.getvalue().count(warning) == 1
