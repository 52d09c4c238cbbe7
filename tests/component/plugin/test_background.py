"""The background services: when they start, with which arguments, and that no failure of one ends the plugin."""

from __future__ import annotations

import io
import sys
import threading
import types
from pathlib import Path

import pytest
from daemons import wait_for
from plugin_inputs import make_settings

from vgpu.config.errors import VgpuError
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.background import RETRY, BackgroundServices


class Part:
    """A stand-in for GrantGc and Agent; `made` are all of its kind."""

    def __init__(self, *arguments: object, **named: object) -> None:
        self.arguments = arguments
        self.named = named
        self.calls: list[str] = []
        self.rounds = threading.Event()

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def run(self, stopped: threading.Event) -> None:
        self.rounds.set()
        stopped.wait()
        self.calls.append("ended")

    def wake(self) -> None:
        self.calls.append("wake")

    def look_at_checkpoint(self) -> None:
        self.calls.append("look")

    def pods_gone(self) -> set[str]:
        return {"uid"}

    def handed_over(self, grant_id: str) -> None:
        self.calls.append(grant_id)


class Bed:
    def __init__(self, directory: Path, monkeypatch, **values: object) -> None:
        self.made: dict[str, list[Part]] = {"GrantGc": [], "Agent": []}
        self.error: Exception | None = None
        for module, name in (
            ("kubelet.grant_gc", "GrantGc"),
            ("apiserver", "Agent"),
        ):
            fake = types.ModuleType(f"vgpu.plugin.{module}")
            setattr(fake, name, lambda *arguments, name=name, **named: self.make(name, arguments, named))
            monkeypatch.setitem(sys.modules, fake.__name__, fake)
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.delenv("NODE_NAME", raising=False)
        self.log = io.StringIO()
        self.conditions = Conditions(Log(self.log, levels=False, name="test"))
        self.now = 0.0
        self.settings = make_settings(directory, **values)
        checks = {path: lambda: (True, "ok") for path in ("/healthz", "/readyz")}
        self.background = BackgroundServices(
            self.settings, self.conditions, checks, lambda: None, lambda: {"GPU-00": "all"}, lambda: self.now
        )

    def make(self, name: str, arguments: tuple[object, ...], named: dict[str, object]) -> Part:
        if self.error is not None:
            raise self.error
        self.made[name].append(Part(*arguments, **named))
        return self.made[name][-1]

    def counts(self) -> list[int]:
        return [len(self.made[name]) for name in ("GrantGc", "Agent")]


@pytest.fixture
def make_bed(tmp_path: Path, monkeypatch):
    made: list[Bed] = []

    def make(**values) -> Bed:
        made.append(Bed(tmp_path, monkeypatch, **values))
        return made[-1]

    yield make
    for bed in made:
        bed.background.stop()


def test_nothing_starts_without_cards(make_bed) -> None:
    bed = make_bed(kubernetes__api="always")
    bed.background.look(False)
    assert bed.counts() == [0, 0]
    bed.background.look(True)
    assert bed.counts() == [1, 1]
    bed.background.look(True)
    assert bed.counts() == [1, 1]
    (grant_gc,) = bed.made["GrantGc"]
    assert grant_gc.rounds.wait(120)
    assert grant_gc.calls == ["look"], "at kubelet's checkpoint, in each round of the main loop"
    bed.background.handed_over("grant")
    assert grant_gc.calls == ["look", "wake"]


def test_what_the_api_server_says_of_pods_reaches_the_collection_of_grants(make_bed) -> None:
    bed = make_bed()
    bed.background.look(True)
    assert bed.made["GrantGc"][0].arguments[2]() == set(), "without access"  # type: ignore[operator]
    bed = make_bed(kubernetes__api="always")
    bed.background.look(True)
    (grant_gc,), (agent,) = bed.made["GrantGc"], bed.made["Agent"]
    assert grant_gc.arguments[2]() == {"uid"}  # type: ignore[operator]
    agent.named["pod_over"]()  # type: ignore[operator]
    assert grant_gc.calls == ["wake"]


@pytest.mark.parametrize(
    ("api", "kubeconfig", "in_pod", "expected"),
    [
        ("auto", "", False, 0),
        ("auto", "", True, 1),
        ("auto", "/etc/kubernetes/k.conf", False, 1),
        ("never", "/etc/kubernetes/k.conf", True, 0),
        ("always", "", False, 1),
    ],
)
def test_use_of_the_api(make_bed, monkeypatch, api: str, kubeconfig: str, in_pod: bool, expected: int) -> None:
    bed = make_bed(kubernetes__api=api, kubernetes__kubeconfig=kubeconfig)
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    bed.background.look(True)
    assert len(bed.made["Agent"]) == expected
    bed.background.handed_over("grant")
    for agent in bed.made["Agent"]:
        settings, _, node, reasons = agent.arguments
        assert (settings, node, reasons()) == (bed.settings, "node", {"GPU-00": "all"})  # type: ignore[operator]
        assert agent.calls == ["start", "grant"]


def test_the_daemonsets_node_name_comes_before_the_hosts(make_bed, monkeypatch) -> None:
    bed = make_bed(kubernetes__api="always")
    monkeypatch.setenv("NODE_NAME", "gpu-7")
    bed.background.look(True)
    assert bed.made["Agent"][0].arguments[2] == "gpu-7"


@pytest.mark.parametrize(
    "error", [ImportError("No module named x"), OSError(24, "Too many open files"), VgpuError("x")]
)
def test_a_service_that_cannot_start_is_reported_once_and_tried_again(make_bed, error: Exception) -> None:
    bed = make_bed(kubernetes__api="always")
    bed.error = error
    for _ in range(3):
        bed.background.look(True)
    assert set(bed.conditions.present) == {"expiry", "kubernetes"}
    assert bed.log.getvalue().count("\n") == 2
    bed.background.handed_over("grant")
    bed.error = None
    bed.now += RETRY
    bed.background.look(True)
    assert bed.counts() == [1, 1]
    assert bed.conditions.present == {}


def test_probes_at_an_address_in_use_come_when_it_is_free(make_bed) -> None:
    other = make_bed(plugin__http="127.0.0.1:0")
    other.background.look(False)
    assert other.background.probes is not None
    bed = make_bed(plugin__http=f"127.0.0.1:{other.background.probes.port}")
    bed.background.look(False)
    assert "Address already in use" in bed.conditions.present["probes"]
    other.background.probes.close()
    other.background.probes = None
    bed.now += RETRY
    bed.background.look(False)
    assert bed.conditions.present == {}


def test_stop_ends_all_of_it(make_bed) -> None:
    bed = make_bed(kubernetes__api="always", plugin__http="127.0.0.1:0")
    bed.background.look(True)
    bed.background.stop()
    assert bed.made["Agent"][0].calls == ["start", "stop"]
    assert sorted(bed.made["GrantGc"][0].calls) == ["ended", "wake"]
    wait_for(lambda: "grant-gc" not in {thread.name for thread in threading.enumerate()})
