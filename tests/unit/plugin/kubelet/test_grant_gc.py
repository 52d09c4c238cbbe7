"""Garbage collection of grants: kubelet's list, when it counts, and what else keeps a grant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from grants_node import CARD, CORE, GRACE, MEMORY, Node, ids

from vgpu.config import grants, paths, pods
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.pods import Pod
from vgpu.hook.ledger import pod_cgroups
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.ledger.pod_cgroups import PodCgroups
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet import delete_grants, grant_gc
from vgpu.plugin.kubelet.grant_gc import ListingCheck
from vgpu.plugin.kubelet.pod_resources import Listing

OTHER = "GPU-00000000-0000-0000-0000-000000000002"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# What kubelet lists


def test_listed_stays_and_unlisted_ends_after_the_grace(node: Node) -> None:
    """The list has been complete for less than the grace, and the checkpoint is from before the pod's end."""
    mine, gone = node.grant(0, 49, ("u1", "main"), "web"), node.grant(50, 99, ("u2", "main"), "old")
    node.remembers(mine, gone)
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(GRACE) == [], "60 s have not passed at the sixth look"
    assert node.grant_gc.round() == [gone]
    assert node.left() == {mine}
    assert "grant ended" in node.log.getvalue()
    assert "default/old/main" in node.log.getvalue()


def test_listed_again_in_time_stays(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.remembers(grant)
    assert node.rounds(GRACE) == []
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(10) == []


def test_a_claimed_grant_that_the_checkpoint_has_dropped_ends_at_once(node: Node) -> None:
    """kubelet writes the checkpoint when it allocates for the next pod, and has dropped the ended ones before."""
    gone, waiting = node.grant(0, 49, ("u1", "main"), "old"), node.grant(50, 99)
    node.remembers(gone)
    assert node.rounds(10) == []
    node.remembers()
    assert node.rounds(10) == [gone]
    assert "checkpoint does not name it any more" in node.log.getvalue()
    assert node.left() == {waiting}, "no container has claimed it: kubelet may be about to write its checkpoint"


def test_a_new_checkpoint_begins_a_round(node: Node) -> None:
    node.remembers(node.grant(holder=("u1", "main"), pod="old"))
    node.grant_gc = node.plugin()
    node.grant_gc.look_at_checkpoint()
    assert not node.grant_gc._woken.is_set()
    node.remembers()
    node.grant_gc.look_at_checkpoint()
    assert node.grant_gc._woken.is_set()


# What the API server says


def test_a_pod_that_is_gone_from_the_api_server_has_no_grants(node: Node) -> None:
    gone, other = node.grant(0, 49, ("u1-a", "main"), "old"), node.grant(50, 99, ("u2-a", "main"), "web")
    waiting = node.grant(0, 9, resource="memory")
    node.remembers(gone, other, waiting)
    node.kubelet.lists("web", core=ids(50, 99))
    assert node.rounds(20) == []
    node.gone.add("u1-a")
    assert node.rounds(10) == [gone]
    assert node.left() == {other, waiting}
    assert "gone from the API server" in node.log.getvalue()


def test_kubelet_may_hear_later_than_the_plugin_that_a_pod_is_gone(node: Node) -> None:
    """Until then kubelet may start the container again. The next look follows soon."""
    grant = node.grant(holder=("u1-a", "main"), pod="web")
    node.remembers(grant)
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(10) == []
    assert node.grant_gc.pause == grant_gc.PAUSE
    node.gone.add("u1-a")
    assert node.rounds(3 * GRACE) == []
    assert node.grant_gc.pause == grant_gc.SHORT_PAUSE
    del node.kubelet.pods["default", "web"]
    assert node.rounds(10) == [grant]
    assert node.grant_gc.pause == grant_gc.PAUSE


def test_a_pod_whose_cgroup_kubelet_has_removed_is_over(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"u1": pod_cgroups.GONE, "u2": pod_cgroups.EMPTY, "u3": pod_cgroups.UNKNOWN, "u4": pod_cgroups.GONE}

    def state(_: PodCgroups, pod: list[Grant]) -> str:
        (uid,) = {grant.holder.pod_uid for grant in pod if grant.holder}
        return states[uid]

    monkeypatch.setattr(PodCgroups, "state", state)
    found = [node.grant(20 * at, 20 * at + 19, (uid, "main"), f"web-{uid}") for at, uid in enumerate(states)]
    node.remembers(*found)
    node.kubelet.lists("web-u4", core=ids(60, 79))
    assert node.rounds(10) == [found[0]]
    assert "kubelet has removed its pod's cgroup" in node.log.getvalue()
    assert node.left() == set(found[1:]), "the last one is listed: the next look decides"


def test_without_kubelets_list_only_the_api_server_and_the_ids_decide(node: Node) -> None:
    gone, replaced, stays = (
        node.grant(0, 9, ("u1-a", "main"), "old"),
        node.grant(10, 19, ("u2-a", "main"), "replaced"),
        node.grant(10, 12, ("u3-a", "main"), "web"),
    )
    node.kubelet.error = FileNotFoundError(2, "No such file", "kubelet.sock")
    node.gone.add("u1-a")
    assert sorted(node.rounds(10)) == sorted([gone, replaced])
    assert node.rounds() == []
    assert node.left() == {stays}
    assert node.log.getvalue().count("no grant ends for now, unless its pod is known to be gone") == 1


def test_a_grant_whose_container_never_started(node: Node) -> None:
    """Its image is being pulled, for hours; or the pod was refused in the end."""
    waiting, refused = node.grant(0, 49), node.grant(50, 99)
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(100 * GRACE) == [refused]
    assert node.left() == {waiting}


@pytest.mark.parametrize("resource", ["cores", "memory", "gpu"])
def test_resources_are_distinguished(node: Node, resource: str) -> None:
    """Ids of cores and memory look alike. Only the resource's name distinguishes them."""
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


def test_all_grants_of_a_pod_go_when_another_pod_got_ids_of_one(node: Node) -> None:
    """A whole card has no grant of memory, so nothing takes over the ids of the share's memory."""
    cores = node.grant(0, 49, ("u1", "main"), "old")
    memory = node.grant(0, 9, ("u1", "main"), "old", "memory")
    side = node.grant(70, 79, ("u1", "side"), "old")
    whole = node.grant(0, 69, ("u2", "main"), "new")
    node.remembers(cores, memory, side, whole)
    node.kubelet.lists("new", core=ids(0, 69))
    assert sorted(node.rounds(10)) == sorted([cores, memory, side])
    assert node.left() == {whole}


def test_an_init_containers_ids_in_the_same_pod_replace_no_pod(node: Node) -> None:
    first = node.grant(0, 49, ("u1", "prepare"), "web")
    memory = node.grant(0, 9, ("u1", "prepare"), "web", "memory")
    app = node.grant(0, 29, ("u1", "main"), "web")
    node.remembers(first, memory, app)
    node.kubelet.lists("web", "main", core=ids(0, 29))
    assert node.rounds(100 * GRACE) == []


def test_a_runtimes_own_name_for_the_pod(node: Node) -> None:
    """kubelet lists another name than the hook got. No other pod has these ids, so it is the same pod."""
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
    """In a stateful set only the uid distinguishes them."""
    first = node.grant(0, 49, ("u1", "main"), "web-0")
    second = node.grant(0, 49)
    node.remembers(first, second)
    node.kubelet.lists("web-0", core=ids(0, 49))
    assert node.rounds() == [], "nobody has claimed the second: it may be the first one's own, for a later container"
    claimed = grants.read(node.settings.state_dir, second)
    claimed.holder, claimed.name = Holder("u2", "main"), "default/web-0/main"
    grants.write(node.settings.state_dir, claimed)
    assert node.rounds(10) == [first]
    assert node.left() == {second}


def test_the_next_pod_of_the_same_name_and_ids_by_the_checkpoint(node: Node) -> None:
    first = node.grant(0, 49, ("u1", "main"), "web-0")
    second = node.grant(0, 49)
    node.remembers(second)
    node.kubelet.lists("web-0", core=ids(0, 49))
    assert node.rounds(10) == [first], "before a container of the second starts"
    assert node.rounds() == []
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
    """No container has claimed its grant. Only kubelet's checkpoint contains it."""
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


def test_a_pods_name_from_the_api_server(node: Node) -> None:
    """The runtime does not pass names. The plugin's record of the pod has its name."""
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


def test_a_damaged_grant_is_reported_and_stays(node: Node) -> None:
    grant = node.grant()
    damaged = Path(paths.grant(node.settings.state_dir, grants.new_id()))
    damaged.write_text("{")
    assert node.rounds() == [grant]
    assert damaged.exists()
    assert str(damaged) in node.log.getvalue()


# When kubelet's list counts


def test_a_kubelet_that_has_just_started_ends_nothing(node: Node) -> None:
    """It lists no pods, or static ones only, until it has reached the API server, which may take hours."""
    node.remembers(node.grant(holder=("u1", "main"), pod="web"))
    node.kubelet.pods = {}
    assert node.rounds(100 * GRACE) == []
    for static in ("etcd-gpu-7", "proxy-gpu-7.example.org"):
        node.kubelet.pods["kube-system", static] = {"main": {}}
    assert node.rounds(100 * GRACE) == []


@pytest.mark.parametrize("others", [{}, {("kube-system", "etcd-gpu-7"): {"main": {}}}])
def test_on_a_node_of_static_pods_a_grant_ends_when_kubelets_checkpoint_drops_it(node: Node, others) -> None:
    """kubelet frees devices only when it has all pods, those of an API server included."""
    gone, stays = node.grant(0, 49, ("u1", "main"), "job-gpu-7"), node.grant(50, 99, ("u2", "main"), "web-gpu-7")
    node.remembers(gone, stays)
    node.kubelet.pods = dict(others)
    node.kubelet.lists("web-gpu-7", core=ids(50, 99))
    assert node.rounds(100 * GRACE) == [], "it is in the checkpoint still, which may be old"
    node.remembers(stays)
    assert node.rounds(10) == [gone]
    node.remembers()
    assert node.rounds() == [], "a static pod that is listed has its grant"


def test_what_nobody_claimed_waits_anew_after_a_restart_of_kubelet(node: Node) -> None:
    """kubelet may not have written its checkpoint since Allocate: another plugin's Allocate takes its time."""
    grant = node.grant()
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
    node.remembers(grant)
    node.kubelet.lists("web", core=ids(0, 49))
    assert node.rounds(GRACE / 2) == []
    node.kubelet.pods = {}
    assert node.rounds(GRACE / 2) == []
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
def test_no_answer_ends_nothing_and_is_reported_once(node: Node, error: Exception) -> None:
    grant, claimed = node.grant(0, 49), node.grant(50, 99, ("u1", "main"), "web")
    node.remembers(claimed)
    assert node.rounds(GRACE - 10) == []
    node.kubelet.error = error
    assert node.rounds(100 * GRACE) == []
    assert node.log.getvalue().count("no grant ends for now") == 1
    node.kubelet.error = None
    assert node.rounds(10) == [claimed], "the same kubelet's lists have been complete for long"
    assert node.rounds(GRACE - 10) == [], "the seconds of before do not count"
    assert node.rounds(10) == [grant]
    assert "over: no grant ends" in node.log.getvalue()


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
def test_static_pods_do_not_make_a_list_count(pod: str, static: bool) -> None:
    listing = Listing((1, 1, 1), {("default", pod): set()}, [])
    assert ListingCheck(["GPU-7.example.org", ""]).is_complete(listing) is not static


# What else keeps a grant


@pytest.mark.parametrize("gone", [False, True], ids=["not listed any more", "gone from the API server"])
def test_a_living_container_keeps_its_grant(node: Node, gone: bool) -> None:
    """A pod that was deleted by force may run on for a while."""
    grant = node.grant(holder=("u1-a", "main"), pod="web")
    if gone:
        node.remembers(grant)
        node.gone.add("u1-a")
    node.claim("c1", grant)
    assert node.rounds(100 * GRACE) == []
    assert node.grant_gc.pause == grant_gc.SHORT_PAUSE, "to end it soon after the container"
    os.unlink(paths.claim(node.settings.run_dir, "c1"))
    assert node.rounds(10) == [grant]
    assert node.grant_gc.pause == grant_gc.PAUSE


def test_a_living_container_keeps_a_grant_in_doubt_and_the_grace_begins_at_its_end(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.remembers(grant)
    node.claim("c1", grant)
    assert node.rounds(GRACE / 2) == []
    os.unlink(paths.claim(node.settings.run_dir, "c1"))
    assert node.rounds(GRACE / 2) == []
    assert node.rounds(10) == [grant], "the list has been complete for the grace by now"


def test_a_dead_container_keeps_nothing(node: Node) -> None:
    grant = node.grant(holder=("u1", "main"), pod="web")
    node.claim("c1", grant, pid=1 << 21)
    assert node.rounds() == [grant]


def test_a_claim_that_comes_in_last(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook claims between the plugin's decision and the removal. The plugin sees it under the lock."""
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
    assert delete_grants.delete(node.settings, [seen]) == []
    assert [grant.id for grant in delete_grants.delete(node.settings, [changed])] == [grant_id]
    assert delete_grants.delete(node.settings, [changed]) == [], "gone already"
