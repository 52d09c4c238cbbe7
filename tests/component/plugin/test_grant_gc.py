"""Garbage collection of grants, with kubelet's service on a socket and a thread that waits for the lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grants_node import CARD, GRACE, Kubelet, Node, ids

from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger.lock import Lock
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet import pod_resources
from vgpu.plugin.kubelet.proto import podresources_pb2, services


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_lock_is_held_while_a_grant_goes(node: Node) -> None:
    grant = node.grant()
    node.rounds(GRACE)
    ended: list[str] = []
    with Lock(node.settings.run_dir):
        thread = threading.Thread(target=lambda: ended.extend(node.grant_gc.round()))
        thread.start()
        time.sleep(0.2)
        assert node.left() == {grant}
    thread.join()
    assert ended == [grant]


# Over a real socket


class Server:
    """kubelet's end of the socket."""

    def __init__(self, path: str, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        handler = services.handler(podresources_pb2, "PodResourcesLister", self)
        self.server.add_generic_rpc_handlers((handler,))
        self.server.add_insecure_port("unix://" + path)
        self.server.start()

    def List(self, _: object, context: grpc.ServicerContext) -> podresources_pb2.ListPodResourcesResponse:
        if self.kubelet.error is not None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, str(self.kubelet.error))
        return self.kubelet.response()

    def Get(self, *_: object) -> None:
        raise AssertionError

    GetAllocatableResources = Get


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(f"{tmp_path}/kubelet.sock", Kubelet())
    yield found
    found.server.stop(0).wait()


def test_the_call(tmp_path: Path, server: Server) -> None:
    settings = Settings({"plugin.pod_resources_socket": f"{tmp_path}/kubelet.sock"})
    server.kubelet.lists("web", core=ids(0, 49) + ids(60, 60), memory=ids(0, 3))
    listing = pod_resources.fetch(settings)
    tag = kubelet_resources.tag_of(CARD)
    assert [(held.kind, held.ranges) for held in listing.held] == [
        ("cores", {tag: [(0, 49), (60, 60)]}), ("memory", {tag: [(0, 3)]})
    ]  # fmt: skip
    assert listing.containers == {("kube-system", "network-x7d9k"): set(), ("default", "web"): {"main"}}
    assert pod_resources.fetch(settings).life == listing.life


def test_a_large_answer(tmp_path: Path, server: Server) -> None:
    """With all devices of a node in use the answer exceeds gRPC's own limit of 4 MiB."""
    for number in range(8):
        server.kubelet.lists(f"web-{number}", core=[f"{number:08x}-{at}" for at in range(60_000)])
    listing = pod_resources.fetch(Settings({"plugin.pod_resources_socket": f"{tmp_path}/kubelet.sock"}))
    assert [held.ranges for held in listing.held] == [{f"{number:08x}": [(0, 59_999)]} for number in range(8)]


def test_calls_that_fail(tmp_path: Path, server: Server) -> None:
    server.kubelet.error = RuntimeError("not in this version")
    with pytest.raises(VgpuError, match="UNIMPLEMENTED: not in this version"):
        pod_resources.fetch(Settings({"plugin.pod_resources_socket": f"{tmp_path}/kubelet.sock"}))
    with pytest.raises(FileNotFoundError):
        pod_resources.fetch(Settings({"plugin.pod_resources_socket": f"{tmp_path}/none.sock"}))
    Path(tmp_path, "dead.sock").write_text("")
    with pytest.raises(VgpuError, match="UNAVAILABLE"):
        pod_resources.fetch(Settings({"plugin.pod_resources_socket": f"{tmp_path}/dead.sock"}))
