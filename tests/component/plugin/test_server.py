"""The servicer over real gRPC on real sockets: lists and their changes, ended streams, refusals, deleted sockets."""

from __future__ import annotations

import errno
import io
import os
import socket
import threading
from pathlib import Path

import grpc
import pytest
from daemons import wait_for
from plugin_inputs import MIB, make_cards, make_settings

from vgpu.config import cdi_device, grants, paths
from vgpu.config.errors import VgpuError
from vgpu.hook.placement.placement import Policy
from vgpu.node.service.kubelet_resources import advertised
from vgpu.node.service.log import Log
from vgpu.plugin.kubelet import server
from vgpu.plugin.kubelet.allocate import Allocator
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as protocol
from vgpu.plugin.kubelet.proto import services
from vgpu.plugin.kubelet.server import MAX_STREAMS, WORKERS, DeviceList, ResourceServer, Servicer


class Bed:
    """One resource's server with a client. `granted` are the ids of new grants, `log` is the log's text."""

    def __init__(self, directory: Path, which: int = 0, cards: int = 2, **values: object) -> None:
        self.settings = make_settings(directory, **values)
        (directory / "kubelet").mkdir(exist_ok=True)
        self.resource = advertised(self.settings, make_cards(cards, numa=0))[which]
        self.device_list = DeviceList(self.resource, {})
        self.granted: list[str] = []
        self.log = io.StringIO()
        log = Log(self.log, levels=False, name="test")
        servicer = Servicer(self.device_list, Allocator(self.settings), Policy(), log, self.granted.append)
        self.server = ResourceServer(f"{directory}/kubelet", servicer)
        self.server.bind()
        self.connect()

    def connect(self) -> None:
        self.channel = grpc.insecure_channel(
            f"unix:{self.server.path}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.client = services.Client(self.channel, protocol, "DevicePlugin")

    def watch(self):
        return self.client.ListAndWatch(protocol.Empty(), timeout=120)

    def allocate(self, *requests: list[str]):
        containers = [protocol.ContainerAllocateRequest(devicesIDs=ids) for ids in requests]
        return self.client.Allocate(protocol.AllocateRequest(container_requests=containers), timeout=120)

    def close(self) -> None:
        self.channel.close()
        self.server.close(0)


@pytest.fixture
def make_bed(tmp_path: Path):
    made: list[Bed] = []

    def make(**values) -> Bed:
        made.append(Bed(tmp_path, **values))
        return made[-1]

    yield make
    for bed in made:
        bed.close()


@pytest.fixture
def bed(make_bed) -> Bed:
    return make_bed()


def health(response) -> dict[str, int]:
    counts: dict[str, int] = {}
    for device in response.devices:
        counts[device.health] = counts.get(device.health, 0) + 1
    return counts


def test_options(bed: Bed) -> None:
    options = bed.client.GetDevicePluginOptions(protocol.Empty(), timeout=120)
    assert options.get_preferred_allocation_available
    assert not options.pre_start_required


def test_list_and_its_changes(bed: Bed) -> None:
    stream = bed.watch()
    first = next(stream)
    assert health(first) == {"Healthy": 200}
    assert [node.ID for node in first.devices[0].topology.nodes] == [0]
    assert not bed.device_list.update(bed.resource, {"GPU-00": ""})
    assert bed.device_list.update(bed.resource, {"GPU-00": "Xid 79"})
    assert health(next(stream)) == {"Healthy": 100, "Unhealthy": 100}
    assert bed.device_list.update(bed.resource, {})
    assert next(stream) == first
    more = advertised(bed.settings, make_cards(3, numa=0))[0]
    assert bed.device_list.update(more, {})
    assert len(next(stream).devices) == 300


def test_preferred_ids_of_memory_follow_the_cores_that_were_just_granted(make_bed, tmp_path: Path) -> None:
    memory = make_bed(which=1)
    cores = advertised(memory.settings, make_cards(2, numa=0))[0]
    every = [device.id for device in memory.resource.devices]
    request = protocol.ContainerPreferredAllocationRequest(available_deviceIDs=every, allocation_size=4)

    def card() -> set[str]:
        answer = memory.client.GetPreferredAllocation(
            protocol.PreferredAllocationRequest(container_requests=[request]), timeout=60
        )
        return {one.partition("-")[0] for one in answer.container_responses[0].deviceIDs}

    assert card() == {cores.slots[0].tag}
    memory.server.servicer.allocator.allocate(cores, [[f"{cores.slots[1].tag}-{number}" for number in range(30)]])
    assert card() == {cores.slots[1].tag}


def test_no_numa_node_no_topology(tmp_path: Path) -> None:
    resource = advertised(make_settings(), make_cards())[0]
    response = protocol.ListAndWatchResponse.FromString(server.response_of(resource, {}))
    assert not any(device.HasField("topology") for device in response.devices)
    assert [device.ID for device in response.devices] == [device.id for device in resource.devices]


def test_kubelet_hangs_up_in_mid_stream(bed: Bed) -> None:
    ended = threading.Event()
    bed.device_list.ended = ended.set
    stream = bed.watch()
    next(stream)
    assert len(bed.device_list.streams) == 1
    stream.cancel()
    assert ended.wait(120)
    assert bed.device_list.streams == []
    assert len(next(bed.watch()).devices) == 200


def test_streams_never_keep_calls_waiting(bed: Bed) -> None:
    """With more streams than threads the newest streams stay, and Allocate has a thread."""
    streams = []
    for _ in range(WORKERS * 3):
        streams.append(bed.watch())
        next(streams[-1])
    bed.allocate(["ae5578c0-1"])
    wait_for(lambda: len(bed.device_list.streams) == MAX_STREAMS)
    assert bed.device_list.update(bed.resource, {"GPU-00": "lost"})
    assert health(next(streams[-1])) == {"Healthy": 100, "Unhealthy": 100}
    with pytest.raises(grpc.RpcError):
        next(streams[0])


def test_streams_that_nobody_reads_keep_nobody_waiting(make_bed) -> None:
    """A list of 3 MB exceeds gRPC's send buffer, so each stream keeps its thread until it ends."""
    bed = make_bed(which=1, cards=8, resources__memory_unit=MIB)
    call = bed.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")
    deaf = []
    for _ in range(2 * WORKERS):
        deaf.append(call(b"", timeout=60))
        wait_for(lambda: 0 < len(bed.device_list.streams) <= MAX_STREAMS)
    bed.allocate(["ae5578c0-1"])
    for one in deaf:
        one.cancel()


def test_allocate_writes_a_grant_for_each_container(bed: Bed) -> None:
    answer = bed.allocate(["ae5578c0-1", "ae5578c0-2"], ["ae5578c0-3"])
    ids = [one.annotations["vgpu.io/grant-cores"] for one in answer.container_responses]
    assert [dict(one.envs) for one in answer.container_responses] == [{"VGPU_GRANT_CORES": one} for one in ids]
    assert [grants.read(bed.settings.state_dir, one).amount for one in ids] == [2, 1]
    wait_for(lambda: bed.granted == ids)
    assert bed.log.getvalue().count("test: granted grant=") == 2
    assert ids[0] not in bed.log.getvalue()  # whoever has the whole id can claim the grant, so no log contains it


def test_an_answer_names_the_cdi_device_where_cdi_is_on(make_bed) -> None:
    """Twice: in the field, and in the annotation for kubelets that ignore the field."""
    [one] = make_bed(plugin__cdi=True).allocate(["ae5578c0-1"]).container_responses
    assert [device.name for device in one.cdi_devices] == [cdi_device.DEVICE]
    assert one.annotations[cdi_device.ANNOTATION] == cdi_device.DEVICE
    assert set(one.annotations) == {cdi_device.ANNOTATION, "vgpu.io/grant-cores"}


def test_a_refusal_says_why_and_grants_nothing(bed: Bed) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        bed.allocate(["ae5578c0-1"], ["nope-1"])
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    expected = "vgpu: tencent.com/vcuda-core: expected device ids of this node, found nope-1; this node does not"
    assert caught.value.details().startswith(expected)
    assert not Path(paths.grants(bed.settings.state_dir)).exists()
    assert bed.granted == []
    assert "refused: tencent.com/vcuda-core" in bed.log.getvalue()


def test_a_full_disk_is_reported(bed: Bed, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(grants, "write", full)
    with pytest.raises(grpc.RpcError) as caught:
        bed.allocate(["ae5578c0-1"])
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "No space left on device" in caught.value.details()


def test_a_request_of_tens_of_thousands_of_ids(make_bed) -> None:
    bed = make_bed(which=1, cards=8, resources__memory_unit=MIB)
    ids = [f"ae5578c0-{number}" for number in range(15360)]
    [answer] = bed.allocate(ids).container_responses
    made = grants.read(bed.settings.state_dir, answer.annotations["vgpu.io/grant-memory"])
    assert (made.amount, made.devices) == (15360 * MIB, {"GPU-00": "0-15359"})
    every = [device.id for device in bed.resource.devices]
    request = protocol.ContainerPreferredAllocationRequest(
        available_deviceIDs=every, must_include_deviceIDs=ids, allocation_size=15360
    )
    answer = bed.client.GetPreferredAllocation(
        protocol.PreferredAllocationRequest(container_requests=[request]), timeout=60
    )
    assert sorted(answer.container_responses[0].deviceIDs) == sorted(ids)


def test_garbage_on_the_socket_is_survived(bed: Bed) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(bed.server.path)
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    call = bed.channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
    with pytest.raises(grpc.RpcError):
        call(b"\xff\xff\xff\xff", timeout=120)
    with pytest.raises(grpc.RpcError) as caught:
        bed.channel.unary_unary("/v1beta1.DevicePlugin/Nothing")(b"", timeout=120)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert len(next(bed.watch()).devices) == 200


# The socket


def test_the_socket_is_roots_alone_and_goes_with_the_server(bed: Bed) -> None:
    assert os.stat(bed.server.path).st_mode & 0o777 == 0o600
    assert bed.server.bound()
    bed.server.close(0)
    assert not os.path.lexists(bed.server.path)
    assert not bed.server.bound()


def test_a_deleted_socket_is_bound_anew(bed: Bed) -> None:
    stream = bed.watch()
    next(stream)
    os.unlink(bed.server.path)
    assert not bed.server.bound()
    bed.server.bind()
    assert bed.server.bound()
    assert sorted(os.listdir(bed.server.socket_dir)) == ["vgpu-cores-2.sock"]
    with pytest.raises((StopIteration, grpc.RpcError)):
        next(stream)
    bed.channel.close()
    bed.connect()
    assert len(next(bed.watch()).devices) == 200
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(f"{bed.server.socket_dir}/vgpu-cores.sock")
    bed.server.bind()
    assert sorted(os.listdir(bed.server.socket_dir)) == ["vgpu-cores-3.sock"]


@pytest.mark.parametrize("stale", ["socket", "file", "link"])
def test_a_file_at_the_sockets_path_is_replaced(tmp_path: Path, stale: str) -> None:
    """A plugin that was killed left it."""
    (tmp_path / "target").write_text("kept")
    directory = tmp_path / "bed/kubelet"
    directory.mkdir(parents=True)
    for path in (directory / "vgpu-cores.sock", directory / "vgpu-cores-7.sock"):
        if stale == "socket":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        elif stale == "file":
            path.write_text("x")
        else:
            path.symlink_to(tmp_path / "target")
    (directory / "vgpu-coresque.sock").write_text("another's")
    bed = Bed(tmp_path / "bed")
    try:
        assert bed.server.bound()
        assert sorted(os.listdir(directory)) == ["vgpu-cores.sock", "vgpu-coresque.sock"]
        assert (tmp_path / "target").read_text() == "kept"
        assert len(next(bed.watch()).devices) == 200
    finally:
        bed.close()


def test_a_directory_that_cannot_be_used(tmp_path: Path, bed: Bed) -> None:
    for directory, reason in ((f"{tmp_path}/none", "No such file"), (f"{tmp_path}/{'x' * 90}", "plugin.socket_dir")):
        with pytest.raises(VgpuError, match=reason):
            ResourceServer(directory, bed.server.servicer).bind()


def test_calls_in_progress_are_finished(bed: Bed, monkeypatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    real = grants.write

    def slow(state_dir: str, grant) -> None:
        entered.set()
        assert leave.wait(120)
        real(state_dir, grant)

    monkeypatch.setattr(grants, "write", slow)
    call = bed.client.Allocate.future(
        protocol.AllocateRequest(container_requests=[protocol.ContainerAllocateRequest(devicesIDs=["ae5578c0-1"])])
    )
    assert entered.wait(120)
    closer = threading.Thread(target=bed.server.close, args=(30,))
    closer.start()
    leave.set()
    assert len(call.result(30).container_responses) == 1
    closer.join(120)
    assert not closer.is_alive()
