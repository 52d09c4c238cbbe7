"""What a pod's cgroup says about the pod, on trees of cgroups."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pod_cgroup_trees import CGROUPFS, SYSTEMD, V1, V2, PodCgroupTree

from vgpu.config.grants import Grant, Holder
from vgpu.hook.ledger import pod_cgroups
from vgpu.hook.ledger.pod_cgroups import BUSY, EMPTY, GONE, UNKNOWN, PodCgroups
from vgpu.hook.request.identity import pod_cgroup_record

POD = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"
FORMS = [
    (version, driver, prefix) for version in (V1, V2) for driver in (CGROUPFS, SYSTEMD) for prefix in ("", "/lxc/node")
]


@pytest.fixture(params=FORMS, ids=lambda form: "-".join(form).replace("/", "_"))
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> PodCgroupTree:
    version, driver, prefix = request.param
    return PodCgroupTree(tmp_path / "cgroup", tmp_path / "proc", version, driver, prefix)


def grant(tree: PodCgroupTree, uid: str = POD, boot_id: str = "boot1") -> Grant:
    cgroup = pod_cgroup_record(tree.container(uid, "c1"))
    return Grant("a" * 32, "cores", 30, 1.0, holder=Holder(uid, "main"), pod_cgroup=cgroup, boot_id=boot_id)


def state(tree: PodCgroupTree, *pod: Grant, boot_id: str = "boot1") -> str:
    return PodCgroups(boot_id, str(tree.proc)).state(list(pod or [grant(tree)]))


def test_the_pods_cgroup_is_recorded_and_not_the_containers(tree: PodCgroupTree) -> None:
    controllers = "devices" if tree.version == V1 else ""
    assert grant(tree).pod_cgroup == f"{controllers}:{tree.pod(POD)}"


@pytest.mark.parametrize(
    "cgroup", ["", "devices:/", ":/user.slice/a.scope", f":/kubepods-pod{POD}.slice:cri-containerd:c"]
)
def test_without_a_cgroup_of_the_pod_nothing_is_recorded(cgroup: str) -> None:
    assert pod_cgroup_record(cgroup) == ""


def test_a_life_of_a_pod(tree: PodCgroupTree) -> None:
    assert state(tree) == GONE
    tree.put(POD, "")
    assert state(tree) == EMPTY
    tree.put(POD, "pause", 41)
    assert state(tree) == BUSY
    tree.put(POD, "pause")
    tree.put(POD, "c1/inner/deeper", 42)
    assert state(tree) == BUSY, "a process at any depth"
    tree.take(POD, "c1")
    assert state(tree) == EMPTY
    tree.take(POD)
    assert state(tree) == GONE


def test_another_boot_says_nothing(tree: PodCgroupTree) -> None:
    """After a reboot no pod has a cgroup, until kubelet starts it again."""
    assert state(tree, boot_id="boot2") == UNKNOWN
    assert state(tree, grant(tree, boot_id=""), boot_id="") == UNKNOWN
    assert state(tree, grant(tree, boot_id="boot0"), grant(tree)) == GONE, "a container of the pod ran in this boot"


def test_what_this_process_does_not_see_says_nothing(tree: PodCgroupTree) -> None:
    one = grant(tree)
    for hierarchy in tree.path.iterdir():
        shutil.rmtree(hierarchy)
        hierarchy.mkdir()
    assert state(tree, one) == UNKNOWN, "not the cgroup above the pods either"
    (tree.proc / "self/mountinfo").write_text("")
    assert state(tree, one) == UNKNOWN
    (tree.proc / "self/mountinfo").unlink()
    assert state(tree, one) == UNKNOWN


def test_a_record_without_the_pods_cgroup_says_nothing(tree: PodCgroupTree) -> None:
    one = grant(tree)
    one.pod_cgroup = ""
    assert state(tree, one) == UNKNOWN
    one.pod_cgroup = f":/pod{POD}"  # not below kubepods
    assert state(tree, one) == UNKNOWN


def test_on_v1_a_process_counts_in_every_hierarchy(tmp_path: Path) -> None:
    tree = PodCgroupTree(tmp_path / "cgroup", tmp_path / "proc", V1, CGROUPFS)
    memory = Path(f"{tree.path}/memory{tree.pod(POD)}")
    memory.mkdir(parents=True)
    assert state(tree) == GONE, "a directory that somebody left behind"
    (memory / "cgroup.procs").write_text("41\n")
    tree.show()
    assert state(tree) == BUSY


def test_no_file_of_a_cgroup_is_opened(tree: PodCgroupTree) -> None:
    """A container can block that, and the ledger's lock is held meanwhile."""
    tree.put(POD, "c1")
    for procs in tree.path.rglob("c1/cgroup.procs"):
        procs.unlink()
        procs.mkdir()  # EISDIR
    assert state(tree) == EMPTY


def test_a_zombie_is_no_process(tree: PodCgroupTree) -> None:
    tree.put(POD, "c1", 42)
    (tree.proc / "42/stat").write_text(f"42 (a) Z 1 {'0 ' * 15}1 0 42 0\n")
    assert state(tree) == EMPTY


def test_each_cgroup_is_looked_at_once(tree: PodCgroupTree, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    real = PodCgroups._look
    monkeypatch.setattr(
        pod_cgroups.PodCgroups, "_look", lambda self, *args: (looks.append(args[0]), real(self, *args))[1]
    )
    cgroups = PodCgroups("boot1", str(tree.proc))
    for _ in range(3):
        assert cgroups.state([grant(tree), grant(tree)]) == GONE
    assert looks == [tree.pod(POD)]


def test_the_directories_to_watch(tree: PodCgroupTree) -> None:
    cgroups = PodCgroups("boot1", str(tree.proc))
    assert cgroups.directories([grant(tree)]) == []
    tree.put(POD, "")
    name = "devices" if tree.version == V1 else "unified"
    assert cgroups.directories([grant(tree)]) == [f"{tree.path}/{name}{tree.pod(POD)}"]
