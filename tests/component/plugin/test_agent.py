"""The agent with an API server over HTTP: pod records, answers to schedulers, the node's annotations, and faults."""

from __future__ import annotations

import io
import json
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from cards import card, instance, inventory, write_inventory
from daemons import wait_for
from fake_apiserver import FakeApiServer

from vgpu.config import grants, paths, pods, records, rounds
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.incidents import OUT_OF_MEMORY, STOPPED, Incident
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.request import pod_record
from vgpu.node.service.log import Log
from vgpu.plugin.apiserver import Agent, node_labels, pod_objects
from vgpu.plugin.apiserver import agent as cluster_module
from vgpu.plugin.apiserver.client import Api, ApiError, cause_of

NODE = "gpu-node-1"
UID = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"
OTHER = "aaaaaaaa-0b0e-4c53-9d3a-6f0f8f0f1a11"
A = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
B = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"
LIMITS: dict[str, dict[str, object]] = {"main": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "cpu": "1"}}


class Site:
    """A node with its API server and its plugin's agent."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.server = FakeApiServer()
        self.server.put_node(NODE)
        self.log = io.StringIO()
        values: dict[str, object] = {
            "paths.run": str(path / "run"), "paths.state": str(path / "state"),
            "kubernetes.kubeconfig": self.server.kubeconfig(path / "kubeconfig"), **settings,
        }  # fmt: skip
        self.settings = Settings(values, NODE)
        self.reasons: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.not_known = ""
        self.over: list[int] = []  # an item for each call of pod_over
        self.put_inventory()
        self.agent = self.new_agent()

    def new_agent(self) -> Agent:
        made = Agent(
            self.settings, Log(self.log, False), NODE, lambda: dict(self.reasons),
            pod_over=lambda: self.over.append(1), faults=lambda: dict(self.faults),
            not_known=lambda: self.not_known,
        )  # fmt: skip
        made.informer.first_pause = 0.05
        return made

    def put_inventory(self, count: int = 2) -> None:
        cards = [card(index, uuid=uuid, name="Tesla T4") for index, uuid in enumerate((A, B)[:count])]
        write_inventory(self.settings.run_dir, inventory(cards))

    def start(self) -> None:
        self.agent.start()
        wait_for(self.server.watching)

    def restart(self) -> None:
        self.agent.stop()
        self.server.hang_up()
        self.agent = self.new_agent()
        self.start()

    def close(self) -> None:
        self.agent.stop()
        self.server.close()
        for thread in self.agent._threads:
            thread.join(5)

    def record(self, uid: str = UID) -> pods.Pod | None:
        try:
            return pods.read(self.settings.run_dir, uid)
        except FileNotFoundError:
            return None

    def redeem(self, uid: str = UID, ready: bool = True, pause: float = 0) -> None:
        """Write the records that the hook writes when it assigns cards to a pod's container, in the hook's order."""
        grant = Grant(grants.new_id(), "gpu", 1, 1.0, holder=Holder(uid, "main"), cards=[A])
        grants.write(self.settings.state_dir, grant)
        time.sleep(pause)
        self.claim(uid, grant.id, ready)

    def claim(self, uid: str, grant_id: str, ready: bool) -> None:
        made = Claim(f"c-{uid[:4]}", 1, 1, [], True, Holder(uid, "main"), [grant_id], "/b", 1.0, ready=ready)
        directory = self.path / "run/containers" / made.container
        directory.mkdir(parents=True, exist_ok=True)
        records.write(paths.claim(self.settings.run_dir, made.container), made.record())

    def annotation(self, name: str, key: str) -> str | None:
        value: str | None = self.server.pod(name)["metadata"]["annotations"].get(key)
        return value

    def label(self, name: str, key: str) -> str | None:
        value: str | None = self.server.pod(name)["metadata"]["labels"].get(key)
        return value

    def logged(self, text: str) -> int:
        return self.log.getvalue().count(text)


@pytest.fixture
def new_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    monkeypatch.setattr(cluster_module, "TICK", 0.05)
    monkeypatch.setattr(cluster_module, "PAUSE", 0.0)
    made: list[Site] = []

    def make(**settings: object) -> Site:
        made.append(Site(tmp_path, **settings))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    return new_site()


# Records


def test_records_follow_the_pods(site: Site) -> None:
    annotations = {"hami.io/vgpu-node": NODE, "other.io/x": "1", "vgpu.io/core-limit": "50"}
    site.server.put_pod("before", NODE, UID, LIMITS, annotations)
    site.server.put_pod("elsewhere", "gpu-node-2", OTHER, LIMITS)
    site.server.put_pod("without", NODE, "b" * 8, {"main": {"cpu": "1"}})
    site.start()
    record = wait_for(site.record)
    assert (record.name, record.namespace, record.node) == ("before", "default", NODE)
    assert record.annotations == {"hami.io/vgpu-node": NODE, "vgpu.io/core-limit": "50"}
    assert record.limits == {"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}
    assert pod_record.watched(site.settings.run_dir)

    limits: dict[str, dict[str, object]] = {"setup": LIMITS["main"], "main": {}, "side": {"nvidia.com/gpu": 2}}
    site.server.put_pod("after", NODE, OTHER, limits, init=("setup",))
    record = wait_for(lambda: site.record(OTHER))
    assert (record.init_containers, record.containers) == (["setup"], ["main", "side"])
    site.server.put_pod("after", NODE, OTHER, limits, {"vgpu.io/placement": "x"}, init=("setup",))
    wait_for(lambda: (found := site.record(OTHER)) and found.annotations)
    site.server.remove_pod("after")
    wait_for(lambda: site.record(OTHER) is None)
    site.server.put_pod("before", NODE, UID, LIMITS, annotations, phase="Succeeded")
    wait_for(lambda: site.record() is None)
    assert pods.uids(site.settings.run_dir) == []


def test_what_was_missed_while_away_is_made_up_for(site: Site) -> None:
    site.server.put_pod("gone", NODE, UID, LIMITS)
    site.start()
    wait_for(site.record)
    site.agent.stop()
    assert not pod_record.watched(site.settings.run_dir)
    site.server.hang_up()
    site.server.remove_pod("gone")
    site.server.put_pod("new", NODE, OTHER, LIMITS)
    site.restart()
    wait_for(lambda: site.record(OTHER))
    assert site.record() is None


def test_long_lists_come_in_pages(site: Site) -> None:
    site.server.page = 7
    uids = [f"{number:08x}-0000" for number in range(40)]
    for number, uid in enumerate(uids):
        site.server.put_pod(f"p{number}", NODE, uid, LIMITS)
    site.start()
    wait_for(lambda: pods.uids(site.settings.run_dir) == uids)


def test_a_watch_that_the_server_ends_is_taken_up_where_it_was(site: Site) -> None:
    site.start()
    lists = len([1 for _, path in site.server.requests if "limit=" in path])
    site.server._end = True
    for number in range(3):
        wait_for(site.server.watching)
        with site.server._change:
            site.server._watches.clear()
            site.server._change.notify_all()
        site.server.put_pod(f"p{number}", NODE, f"{number:08x}-0000", LIMITS)
        wait_for(lambda number=number: site.record(f"{number:08x}-0000"))
    # A connection that ends in the middle of an answer may cost a new list, but not each time.
    assert len([1 for _, path in site.server.requests if "limit=" in path]) < lists + 3


REFUSES, AWAY = "pods are not followed", "the API server is away"
FAULTS = {
    **dict.fromkeys(("429", "401", "403", "404", "garbage", "html", "empty"), REFUSES),
    **dict.fromkeys(("500", "503", "hang", "close", "cut"), AWAY),
}


@pytest.mark.parametrize(("fault", "line"), FAULTS.items())
def test_a_server_that_refuses_or_is_away_is_reported_once_and_tried_again(site: Site, fault: str, line: str) -> None:
    site.server.put_pod("p", NODE, UID, LIMITS)
    site.server.break_next(fault, "/api/v1/pods", times=4)
    site.start()
    wait_for(site.record)
    wait_for(lambda: site.logged(f"over: {line}") == 1)
    assert {text: site.logged(text) for text in (REFUSES, AWAY)} == {REFUSES: 0, AWAY: 0, line: 2}  # and its end


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_is_over(site: Site) -> None:
    """Each of the two threads finds it, again and again: the watch breaks, and then connections are refused."""
    site.server.put_pod("p", NODE, UID, LIMITS, {"vgpu.io/placement": f"main={A}"})
    site.start()
    wait_for(site.record)
    for _ in range(2):
        before = len(site.log.getvalue())
        site.server.close()
        site.redeem()
        wait_for(lambda before=before: "the API server is away" in site.log.getvalue()[before:])
        for _ in range(8):
            site.agent.handed_over("")
            time.sleep(0.1)
        assert site.log.getvalue()[before:].count("\n") == 1
        assert " at 0x" not in site.log.getvalue()
        site.server = FakeApiServer(site.server.port)
        site.server.put_node(NODE)
        site.server.put_pod("p", NODE, UID, LIMITS, {"vgpu.io/placement": f"main={A}"})
        wait_for(lambda before=before: "over: the API server is away" in site.log.getvalue()[before:])
        wait_for(site.server.watching)
        assert site.log.getvalue()[before:].count("\n") == 2


def test_a_watch_that_breaks_while_the_server_is_there_is_no_outage(site: Site) -> None:
    site.server.put_pod("p", NODE, UID, LIMITS)
    site.start()
    for number in range(3):
        wait_for(site.server.watching)
        site.server.hang_up()
        site.server.put_pod(f"p{number}", NODE, f"{number:08x}-0000", LIMITS)
        wait_for(lambda number=number: site.record(f"{number:08x}-0000"))
    wait_for(lambda: pod_record.watched(site.settings.run_dir))
    assert site.log.getvalue() == ""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset by peer")),
            "reset by",
        ),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "Read timed out. (15)"), "no answer in time"),  # type: ignore[arg-type]
        (urllib3.exceptions.ConnectTimeoutError(None, "timed out"), "no connection within 5 s"),
        (urllib3.exceptions.SSLError(ssl.SSLError(1, "wrong version number")), "TLS failed"),
        (urllib3.exceptions.MaxRetryError(None, "/", OSError(113, "No route to host")), "No route to host"),  # type: ignore[arg-type]
        (urllib3.exceptions.DecodeError("at 0x7f00"), "DecodeError"),
    ],
)
def test_a_cause_is_in_plain_words(error: Exception, text: str) -> None:
    assert text in cause_of(error)
    assert "0x" not in cause_of(error)
    assert "pool" not in cause_of(error).lower()


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "RECONNECT", 0.05)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    site.agent.start()
    wait_for(lambda: site.logged("no access to the API server"))
    time.sleep(0.5)
    assert site.log.getvalue().count("\n") == 1
    assert "install python3-kubernetes (Debian, Ubuntu) or run pip install kubernetes" in site.log.getvalue()
    monkeypatch.undo()
    wait_for(site.server.watching)
    assert site.logged("over: no access to the API server") == 1


LINES = [
    b"garbage", b"{}", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": 5}', b"[]", b"\0", b"{" * 70,
    b'{"type": "ERROR", "object": {"code": 500}}', b'{"type": "ERROR", "object": {"code": 410}}', b'{"type": "ERROR"}',
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_garbage_in_a_watch_breaks_it_and_nothing_else(site: Site, line: bytes) -> None:
    site.server.put_pod("p", NODE, UID, LIMITS)
    site.start()
    wait_for(site.record)
    site.server.send_garbage(line + b"\n")
    wait_for(lambda: not site.server.watching() or len(site.server.requests) > 3)
    site.server.put_pod("q", NODE, OTHER, LIMITS)
    wait_for(lambda: site.record(OTHER))
    assert site.record()
    wait_for(lambda: pod_record.watched(site.settings.run_dir))


@pytest.mark.parametrize(
    "garbage",
    [
        {"metadata": None},
        {"metadata": {"name": "p", "namespace": "default", "uid": "../../etc"}},
        {"metadata": {"name": "../p", "namespace": "default", "uid": UID}},
        {"metadata": {"name": "p", "namespace": 5, "uid": UID}},
        {"spec": []},
        {
            "spec": {
                "nodeName": NODE,
                "containers": [5, {}, {"name": "x", "resources": {"limits": {"nvidia.com/gpu": []}}}],
            }
        },
        {
            "spec": {
                "nodeName": "elsewhere",
                "containers": [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            }
        },
    ],
)
def test_a_pod_that_is_none_is_passed_over(site: Site, garbage: dict[str, Any]) -> None:
    bad = site.server.put_pod("bad", NODE, "c" * 8, LIMITS)
    bad.update(garbage)
    bad["spec"] = garbage.get("spec", bad["spec"])
    if not isinstance(bad["spec"], dict) or bad["spec"]["nodeName"] != NODE:
        site.server.list_objects = lambda *_: {"metadata": {"resourceVersion": "1000"}, "items": [bad, good, 5, None]}  # type: ignore[method-assign]
    good = site.server.put_pod("good", NODE, OTHER, LIMITS)
    site.start()
    wait_for(lambda: site.record(OTHER))
    assert pods.uids(site.settings.run_dir) == [OTHER]


def test_the_sign_goes_down_with_the_server(site: Site) -> None:
    site.start()
    wait_for(lambda: pod_record.watched(site.settings.run_dir))
    site.server.break_next("503", "/api/v1/pods", times=1000)
    site.server.hang_up()
    wait_for(lambda: not pod_record.watched(site.settings.run_dir))
    site.server.mend()
    wait_for(lambda: pod_record.watched(site.settings.run_dir))


# Pods that are over


def test_pods_that_were_deleted_or_have_ended_are_gone_at_once(site: Site) -> None:
    site.server.put_pod("deleted", NODE, UID, LIMITS)
    site.server.put_pod("done", NODE, OTHER, LIMITS)
    site.server.put_pod("failed", NODE, "c" * 8, LIMITS, phase="Failed")
    site.start()
    wait_for(lambda: site.agent.pods_gone() == {"c" * 8})
    calls = len(site.over)
    site.server.remove_pod("deleted")
    wait_for(lambda: site.agent.pods_gone() == {"c" * 8, UID})
    site.server.put_pod("done", NODE, OTHER, LIMITS, phase="Succeeded")
    wait_for(lambda: site.agent.pods_gone() == {"c" * 8, UID, OTHER})
    site.server.remove_pod("done")
    site.server.put_pod("next", NODE, "d" * 8, LIMITS)
    wait_for(lambda: site.record("d" * 8))
    wait_for(lambda: len(site.over) == calls + 2)


def test_pods_that_went_while_the_server_or_the_plugin_was_away(site: Site) -> None:
    """While the server is away nothing is concluded; the list that follows has all pods."""
    site.server.put_pod("early", NODE, UID, LIMITS)
    site.server.put_pod("late", NODE, OTHER, LIMITS)
    site.start()
    wait_for(lambda: site.record() and site.record(OTHER))
    site.server.break_next("503", "/api/v1/pods", times=1000)
    site.server.forget_history()
    site.server.hang_up()
    site.server.remove_pod("early")
    wait_for(lambda: site.logged("the API server is away"))
    assert site.agent.pods_gone() == set()
    site.server.mend()
    wait_for(lambda: site.agent.pods_gone() == {UID})
    site.agent.stop()
    site.server.hang_up()
    site.server.remove_pod("late")
    site.agent = site.new_agent()
    site.start()
    wait_for(lambda: site.agent.pods_gone() == {OTHER})


def test_a_list_of_another_node_makes_no_pod_seem_deleted(site: Site) -> None:
    """With a wrong NODE_NAME the server shows none of this node's pods. Their grants do not end for that."""
    site.server.put_pod("p", "gpu-node-2", UID, LIMITS)
    site.redeem()
    site.start()
    wait_for(lambda: pod_record.watched(site.settings.run_dir))
    assert site.agent.pods_gone() == set()
    assert site.over == []


# Answers


def test_gpu_assigned_once_the_devices_are_handed_over(site: Site) -> None:
    annotations = {
        "nvidia.com/predicate-gpu-idx-0": "0",
        "nvidia.com/gpu-assigned": "false",
        "tencent.com/gpu-assigned": "false",
    }
    labels = {"tydic.io/bind-phase": "allocating", "tydic.io/bind-time": "1700000000000000000"}
    site.server.put_pod("p", NODE, UID, LIMITS, annotations, labels)
    site.server.put_pod("look-alike", NODE, OTHER, LIMITS, annotations, labels)
    site.start()
    wait_for(site.record)
    site.agent.handed_over("0" * 32)
    with Lock(site.settings.run_dir):
        site.redeem(ready=False, pause=0.3)
    time.sleep(0.3)
    assert site.annotation("p", "nvidia.com/gpu-assigned") == "false"  # the hook is still at work, and may fail
    site.redeem()
    wait_for(lambda: site.annotation("p", "nvidia.com/gpu-assigned") == "true")
    assert site.annotation("p", "tencent.com/gpu-assigned") == "true"
    assert site.label("p", "tydic.io/bind-phase") == "success"
    assert site.annotation("look-alike", "nvidia.com/gpu-assigned") == "false"
    assert site.label("look-alike", "tydic.io/bind-phase") == "allocating"


def test_a_pod_whose_init_container_came_and_went(site: Site) -> None:
    """Its claim is gone, but its grant has the cards."""
    annotations = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/gpu-assigned": "false"}
    site.server.put_pod("p", NODE, UID, LIMITS, annotations)
    grants.write(
        site.settings.state_dir, Grant(grants.new_id(), "cores", 5, 1.0, holder=Holder(UID, "init"), cards=[A])
    )
    site.start()
    wait_for(lambda: site.annotation("p", "tencent.com/gpu-assigned") == "true")


HAMI = {
    "hami.io/vgpu-node": NODE, "hami.io/vgpu-time": "1716199325", "hami.io/bind-phase": "allocating",
    "hami.io/bind-time": "1716199325", "hami.io/vgpu-devices-to-allocate": f"{A},NVIDIA,3000,30:;;",
    "hami.io/vgpu-devices-allocated": f"{A},NVIDIA,3000,30:;;",
}  # fmt: skip
TWO: dict[str, dict[str, object]] = {**LIMITS, "side": {}}


def test_hamis_handshake(site: Site) -> None:
    site.server.put_node(NODE, **{"hami.io/mutex.lock": "2024-05-20T10:02:05Z,default,p"})
    site.server.put_pod("p", NODE, UID, TWO, HAMI)
    site.start()
    wait_for(lambda: "hami.io/mutex.lock" not in site.server.annotations(NODE))  # at once: we need no lock
    assert site.annotation("p", "hami.io/bind-phase") == "allocating"
    site.redeem()
    wait_for(lambda: site.annotation("p", "hami.io/bind-phase") == "success")
    assert site.annotation("p", "hami.io/vgpu-devices-to-allocate") == ";;"
    assert site.annotation("p", "hami.io/vgpu-devices-allocated") == HAMI["hami.io/vgpu-devices-allocated"]


@pytest.mark.parametrize(
    "lock", ["2024-05-20T10:02:05Z,default,q", "2024-05-20T10:02:05Z,other,p", "2024-05-20T10:02:06Z", "x,y"]
)
def test_anothers_lock_is_left_alone(site: Site, lock: str) -> None:
    site.server.put_node(NODE, **{"hami.io/mutex.lock": lock})
    site.server.put_pod("p", NODE, UID, TWO, HAMI)
    site.redeem()
    site.start()
    wait_for(lambda: site.annotation("p", "hami.io/bind-phase") == "success")
    assert site.server.annotations(NODE)["hami.io/mutex.lock"] == lock


def test_a_lock_is_released_though_the_server_fails_at_first(site: Site) -> None:
    """The pod's annotations are not patched before, as afterwards nothing shows which pod the lock was for."""
    site.server.put_node(NODE, **{"hami.io/mutex.lock": "2024-05-20T10:02:05Z,default,p"})
    site.server.put_pod("p", NODE, UID, TWO, HAMI)
    site.redeem()
    site.server.break_next("409", "/nodes/", "PATCH", 1)
    site.server.break_next("500", "/nodes/", "GET", 2)
    site.start()
    wait_for(lambda: site.annotation("p", "hami.io/bind-phase") == "success")
    assert "hami.io/mutex.lock" not in site.server.annotations(NODE)


def test_a_pod_that_never_got_its_devices(site: Site) -> None:
    """kubelet failed it: UnexpectedAdmissionError."""
    labels = {"tydic.io/bind-phase": "allocating", "nvidia.com/assigned-phase": "allocating"}
    annotations = {**HAMI, "nvidia.com/gpu-assigned": "false", "nvidia.com/pre-allocated": f"main[0_{A}_30_3000]"}
    site.server.put_pod("p", NODE, UID, TWO, annotations, labels, phase="Failed")
    site.start()
    wait_for(lambda: site.annotation("p", "hami.io/bind-phase") == "failed")
    assert site.annotation("p", "nvidia.com/gpu-assigned") == "false"
    assert site.label("p", "tydic.io/bind-phase") == "failed"
    assert site.label("p", "nvidia.com/assigned-phase") == "failed"


def test_another_vendors_share_of_the_pod_is_waited_for(site: Site) -> None:
    annotations = {**HAMI, "hami.io/Ascend910B-devices-to-allocate": "npu-0,Ascend910B,1,1:;;"}
    site.server.put_node(NODE, **{"hami.io/mutex.lock": "2024-05-20T10:02:05Z,default,p"})
    site.server.put_pod("p", NODE, UID, TWO, annotations)
    site.redeem()
    site.start()
    wait_for(site.record)
    time.sleep(0.3)
    assert "hami.io/mutex.lock" in site.server.annotations(NODE)
    site.server.put_pod("p", NODE, UID, TWO, {**annotations, "hami.io/Ascend910B-devices-to-allocate": ";;"})
    wait_for(lambda: site.annotation("p", "hami.io/bind-phase") == "success")
    assert "hami.io/mutex.lock" not in site.server.annotations(NODE)


@pytest.mark.parametrize("key", ["volcano.sh/mutex.lock", "hamivgpu"])
def test_volcanos_handshake(site: Site, key: str) -> None:
    value = f"{A},NVIDIA,1024,50:;{B},NVIDIA,1024,50:"
    annotations = {
        "volcano.sh/vgpu-node": NODE, "volcano.sh/vgpu-time": "1716199325", "volcano.sh/bind-time": "1716199325",
        "volcano.sh/bind-phase": "allocating", "volcano.sh/devices-to-allocate": value,
        "volcano.sh/vgpu-ids-new": value,
    }  # fmt: skip
    site.server.put_node(NODE, **{key: "2024-05-20T12:02:04+02:00"})
    site.server.put_pod("p", NODE, UID, TWO, annotations)
    site.redeem()
    site.start()
    wait_for(lambda: site.annotation("p", "volcano.sh/bind-phase") == "success")
    assert site.annotation("p", "volcano.sh/devices-to-allocate") == ";"
    assert site.annotation("p", "volcano.sh/vgpu-time") == "18446744073709551615"
    assert site.annotation("p", "volcano.sh/vgpu-ids-new") == value
    assert key not in site.server.annotations(NODE)


@pytest.mark.parametrize(
    ("lock", "stays"),
    [
        ("1700000000000000000", False),
        ("1699999800000000000", False),
        ("1700000000000000001", True),
        ("1699999699999999999", True),
    ],
)
def test_a_lock_that_has_but_a_time(site: Site, lock: str, stays: bool) -> None:
    """A lock from shortly before the binding is the pod's. A later one is the next pod's; an older one is stale."""
    labels = {"tydic.io/bind-phase": "allocating", "tydic.io/bind-time": "1700000000000000000"}
    site.server.put_node(NODE, **{"tydic.io/node-lock": lock})
    site.server.put_pod("p", NODE, UID, LIMITS, {"nvidia.com/gpu-assigned": "false"}, labels)
    site.redeem()
    site.start()
    wait_for(lambda: site.label("p", "tydic.io/bind-phase") == "success")
    assert ("tydic.io/node-lock" in site.server.annotations(NODE)) is stays


def test_vgpu_managers_handshake(site: Site) -> None:
    chosen = f"main[0_{A}_30_3000]"
    site.server.put_pod(
        "p", NODE, UID, LIMITS, {"nvidia.com/pre-allocated": chosen}, {"nvidia.com/assigned-phase": "allocating"}
    )
    site.redeem()
    site.start()
    wait_for(lambda: site.label("p", "nvidia.com/assigned-phase") == "succeed")
    assert site.annotation("p", "nvidia.com/real-allocated") == chosen


def test_a_dialect_that_is_not_spoken_gets_no_answer(new_site: Callable[..., Site]) -> None:
    site = new_site(**{"kubernetes.dialects": ["tencent"]})
    lock = {"hami.io/mutex.lock": "2024-05-20T10:02:05Z,default,p"}
    site.server.put_node(NODE, **lock)
    site.server.put_pod("p", NODE, UID, TWO, {**HAMI, "tencent.com/gpu-assigned": "false"})
    site.redeem()
    site.start()
    wait_for(lambda: site.annotation("p", "tencent.com/gpu-assigned") == "true")
    assert site.annotation("p", "hami.io/bind-phase") == "allocating"
    assert "hami.io/mutex.lock" in site.server.annotations(NODE)


def test_a_forbidden_patch_is_reported_once_and_stops_no_other(site: Site) -> None:
    site.server.put_pod("p", NODE, UID, LIMITS, {"vgpu.io/placement": f"main={A}"})
    site.redeem()
    site.server.forbidden.append(("PATCH", "/pods/"))
    site.start()
    wait_for(lambda: site.logged("schedulers are not answered"))
    wait_for(lambda: "vgpu.io/node-cards" in site.server.annotations(NODE))
    time.sleep(0.5)
    assert site.logged("schedulers are not answered") == 1
    site.server.forbidden.clear()
    wait_for(lambda: site.annotation("p", "vgpu.io/assigned") == "true")
    wait_for(lambda: site.logged("over: schedulers are not answered") == 1)


def test_a_new_pod_by_the_same_name_is_not_answered_for_the_old_one(site: Site) -> None:
    site.server.put_pod("p", NODE, UID, LIMITS, {"vgpu.io/placement": f"main={A}"})
    site.start()
    wait_for(site.record)
    api = Api(site.settings.text("kubernetes.kubeconfig"))
    (pod,) = site.agent.informer.pods()
    with site.server._change:
        site.server.pods["default/p"]["metadata"]["uid"] = OTHER
    with pytest.raises(ApiError, match="409"):
        site.agent._patch(api, pod, True)
    assert site.annotation("p", "vgpu.io/assigned") is None


def test_nothing_is_patched_twice(site: Site) -> None:
    site.server.put_pod("p", NODE, UID, TWO, {**HAMI, "vgpu.io/placement": f"main={A}"})
    site.redeem()
    site.start()
    wait_for(lambda: site.annotation("p", "vgpu.io/assigned") == "true")
    time.sleep(0.5)
    assert len([path for path, _ in site.server.patches if "/pods/" in path]) == 1
    assert len([path for path, _ in site.server.patches if "/nodes/" in path]) == 2  # the registration, the labels


# Events


def test_a_placement_that_no_start_will_accept_is_reported_at_the_pod(site: Site) -> None:
    site.server.put_pod("p", NODE, UID, TWO, {**HAMI, "hami.io/vgpu-node": "elsewhere"})
    site.server.put_pod("q", NODE, OTHER, TWO, HAMI)
    site.start()
    (event,) = wait_for(lambda: site.server.events)
    assert event["involvedObject"]["uid"] == UID
    assert (event["type"], event["reason"]) == ("Warning", "PlacementRefused")
    assert "hami.io/vgpu-node: expected this node, gpu-node-1" in event["message"]
    site.server.put_pod("p", NODE, UID, TWO, {**HAMI, "hami.io/vgpu-node": "elsewhere", "vgpu.io/x": "1"})
    wait_for(lambda: (found := site.record()) and "vgpu.io/x" in found.annotations)
    assert len(events_of(site, "PlacementRefused")) == 1


def test_events_that_may_not_be_written_are_done_without(site: Site) -> None:
    site.server.forbidden.append(("POST", "/events"))
    site.server.put_pod(
        "p", NODE, UID, TWO, {**HAMI, "hami.io/vgpu-node": "elsewhere", "vgpu.io/placement": f"main={A}"}
    )
    site.redeem()
    site.start()
    wait_for(lambda: site.annotation("p", "vgpu.io/assigned") == "true")
    wait_for(lambda: site.logged("no event could be written") == 1)


def events_of(site: Site, reason: str) -> list[str]:
    return [event["message"] for event in site.server.events if event["reason"] == reason]


def test_annotations_without_effect_are_events_once_over_restarts_and_outages(site: Site) -> None:
    annotations = {"vgpu.io/core_limit": "80", "vgpu.io/core-limit": "20", "nvidia.com/vcuda-core-limit": "30"}
    limits: dict[str, dict[str, object]] = {"main": {"tencent.com/vcuda-core": "40", "tencent.com/vcuda-memory": "8"}}
    site.server.break_next("503", "/events", times=2)
    site.server.put_pod("p", NODE, UID, limits, annotations)
    site.start()
    wait_for(site.record)
    wait_for(lambda: site.agent.handed_over("") or len(site.server.events) == 3)
    assert events_of(site, "AnnotationIgnored") == [
        "annotation nvidia.com/vcuda-core-limit is ignored: vgpu.io/core-limit counts",
        "annotation vgpu.io/core_limit is unknown and ignored: did you mean vgpu.io/core-limit?",
    ]
    (text,) = events_of(site, "CoreLimitIgnored")
    assert "vgpu.io/core-limit: 20 is below the 40 cores of container main, whose limit is 40" in text
    site.server.put_pod("p", NODE, UID, limits, {**annotations, "other.io/x": "1"})
    posts = len([path for _, path in site.server.requests if "/events" in path])
    site.restart()
    wait_for(lambda: len([path for _, path in site.server.requests if "/events" in path]) == posts + 3)  # 409 each
    time.sleep(0.2)
    assert len(site.server.events) == 3
    assert site.logged("no event could be written") == 0


def test_a_pod_whose_annotations_change_all_the_time_has_few_events(site: Site) -> None:
    """Another pod's event comes all the same, and after an hour the first pod gets events again."""
    now = [1e9]
    site.agent.clock = lambda: now[0]
    api = Api(site.settings.text("kubernetes.kubeconfig"))

    def change(name: str, uid: str, key: str) -> int:
        pod = pod_objects.parse(site.server.put_pod(name, NODE, uid, LIMITS, {key: "1"}), frozenset())
        assert pod
        site.agent._complain(api, [pod])
        return len(events_of(site, "AnnotationIgnored"))

    assert [change("p", UID, f"vgpu.io/a{number}") for number in range(20)] == [*range(1, 17), 16, 16, 16, 16]
    assert change("q", OTHER, "vgpu.io/b") == 17
    now[0] += 3600
    assert change("p", UID, "vgpu.io/c") == 18


def test_a_core_limit_that_the_hook_could_not_read_is_an_event(site: Site) -> None:
    """The container started while the API server was away, so its claim has the share alone."""
    limits: dict[str, dict[str, object]] = {"main": {"tencent.com/vcuda-core": "40"}, "side": {}}
    site.server.put_pod("p", NODE, UID, limits, {"vgpu.io/core-limit": "80"})
    site.start()
    wait_for(site.record)
    made = Claim("c-1", 1, 1, [CardLimit(A, 1 << 30, 40, 40)], False, Holder(UID, "main"), [], "/b", 1.0, ready=True)
    (site.path / "run/containers/c-1").mkdir(parents=True)
    records.write(paths.claim(site.settings.run_dir, "c-1"), made.record())
    (text,) = wait_for(lambda: site.agent.handed_over("") or events_of(site, "CoreLimitNotInForce"))
    assert "vgpu.io/core-limit: 80 is not in force for container main, whose limit is 40" in text
    assert "when the container starts again" in text


def test_a_container_that_runs_without_the_hook_is_an_event(site: Site) -> None:
    """Of two pods the hook was called for one; the other has its event once, and not before its container runs."""
    limits: dict[str, dict[str, object]] = {"main": {"tencent.com/vcuda-core": "40", "tencent.com/vcuda-memory": "8"}}
    running = {"containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}
    waiting = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
    site.redeem(OTHER)
    for name, uid in (("p", UID), ("q", OTHER)):
        site.server.put_whole_pod(with_status(site.server.put_pod(name, NODE, uid, limits), waiting))
    site.start()
    wait_for(lambda: site.record(UID) and site.record(OTHER))
    assert events_of(site, "HookNotCalled") == []
    for name in ("q", "p", "p"):
        site.server.put_whole_pod(with_status(site.server.pod(name), running))
    (text,) = wait_for(lambda: site.agent.handed_over("") or events_of(site, "HookNotCalled"))
    assert text.startswith("container main runs without a card")
    assert [event["involvedObject"]["uid"] for event in site.server.events] == [UID]


def with_status(pod: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "status": {"phase": "Running", **status}}


# Events about what happened to a pod's containers


def out_of_memory(uid: str, container: str, at: float, amount: int = 3) -> dict[str, object]:
    return Incident(OUT_OF_MEMORY, f"id-{container}", uid, container, A, 2 << 30, amount, at).record()


def round_with(site: Site, *incidents: object) -> None:
    rounds.write(site.settings.run_dir, {"incidents": list(incidents)})
    site.agent.handed_over("")


def posts(site: Site) -> int:
    return len([path for method, path in site.server.requests if method == "POST" and "/events" in path])


def test_incidents_are_events_on_their_pods_once_over_restarts_and_outages(site: Site) -> None:
    hour = time.time() // 3600 * 3600
    site.server.break_next("503", "/events", times=2)
    site.server.put_pod("p", NODE, UID, LIMITS)
    site.server.put_pod("q", NODE, OTHER, LIMITS, phase="Failed")
    site.start()
    wait_for(lambda: site.record(UID))
    killed = Incident(STOPPED, "c-2", OTHER, "main", A, 1 << 30, 2 << 30, hour + 2).record()
    nobody = out_of_memory("99999999-0b0e-4c53-9d3a-6f0f8f0f1a11", "main", hour + 1)
    round_with(site, out_of_memory(UID, "main", hour + 1), killed, nobody, "junk")
    wait_for(lambda: site.agent.handed_over("") or len(site.server.events) == 2)
    (text,) = events_of(site, "OutOfCardMemory")
    assert text == f"container main reports 3 allocations that did not fit into its 2048 MiB of memory on card {A}"
    (text,) = events_of(site, "KilledForMemory")
    assert "vgpud has killed it" in text
    assert {event["involvedObject"]["uid"] for event in site.server.events} == {UID, OTHER}
    before = posts(site)
    round_with(site, out_of_memory(UID, "main", hour + 60, amount=400), killed)
    site.restart()
    wait_for(lambda: site.agent.handed_over("") or posts(site) >= before + 2)  # 409 each
    time.sleep(0.3)
    assert posts(site) == before + 2
    assert len(site.server.events) == 2
    assert site.logged("no event could be written") == 0
    round_with(site, out_of_memory(UID, "main", hour + 3700, amount=401))
    wait_for(lambda: site.agent.handed_over("") or len(events_of(site, "OutOfCardMemory")) == 2)


def test_a_card_that_goes_is_an_event_on_the_pods_that_use_it(site: Site) -> None:
    for name, uid, used in (("p", UID, A), ("q", OTHER, B)):
        site.server.put_pod(name, NODE, uid, LIMITS)
        made = Claim(f"c-{name}", 1, 1, [CardLimit(used, 1 << 30, 40, 40)], False, Holder(uid, "main"), [], "/b", 1.0)
        (site.path / f"run/containers/c-{name}").mkdir(parents=True)
        records.write(paths.claim(site.settings.run_dir, f"c-{name}"), made.record())
    site.start()
    wait_for(lambda: site.record(UID) and site.record(OTHER))
    assert site.server.events == []
    site.faults[B] = f"card 1 ({B}, Tesla T4): Xid 79, fell off the bus; reset the card"
    (text,) = wait_for(lambda: site.agent.handed_over("") or events_of(site, "CardFault"))
    assert text.startswith("container main uses a card that is out of order: card 1 ")
    assert site.server.events[0]["involvedObject"]["uid"] == OTHER
    count = posts(site)
    for _ in range(5):
        site.agent.handed_over("")
        time.sleep(0.15)
    assert posts(site) == count


def test_a_hundred_pods_at_once_have_their_events_in_several_rounds(site: Site) -> None:
    uids = [f"{number:08x}-0b0e-4c53-9d3a-6f0f8f0f1a11" for number in range(60)]
    for number, uid in enumerate(uids):
        site.server.put_pod(f"p{number}", NODE, uid, LIMITS)
    site.start()
    wait_for(lambda: all(site.record(uid) for uid in uids))
    api = Api(site.settings.text("kubernetes.kubeconfig"))
    pods_now = site.agent.informer.pods()
    site.agent.stop()  # whose thread would write some of them beside this one
    rounds.write(site.settings.run_dir, {"incidents": [out_of_memory(uid, "main", time.time()) for uid in uids]})
    for expected in (25, 50, 60, 60):
        site.agent._give_notice(api, pods_now)
        assert len(site.server.events) == expected


def test_incidents_that_may_not_be_told_are_in_the_plugins_log_once(site: Site) -> None:
    site.server.forbidden.append(("POST", "/events"))
    site.server.put_pod("p", NODE, UID, LIMITS)
    site.start()
    wait_for(site.record)
    round_with(site, out_of_memory(UID, "main", time.time()))
    wait_for(lambda: site.agent.handed_over("") or site.logged("OutOfCardMemory: container main reports 3 allocations"))
    time.sleep(0.3)
    assert site.logged("OutOfCardMemory") == 1


@pytest.mark.parametrize("data", [b"", b"[]", b'{"version": 1, "incidents": {"a": 1}}', b'{"version": 2}'])
def test_a_damaged_round_stops_nothing(site: Site, data: bytes) -> None:
    round_with(site)
    Path(paths.round_record(site.settings.run_dir)).write_bytes(data)
    site.server.put_pod("p", NODE, UID, LIMITS, {"vgpu.io/core_limit": "80"})
    site.start()
    wait_for(lambda: events_of(site, "AnnotationIgnored"))
    assert site.logged("error") == 0


# Registration


def test_the_nodes_cards_for_our_own_extender(site: Site) -> None:
    site.reasons[B] = "Xid 79"
    site.start()
    wait_for(lambda: "vgpu.io/node-cards" in site.server.annotations(NODE))
    registered = json.loads(site.server.annotations(NODE)["vgpu.io/node-cards"])
    assert [(card["uuid"], card["unhealthy"]) for card in registered["cards"]] == [(A, ""), (B, "Xid 79")]
    assert set(site.server.annotations(NODE)) == {"vgpu.io/node-cards", "vgpu.io/node-holdings"}
    assert json.loads(site.server.annotations(NODE)["vgpu.io/node-holdings"])["pods"] == {}
    site.reasons.clear()
    site.agent.handed_over("")
    wait_for(lambda: "Xid" not in site.server.annotations(NODE)["vgpu.io/node-cards"])
    site.put_inventory(1)
    site.agent.handed_over("")
    wait_for(lambda: B not in site.server.annotations(NODE)["vgpu.io/node-cards"])


@pytest.mark.parametrize(("strategy", "count"), [("single", 3), ("mixed", 2)])
def test_no_instance_for_an_extender_where_kubelet_counts_them(
    new_site: Callable[..., Site], strategy: str, count: int
) -> None:
    site = new_site(**{"resources.mig_strategy": strategy})
    write_inventory(site.settings.run_dir, inventory([card(0, uuid=A), card(1, uuid=B), instance(2)]))
    site.start()
    wait_for(lambda: "vgpu.io/node-cards" in site.server.annotations(NODE))
    assert len(json.loads(site.server.annotations(NODE)["vgpu.io/node-cards"])["cards"]) == count


def test_room_is_told_when_a_container_has_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook removes the claim and wakes nobody, and the next round by the clock is an hour away."""
    monkeypatch.setattr(cluster_module, "REST", 3600.0)

    def holdings() -> str:
        return site.server.annotations(NODE).get("vgpu.io/node-holdings", "")

    made = Claim("c-1", 1, 1, [CardLimit(A, 1 << 30, 40, 40)], False, Holder(UID, "main"), [], "/b", 1.0, ready=True)
    site.start()
    wait_for(holdings)
    hidden, claims = site.path / "run/containers/.new", site.path / "run/containers/c-1"
    hidden.mkdir(parents=True)
    records.write(str(hidden / paths.CLAIM), made.record())
    hidden.rename(claims)
    wait_for(lambda: UID in holdings())
    shutil.rmtree(claims)
    wait_for(lambda: UID not in holdings())


def test_a_heartbeat_is_all_that_is_patched_again(new_site: Callable[..., Site]) -> None:
    site = new_site(**{"kubernetes.register": ["vgpu", "nvidia"]})
    now = [960.0]
    site.agent.node_annotations.clock = lambda: now[0]
    api = Api(site.settings.text("kubernetes.kubeconfig"))
    site.agent.node_annotations.write(api, [])
    site.agent.node_annotations.write(api, [])
    assert len(site.server.patches) == 1
    now[0] += 31
    site.agent.node_annotations.write(api, [])
    _, patch = site.server.patches[-1]
    assert list(patch["metadata"]["annotations"]) == ["tydic.io/node-gpu-heartbeat"]
    now[0] += 31  # the next minute
    site.agent.node_annotations.write(api, [])
    _, patch = site.server.patches[-1]
    assert set(patch["metadata"]["annotations"]) == {"tydic.io/node-gpu-heartbeat", "vgpu.io/node-holdings"}
    site.server.put_node(NODE)  # somebody made the node anew
    now[0] += 31
    site.agent.node_annotations.write(api, [])
    assert len(site.server.annotations(NODE)) == 4


# The node's labels


STATE = "nvidia.com/gpu-driver-upgrade-state"


def own(site: Site) -> dict[str, str]:
    return {key: value for key, value in site.server.labels(NODE).items() if key.startswith("vgpu.io/")}


def test_the_nodes_condition_follows_the_health_of_its_cards(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the conditions of kubelet, which writes them at the same time."""
    monkeypatch.setattr(node_labels, "LOOK", 0.0)
    monkeypatch.setattr(cluster_module, "REST", 0.1)

    def kubelet_writes(text: str) -> None:
        listed = conditions()
        listed["Ready"] = {"type": "Ready", "status": text}
        site.server.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": [*listed.values()]}})

    def conditions() -> dict[str, dict[str, str]]:
        found = site.server.get(f"/api/v1/nodes/{NODE}") or {}
        return {item["type"]: item for item in found.get("status", {}).get("conditions", [])}

    def said(status: str, text: str) -> bool:
        found = conditions().get("VgpuCardsHealthy", {})
        return found.get("status") == status and text in found.get("message", "")

    kubelet_writes("True")
    site.start()
    wait_for(lambda: said("True", "no card"))
    site.faults = {A: "card 0: Xid 79"}
    for number in range(20):
        kubelet_writes(str(number))
    wait_for(lambda: said("False", "card 0: Xid 79"))
    since = conditions()["VgpuCardsHealthy"]["lastTransitionTime"]
    assert conditions()["Ready"]["status"] == "19"
    site.faults = {B: "card 1: lost"}
    wait_for(lambda: said("False", "card 1: lost"))
    assert conditions()["VgpuCardsHealthy"]["lastTransitionTime"] == since
    site.faults, site.not_known = {}, "vgpud does not watch them"
    wait_for(lambda: said("Unknown", "vgpud does not watch them"))
    site.server.forbidden.append(("PATCH", "/status"))
    site.not_known = ""
    wait_for(lambda: site.logged("the node's condition is not kept") == 1)


def test_the_nodes_labels_follow_its_cards_and_leave_out_what_others_say(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_labels, "LOOK", 0.0)
    monkeypatch.setattr(cluster_module, "REST", 0.1)
    said: list[str] = []
    site.agent.node_labels.upgrade = said.append
    facts = {"vgpu.io/model": "Tesla-T4", "vgpu.io/memory": "16384", "vgpu.io/driver": "550.54.15"}
    site.start()
    wait_for(lambda: own(site) == {"vgpu.io/ready": "true", **facts}, what=lambda: str(own(site)))
    site.server.label_node(NODE, **{"vgpu.io/model": "by-hand", "other": "kept"})
    wait_for(lambda: own(site)["vgpu.io/model"] == "Tesla-T4")
    wait_for(lambda: "VgpuCardsHealthy" in str(site.server.get(f"/api/v1/nodes/{NODE}")))
    written, reads = len(site.server.patches), site.server.requests.count(("GET", f"/api/v1/nodes/{NODE}"))
    wait_for(lambda: site.server.requests.count(("GET", f"/api/v1/nodes/{NODE}")) > reads + 3)
    assert len(site.server.patches) == written, "nothing is written that is right"
    site.reasons = dict.fromkeys((A, B), "lost")
    wait_for(lambda: own(site) == {"vgpu.io/ready": "false", **facts})
    site.reasons = {A: "lost"}
    wait_for(lambda: own(site)["vgpu.io/ready"] == "true")
    assert set(said) == {""}
    site.server.label_node(NODE, **{STATE: "drain-required", "nvidia.com/gpu.product": "Tesla-T4"})
    wait_for(lambda: said[-1].endswith("=drain-required"))
    facts.pop("vgpu.io/model")
    wait_for(lambda: own(site) == {"vgpu.io/ready": "false", **facts}, what=lambda: str(own(site)))
    Path(paths.inventory(site.settings.run_dir)).unlink()
    site.server.label_node(NODE, **{STATE: "upgrade-done"})
    wait_for(lambda: own(site) == {"vgpu.io/ready": "false"} and not said[-1])
    assert site.server.labels(NODE)["other"] == "kept"


def test_without_the_right_to_read_or_to_write_the_node_the_log_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_labels, "LOOK", 0.0)
    monkeypatch.setattr(cluster_module, "REST", 0.1)
    said: list[str] = []
    site.agent.node_labels.upgrade = said.append
    site.server.forbidden.append(("PATCH", "nodes"))
    site.start()
    wait_for(lambda: site.logged("the node's labels are not kept") == 1)
    wait_for(lambda: len(said) > 3, what="the label of an upgrade is read nevertheless")
    site.server.forbidden.append(("GET", "nodes"))
    wait_for(lambda: site.logged("not known whether the driver is being upgraded") == 1)


# Beginning and end


def test_a_node_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match="NODE_NAME: expected this node's name in Kubernetes"):
        Agent(Settings({}), Log(io.StringIO(), False), "")


def test_without_a_server_nothing_happens_but_a_line_in_the_log(new_site: Callable[..., Site], tmp_path: Path) -> None:
    site = new_site(**{"kubernetes.kubeconfig": str(tmp_path / "none")})
    site.agent.start()
    site.agent.handed_over("x")
    wait_for(lambda: site.logged("no access to the API server") == 1)
    assert not pod_record.watched(site.settings.run_dir)
