"""Registration with kubelet's side of the protocol: restarts, refusals, and a kubelet that does not listen."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import grpc
import pytest
from daemons import wait_for
from kubelet_devices import DeviceManager
from plugin_inputs import make_cards, make_settings

from vgpu.config.errors import VgpuError
from vgpu.hook.placement.placement import Policy
from vgpu.node.service.kubelet_resources import advertised
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.kubelet import registration
from vgpu.plugin.kubelet.allocate import Allocator
from vgpu.plugin.kubelet.registration import FIRST_PATIENCE, LAST_PAUSE, Registrar
from vgpu.plugin.kubelet.server import DeviceList, ResourceServer, Servicer

NAMES = ["tencent.com/vcuda-core", "tencent.com/vcuda-memory"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bed:
    """Two servers and their registrar, with a clock of the test. kubelet's side is the test's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "kubelet"
        self.directory.mkdir()
        settings = make_settings(directory)
        self.log = io.StringIO()
        self.conditions = Conditions(Log(self.log, levels=False, name="test"))
        self.clock = Clock()
        self.registrar = Registrar(str(self.directory), self.conditions, self.clock)
        self.servers = []
        for resource in advertised(settings, make_cards()):
            servicer = Servicer(
                DeviceList(resource, {}), Allocator(settings), Policy(), self.conditions.log, lambda _: None
            )
            self.servers.append(ResourceServer(str(self.directory), servicer))
        self.kubelet: DeviceManager | None = None

    def start_kubelet(self) -> DeviceManager:
        self.kubelet = DeviceManager(self.directory, set).start()
        return self.kubelet

    def stop_kubelet(self) -> None:
        if self.kubelet is not None:
            self.kubelet.stop()
            self.kubelet = None

    def look(self) -> float:
        return self.registrar.look(self.servers)

    def heard(self) -> None:
        wait_for(lambda: all(one.device_list.streams for one in self.servers))

    def unheard(self) -> None:
        wait_for(lambda: not any(one.device_list.streams for one in self.servers))

    def close(self) -> None:
        self.stop_kubelet()
        for one in self.servers:
            one.close(0)


@pytest.fixture
def bed(tmp_path: Path):
    made = Bed(tmp_path)
    yield made
    made.close()


def test_nothing_to_register(bed: Bed) -> None:
    bed.servers, servers = [], bed.servers
    assert bed.look() == LAST_PAUSE
    assert not bed.registrar.registered()
    assert bed.conditions.present == {}
    bed.servers = servers


def test_a_socket_that_somebody_deleted_comes_back(bed: Bed) -> None:
    kubelet = bed.start_kubelet()
    bed.look()
    bed.heard()
    os.unlink(bed.servers[0].path)
    bed.look()
    assert bed.servers[0].bound()
    assert sorted(name for _, name in kubelet.registrations) == [NAMES[0], *NAMES]


def test_a_dead_kubelets_socket_is_tried_with_growing_pauses(bed: Bed) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(bed.directory / "kubelet.sock"))
    pauses = []
    for _ in range(12):
        pauses.append(bed.look())
        bed.clock.now += pauses[-1]
    assert all(later > earlier - 1e-6 for earlier, later in zip(pauses, pauses[1:]))
    assert pauses[0] < 0.05
    assert pauses[-1] == pytest.approx(LAST_PAUSE)
    assert not bed.registrar.registered()
    assert (
        f"{NAMES[0]} is not registered: kubelet: expected to register"
        in bed.conditions.present[f"registration of {NAMES[0]}"]
    )
    assert bed.log.getvalue().count(f"{NAMES[0]} is not registered") == 1
    kubelet = bed.start_kubelet()
    bed.look()  # another socket: no pause
    assert len(kubelet.registrations) == 2
    assert bed.conditions.present == {}


def test_kubelets_reason_is_logged(bed: Bed, monkeypatch) -> None:
    bed.start_kubelet()
    monkeypatch.setattr(registration, "VERSION", "v9")
    with pytest.raises(VgpuError, match="found UNKNOWN: requested API version 'v9' is not supported by kubelet"):
        registration.register(bed.registrar.kubelet, NAMES[0], "x.sock")


def test_a_kubelet_that_hangs_up_is_registered_with_again(bed: Bed) -> None:
    """kubelet never reconnects by itself. Each time that it disconnects at once, the pause doubles."""
    kubelet = bed.start_kubelet()
    bed.look()
    patience = FIRST_PATIENCE
    for round_ in range(1, 4):
        bed.heard()
        bed.look()
        for endpoint in list(kubelet.endpoints.values()):
            endpoint.close()
        bed.unheard()
        assert bed.look() == pytest.approx(patience)
        assert len(kubelet.registrations) == 2 * round_
        bed.clock.now += patience
        bed.look()
        assert len(kubelet.registrations) == 2 * round_ + 2
        patience *= 2
    bed.heard()
    bed.clock.now += 100
    bed.look()  # it has listened for long, so the pause starts anew
    for endpoint in list(kubelet.endpoints.values()):
        endpoint.close()
    bed.unheard()
    assert bed.look() == pytest.approx(FIRST_PATIENCE)


def test_a_call_to_a_hanging_kubelet_times_out(bed: Bed, monkeypatch) -> None:
    monkeypatch.setattr(registration, "TIMEOUT", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(bed.directory / "kubelet.sock"))
        deaf.listen(1)
        bed.look()
    assert not bed.registrar.registered()


def test_a_socket_that_cannot_be_bound_is_reported_and_tried_again(bed: Bed, monkeypatch) -> None:
    kubelet = bed.start_kubelet()
    monkeypatch.setattr(grpc, "server", lambda *_, **__: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    for _ in range(10):
        bed.clock.now += bed.look()
    assert "Too many open files" in bed.conditions.present[f"registration of {NAMES[0]}"]
    monkeypatch.undo()
    bed.clock.now += LAST_PAUSE
    bed.look()
    assert len(kubelet.registrations) == 2
    assert bed.conditions.present == {}
