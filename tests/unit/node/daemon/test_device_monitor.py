"""When device cgroups are checked, what follows from a change, and the log. The cgroups themselves: tests/system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host import Host
from region_reading import InProcess

from vgpu.config import paths
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import procfs
from vgpu.node.daemon import device_monitor
from vgpu.node.daemon.device_monitor import INTERVAL, LATER, DeviceMonitor, Rules


class Answer:
    """A worker that ends at once, unless it `hangs`."""

    def __init__(self, work, hangs: bool = False) -> None:
        self.done = not hangs
        self.error = ""
        self.result: dict[str, object] = {}
        if not hangs:
            try:
                self.result = work()
            except VgpuError as error:
                self.error = str(error)

    def check(self, now: float) -> None:
        pass

    def gone(self) -> bool:
        return self.done


class Bed(Host):
    """Containers whose init is this process. `rules` are their cgroups', `shut` those that have lost their devices."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, **{"devices.permissions": "rwm"})
        self.hangs = False
        self.rules: dict[str, Rules] = {}
        self.shut: set[str] = set()
        self.failing: set[str] = set()
        self.checked: list[str] = []
        self.watch = DeviceMonitor(
            self.settings, self.conditions, self.spawn, InProcess(), "/proc", lambda: self.now, self.rules_of, self.work
        )

    def spawn(self, work, deadline: float) -> Answer:
        assert deadline > self.now
        return Answer(work, self.hangs)

    def rules_of(self, claim: Claim) -> Rules:
        if claim.container in self.failing:
            raise VgpuError("cgroup", found="gone")
        return self.rules[claim.container]

    def work(self, claim: Claim, access: str, proc: str) -> dict[str, object]:
        assert access == "rwm"
        self.checked.append(claim.container)
        if claim.container not in self.shut:
            return {"changed": False, "text": "open already"}
        self.shut.remove(claim.container)
        self.rules[claim.container] = (*self.rules[claim.container], "opened")
        return {"changed": True, "text": "wrote c 195:0 rw"}

    def container(self, name: str, ready: bool = True, cgroup: str = "devices:/c", devices: bool = True) -> None:
        pid = os.getpid()
        self.claim(name, pid, procfs.start_time(pid), name=f"ns/{name}/main", ready=ready, cgroup=cgroup,
                   exclusive=True, devices={"195:0": "/dev/nvidia0"} if devices else None)  # fmt: skip
        self.rules[name] = ("runtime's",)

    def reset(self, name: str) -> None:
        """Restore the rules that the runtime started with."""
        self.rules[name] = ("runtime's",)
        self.shut.add(name)

    def rounds(self, seconds: float = INTERVAL + 4) -> list[str]:
        """The containers that were checked in that time, with a round every 2 s."""
        before = len(self.checked)
        for _ in range(int(seconds / 2)):
            self.watch.look()
            self.now += 2
        return self.checked[before:]


@pytest.fixture
def bed(tmp_path) -> Bed:
    return Bed(tmp_path)


def test_each_container_is_checked_once_and_again_when_its_rules_change(bed: Bed) -> None:
    for name in ("a", "b"):
        bed.container(name)
        bed.rules[name] = ("runtime's", "opened")
    assert sorted(bed.rounds()) == ["a", "b"], "what happened before the daemon's start is not known"
    assert bed.rounds(60) == []
    bed.reset("b")
    assert bed.rounds() == ["b"]
    assert bed.rounds(60) == [], "its new rules are known"
    assert bed.watch.reopened == 1
    log = bed.log.getvalue()
    assert "devices allowed again that another program had denied: wrote c 195:0 rw container=b pod=ns/b/main" in log
    assert log.count("allowed again") == 1


def test_a_list_that_hides_its_denials_is_checked_each_time_after_all_others(bed: Bed) -> None:
    for name in ("a", "b", "c"):
        bed.container(name)
    for name in ("a", "b"):
        bed.rules[name] = ("a *:* rwm\n",)
    bed.rules["c"] = ("runtime's", "opened")
    assert sorted(bed.rounds()) == ["a", "b", "c"]
    assert sorted(bed.rounds(INTERVAL + 6)) == ["a", "b"]
    assert bed.watch.reopened == 0
    bed.reset("c")
    bed.shut.add("b")
    assert bed.rounds(INTERVAL + 6)[0] == "c", "the kernel is asked after all rules were compared"
    assert "b" in bed.rounds(INTERVAL + 6)
    assert bed.watch.reopened == 2


def test_a_container_without_granted_devices_is_left_alone(bed: Bed) -> None:
    """A container whose hook still runs, one in its runtime's cgroup, and one whose claim has no devices."""
    bed.container("starting", ready=False)
    bed.container("shared", cgroup="")
    bed.container("old", devices=False)
    assert bed.rounds(60) == []


def test_a_failure_is_reported_retried_later_and_affects_no_other(bed: Bed) -> None:
    bed.container("a")
    bed.container("b")
    bed.failing = {"a"}
    assert bed.rounds() == ["b"]
    assert bed.conditions.present["device cgroups"] == "a: cgroup: found gone"
    bed.failing = set()
    assert bed.rounds(LATER - INTERVAL - 8) == []
    assert bed.rounds(2 * INTERVAL + 4) == ["a"]
    assert "device cgroups" not in bed.conditions.present


def test_a_worker_that_hangs_delays_no_other(bed: Bed) -> None:
    bed.container("a")
    bed.hangs = True
    assert bed.rounds() == []
    worker = bed.watch.worker
    assert worker is not None
    bed.hangs = False
    assert bed.rounds() == []
    assert bed.watch.worker is worker
    worker.done, worker.error = True, "no answer in time"
    assert bed.rounds(LATER) == []
    assert "no answer in time" in bed.conditions.present["device cgroups"]
    assert bed.rounds(2 * INTERVAL) == ["a"]


def test_a_container_that_has_ended_is_forgotten(bed: Bed) -> None:
    bed.container("a")
    bed.failing = {"a"}
    bed.rounds()
    os.unlink(paths.claim(bed.settings.run_dir, "a"))
    bed.rounds(4 * INTERVAL)
    assert "device cgroups" not in bed.conditions.present


def test_numbers_of_a_claim() -> None:
    claim = Claim("c", 1, 1, [], True, None, [], "/b", 1.0, devices={"195:255": "/dev/nvidiactl"})
    assert device_monitor._numbers(claim) == [("195", "255", "/dev/nvidiactl")]
