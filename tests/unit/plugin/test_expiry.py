"""The end of grants: what kubelet lists, when it is believed, and who keeps a grant all the same."""

from __future__ import annotations

import base64
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from vgpu.config import grants, paths, pods, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.pods import Pod
from vgpu.config.settings import Settings
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.linux import procfs
from vgpu.node.service import kubelet_resources
from vgpu.node.service.log import Journal
from vgpu.plugin.kubelet import checkpoint, delete_grants, pod_resources
from vgpu.plugin.kubelet.grant_gc import Belief, Expiry
from vgpu.plugin.kubelet.pod_resources import Listing
from vgpu.plugin.kubelet.proto import deviceplugin_pb2, podresources_pb2, services

CARD = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
GRACE = 60.0


def ids(low: int, high: int, card: str = CARD) -> list[str]:
    return [f"{kubelet_resources.tag_of(card)}-{number}" for number in range(low, high + 1)]


class Kubelet:
    """What it lists: pod -> container -> resource -> ids. `life` is its socket's; `error`: instead of an answer."""

    def __init__(self) -> None:
        self.life = 1
        self.pods: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {("kube-system", "network-x7d9k"): {}}
        self.error: Exception | None = None

    def lists(self, pod: str, container: str = "main", **devices: list[str]) -> None:
        of = {{"core": CORE, "memory": MEMORY}.get(name, name): found for name, found in devices.items()}
        self.pods.setdefault(("default", pod), {})[container] = of

    def response(self) -> podresources_pb2.ListPodResourcesResponse:
        response = podresources_pb2.ListPodResourcesResponse()
        for (namespace, name), containers in self.pods.items():
            pod = response.pod_resources.add(namespace=namespace, name=name)
            for container, devices in containers.items():
                one = pod.containers.add(name=container)
                for resource, found in devices.items():
                    one.devices.add(resource_name=resource, device_ids=found)
        return response

    def ask(self, settings: Settings) -> Listing:
        if self.error is not None:
            raise self.error
        return pod_resources.listing((0, self.life, 0), self.response(), settings)


class Node:
    """State on disk, a kubelet, and time that passes when told."""

    def __init__(self, path: Path) -> None:
        values = {"paths.state": str(path / "state"), "paths.run": str(path / "run"), "plugin.socket_dir": str(path)}
        self.settings = Settings({**values, "plugin.grant_grace": int(GRACE)}, node="gpu-7.example.org")
        self.checkpoint = path / checkpoint.NAME
        self.remembers()
        self.kubelet = Kubelet()
        self.now = 1000.0
        self.log = io.StringIO()
        self.started = 0.0
        self.expiry = self.plugin()

    def plugin(self) -> Expiry:
        """One that has just started."""
        return Expiry(self.settings, Journal(self.log, levels=False), self.kubelet.ask, lambda: self.now)

    def grant(
        self, low: int = 0, high: int = 49, holder: tuple[str, str] | None = None, pod: str = "",
        resource: str = "cores",
    ) -> str:  # fmt: skip
        """A grant of the ids from `low` to `high`; `holder` (pod uid, container) has claimed it, as `pod` by name."""
        self.started += 1
        found = Grant(grants.new_id(), resource, 1, self.started, devices={CARD: f"{low}-{high}"})
        if holder:
            found.holder, found.cards = Holder(*holder), [CARD]
            found.name = f"default/{pod}/{holder[1]}" if pod else ""
        grants.write(self.settings.state_dir, found)
        return found.id

    def remembers(self, *ids: str) -> None:
        """Write kubelet's checkpoint: the answers of Allocate that it keeps."""
        entries = []
        for grant_id in ids:
            answer = deviceplugin_pb2.ContainerAllocateResponse(envs={"VGPU_GRANT_CORES": grant_id})
            kept = base64.b64encode(answer.SerializeToString()).decode()
            entries.append({"PodUID": "u", "ContainerName": "c", "DeviceIDs": {"-1": ["x"]}, "AllocResp": kept})
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {}}
        self.checkpoint.write_text(json.dumps({"Data": data, "Checksum": 1}))

    def claim(self, container: str, *held: str, pid: int = 0) -> None:
        """A container whose init is this process, or `pid`."""
        pid = pid or os.getpid()
        made = Claim(container, pid, procfs.start_time(pid), [], True, None, list(held), "", 1.0)
        path = paths.claim(self.settings.run_dir, container)
        os.makedirs(os.path.dirname(path))
        records.write(path, made.record())

    def rounds(self, seconds: float = 3 * GRACE, step: float = 10.0) -> list[str]:
        """As often as a plugin would look in that time; what has ended."""
        ended = []
        for _ in range(int(seconds / step)):
            ended += self.expiry.round()
            self.now += step
        return ended

    def left(self) -> set[str]:
        return {grant.id for grant in grants.read_all(self.settings.state_dir)[0]}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# What kubelet lists


def test_listed_stays_and_unlisted_ends_after_the_grace(node: Node) -> None:
    mine, gone = node.grant(0, 49, ("u1", "main"), "web"), node.grant(50, 99, ("u2", "main"), "old")
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(GRACE) == [], "60 s have not passed at the sixth look"
    assert node.expiry.round() == [gone]
    assert node.left() == {mine}
    assert "grant ended" in node.log.getvalue()
    assert "default/old/main" in node.log.getvalue()


def test_listed_again_in_time_begins_anew(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    assert node.rounds(GRACE) == []
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(10) == []
    del node.kubelet.pods["default", "web"]
    assert node.rounds(GRACE) == []
    assert node.rounds(10) == [grant]


def test_a_grant_whose_container_never_started(node: Node) -> None:
    """Its image is being pulled, for hours; or the pod was refused in the end."""
    waiting, refused = node.grant(0, 49), node.grant(50, 99)
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(100 * GRACE) == [refused]
    assert node.left() == {waiting}


@pytest.mark.parametrize("resource", ["cores", "memory", "gpu"])
def test_resources_are_told_apart(node: Node, resource: str) -> None:
    """Ids of cores and memory look alike: only the resource's name tells."""
    grant = node.grant(resource=resource)
    names = {"cores": CORE, "memory": MEMORY, "gpu": "nvidia.com/gpu"}
    for other, name in names.items():
        if other != resource:
            node.kubelet.lists("web", other, **{name: ids(0, 49)})
    assert node.rounds() == [grant]
    again = node.grant(resource=resource)
    node.kubelet.lists("web", **{names[resource]: ids(0, 49)})
    assert node.rounds() == []
    assert node.left() == {again}


def test_a_resource_of_an_earlier_name_keeps_what_looks_like_it(node: Node) -> None:
    """The administrator renamed it: kubelet goes on listing running pods under the old name."""
    node.grant(holder=("u1", "main"), pod="web")
    node.kubelet.lists("web", **{"example.org/old-core": ids(0, 49)})
    assert node.rounds() == []


def test_other_plugins_ids_are_not_ours(node: Node) -> None:
    grant = node.grant()
    node.kubelet.lists("web", **{"rdma/hca": ["mlx5_0", "0-49", "", f"{kubelet_resources.tag_of(CARD)}-x"]})
    node.kubelet.lists("web", "second", core=ids(0, 49, OTHER))
    assert node.rounds() == [grant]


def test_a_terminated_pod_ends_whether_kubelet_lists_it_or_not(node: Node) -> None:
    """Some versions list it until it is deleted, without its devices; others leave it out."""
    one, two = node.grant(0, 9, ("u1", "main"), "job-1"), node.grant(10, 19, ("u2", "main"), "job-2")
    node.kubelet.lists("job-1", core=[])
    assert sorted(node.rounds()) == sorted([one, two])


def test_ids_that_another_pod_got(node: Node) -> None:
    first = node.grant(0, 49, ("u1", "main"), "old")
    second = node.grant(0, 29, ("u2", "main"), "new")
    node.kubelet.lists("new", core=ids(0, 29))
    assert node.rounds() == [first]
    assert node.left() == {second}


def test_a_runtimes_own_name_for_the_pod(node: Node) -> None:
    """Listed under another name than the hook was told: nobody else has these ids, so it is the same pod."""
    node.grant(0, 49, ("u1", "main"), "web")
    node.kubelet.lists("k8s_web", core=ids(0, 49))
    assert node.rounds() == []


def test_ids_that_another_pod_is_about_to_get(node: Node) -> None:
    first = node.grant(0, 49, ("u1", "main"), "old")
    second = node.grant(0, 29)
    node.kubelet.lists("new", core=ids(0, 29))
    assert node.rounds() == [first]
    assert node.left() == {second}


def test_the_next_pod_of_the_same_name_and_ids(node: Node) -> None:
    """A stateful set's: nothing but the uid tells them apart."""
    first = node.grant(0, 49, ("u1", "main"), "web-0")
    second = node.grant(0, 49)
    node.kubelet.lists("web-0", core=ids(0, 49))
    assert node.rounds() == [], "nobody has claimed the second: it may be the first one's own, for a later container"
    claimed = grants.read(node.settings.state_dir, second)
    claimed.holder, claimed.name = Holder("u2", "main"), "default/web-0/main"
    grants.write(node.settings.state_dir, claimed)
    assert node.rounds() == [first]
    assert node.left() == {second}


def test_an_init_container_keeps_its_grant_while_the_pod_is_there(node: Node) -> None:
    """kubelet lists no init containers, and runs them again when the pod's sandbox has to be made anew."""
    alone = node.grant(0, 49, ("u1", "prepare"), "job")
    handed_on = node.grant(50, 99, ("u2", "prepare"), "web")
    app = node.grant(50, 79, ("u2", "main"), "web")
    node.remembers(alone, handed_on, app)
    node.kubelet.lists("job", "main")
    node.kubelet.lists("web", "main", core=ids(50, 79))
    assert node.rounds() == []
    node.kubelet.pods.pop(("default", "job"))
    assert node.rounds() == [alone], "whatever is in an old checkpoint"
    node.remembers()
    assert node.rounds() == [], "one of its ids is listed still, of its own pod"
    node.kubelet.pods.pop(("default", "web"))
    assert sorted(node.rounds()) == sorted([handed_on, app])


def test_an_init_container_that_is_still_to_start(node: Node) -> None:
    """Nobody has claimed its grant: all that tells of it is kubelet's checkpoint."""
    waiting, refused = node.grant(0, 49), node.grant(50, 99)
    node.remembers(waiting)
    node.kubelet.lists("job", "main")
    assert node.rounds(100 * GRACE) == [refused]
    node.remembers()
    assert node.rounds() == [waiting]


def test_an_init_container_of_a_pod_that_is_over_but_listed(node: Node) -> None:
    """Versions that list terminated pods until they are deleted have freed their devices all the same."""
    grant = node.grant(0, 49, ("u1", "prepare"), "job")
    node.kubelet.lists("job", "main")
    assert node.rounds() == [grant]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Data": 7}', '{"Data": {"PodDeviceEntries": [{}]}}', "[" * 100_000])
def test_a_checkpoint_of_another_form_names_everything(node: Node, text: str) -> None:
    node.grant()
    node.checkpoint.write_text(text)
    assert node.rounds() == []


def test_no_checkpoint_names_everything(node: Node) -> None:
    node.grant()
    node.checkpoint.unlink()
    assert node.rounds() == []


def test_the_api_servers_word_for_a_pods_name(node: Node) -> None:
    """A runtime that does not tell names: what the plugin has written down of the pod does."""
    grant = node.grant(holder=("u1", "main"))
    node.remembers(grant)
    assert node.rounds() == [], "it might be an init container's"
    pods.write(node.settings.run_dir, Pod("u1", "default", "web", "gpu-7", [], ["main"], {}, {}))
    assert node.rounds() == [grant]


def test_without_a_name_the_ids_decide(node: Node) -> None:
    kept, gone = node.grant(0, 49, ("u1", "")), node.grant(50, 99, ("u2", ""))
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds() == [gone]
    assert node.left() == {kept}


def test_a_grant_made_by_hand_is_not_kubelets(node: Node) -> None:
    made = Grant(grants.new_id(), "cores", 50, 1.0)
    grants.write(node.settings.state_dir, made)
    assert node.rounds() == []


def test_a_damaged_grant_is_told_and_stays(node: Node) -> None:
    grant = node.grant()
    damaged = Path(paths.grant(node.settings.state_dir, grants.new_id()))
    damaged.write_text("{")
    assert node.rounds() == [grant]
    assert damaged.exists()
    assert str(damaged) in node.log.getvalue()


# When kubelet is believed


def test_a_kubelet_that_has_just_started_ends_nothing(node: Node) -> None:
    """It lists nothing, or static pods, until it has heard of the API server: for hours if that is down."""
    node.remembers(node.grant(holder=("u1", "main"), pod="web"))
    node.kubelet.pods = {}
    assert node.rounds(100 * GRACE) == []
    for static in ("etcd-gpu-7", "proxy-gpu-7.example.org"):
        node.kubelet.pods["kube-system", static] = {"main": {}}
    assert node.rounds(100 * GRACE) == []


@pytest.mark.parametrize("others", [{}, {("kube-system", "etcd-gpu-7"): {"main": {}}}])
def test_on_a_node_of_static_pods_a_grant_ends_when_kubelets_checkpoint_drops_it(node: Node, others) -> None:
    """kubelet frees devices only when it knows all pods, those of the API server included where it has one."""
    gone, stays = node.grant(0, 49, ("u1", "main"), "job-gpu-7"), node.grant(50, 99, ("u2", "main"), "web-gpu-7")
    node.remembers(gone, stays)
    node.kubelet.pods = dict(others)
    node.kubelet.lists("web-gpu-7", core=ids(50, 99))
    assert node.rounds(100 * GRACE) == [], "it is in the checkpoint still, which may be old"
    node.remembers(stays)
    assert node.rounds(GRACE) == []
    assert node.rounds(10) == [gone]
    node.remembers()
    assert node.rounds() == [], "a static pod that is listed has its grant"


def test_what_the_checkpoint_has_dropped_waits_anew_after_a_restart_of_kubelet(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="job-gpu-7")
    node.kubelet.pods = {}
    assert node.rounds(GRACE - 10) == []
    node.kubelet.life = 2
    assert node.rounds(GRACE) == []
    assert node.rounds(10) == [grant]


@pytest.mark.parametrize("text", ["", '{"Data": 7}'])
def test_without_a_checkpoint_static_pods_end_nothing(node: Node, text: str) -> None:
    node.grant(holder=("u1", "main"), pod="job-gpu-7")
    node.kubelet.pods = {}
    node.checkpoint.write_text(text)
    assert node.rounds(100 * GRACE) == []


def test_an_empty_list_counts_when_a_full_one_came_before(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds() == []
    node.kubelet.pods = {}
    assert node.rounds(GRACE) == []
    assert node.rounds(10) == [grant]


def test_a_restart_of_kubelet_begins_anew(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.remembers(grant)
    assert node.rounds(GRACE - 10) == []
    node.kubelet.life, before = 2, node.kubelet.pods
    node.kubelet.pods = {}
    assert node.rounds(100 * GRACE) == []
    node.kubelet.pods = before
    assert node.rounds(GRACE) == [], "the seconds of before do not count"
    assert node.rounds(10) == [grant]


@pytest.mark.parametrize(
    "error", [VgpuError("kubelet", found="UNAVAILABLE"), FileNotFoundError(2, "No such file", "kubelet.sock")]
)
def test_no_answer_ends_nothing_and_is_told_once(node: Node, error: Exception) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    assert node.rounds(GRACE - 10) == []
    node.kubelet.error = error
    assert node.rounds(100 * GRACE) == []
    assert node.log.getvalue().count("no grant ends for now") == 1
    node.kubelet.error = None
    assert node.rounds(GRACE) == [], "the seconds of before do not count"
    assert node.rounds(10) == [grant]
    assert "over: no grant ends" in node.log.getvalue()


def test_a_restart_of_the_plugin_begins_anew(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    assert node.rounds(GRACE - 10) == []
    node.expiry = node.plugin()
    assert node.rounds(GRACE) == []
    assert node.rounds(10) == [grant]


@pytest.mark.parametrize(
    ("pod", "static"),
    [
        ("etcd-gpu-7", True),
        ("etcd-gpu-7.example.org", True),
        ("network-x7d9k", False),
        ("gpu-7", False),
        ("web-0", False),
    ],
)
def test_static_pods_do_not_vouch(pod: str, static: bool) -> None:
    listing = Listing((1, 1, 1), {("default", pod): set()}, [])
    assert Belief(["GPU-7.example.org", ""]).believes(listing) is not static


# Who keeps it all the same


def test_a_living_container_keeps_its_grant(node: Node) -> None:
    """A pod that was deleted by force is not listed any more, and may run on for a while."""
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.claim("c1", grant)
    assert node.rounds(100 * GRACE) == []
    os.unlink(paths.claim(node.settings.run_dir, "c1"))
    assert node.rounds(GRACE) == [], "from its end on"
    assert node.rounds(10) == [grant]


def test_a_dead_container_keeps_nothing(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.claim("c1", grant, pid=1 << 21)
    assert node.rounds() == [grant]


def test_a_claim_that_comes_in_last(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook claims between the plugin's decision and the removal: under the lock it is seen."""
    grant = node.grant(holder=("u1", "main"), pod="web")
    taken = Lock._take

    def take(lock: Lock) -> None:
        if not os.path.exists(paths.claim(node.settings.run_dir, "c1")):
            node.claim("c1", grant)
        taken(lock)

    monkeypatch.setattr(Lock, "_take", take)
    assert node.rounds() == []
    assert node.left() == {grant}


def test_a_grant_that_has_changed_since(node: Node) -> None:
    grant_id = node.grant()
    seen = grants.read(node.settings.state_dir, grant_id)
    changed = grants.read(node.settings.state_dir, grant_id)
    changed.holder = Holder("u1", "main")
    grants.write(node.settings.state_dir, changed)
    assert delete_grants.end(node.settings, [seen]) == []
    assert [grant.id for grant in delete_grants.end(node.settings, [changed])] == [grant_id]
    assert delete_grants.end(node.settings, [changed]) == [], "gone already"


def test_the_lock_is_held_while_a_grant_goes(node: Node) -> None:
    grant = node.grant()
    node.rounds(GRACE)
    ended: list[str] = []
    with Lock(node.settings.run_dir):
        thread = threading.Thread(target=lambda: ended.extend(node.expiry.round()))
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
    listing = pod_resources.ask(settings)
    tag = kubelet_resources.tag_of(CARD)
    assert [(held.kind, held.ranges) for held in listing.held] == [
        ("cores", {tag: [(0, 49), (60, 60)]}), ("memory", {tag: [(0, 3)]})
    ]  # fmt: skip
    assert listing.containers == {("kube-system", "network-x7d9k"): set(), ("default", "web"): {"main"}}
    assert pod_resources.ask(settings).life == listing.life


def test_a_large_answer(tmp_path: Path, server: Server) -> None:
    """All devices of a node in use: more than gRPC's own bound of 4 MiB."""
    for number in range(8):
        server.kubelet.lists(f"web-{number}", core=[f"{number:08x}-{at}" for at in range(60_000)])
    listing = pod_resources.ask(Settings({"plugin.pod_resources_socket": f"{tmp_path}/kubelet.sock"}))
    assert [held.ranges for held in listing.held] == [{f"{number:08x}": [(0, 59_999)]} for number in range(8)]


def test_calls_that_fail(tmp_path: Path, server: Server) -> None:
    server.kubelet.error = RuntimeError("not in this version")
    with pytest.raises(VgpuError, match="UNIMPLEMENTED: not in this version"):
        pod_resources.ask(Settings({"plugin.pod_resources_socket": f"{tmp_path}/kubelet.sock"}))
    with pytest.raises(FileNotFoundError):
        pod_resources.ask(Settings({"plugin.pod_resources_socket": f"{tmp_path}/none.sock"}))
    Path(tmp_path, "dead.sock").write_text("")
    with pytest.raises(VgpuError, match="UNAVAILABLE"):
        pod_resources.ask(Settings({"plugin.pod_resources_socket": f"{tmp_path}/dead.sock"}))
