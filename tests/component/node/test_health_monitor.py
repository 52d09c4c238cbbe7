"""The health monitor with its processes in a loop, on the simulated driver and on an NVML that misbehaves."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nodes
import pytest
from cards import instance
from daemons import wait_for
from nvml_stub import DOUBLE_BIT_ECC, XID, StubNode

from vgpu.config import health, inventory
from vgpu.config.clock import since_boot
from vgpu.config.inventory import Card
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.cards.health_monitor import HealthMonitor, Pace
from vgpu.node.service.log import Conditions, Log

TICK = 0.1  #: seconds between two rounds, for vgpud's 2
QUICK = {"look": 0.2, "apart": 0.3, "hang": 60.0, "quiet": 0.0, "first": 0.1, "last": 0.2}
FOR_EVER = {**QUICK, "quiet": 1e9}

Start = Callable[..., "Watched"]


class Watched:
    """A monitor in a loop of its own, as vgpud has one. `stream` is its log, `changes` its different records."""

    def __init__(self, settings: Settings, cards: list[Card], pace: dict[str, float]) -> None:
        self.settings = settings
        self.stream = io.StringIO()
        self.changes: list[dict[str, str]] = []
        self.rounds = 0
        self.selector = selectors.DefaultSelector()
        conditions = Conditions(Log(self.stream, levels=False))
        self.monitor = HealthMonitor(settings, conditions, self.selector, pace=Pace(**pace))
        self._cards = Cards(cards)
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self.monitor.look(self._cards)  # type: ignore[arg-type]
            self.rounds += 1
            if self.changes[-1:] != [self.monitor.reasons()]:
                self.changes.append(self.monitor.reasons())
            for key, mask in self.selector.select(TICK) or ():
                key.data(mask)
        self.monitor.stop()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        self.selector.close()

    def recorded(self) -> dict[str, str]:
        return health.ill(self.settings.run_dir, staleness.boot_id(), since_boot())

    def ready(self) -> Watched:
        """Wait until every card was probed. From then on the monitor sees events."""
        states = wait_for(lambda: self.monitor._states, what=self.stream.getvalue())
        wait_for(lambda: all(state.last.ecc >= 0 for state in states.values()), what="no first look")
        return self

    def of(self, uuid: str) -> str:
        return self.monitor.reasons().get(uuid, "")

    def wait_for_reason(self, uuid: str, text: str) -> None:
        wait_for(lambda: text in self.of(uuid), what=f"{text!r} of {uuid}, log: {self.stream.getvalue()}")

    def healthy(self) -> None:
        wait_for(lambda: not self.monitor.reasons(), what=f"{self.monitor.reasons()}, log: {self.stream.getvalue()}")

    def logs(self, text: str) -> None:
        wait_for(lambda: text in self.stream.getvalue(), what=f"{text!r} in the log: {self.stream.getvalue()}")


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Watched] = []

    def begin(settings: Settings, cards: list[Card], pace: dict[str, float] = QUICK) -> Watched:
        running.append(Watched(settings, cards, pace))
        return running[-1]

    yield begin
    for watched in running:
        watched.stop()
    assert not children(), "a process was left"


def children() -> list[int]:
    """The processes of all monitors. Each is a child of the thread that started it."""
    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a process that has ended meanwhile
            found += [int(pid) for pid in path.read_text().split() if is_a_probe(pid)]
    return found


def is_a_probe(pid: str) -> bool:
    """A probe is this process, forked."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()


class Cards:
    """The part of an inventory that the monitor needs."""

    def __init__(self, cards: list[Card]) -> None:
        self.cards = cards


class Sim:
    """Two simulated cards. The monitor's processes inherit the environment."""

    def __init__(self, path: Path) -> None:
        self.node = nodes.SimulatedNode(path, "a100x2", **{"driver.dev_root": str(path / "driver/dev")})
        self.node.take_inventory()
        self.settings = self.node.settings
        self.cards = inventory.read(self.settings.run_dir).cards
        self.uuids = [card.uuid for card in self.cards]

    def event(self, card: int, kind: str, data: int = 0) -> None:
        nodes.simctl().inject_event(str(self.node.sim), card, kind, data)


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sim:
    made = Sim(tmp_path)
    for name in ("VGPU_SIM_DIR", "VGPU_SIM_DEVICE_NODES"):
        monkeypatch.setenv(name, made.node.environment()[name])
    return made


@pytest.fixture
def stub(tmp_path: Path) -> StubNode:
    return StubNode(tmp_path)


def waiting(node: StubNode, times: int = 1) -> None:
    """Wait until the session has waited for events `times` as often as now."""
    before = len(node.calls("wait0"))
    wait_for(lambda: len(node.calls("wait0")) >= before + times)


# On the simulated driver


def test_a_card_falls_off_the_bus_and_comes_back(sim: Sim, start: Start) -> None:
    one, two = sim.uuids
    watched = start(sim.settings, sim.cards).ready()
    sim.event(1, "lost")
    watched.wait_for_reason(two, "GPU is lost")
    assert not watched.of(one), "one card's trouble is not the other's"
    sim.event(1, "back")
    watched.healthy()
    wait_for(lambda: [bool(change) for change in watched.changes] == [False, True, False], what=watched.changes)


def test_events_of_nvml(sim: Sim, start: Start) -> None:
    one, two = sim.uuids
    watched = start(sim.settings, sim.cards, FOR_EVER).ready()
    for ignored in (13, 31, 43, 45, 68, 94, 109, 154):
        sim.event(0, "xid", ignored)
    sim.event(1, "xid", 54)
    watched.wait_for_reason(two, "Xid 54")
    assert not watched.of(one)
    nodes.simctl().inject_ecc(str(sim.node.sim), 0, uncorrected=1)
    watched.wait_for_reason(one, "uncorrect")


def test_the_driver_goes_and_comes(sim: Sim, start: Start) -> None:
    watched = start(sim.settings, sim.cards, FOR_EVER).ready()
    version = sim.node.driver / "proc/driver/nvidia/version"
    sim.event(0, "xid", 62)
    watched.wait_for_reason(sim.uuids[0], "reset the card")
    text = version.read_text()
    version.unlink()
    for uuid in sim.uuids:
        watched.wait_for_reason(uuid, "the driver is not loaded")
    wait_for(lambda: not children(), what="nothing may hold on to a driver that is gone")
    version.write_text(text)
    watched.healthy()
    waiting_again = [state.last for state in watched.monitor._states.values()]
    wait_for(lambda: all(state.last not in waiting_again for state in watched.monitor._states.values()))
    sim.event(0, "xid", 62)
    watched.wait_for_reason(sim.uuids[0], "reset the card")


def test_faults_outlive_vgpud_but_not_the_driver_or_the_boot(sim: Sim, start: Start, tmp_path: Path) -> None:
    uuid = sim.uuids[0]
    first = start(sim.settings, sim.cards, FOR_EVER).ready()
    sim.event(0, "xid", 62)
    first.wait_for_reason(uuid, "Xid 62")
    wait_for(lambda: "Xid 62" in first.recorded().get(uuid, ""))
    first.stop()
    second = start(sim.settings, sim.cards, FOR_EVER)
    wait_for(lambda: second.changes)
    assert "Xid 62" in second.changes[0].get(uuid, ""), "from its first round on"
    record = Path(sim.settings.run_dir, "health.json")
    text = record.read_text()
    second.stop()
    version = staleness.driver_version(sim.settings.text("driver.proc_root"))
    for old, new in ((staleness.boot_id(), "another"), (version, "551.0")):
        record.write_text(text.replace(old, new))
        conditions = Conditions(Log(io.StringIO(), levels=False))
        with selectors.DefaultSelector() as selector:
            other = HealthMonitor(sim.settings, conditions, selector, away=lambda: "NVML stays closed")
            other.look(Cards(sim.cards))  # type: ignore[arg-type]
            assert other.reasons() == {}


def test_removing_the_file_acknowledges_the_faults(sim: Sim, start: Start) -> None:
    watched = start(sim.settings, sim.cards, FOR_EVER).ready()
    sim.event(0, "xid", 62)
    wait_for(watched.recorded, what="nothing was recorded")
    os.unlink(f"{sim.settings.run_dir}/health.json")
    watched.healthy()


def test_a_damaged_file_is_reported_and_replaced(sim: Sim, start: Start) -> None:
    path = Path(sim.settings.run_dir, "health.json")
    path.write_text('{"version": 2, "faults": [')
    watched = start(sim.settings, sim.cards)
    watched.logs("earlier faults of cards are not known")
    wait_for(lambda: path.read_text().endswith("}\n"))


# On an NVML that misbehaves


def test_a_card_that_hangs_affects_no_other(stub: StubNode, start: Start) -> None:
    stub.set_control("card1", "hang")
    watched = start(stub.settings, stub.cards, {**FOR_EVER, "hang": 1.0})
    watched.wait_for_reason("GPU-1", "hangs")
    waiting(stub)
    wait_for(lambda: not watched.of("GPU-0"))
    rounds = watched.rounds
    wait_for(lambda: watched.rounds > rounds + 3, what="the loop itself never waits for NVML")
    stub.event(0, XID, 54)
    watched.wait_for_reason("GPU-0", "Xid 54")
    stub.unsay("card1")
    wait_for(lambda: not watched.of("GPU-1"))


def test_nvml_that_hangs_at_its_start(stub: StubNode, start: Start) -> None:
    stub.set_control("init", "hang")
    watched = start(stub.settings, stub.cards, {**QUICK, "hang": 1.0})
    for uuid in ("GPU-0", "GPU-1"):
        watched.wait_for_reason(uuid, "hangs")
    stub.unsay("init")
    watched.healthy()


def test_nvml_that_does_not_start_is_not_the_cards_fault(stub: StubNode, start: Start) -> None:
    """So it is in a container that may not open the nodes: the module is loaded."""
    stub.set_control("init", 9)
    watched = start(stub.settings, stub.cards)
    watched.logs("the cards' health is not known")
    assert watched.monitor.reasons() == {}
    time.sleep(1.0)
    assert len(stub.calls("init0")) < 12, "pauses between attempts"
    stub.unsay("init")
    watched.logs("over: the cards' health is not known")


def test_cards_that_may_not_be_queried_are_not_unhealthy(stub: StubNode, start: Start) -> None:
    stub.set_control("card0", 4)
    watched = start(stub.settings, stub.cards)
    watched.logs("the cards' health is not known")
    assert watched.monitor.reasons() == {}


def test_a_library_of_another_version(stub: StubNode, start: Start) -> None:
    """The driver was updated on disk. No program can start on it until the module is reloaded."""
    stub.set_control("init", 18)
    watched = start(stub.settings, stub.cards)
    for uuid in ("GPU-0", "GPU-1"):
        watched.wait_for_reason(uuid, "differ")
    stub.unsay("init")
    stub.load_driver("560.1")
    watched.healthy()


def test_vgpud_without_descriptors_keeps_its_cards_as_they_are(sim: Sim, start: Start) -> None:
    watched = start(sim.settings, sim.cards, FOR_EVER).ready()
    sim.event(1, "xid", 62)
    watched.wait_for_reason(sim.uuids[1], "reset the card")
    before = watched.monitor.reasons()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        wait_for(lambda: watched.monitor.reasons() != before or "Too many open files" in watched.stream.getvalue())
        rounds = watched.rounds
        wait_for(lambda: watched.rounds > rounds + 10, what="the loop goes on")
        assert watched.monitor.reasons() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    watched.logs("over: health of the cards: ")
    assert watched.monitor.reasons() == before


def test_silence_does_not_count_while_no_process_of_vgpud_runs(
    stub: StubNode, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline of vgpud's own says nothing of a card."""
    monkeypatch.setattr("vgpu.node.cards.probe_process.forked.isolate", lambda *_: time.sleep(3600))
    watched = start(stub.settings, stub.cards, {**FOR_EVER, "hang": 1.0})
    watched.logs("do not get to run")
    assert watched.monitor.reasons() == {}


def test_no_library(stub: StubNode, start: Start) -> None:
    stub.library.rename(stub.path / "away")
    watched = start(stub.settings, stub.cards)
    watched.logs("cannot open shared object file")
    assert watched.monitor.reasons() == {}
    (stub.path / "away").rename(stub.library)
    waiting(stub)


def test_cards_without_events_are_polled(stub: StubNode, start: Start) -> None:
    stub.set_control("events", 3)
    watched = start(stub.settings, stub.cards, FOR_EVER).ready()
    stub.set_control("ecc0", 2)
    watched.wait_for_reason("GPU-0", "2 uncorrected memory errors")
    stub.set_control("card1", 15)
    watched.wait_for_reason("GPU-1", "GPU is lost")
    assert not stub.calls("wait0")


def test_a_card_to_be_reset_is_released(stub: StubNode, start: Start) -> None:
    watched = start(stub.settings, stub.cards, FOR_EVER)
    waiting(stub)
    stub.event(1, XID, 62)
    watched.wait_for_reason("GPU-1", "reset the card")
    waiting(stub, 2)
    session = stub.calls("wait0")[-1]
    assert session in stub.calls("open0")
    assert session not in stub.calls("open1")
    looks = len(stub.calls("open1"))
    wait_for(lambda: len(stub.calls("open1")) > looks, what="a look from time to time")
    stub.event(0, XID, 54)
    watched.wait_for_reason("GPU-0", "Xid 54")


def test_the_reset_that_the_driver_requests(stub: StubNode, start: Start) -> None:
    stub.set_control("action0", 0)
    watched = start(stub.settings, stub.cards)
    waiting(stub)
    stub.set_control("action0", 1)
    watched.wait_for_reason("GPU-0", "the driver wants the card reset")
    stub.set_control("action0", 0)
    watched.healthy()


def test_an_event_without_a_card_counts_for_all_cards(stub: StubNode, start: Start) -> None:
    watched = start(stub.settings, stub.cards, FOR_EVER)
    waiting(stub)
    stub.event(7, DOUBLE_BIT_ECC, 0)
    for uuid in ("GPU-0", "GPU-1"):
        watched.wait_for_reason(uuid, "uncorrectable")


def test_what_happens_to_a_parent_concerns_its_mig_instances(stub: StubNode, start: Start) -> None:
    instances = [instance(number, stub.cards[1], gi=number) for number in (8, 9)]
    watched = start(stub.settings, [stub.cards[0], *instances], FOR_EVER)
    waiting(stub)
    stub.event(1, XID, 79)
    for one in instances:
        watched.wait_for_reason(one.uuid, "Xid 79")
    assert set(watched.monitor.reasons()) == {one.uuid for one in instances}
    watched._cards.cards = stub.cards  # MIG is switched off
    watched.wait_for_reason(stub.cards[1].uuid, "Xid 79")
    wait_for(lambda: set(watched.monitor.reasons()) == {stub.cards[1].uuid})


@pytest.mark.parametrize("error", [15, 999])
def test_a_wait_that_fails_at_once_does_not_spin(stub: StubNode, start: Start, error: int) -> None:
    """NVML reports a lost card although every card answers, or fails for another reason."""
    watched = start(stub.settings, stub.cards)
    waiting(stub)
    stub.set_control("wait", error)
    before = len(stub.calls("wait0"))
    time.sleep(2.0)
    assert len(stub.calls("wait0")) - before < 20
    stub.unsay("wait")
    waiting(stub, 2)
    assert watched.monitor.reasons() == {}


def test_a_node_that_is_gone(stub: StubNode, start: Start) -> None:
    watched = start(stub.settings, stub.cards)
    waiting(stub)
    node = Path(stub.cards[1].device.path)
    node.unlink()
    watched.wait_for_reason("GPU-1", "nvidia1 is gone")
    node.symlink_to("/dev/null")
    watched.healthy()


def test_another_card_in_the_place(stub: StubNode, start: Start) -> None:
    stub.cards[1].uuid = "GPU-other"
    start(stub.settings, stub.cards).wait_for_reason("GPU-other", "NVML reports")


def test_all_ignored_holds_nothing_open(tmp_path: Path, start: Start) -> None:
    stub = StubNode(tmp_path / "node", **{"plugin.ignored_xids": ["all"]})
    watched = start(stub.settings, stub.cards)
    wait_for(lambda: stub.calls("open0") and stub.calls("open1"))
    wait_for(lambda: not children())
    stub.set_control("card0", 15)
    watched.wait_for_reason("GPU-0", "GPU is lost")
    assert not stub.calls("wait0")


def test_odd_settings_are_reported(tmp_path: Path, start: Start) -> None:
    stub = StubNode(tmp_path / "node", **{"plugin.ignored_xids": ["x", "54"]})
    watched = start(stub.settings, stub.cards, FOR_EVER)
    watched.logs("plugin.ignored_xids: expected numbers, catalog or all, found x")


def test_a_process_that_dies_is_replaced(stub: StubNode, start: Start) -> None:
    watched = start(stub.settings, stub.cards)
    waiting(stub)
    (pid,) = children()
    os.kill(pid, 9)
    wait_for(lambda: children() not in ([], [pid]))
    waiting(stub)
    assert watched.monitor.reasons() == {}


def test_a_directory_that_cannot_be_written(stub: StubNode, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults still count. Only a restart forgets them."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vgpu.config.health.records.write", full)
    watched = start(stub.settings, stub.cards, FOR_EVER)
    waiting(stub)
    stub.event(1, XID, 62)
    watched.wait_for_reason("GPU-1", "Xid 62")
    watched.logs("No space left")
    time.sleep(0.5)
    assert watched.of("GPU-1")
