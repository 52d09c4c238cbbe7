"""Which placed grants count between two lives of their container, by pod: cgroups, device ids, init containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_node import GIB, Node, redeem, share, uuid_of
from pod_cgroup_trees import SYSTEMD, V2, PodCgroupTree

from vgpu.config import grants
from vgpu.config.grants import Holder
from vgpu.hook.ledger.ledger import PATIENCE, RETRY, Ledger, Start
from vgpu.hook.placement.placement import NoFit

POD, NEXT, OTHER = (f"{number * 8}-0b0e-4c53-9d3a-6f0f8f0f1a11" for number in "123")


class Pods:
    """Pods on a node with kubelet's cgroups. A container's pid is its cgroup's only process."""

    def __init__(self, path: Path, cards: int = 1) -> None:
        self.node = Node(path, cards)
        self.tree = PodCgroupTree(path / "cgroup", self.node.proc, V2, SYSTEMD)
        self.pid = 10
        self.now = 0.0
        self.naps = 0

    def allocate(self, cores: str, memory: str = "", card: int = 0) -> dict[str, str]:
        """Grants for these ids of a card: of 1 percent, of 1 GiB."""
        ids = {"cores": self.node.grant("cores", size(cores), {uuid_of(card): cores})}
        if memory:
            ids["memory"] = self.node.grant("memory", size(memory) * GIB, {uuid_of(card): memory})
        return ids

    def start(self, uid: str, ids: dict[str, str], name: str = "main", ledger: Ledger | None = None) -> list[str]:
        """Start a container; returns its cards."""
        self.pid += 1
        holder, cgroup = Holder(uid, name), self.tree.container(uid, f"c{self.pid}")
        self.node.live(self.pid)
        self.tree.put(uid, "pause", 9)
        start = Start(f"c{self.pid}", self.pid, 5, "/b", holder, f"ns/{uid[:1]}/{name}", 1.0, cgroup)
        made = (ledger or self.node.ledger()).claim(start, redeem(ids))
        assert made is not None
        self.tree.put(uid, f"c{self.pid}", self.pid)
        return [card.uuid for card in made.cards]

    def crash(self, uid: str) -> None:
        """The container started last dies; its sandbox lives on."""
        self.node.kill(self.pid)
        self.tree.take(uid, f"c{self.pid}")
        self.node.ledger().release(f"c{self.pid}")

    def lose_sandbox(self, uid: str) -> None:
        self.crash(uid)
        self.tree.take(uid, "pause")

    def delete(self, uid: str) -> None:
        self.lose_sandbox(uid)
        self.tree.take(uid)

    def reboot(self, boot_id: str = "boot2") -> None:
        self.node.reboot()
        self.tree.mount()
        self.tree.boot(boot_id)

    def held(self) -> tuple[int, int, bool]:
        return self.node.commitments().get(uuid_of(0), (0, 0, False))

    def patient(self, *events: tuple[float, object]) -> Ledger:
        """A ledger whose waiting start sees `events`, (seconds, what happens)."""
        waiting = list(events)

        def sleep(seconds: float) -> None:
            self.now += seconds
            self.naps += 1
            while waiting and self.now >= waiting[0][0]:
                waiting.pop(0)[1]()  # type: ignore[operator]

        node = self.node
        return Ledger(node.settings, node.cards, str(node.proc), lambda: self.now, sleep)


def size(ids: str) -> int:
    low, _, high = ids.partition("-")
    return int(high or low) - int(low) + 1


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


FREE = (0, 0, False)
SHARE = (30, 2 * GIB, False)


def test_a_pod_whose_cgroup_is_gone_holds_nothing(pods: Pods) -> None:
    ids = pods.allocate("0-29", "0-1")
    pods.start(POD, ids)
    pods.crash(POD)
    assert pods.held() == SHARE, "the sandbox lives: a crash loop"
    pods.tree.take(POD, "pause")
    assert pods.held() == SHARE, "kubelet makes the sandbox anew"
    pods.tree.take(POD)
    assert pods.held() == FREE
    assert {grant.id for grant in grants.read_all(pods.node.settings.state_dir)[0]} == set(ids.values()), "no file goes"


def test_a_living_claim_counts_whatever_the_cgroups_say(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-29", "0-1"))
    pods.tree.take(POD)
    pods.start(NEXT, pods.allocate("0-29", "0-1"))  # kubelet has forgotten the pod
    assert pods.held() == (60, 4 * GIB, False)


def test_after_a_reboot_a_pod_without_a_cgroup_comes_back(pods: Pods) -> None:
    ids = pods.allocate("0-29", "0-1")
    pods.start(POD, ids)
    pods.reboot()
    assert pods.held() == SHARE
    pods.start(POD, ids)
    pods.delete(POD)
    assert pods.held() == FREE, "deleted in the new boot"


def test_one_container_of_this_boot_is_evidence_for_the_whole_pod(pods: Pods) -> None:
    one, two = pods.allocate("0-29", "0-1"), pods.allocate("30-49", "2-3")
    pods.start(POD, one, "one")
    pods.start(POD, two, "two")
    pods.reboot()
    pods.start(POD, one, "one")
    pods.crash(POD)
    assert pods.held() == (50, 4 * GIB, False)
    pods.tree.take(POD)
    assert pods.held() == FREE


def test_all_grants_of_a_pod_end_when_another_pod_has_some_of_its_ids(pods: Pods) -> None:
    """A whole card takes over the cores' ids only. The memory half must not be in its way, nor count afterwards."""
    pods.start(POD, pods.allocate("0-29", "0-1"))
    pods.reboot()  # so that no cgroup shows anything
    whole = pods.allocate("0-99")
    assert pods.start(NEXT, whole) == [uuid_of(0)]
    pods.crash(NEXT)
    assert pods.held() == (100, 0, True)


def test_an_unclaimed_grant_of_another_pod_ends_a_pod_without_processes(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-29", "0-1"))
    pods.crash(POD)
    pods.allocate("10-39", "5")
    assert pods.held() == SHARE, "a process of the pod is left: kubelet has forgotten its allocations"
    pods.tree.take(POD, "pause")
    assert pods.held() == FREE


def test_an_init_container_between_two_lives_keeps_its_share(pods: Pods) -> None:
    """The app container has the same ids, and has not run yet. No process is left while the sandbox is made anew."""
    init = pods.allocate("0-29", "0-1")
    pods.allocate("0-99")
    pods.start(POD, init, "init")
    pods.crash(POD)
    assert pods.held() == SHARE
    pods.tree.take(POD, "pause")
    assert pods.held() == SHARE
    pods.reboot()
    assert pods.held() == SHARE


def test_an_init_containers_share_is_not_in_the_way_of_a_whole_card_in_the_same_pod(pods: Pods) -> None:
    init, app = pods.allocate("0-29", "0-1"), pods.allocate("0-99")
    pods.start(POD, init, "init")
    pods.crash(POD)
    pods.start(POD, app)
    assert pods.held() == (100, 0, True)
    pods.crash(POD)
    assert pods.held() == (100, 0, True)
    pods.start(POD, init, "init")  # in a new sandbox
    assert pods.held() == (100, 2 * GIB, True), "the app container comes after it"
    pods.crash(POD)
    pods.start(POD, app)


def test_a_pod_holds_the_larger_of_its_init_containers_and_the_containers_after_them(pods: Pods) -> None:
    init, big, small = pods.allocate("0-59", "0-3"), pods.allocate("0-39", "0-5"), pods.allocate("40-49", "6")
    pods.start(POD, init, "init")
    pods.crash(POD)
    pods.start(POD, big, "big")
    pods.start(POD, small, "small")
    assert pods.held() == (60, 7 * GIB, False)
    for pid in (12, 13):
        pods.node.kill(pid)
    assert pods.held() == (60, 7 * GIB, False)
    pods.start(POD, init, "init")  # in a new sandbox
    assert pods.held() == (60, 7 * GIB, False)
    pods.crash(POD)
    pods.start(POD, small, "small")
    assert pods.held() == (60, 7 * GIB, False)


def test_kubelet_that_allocates_anew_for_a_container_has_forgotten_the_first(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-29", "0-1"))
    pods.crash(POD)
    pods.start(POD, pods.allocate("50-79", "4-5"))
    pods.crash(POD)
    assert pods.held() == SHARE


def test_a_record_from_before_the_pods_cgroup_counts_as_before(pods: Pods) -> None:
    ids = pods.allocate("0-29", "0-1")
    pods.start(POD, ids)
    pods.delete(POD)
    for grant_id in ids.values():
        old = grants.changed(pods.node.read_grant(grant_id), pod_cgroup="", boot_id="", newest=0.0)
        grants.write(pods.node.settings.state_dir, old)
    assert pods.held() == SHARE
    pods.allocate("0-9")
    assert pods.held() == (0, 2 * GIB, False), "each resource by itself"


# Waiting


def test_a_start_with_room_does_not_wait(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-59", "0-1"))
    pods.lose_sandbox(POD)
    ledger = pods.patient()
    assert pods.start(NEXT, pods.allocate("60-99", "2-3"), ledger=ledger) == [uuid_of(0)]
    assert pods.start(OTHER, pods.allocate("0-19", "4-5"), ledger=ledger), "these ids were the first pod's"
    assert not pods.naps


def test_a_start_on_other_ids_waits_and_has_the_lock_free_meanwhile(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-59", "0-1"))
    pods.lose_sandbox(POD)
    ledger = pods.patient((0.2, pods.held), (0.5, lambda: pods.tree.take(POD)))
    whole = {"cores": pods.node.grant("cores", 100)}
    assert pods.start(NEXT, whole, ledger=ledger) == [uuid_of(0)]
    assert 0.5 <= pods.now < 0.6


def test_it_goes_on_when_the_plugin_ends_the_grants(pods: Pods) -> None:
    ids = pods.allocate("0-59", "0-1")
    pods.start(POD, ids)
    pods.lose_sandbox(POD)

    def collect() -> None:
        for grant_id in ids.values():
            pods.node.grant_file(grant_id).unlink()

    assert pods.start(NEXT, {"cores": pods.node.grant("cores", 100)}, ledger=pods.patient((0.3, collect)))
    assert pods.now < 0.4


def test_it_waits_no_longer_than_its_patience(pods: Pods) -> None:
    """kubelet makes the sandbox anew."""
    pods.start(POD, pods.allocate("0-59", "0-1"))
    pods.lose_sandbox(POD)
    with pytest.raises(NoFit, match=r"held by|shared by ns/1/main \(60 cores, 2048 MiB\)"):
        pods.start(NEXT, {"cores": pods.node.grant("cores", 100)}, ledger=pods.patient())
    assert PATIENCE <= pods.now < PATIENCE + 0.1


def test_it_waits_for_a_pod_that_still_runs(pods: Pods) -> None:
    """kubelet admits the next pod of a rollover while the one before is ending."""
    pods.start(POD, pods.allocate("0-59", "0-1"))

    first = pods.pid

    def end() -> None:
        pods.node.kill(first)
        pods.node.ledger().release(f"c{first}")
        for cgroup in (f"c{first}", "pause"):
            pods.tree.take(POD, cgroup)
        pods.tree.take(POD)

    assert pods.start(NEXT, {"cores": pods.node.grant("cores", 100)}, ledger=pods.patient((3.0, end)))
    assert 3.0 <= pods.now < 3.0 + RETRY + 0.1


def test_a_standalone_container_does_not_wait(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-59", "0-1"))
    pods.lose_sandbox(POD)
    with pytest.raises(NoFit):
        pods.patient().claim(pods.node.start("alone", 5), share(60))
    assert not pods.naps


def test_a_start_that_fits_on_no_card_does_not_wait(pods: Pods) -> None:
    pods.start(POD, pods.allocate("0-59", "0-1"))
    with pytest.raises(NoFit):
        pods.start(NEXT, {"cores": pods.node.grant("cores", 200)}, ledger=pods.patient())
    assert not pods.naps


@pytest.mark.parametrize("why", ["crash loop", "living", "too little", "no pods"])
def test_its_patience_ends_whoever_holds_the_card(pods: Pods, why: str) -> None:
    if why != "no pods":
        pods.start(POD, pods.allocate("0-59", "0-1"))
    if why == "crash loop":
        pods.crash(POD)
    if why == "too little":
        pods.start(OTHER, pods.allocate("60-99", "2-3"))
        pods.node.kill(11)
        pods.tree.take(POD, "c11")
        pods.tree.take(POD, "pause")
    if why == "no pods":
        assert pods.node.ledger().claim(pods.node.start("alone", 5), share(60))
    with pytest.raises(NoFit):
        pods.start(NEXT, {"cores": pods.node.grant("cores", 100)}, ledger=pods.patient())
    assert PATIENCE <= pods.now < PATIENCE + 0.1


# The refusal


def test_a_refusal_names_the_holders_with_their_amounts(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    for number, uid in enumerate((POD, NEXT, OTHER)):
        pods.start(uid, pods.allocate(f"{30 * number}-{30 * number + 19 + number}", f"{number}"))
    with pytest.raises(NoFit) as refused:
        pods.start("4" * 32, {"cores": pods.node.grant("cores", 40), "memory": pods.node.grant("memory", GIB)})
    assert str(refused.value).endswith(
        "T4): 37 cores free of 100, held by ns/3/main (22 cores, 1024 MiB), ns/2/main (21 cores, 1024 MiB), "
        "ns/1/main (20 cores, 1024 MiB)"
    )
    assert "extender" not in str(refused.value), "there is no room at all"


def test_twenty_and_twenty_free_cores(tmp_path: Path) -> None:
    pods = Pods(tmp_path, cards=2)
    for card in (0, 1):
        pods.start((POD, NEXT)[card], pods.allocate("0-79", "0-3", card))
    ids = {"cores": pods.node.grant("cores", 40), "memory": pods.node.grant("memory", GIB)}
    with pytest.raises(NoFit) as refused:
        pods.start(OTHER, ids)
    assert str(refused.value) == (
        "no card fits 1 card, 40 cores and 1024 MiB (40 cores and 24576 MiB are free, but on several cards; "
        "a scheduler extender would have let the pod wait): "
        f"card 0 ({uuid_of(0)}, T4): 20 cores free of 100, held by ns/1/main (80 cores, 4096 MiB); "
        f"card 1 ({uuid_of(1)}, T4): 20 cores free of 100, held by ns/2/main (80 cores, 4096 MiB)"
    )
    with pytest.raises(NoFit) as refused:
        pods.node.ledger().claim(pods.node.start("alone", 5), share(40))
    assert "extender" not in str(refused.value), "kubelet did not admit it"
