"""The plugin while kubelet, another instance, cards or settings come, change and go: real processes and sockets."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import nodes
import pytest
from daemons import wait_for
from kubelet_devices import DeviceManager
from plugin_inputs import GIB, make_cards, write_inventory
from plugin_process import Plugin

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
T4 = {CORES: 100, MEMORY: 60}


class Bed:
    """A node without a driver, whose cards are those of the inventory. `manager` is kubelet's device manager."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.sockets = directory / "kubelet"
        values: dict[str, object] = {
            "driver.proc_root": str(directory / "proc"),
            "plugin.socket_dir": str(self.sockets),
            "plugin.pod_resources_socket": str(directory / "pod-resources.sock"),
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "never",
        }
        self.node = nodes.Node(directory, **{**values, **settings})
        self.plugin = Plugin(self.node)
        self.manager: DeviceManager | None = None

    def kubelet(self) -> DeviceManager:
        self.manager = DeviceManager(self.sockets, set).start()
        return self.manager

    def stop_kubelet(self) -> None:
        if self.manager is not None:
            self.manager.stop()
            self.manager = None

    def cards(self, count: int = 1, **fields: object) -> None:
        write_inventory(self.node.settings, make_cards(count, **fields))  # type: ignore[arg-type]

    def allocatable(self, expected: dict[str, int]) -> None:
        assert self.manager is not None
        found = self.manager.allocatable
        wait_for(lambda: found() == expected, what=f"{found()}\n{self.plugin.text()}")

    def wait_for_log(self, text: str, count: int = 1) -> None:
        wait_for(lambda: self.plugin.text().count(text) >= count, what=f"{text} is not in:\n{self.plugin.text()}")

    def set(self, **settings: object) -> None:
        for name, value in settings.items():
            self.node.settings._values[name.replace("__", ".", 1)] = value
        self.node.write_settings()

    def ended(self) -> int:
        assert self.plugin.process is not None
        return self.plugin.process.wait(60)

    def close(self) -> None:
        self.plugin.kill()
        self.stop_kubelet()


@pytest.fixture
def make_bed(tmp_path: Path):
    made: list[Bed] = []

    def make(**settings) -> Bed:
        made.append(Bed(tmp_path, **{name.replace("__", ".", 1): value for name, value in settings.items()}))
        return made[-1]

    yield make
    for bed in made:
        bed.close()


@pytest.fixture
def bed(make_bed) -> Bed:
    made = make_bed()
    made.cards()
    return made


def test_registers_serves_and_leaves_nothing_behind(bed: Bed) -> None:
    bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    assert bed.plugin.stop() == 0
    assert sorted(os.listdir(bed.sockets)) == ["kubelet.sock", "kubelet_internal_checkpoint"]
    bed.allocatable({CORES: 0, MEMORY: 0})  # until it registers again
    assert "stopped" in bed.plugin.text()


def test_the_settings_of_a_newer_version_are_read_with_a_warning(bed: Bed) -> None:
    warning = bed.node.compiled_by_a_newer_version()
    bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    assert bed.plugin.text().count(warning) == 1


def test_kubelet_comes_later_restarts_and_moves_its_directory(bed: Bed) -> None:
    bed.plugin.start()
    bed.wait_for_log("no kubelet at")
    bed.kubelet()
    bed.allocatable(T4)
    for _ in range(3):
        bed.stop_kubelet()
        bed.kubelet()
        bed.allocatable(T4)
    bed.stop_kubelet()
    bed.sockets.rename(bed.sockets.with_name("old"))
    bed.kubelet()
    bed.allocatable(T4)


def test_a_plugin_that_was_killed_offers_the_same_ids_again(bed: Bed) -> None:
    manager = bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    before = dict(manager.healthy)
    bed.plugin.kill()
    bed.allocatable({CORES: 0, MEMORY: 0})
    assert (bed.sockets / "vgpu-cores.sock").exists()  # a stale socket, which the next one replaces
    bed.plugin.start()
    bed.allocatable(T4)
    assert manager.healthy == before


def test_a_second_plugin_waits_for_the_end_of_the_first(bed: Bed) -> None:
    manager = bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    second = Plugin(bed.node).start()
    try:
        bed.wait_for_log("another device plugin runs on this node; waiting for its end")
        assert second.alive
        assert len(manager.registrations) == 2
        bed.plugin.kill()
        wait_for(lambda: len(manager.registrations) == 4)
        bed.allocatable(T4)
    finally:
        assert second.stop() == 0


def test_a_node_without_cards_ends_with_the_reason(make_bed) -> None:
    bed = make_bed()
    bed.cards(0)
    bed.plugin.start()
    assert bed.ended() == 1
    assert "no cards to offer: this node's inventory has no cards" in bed.plugin.text()


def test_a_node_without_cards_idles_and_comes_up_with_the_first(make_bed) -> None:
    bed = make_bed(plugin__fail_on_init_error=False)
    manager = bed.kubelet()
    bed.plugin.start()
    bed.wait_for_log("no cards to offer, waiting")
    bed.cards(0)
    bed.wait_for_log("this node's inventory has no cards")
    assert manager.registrations == []
    bed.cards(1)
    bed.allocatable(T4)
    bed.cards(2)
    bed.allocatable({CORES: 200, MEMORY: 120})
    bed.cards(1)
    bed.allocatable(T4)  # of 200: the other card's are there, unhealthy
    assert manager.unhealthy.keys() == T4.keys()
    bed.cards(2)
    bed.allocatable({CORES: 200, MEMORY: 120})
    assert len(manager.registrations) == 2


def test_with_resource_claims_it_offers_kubelet_no_resource_and_needs_no_card(make_bed, tmp_path: Path) -> None:
    """Pods that end need the driver of the claims, also while no NVIDIA driver is loaded. Two instances overlap."""
    with tempfile.TemporaryDirectory(prefix="kubelet") as directory:  # a socket's path is short
        sockets = Path(directory) / "device-plugins"
        sockets.mkdir()
        bed = make_bed(
            kubernetes__dra=True, kubernetes__cdi_dir=f"{tmp_path}/cdi", plugin__socket_dir=str(sockets),
            kubernetes__kubeconfig=f"{tmp_path}/none", plugin__pod_resources_socket=f"{directory}/pod-resources/k.sock",
        )  # fmt: skip
        bed.cards(0)
        bed.plugin.start(POD_UID="one")
        registry = Path(directory) / "plugins_registry"
        names = [f"{registry}/gpu.vgpu.io-{one}-reg.sock" for one in ("one", "two")]
        wait_for(lambda: sorted(map(str, registry.glob("*"))) == names[:1], timeout=300)
        other = Plugin(bed.node)
        other.start(POD_UID="two")
        try:
            wait_for(lambda: sorted(map(str, registry.glob("*"))) == names, timeout=300)
            bed.plugin.kill()
            wait_for(lambda: sorted(map(str, registry.glob("*"))) == names[1:], timeout=300)
            assert list(sockets.iterdir()) == []
        finally:
            other.kill()


def test_no_inventory_yet_is_waited_for(bed: Bed) -> None:
    """vgpud may be starting. So the plugin waits even where a node without cards ends it."""
    os.unlink(f"{bed.node.settings.run_dir}/inventory.json")
    bed.kubelet()
    bed.plugin.start()
    bed.wait_for_log("no cards to offer, waiting")
    bed.cards()
    bed.allocatable(T4)


def test_a_list_too_long_for_kubelet_ends_it_before_it_registers(make_bed) -> None:
    bed = make_bed(resources__memory_unit=1 << 20)
    bed.cards(8, memory=141 * GIB)
    manager = bed.kubelet()
    bed.plugin.start()
    assert bed.ended() == 1
    assert "within kubelet's 4 MiB" in bed.plugin.text()
    assert "set resources.memory_unit: 16Mi or more" in bed.plugin.text()
    assert manager.registrations == []


def test_settings_that_cannot_be_read_end_it(bed: Bed) -> None:
    bed.node.config.write_text("{")
    bed.plugin.start()
    assert bed.ended() == 1
    assert bed.plugin.text().count("\n") == 1
    assert "run: vgpuctl config apply" in bed.plugin.text()


def test_changed_settings_are_put_in_force_and_bad_ones_are_not(bed: Bed) -> None:
    manager = bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    bed.set(resources__core_name="nvidia.com/vcuda-core")
    wait_for(lambda: manager.allocatable().get("nvidia.com/vcuda-core") == 100)
    assert manager.allocatable()[CORES] == 0
    bed.node.config.write_text("{")
    bed.wait_for_log("the settings in force stay")
    bed.set(resources__memory_unit=1 << 50)
    bed.wait_for_log("expected cards of at least one unit")
    bed.set(paths__run="/elsewhere", resources__memory_unit=256 << 20)
    bed.wait_for_log("restart vgpu-device-plugin")
    assert manager.allocatable()["nvidia.com/vcuda-core"] == 100
    bed.set(paths__run=str(bed.node.directory / "run"), resources__mode="gpu")
    bed.plugin.process.send_signal(signal.SIGHUP)
    wait_for(lambda: manager.allocatable().get("nvidia.com/gpu") == 2, what=bed.plugin.text())
    assert manager.allocatable()["nvidia.com/vcuda-core"] == 0


def test_sighup_without_a_change_changes_nothing(bed: Bed) -> None:
    manager = bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    bed.plugin.process.send_signal(signal.SIGHUP)
    bed.cards(2)
    bed.allocatable({CORES: 200, MEMORY: 120})  # a round later
    assert len(manager.registrations) == 2
    assert "settings read again" not in bed.plugin.text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_probes_report_liveness_and_readiness(bed: Bed) -> None:
    port = free_port()
    bed.set(plugin__http=f"127.0.0.1:{port}")

    def get(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode().strip()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    bed.plugin.start()
    wait_for(lambda: get("/healthz") == (200, "ok"))
    assert get("/readyz") == (503, "not registered with kubelet")
    bed.kubelet()
    wait_for(lambda: get("/readyz")[0] == 200)
    bed.stop_kubelet()
    os.unlink(bed.sockets / "kubelet.sock")
    assert get("/readyz") == (503, "not registered with kubelet")
    bed.plugin.process.send_signal(signal.SIGSTOP)
    bed.plugin.process.send_signal(signal.SIGCONT)
    assert get("/healthz") == (200, "ok")


def test_systemd_is_notified(bed: Bed, tmp_path: Path) -> None:
    """It sends READY=1 without kubelet, as kubelet's unit may wait for the plugin's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        bed.plugin.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        received: list[str] = []
        while received.count("WATCHDOG=1") < 3:
            received.append(systemd.recv(4096).decode())
        assert received[0] == f"READY=1\nMAINPID={bed.plugin.pid}"
        assert "STATUS=not registered with kubelet" in received
        bed.kubelet()
        while "STATUS=registered, 1 cards" not in received:
            received.append(systemd.recv(4096).decode())
        assert bed.plugin.stop() == 0
        systemd.setblocking(False)
        while received[-1] != "STOPPING=1":
            received.append(systemd.recv(4096).decode())


def test_it_sleeps_when_nothing_happens(bed: Bed) -> None:
    bed.kubelet()
    bed.plugin.start()
    bed.allocatable(T4)
    time.sleep(1)

    def used() -> float:
        fields = Path(f"/proc/{bed.plugin.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, begin = used(), time.monotonic()
    time.sleep(2)
    assert used() - before < 0.2 * (time.monotonic() - begin)
