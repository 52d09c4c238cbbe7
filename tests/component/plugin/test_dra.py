"""The DRA driver on its sockets, with a stand-in for the API server: what kubelet gets, and what is left on the node.

Belongs here: calls over gRPC, records and CDI files over restarts, and the slices at the server. What is prepared of a
claim is in unit/node/service/test_claim_allocation.py, what a device says in test_claim_devices.py.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from cards import GIB, card, uuid_of
from daemons import wait_for
from resource_api import SLICES, ResourceApi

from vgpu.config import grants, paths, prepared, records
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.dra import driver as drivers
from vgpu.plugin.dra import server as servers
from vgpu.plugin.dra.driver import Driver, Wanted
from vgpu.plugin.dra.prepared_claims import PreparedClaims
from vgpu.plugin.dra.publisher import CLASSES
from vgpu.plugin.dra.service import DraService
from vgpu.plugin.kubelet.proto import dra_health_pb2, dra_v1_pb2, dra_v1beta1_pb2, pluginregistration_pb2, services

UIDS = [f"6f1c3c52-000{at}-4c53-9d3a-6f0f8f0f1a11" for at in range(4)]
CARD = uuid_of(0).lower()
until = functools.partial(wait_for, timeout=300)  # seconds: only what hangs takes as long, on any machine


class Bed:
    """A node with one card of 16 GiB, kubelet's directory, and the API server's stand-in."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.settings = Settings({
            "paths.state": f"{path}/state", "paths.run": f"{path}/run", "kubernetes.cdi_dir": f"{path}/cdi",
            "plugin.pod_resources_socket": f"{path}/kubelet/pod-resources/kubelet.sock", **settings,
        }, "n")  # fmt: skip
        self.api = ResourceApi()
        self.conditions = Conditions(Log(io.StringIO()))
        self.services: list[DraService] = []
        self.ill: dict[str, str] = {}

    def start(self, boot: str = "boot-1") -> DraService:
        made = DraService(
            self.settings, "n", "/usr/bin/vgpu-hook", "/cfg.json", boot, self.conditions, lambda _: self.api,  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        self.services.append(made)
        self.look(made)
        return made

    def look(self, service: DraService, cards: int = 1) -> None:
        service.look([card(at) for at in range(cards)], self.ill, {}, "570.1", True)

    def end(self) -> None:
        for one in self.services:
            one.stop(0)

    def claim(self, at: int, *pods: str, **fields: Any) -> None:
        result = {"request": "gpu", "driver": "gpu.vgpu.io", "pool": "n", "device": CARD, "shareID": f"s{at}",
                  "consumedCapacity": {"cores": "30", "memory": "4Gi"}, **fields}  # fmt: skip
        self.api.claim(f"c{at}", UIDS[at], [result], list(pods or ("pod-1",)))

    def call(self, service: DraService, method: str, *numbers: int, protocol: Any = dra_v1_pb2) -> Any:
        """Call of kubelet: the answers for the claims with these numbers."""
        with grpc.insecure_channel(f"unix:{service.server.endpoint}") as channel:
            wanted = [protocol.Claim(namespace="default", uid=UIDS[at], name=f"c{at}") for at in numbers]
            request = getattr(protocol, f"Node{method}ResourcesRequest")(claims=wanted)
            client = services.Client(channel, protocol, "DRAPlugin")
            return getattr(client, f"Node{method}Resources")(request, timeout=120).claims

    def cdi(self) -> dict[str, Any]:
        found = (self.path / "cdi").glob("*.json")
        return {path.name: json.loads(path.read_text()) for path in sorted(found)}

    def record(self, at: int) -> Path:
        return Path(paths.prepared_claim(self.settings.state_dir, UIDS[at]))

    def published(self) -> list[str]:
        return [device["name"] for one in self.api.slices() for device in one["spec"].get("devices", ())]


@pytest.fixture
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    with tempfile.TemporaryDirectory(prefix="dra") as directory:  # a socket's path is short
        made = Bed(Path(directory), **{"kubernetes.dra_parts": getattr(request, "param", False)})
        yield made
        made.end()


# kubelet's calls


def test_kubelet_registers_the_driver_and_is_served_in_both_versions(bed: Bed) -> None:
    service = bed.start()
    bed.claim(0)
    [path] = (bed.path / "kubelet/plugins_registry").iterdir()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        client = services.Client(channel, pluginregistration_pb2, "Registration")
        info = client.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=120)
        client.NotifyRegistrationStatus(pluginregistration_pb2.RegistrationStatus(plugin_registered=True), timeout=120)
    assert (info.type, info.name, list(info.supported_versions)) == (
        "DRAPlugin", "gpu.vgpu.io", ["v1.DRAPlugin", "v1beta1.DRAPlugin"],
    )  # fmt: skip
    assert (info.endpoint, service.server.registered) == (service.server.endpoint, True)
    for protocol in (dra_v1_pb2, dra_v1beta1_pb2):
        [device] = bed.call(service, "Prepare", 0, protocol=protocol)[UIDS[0]].devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (["gpu"], "n", CARD)
        assert list(device.cdi_device_ids) == [f"vgpu.io/claim={UIDS[0]}-0"]
    assert bed.call(service, "Prepare", 0)[UIDS[0]].devices[0].share_id == "s0"


def test_a_prepared_claim_has_a_record_and_a_cdi_file_until_it_is_unprepared(bed: Bed) -> None:
    service = bed.start()
    bed.claim(0)
    for _ in range(2):  # kubelet repeats all claims of a pod when one fails
        bed.call(service, "Prepare", 0)
    claim = prepared.read(bed.settings.state_dir, UIDS[0])
    assert (claim.pods, claim.boot_id, claim.results[0].memory) == (["pod-1"], "boot-1", 4 * GIB)
    [(name, spec)] = bed.cdi().items()
    assert (name, spec["kind"]) == (f"vgpu.io-claim_{UIDS[0]}.json", "vgpu.io/claim")
    [device] = spec["devices"]
    hooks = {one["hookName"]: one["args"] for one in device["containerEdits"]["hooks"]}
    words = ["vgpu-hook", "--config", "/cfg.json", "--prepared", f"{UIDS[0]}-0"]
    assert (device["name"], list(device["containerEdits"])) == (f"{UIDS[0]}-0", ["hooks"])
    assert hooks == {stage: [*words, stage] for stage in ("createRuntime", "poststop")}
    for _ in range(2):
        assert bed.call(service, "Unprepare", 0, 1)[UIDS[0]].error == ""
    assert not bed.record(0).exists()
    assert not bed.cdi()


def test_one_bad_claim_of_a_pod_leaves_the_others_prepared(bed: Bed) -> None:
    service = bed.start()
    bed.claim(0)
    bed.claim(1, consumedCapacity=None)
    answers = bed.call(service, "Prepare", 0, 1)
    assert (len(answers[UIDS[0]].devices), answers[UIDS[0]].error) == (1, "")
    assert "DRAConsumableCapacity" in answers[UIDS[1]].error
    assert list(bed.cdi()) == [f"vgpu.io-claim_{UIDS[0]}.json"]


def test_pods_end_without_a_card_and_without_the_api_server(bed: Bed) -> None:
    """Else an upgrade of the driver, for which all pods have to end, would wait for ever."""
    service = bed.start()
    bed.claim(0)
    bed.call(service, "Prepare", 0)
    service.stop(0)
    bed.api.failures = ["unreachable"] * 1000
    again = bed.start()
    bed.look(again, cards=0)
    assert bed.call(again, "Unprepare", 0)[UIDS[0]].error == ""
    assert not bed.cdi()


# Within one call


def driver_of(bed: Bed, sleep: Callable[[float], object]) -> Driver:
    claims = PreparedClaims(bed.settings, "boot-1", ["/usr/bin/vgpu-hook"])
    now = [0.0]

    def passing(seconds: float) -> None:
        now[0] += seconds
        sleep(seconds)

    made = Driver("n", claims, lambda: bed.api, bed.conditions.log, lambda: now[0], passing)  # type: ignore[arg-type, return-value]
    made.devices = bed.start().driver.devices
    return made


@pytest.mark.parametrize("failures", [["unreachable"] * 5, ["forbidden"] * 3, ["failing", "garbage"]])
def test_what_may_be_over_soon_is_tried_again_within_the_call(bed: Bed, failures: list[str]) -> None:
    """kubelet itself tries again after 60 to 90 s."""
    driver = driver_of(bed, lambda _: None)
    bed.claim(0)
    bed.api.failures = list(failures)
    [answer] = driver.prepare([Wanted("default", "c0", UIDS[0])]).values()
    assert isinstance(answer, prepared.PreparedClaim)


def test_a_call_ends_before_kubelet_gives_it_up(bed: Bed) -> None:
    paused: list[float] = []
    driver = driver_of(bed, paused.append)
    bed.api.failures = ["unreachable"] * 10000
    [answer] = driver.prepare([Wanted("default", "c0", UIDS[0])]).values()
    assert "unreachable" in str(answer) or "GET" in str(answer)
    assert 30 < sum(paused) <= drivers.PATIENCE < 45


@pytest.mark.parametrize("case", ["gone", "made anew"])
def test_what_stays_wrong_is_answered_at_once(bed: Bed, case: str) -> None:
    paused: list[float] = []
    driver = driver_of(bed, paused.append)
    bed.claim(1)
    name = {"gone": "c0", "made anew": "c1"}[case]
    [answer] = driver.prepare([Wanted("default", name, UIDS[0])]).values()
    assert (isinstance(answer, str), paused) == (True, [])


def test_a_prepare_that_is_late_after_unprepare_leaves_nothing(bed: Bed) -> None:
    wanted = [Wanted("default", "c0", UIDS[0])]
    driver = driver_of(bed, lambda _: driver.unprepare(wanted))
    bed.claim(0)
    bed.api.failures = ["unreachable"]
    [answer] = driver.prepare(wanted).values()
    assert "expected kubelet to wait" in str(answer)
    assert not bed.record(0).exists()
    assert not bed.cdi()
    assert driver._calls == {}


# Pods that share a claim


def test_a_further_pod_of_a_prepared_claim_gets_into_the_record(bed: Bed) -> None:
    """kubelet makes no call for it."""
    service = bed.start()
    bed.claim(0, "pod-1")
    bed.call(service, "Prepare", 0)
    bed.claim(0, "pod-1", "pod-2")
    bed.api.failures = ["unreachable"]
    service.claims_seen("default", frozenset({"c0", "another"}))
    until(lambda: prepared.read(bed.settings.state_dir, UIDS[0]).pods == ["pod-1", "pod-2"])


# Restarts


def test_a_start_restores_the_files_of_this_boot(bed: Bed) -> None:
    """While a pod lives kubelet never prepares again; after a reboot it prepares all."""
    service = bed.start()
    for at in range(2):
        bed.claim(at)
    bed.call(service, "Prepare", 0, 1)
    before = bed.cdi()
    service.stop(0)
    for path in (bed.path / "cdi").iterdir():
        path.unlink()
    (bed.path / f"cdi/vgpu.io-claim_{UIDS[3]}.json").write_text("{}")  # of a record that is gone
    left = [bed.path / "cdi/.vgpu.io-claim_x.json.9.tmp", bed.path / "state/claims/.x.json.9.tmp"]
    for path in left:  # of a write that was killed
        path.write_text("{")
    again = bed.start()
    assert (bed.cdi(), [path.exists() for path in left]) == (before, [False, False])
    (bed.path / f"cdi/vgpu.io-claim_{UIDS[0]}.json").unlink()
    bed.look(again)
    assert bed.cdi() == before
    again.stop(0)
    bed.start("boot-2")
    assert bed.cdi() == {}
    assert bed.record(0).exists()  # the scheduler's share still counts, until kubelet has prepared or unprepared it


def test_a_file_that_is_lost_between_a_boot_and_the_first_round_comes_back(bed: Bed) -> None:
    """The names of records and of CDI files are then as they were at the start."""
    bed.claim(0)
    bed.call(bed.start(), "Prepare", 0)
    bed.services[0].stop(0)
    again = bed.start("boot-2")
    bed.call(again, "Prepare", 0)
    (bed.path / f"cdi/vgpu.io-claim_{UIDS[0]}.json").unlink()
    bed.look(again)
    assert list(bed.cdi()) == [f"vgpu.io-claim_{UIDS[0]}.json"]


def test_a_record_that_cannot_be_read_for_once_is_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.claim(0)
    bed.call(bed.start(), "Prepare", 0)
    again = PreparedClaims(bed.settings, "boot-1", ["h"])
    with monkeypatch.context() as patch:
        patch.setattr(records, "read_bounded", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        assert len(again.restore()) == 1
    assert again.restore() == []
    assert [claim.uid for claim in again.all()[0]] == [UIDS[0]]
    assert list(bed.cdi()) == [f"vgpu.io-claim_{UIDS[0]}.json"]


def test_a_damaged_record_is_set_aside_and_named(bed: Bed) -> None:
    service = bed.start()
    for at in range(2):
        bed.claim(at)
    bed.call(service, "Prepare", 0, 1)
    service.stop(0)
    bed.record(0).write_text("{")
    notes = PreparedClaims(bed.settings, "boot-1", ["h"]).restore()
    assert [str(bed.record(0)) in note and note.endswith(".json.damaged") for note in notes] == [True]
    bed.start()
    assert list(bed.cdi()) == [f"vgpu.io-claim_{UIDS[1]}.json"]


def test_a_record_of_an_earlier_boot_goes_with_its_claim(bed: Bed) -> None:
    service = bed.start()
    for at in range(2):
        bed.claim(at)
    bed.call(service, "Prepare", 0, 1)
    service.stop(0)
    bed.api.claim("c1", UIDS[2], [], [])  # made anew
    again = bed.start("boot-2")
    until(lambda: not bed.record(1).exists())
    assert bed.record(0).exists()
    assert [claim.uid for claim in again.claims.all()[0]] == [UIDS[0]]


def test_sockets_of_the_dead_go_and_those_of_the_living_stay(bed: Bed) -> None:
    registry, directory = bed.path / "kubelet/plugins_registry", bed.path / "kubelet/plugins/gpu.vgpu.io"
    for one in (registry, directory):
        one.mkdir(parents=True)
    names = [registry / "gpu.vgpu.io-old-reg.sock", directory / "dra-old.sock", registry / "another-reg.sock"]
    living = registry / "gpu.vgpu.io-living-reg.sock"
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(living))
        served.listen()
        for path in names:
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        servers.remove_unserved(str(registry), str(directory))
        assert [path.exists() for path in (*names, living)] == [False, False, True, True]


def test_sockets_that_somebody_deletes_come_back(bed: Bed) -> None:
    service = bed.start()
    os.unlink(service.server.registration)
    bed.look(service)
    assert Path(service.server.registration).is_socket()
    bed.claim(0)
    assert bed.call(service, "Prepare", 0)[UIDS[0]].error == ""


# The slices


def test_the_slices_come_back_however_they_were_changed(bed: Bed) -> None:
    """kubelet deletes them when it starts."""
    bed.start()
    until(lambda: bed.published() == [CARD])
    [made] = bed.api.slices()
    path = f"{SLICES}/{made['metadata']['name']}"
    bed.api.delete(path)
    until(lambda: bed.published() == [CARD])
    edited = bed.api.get(path)
    edited["spec"]["devices"][0]["capacity"]["cores"]["value"] = "400"
    bed.api.put(path, edited)
    until(lambda: bed.api.slices()[0]["spec"]["devices"] == made["spec"]["devices"])
    assert bed.api.slices()[0]["spec"]["pool"]["generation"] > 1


@pytest.mark.parametrize(("bed", "field", "gate"), [
    (False, "allowMultipleAllocations", "DRAConsumableCapacity"), (False, "capacity", "DRAConsumableCapacity"),
    (False, "taints", "DRADeviceTaints"), (True, "consumesCounters", "DRAPartitionableDevices"),
], indirect=["bed"])  # fmt: skip
def test_nothing_is_published_where_the_server_drops_a_field(bed: Bed, field: str, gate: str) -> None:
    bed.api.drops = (field,)
    service = bed.start()
    until(lambda: gate in bed.conditions.present.get("resource slices", ""))
    assert bed.api.slices() == []
    assert gate in service.is_ready()[1] or "not registered" in service.is_ready()[1]


@pytest.mark.parametrize("bed", [True], indirect=True)
def test_parts_are_published_and_prepared_and_their_classes_looked_at(bed: Bed) -> None:
    service = bed.start()
    until(lambda: len(bed.api.slices()) == 2)
    assert [len(bed.published()), bed.published()[:2]] == [15, [CARD, f"{CARD}-half-0"]]
    assert bed.api.slices()[-1]["spec"]["sharedCounters"][0]["name"] == CARD
    until(lambda: "half.gpu.vgpu.io" in bed.conditions.present.get("device classes", ""))
    for named, text in ((False, "DRAExtendedResource on in the API server, and apply it again"), (True, "")):
        for part in ("half", "quarter", "eighth"):
            spec = {"extendedResourceName": f"gpu.vgpu.io/{part}"} if named or part == "half" else {}
            bed.api.put(f"{CLASSES}/{part}.gpu.vgpu.io", {"metadata": {}, "spec": spec})
        bed.api.delete(f"{SLICES}/{bed.api.slices()[0]['metadata']['name']}")  # it looks again when it publishes
        until(lambda text=text: bed.conditions.present.get("device classes", "")[-len(text) :] == text)
    bed.claim(0, device=f"{CARD}-quarter-3", consumedCapacity=None)
    assert bed.call(service, "Prepare", 0)[UIDS[0]].error == ""
    [result] = prepared.read(bed.settings.state_dir, UIDS[0]).results
    assert (result.cores, result.memory, result.whole, result.card) == (25, 4 * GIB, False, uuid_of(0))


def test_nothing_is_published_beside_grants_of_the_device_plugin(bed: Bed) -> None:
    grant = Grant(grants.new_id(), "cores", 30, 1.0)
    grants.write(bed.settings.state_dir, grant)
    service = bed.start()
    until(lambda: "1 grants of the device plugin" in bed.conditions.present.get("resource slices", ""))
    assert bed.api.slices() == []
    os.unlink(paths.grant(bed.settings.state_dir, grant.id))
    bed.look(service)
    until(lambda: bed.published() == [CARD])


def test_an_ill_card_is_tainted_and_kubelet_learns_of_it(bed: Bed) -> None:
    service = bed.start()
    seen: list[Any] = []
    with grpc.insecure_channel(f"unix:{service.server.endpoint}") as channel:
        stream = services.Client(channel, dra_health_pb2, "DRAResourceHealth").NodeWatchResources(
            dra_health_pb2.NodeWatchResourcesRequest()
        )
        threading.Thread(target=_collect, args=(stream, seen), daemon=True).start()
        until(lambda: [one.health for one in seen[-1].devices] == [1] if seen else False)
        bed.ill = {uuid_of(0): "XID 79"}
        bed.look(service)
        until(lambda: [(one.health, one.message) for one in seen[-1].devices] == [(2, "XID 79")])
        stream.cancel()
    until(lambda: [one["spec"]["devices"][0].get("taints") for one in bed.api.slices()] == [
        [{"key": "gpu.vgpu.io/ill", "effect": "NoSchedule"}],
    ])  # fmt: skip


def _collect(stream: Any, seen: list[Any]) -> None:
    try:
        for message in stream:
            seen.append(message)
    except grpc.RpcError:
        return
