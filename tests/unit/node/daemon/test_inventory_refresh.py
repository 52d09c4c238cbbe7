"""When an inventory is taken, with workers whose answers the test gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from cards import card, inventory, write_inventory
from host import Host

from vgpu.node.daemon.inventory_refresh import FIRST_PAUSE, LAST_PAUSE, LEFT_OUT, InventoryRefresher


class Answer:
    """A worker that ends when the test decides."""

    def __init__(self) -> None:
        self.done = False
        self.error = ""
        self.result: dict[str, object] = {"driver": "550.54.15", "cards": 0, "notes": ["odd"]}
        self.stopped = False

    def check(self, now: float) -> None:
        pass

    def gone(self) -> bool:
        return self.done

    def stop(self) -> None:
        self.stopped = True


class Node(Host):
    def __init__(self, path: Path) -> None:
        super().__init__(path, **{"paths.libvcuda": str(path / "vcuda"), "driver.proc_root": str(path / "proc")})
        self.workers: list[Answer] = []
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            self.write(f"vcuda/{name}", "library")
        self.driver("550.54.15")
        self.keeper = InventoryRefresher(self.settings, self.conditions, self.spawn, "/proc", lambda: self.now)  # type: ignore[arg-type]

    def spawn(self, work: object, deadline: float) -> Answer:
        self.workers.append(Answer())
        return self.workers[-1]

    def driver(self, version: str) -> None:
        self.version = version
        self.write("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  x\n")

    def take(self, version: str = "") -> None:
        """Write the inventory of a worker that succeeds."""
        write_inventory(self.run_dir, inventory([], version or self.version))

    def look(self, later: float = 0.0) -> int:
        """Run a round. Returns how many workers there have been."""
        self.now += later
        self.keeper.look()
        return len(self.workers)

    def succeed(self) -> None:
        self.take()
        self.workers[-1].done = True
        self.keeper.look()

    def fail(self, error: str = "NVML is broken") -> None:
        self.workers[-1].error, self.workers[-1].done = error, True
        self.keeper.look()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_one_is_taken_at_the_start_and_then_no_more(node: Node) -> None:
    node.take()
    assert node.look() == 1, "also when there is one: cards may have changed"
    assert node.keeper.state == "taking"
    assert node.look(10) == 1, "one at a time"
    node.succeed()
    assert node.keeper.state == "fresh"
    assert [node.look(1000) for _ in range(5)] == [1] * 5
    assert "inventory: odd" in node.log.getvalue()


@pytest.mark.parametrize("change", ["driver", "card", "instance", "uuid", "uvm", "libvcuda", "lost", "damaged"])
def test_one_is_taken_when_anything_changes(node: Node, change: str) -> None:
    node.look()
    node.succeed()
    if change == "driver":
        node.driver("560.35.03")
    elif change == "card":
        node.write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Device Minor: 3\n")
    elif change == "instance":
        node.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "DeviceFileMinor: 3\n")
    elif change == "uuid":  # with the numbers of another
        node.keeper.saw(["GPU-1", "MIG-1"])
    elif change == "uvm":
        node.write("proc/devices", "Character devices:\n195 nvidia\n509 nvidia-uvm\n")
    elif change == "libvcuda":
        node.write("vcuda/libcuda.so.1", "another package's")
    elif change == "lost":
        (node.path / "run/inventory.json").unlink()
    else:
        node.write("run/inventory.json", "{")
    assert node.look() == 2
    node.succeed()
    assert node.look(100) == 2


def test_a_driver_that_changes_while_one_is_taken_is_taken_again(node: Node) -> None:
    node.look()
    node.driver("560.35.03")
    node.take("550.54.15")
    node.workers[-1].done = True
    assert node.look() == 2
    node.succeed()
    assert node.look(10) == 2


def test_failures_back_off_until_something_changes(node: Node) -> None:
    pause, attempts = FIRST_PAUSE, 1
    assert node.look() == 1
    for _ in range(8):
        node.fail()
        assert node.look(pause - 0.5) == attempts
        attempts += 1
        assert node.look(0.5) == attempts
        pause = min(2 * pause, LAST_PAUSE)
    assert pause == LAST_PAUSE
    node.fail()
    assert node.keeper.state == "failed"
    assert node.conditions.present == {"inventory": "no inventory: NVML is broken"}
    assert node.log.getvalue().count("NVML is broken") == 1, "logged once"
    node.driver("560.35.03")
    assert node.look() == attempts + 1
    node.succeed()
    assert node.conditions.present == {}


def test_a_failure_keeps_the_last_one(node: Node) -> None:
    node.take()
    node.look()
    node.fail()
    assert node.keeper.state == "fresh"
    node.keeper.stop()


def test_a_stale_one_is_none(node: Node) -> None:
    node.take("1.2")
    node.look()
    assert node.keeper.found is None
    assert "expected one of the loaded driver 550.54.15" in node.keeper.error
    node.keeper.stop()
    assert node.workers[-1].stopped


def test_a_card_that_was_left_out_is_searched_again(node: Node) -> None:
    """NVML may have called it lost when the inventory was taken. It may be back, and the module still drives it."""
    node.write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Device Minor: \t 0\n")
    node.look()
    node.succeed()
    assert node.look(later=LEFT_OUT - 1) == 1
    assert node.look(later=1) == 2
    write_inventory(node.run_dir, inventory([card(bus_id="0000:3b:00.0")], node.version))
    node.workers[-1].done = True
    node.keeper.look()
    assert node.look(later=10 * LEFT_OUT) == 2
