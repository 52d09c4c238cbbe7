"""Pods that ask for more than kubelet granted: in annotations of every dialect, in the environment, over real CRI."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import bundles
import containerd_bed
import nodes
import oci_images
import pytest
import suites
from attack_bed import Neighbour, Site
from attack_records import Attack, attack
from cri_client import CriError

from vgpu.config import pods

pytestmark = pytest.mark.root

MIB = 1 << 20
GRANTED = {"cores": 10, "memory": 512}
MORE_CORES, MORE_MIB = 60, 8192


def amounts(card: str, node: str, cores: int = MORE_CORES, mib: int = MORE_MIB) -> dict[str, dict[str, str]]:
    """Annotations with amounts, by default above the grants, by dialect and by form."""
    named = f"{card},NVIDIA,{mib},{cores}:"
    direct = {"cores": str(cores), "memory": f"{mib}Mi"}
    return {
        "vgpu": {f"vgpu.io/{key}": value for key, value in direct.items()},
        "vgpu, gpus": {"vgpu.io/gpus": "1", "vgpu.io/cores": "100"},
        "vgpu, placement": {
            "vgpu.io/placement": f"train={card}:{cores}:{mib}", "vgpu.io/placement-node": node,
        },
        "tencent": {
            "tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": str(mib // 256),
            "tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-node": node,
        },
        "nvidia": {
            "nvidia.com/vcuda-core": str(cores), "nvidia.com/vcuda-memory": str(mib),
            "nvidia.com/gpucores": str(cores), "nvidia.com/gpumem": str(mib),
            "nvidia.com/predicate-gpu-idx-0": "0", "nvidia.com/predicate-node": node,
        },
        "hami": {"hami.io/vgpu-devices-allocated": f"{named};", "hami.io/vgpu-node": node},
        "volcano": {"volcano.sh/vgpu-ids-new": named, "volcano.sh/vgpu-node": node},
        "vgpu-manager": {
            "nvidia.com/pre-allocated": f"train[0_{card}_{cores}_{mib}]", "nvidia.com/predicate-node": node
        },
    }  # fmt: skip


def write_record(node: nodes.Node, uid: str, annotations: dict[str, str], limits: dict[str, int]) -> None:
    record = pods.Pod(uid, "default", "pod-of-train", "testnode", [], ["train"], annotations, {"train": limits})
    pods.write(node.settings.run_dir, record)


def held(site: Site, container: str) -> tuple[int, int]:
    claim = site.node.claim(container)
    return sum(card.cores for card in claim.cards), sum(card.memory for card in claim.cards) // MIB


def granted(site: Site) -> dict[str, str]:
    ids = {
        "cores": site.node.grant("cores", GRANTED["cores"]),
        "memory": site.node.grant("memory", GRANTED["memory"] * MIB),
    }
    return {f"vgpu.io/grant-{resource}": id for resource, id in ids.items()}


def pod(site: Site, uid: str, cgroup: str, annotations: dict[str, str]) -> bundles.Bundle:
    """A container `train` of the pod, with these annotations of vgpu and others only."""
    made = site.bundle().pod(uid, "train", cgroup)
    kept = {key: value for key, value in made.config["annotations"].items() if not key.startswith("vgpu.io/")}
    made.config["annotations"] = {**kept, **annotations}
    return made


def amounts_of(site: Site, share: bundles.Bundle, uid: str) -> tuple[int, int] | None:
    """What a container of the pod `uid` holds when it starts; None when the hook refuses it. It has ended then."""
    container, done = site.runtime.create(share.command("sleep", "60"))
    assert done.returncode == 0 or "vgpu-hook: " in done.stderr, done.stderr
    found = held(site, container) if done.returncode == 0 else None
    site.runtime.delete(container)
    pods.remove(site.node.settings.run_dir, uid)
    return found


def remove_grants(site: Site) -> None:
    """What the plugin does for pods that are gone. Their grants hold their amounts until then."""
    for folder in (Path(site.node.settings.state_dir, "grants"), Path(site.node.settings.run_dir, "pods")):
        for path in folder.glob("*.json"):
            path.unlink()
        if folder.exists():
            folder.rmdir()


@pytest.mark.parametrize("where", ["container", "record"])
@attack("amounts above the grants in the annotations of each dialect", "pod")
def test_no_dialect_gives_more_than_the_grants(
    cgroup: str, site: Site, neighbour: Neighbour, attack: Attack, where: str
) -> None:
    """In the container's annotations, as a runtime passes them on, and in the pod's record, from the API server."""
    card, count = site.node.read_cards()[0]["uuid"], 0
    forms, started = amounts(card, "testnode"), 0
    for _ in range(attack.rounds(13, 1)):
        for dialect, extra in forms.items():
            uid, own = str(uuid.uuid4()), granted(site)
            share = pod(site, uid, cgroup, {**own, **(extra if where == "container" else {})})
            write_record(site.node, uid, extra if where == "record" else {}, {})
            found = amounts_of(site, share, uid)
            assert found in (None, (GRANTED["cores"], GRANTED["memory"])), dialect
            started += found is not None
            count += 1
        remove_grants(site)
    assert started, "refusals alone would not show what a container gets"
    attack.held(count, "the granted amounts, or refused")


@attack("amounts in HAMi's and Volcano's annotations above the limits of the pod's spec", "pod")
def test_counted_vgpus_stay_within_the_spec(cgroup: str, site: Site, neighbour: Neighbour, attack: Attack) -> None:
    card = site.node.read_cards()[0]["uuid"]
    counting = ("hami", "volcano", "vgpu-manager")
    within = amounts(card, "testnode", cores=GRANTED["cores"], mib=GRANTED["memory"])
    above = amounts(card, "testnode")
    forms = {name: within[name] for name in counting} | {f"{name}, above": above[name] for name in counting}
    limits = {"nvidia.com/gpumem": GRANTED["memory"], "nvidia.com/gpucores": GRANTED["cores"]}
    count = 0
    for _ in range(attack.rounds(66, 1)):
        for dialect, extra in forms.items():
            uid = str(uuid.uuid4())
            own = {"vgpu.io/grant-gpu": site.node.grant("gpu", 1, cores=10, memory=512 * MIB)}
            share = pod(site, uid, cgroup, {**own, **extra})
            write_record(site.node, uid, extra, limits)
            found = amounts_of(site, share, uid)
            allowed = (GRANTED["cores"], GRANTED["memory"])
            assert found in ((None, allowed) if "above" in dialect else (allowed,)), dialect
            count += "above" in dialect
        remove_grants(site)
    attack.held(count, "within the spec, or refused")


@attack("a forged sandbox type beside a valid grant, and names that contradict the cgroup", "pod")
def test_forged_identities_get_no_container_without_limits(
    cgroup: str, site: Site, neighbour: Neighbour, attack: Attack
) -> None:
    """A container with a grant starts with its share or not at all."""
    forged = {
        "sandbox by CRI-O's key": {"io.kubernetes.cri-o.ContainerType": "sandbox"},
        "sandbox by containerd's key": {"io.kubernetes.cri.container-type": "sandbox"},
        "another pod": {"io.kubernetes.cri.sandbox-uid": str(uuid.uuid4())},
        "another pod by CRI-O's key": {"io.kubernetes.pod.uid": str(uuid.uuid4())},
        "another container": {"io.kubernetes.container.name": "other"},
    }
    count = attack.rounds(40, 1)
    for _ in range(count):
        for what, extra in forged.items():
            share = pod(site, str(uuid.uuid4()), cgroup, {**granted(site), **extra})
            container, done = site.runtime.create(share.command("sleep", "60"))
            if done.returncode == 0:
                assert held(site, container) == (GRANTED["cores"], GRANTED["memory"]), what
            else:
                assert "vgpu-hook: " in done.stderr, done.stderr
            site.runtime.delete(container)
        remove_grants(site)
    attack.held(count * len(forged), "its share, or refused with a line")


@attack("annotations and environment of a user's pod over CRI of a real containerd", "pod")
def test_a_users_pod_gets_nothing_over_cri(
    site: Site, neighbour: Neighbour, attack: Attack, tmp_path: Path, base_trees: dict[str, Path]
) -> None:
    """kubelet passes on what users write on their pods. Only what the device plugin answered counts."""
    image = oci_images.write(base_trees["debian"], tmp_path / "base.tar", containerd_bed.IMAGE, ["sleep", "86400"])
    own = shutil.which("containerd")
    programs = Path(own).parent if own else suites.unpack("bookworm", "containerd") / "usr/bin"
    bed = containerd_bed.Containerd(tmp_path / "bed", programs, site.node, 1)
    bed.start(image)
    card = site.node.read_cards()[0]["uuid"]
    env = {"NVIDIA_VISIBLE_DEVICES": "all", "VGPU_GRANT_CORES": "f" * 32, "VGPU_GRANT_MEMORY": "../../" + "f" * 26}
    try:
        for way in ("base", "shim"):
            for dialect, extra in [*amounts(card, "testnode").items(), ("none", {})]:
                user = bed.pod(way, annotations=extra)
                container = user.create(
                    ["ls", "/dev", "/usr/local"], annotations=extra, env={} if dialect != "none" else env
                )
                try:
                    user.start(container)
                    _, output = user.wait(container)
                    assert "nvidia" not in output, (way, dialect)
                    assert "vgpu" not in output, (way, dialect)
                except CriError as error:
                    assert "vgpu-" in str(error), error
        assert [path.name for path in Path(site.node.settings.run_dir, "containers").iterdir()] == [neighbour.container]
    finally:
        bed.remove_pods()
        bed.stop()
    attack.held(2 * (len(amounts(card, "")) + 1), "no card")


@attack("a claim and a grant of another pod named in one's own annotations", "pod, neighbour")
def test_another_pods_grant_is_refused(cgroup: str, site: Site, neighbour: Neighbour, attack: Attack) -> None:
    uid, own = str(uuid.uuid4()), granted(site)
    site.start(pod(site, uid, cgroup, own), "sleep", "600")
    count = attack.rounds(200, 3)
    for _ in range(count):
        assert uid in site.refused(pod(site, str(uuid.uuid4()), cgroup, own))
        half = {**own, "vgpu.io/grant-memory": "0" * 32}
        assert site.refused(pod(site, str(uuid.uuid4()), cgroup, half))
    remove_grants(site)
    attack.held(2 * count, "refused, the owner keeps it")


def test_more_is_more() -> None:
    """The amounts of the attacks are above those of the grants in every dialect."""
    forms = json.dumps(amounts("GPU-x", "node"))
    assert forms.count(str(MORE_CORES)) >= 7
    assert GRANTED["cores"] < MORE_CORES
    assert GRANTED["memory"] < MORE_MIB
