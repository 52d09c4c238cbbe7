"""`vgpuctl explain`: of a pod's manifest, of a bundle and of a container what each would get, and what the hook did."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import nodes
import pytest
import yaml
from checkout import CHECKOUT
from pod_site import EXAMPLES, SHIPPED

from vgpu.config import paths
from vgpu.config.inventory import read as read_inventory
from vgpu.config.request import Request
from vgpu.hook import hooklog
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time

pytestmark = pytest.mark.root

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


@pytest.fixture
def node(tmp_path: Path) -> nodes.SimulatedNode:
    made = nodes.SimulatedNode(tmp_path / "node", "a100x2")
    made.take_inventory()
    return made


def hold(node: nodes.SimulatedNode, container: str, request: Request) -> None:
    ledger = Ledger(node.settings, read_inventory(node.settings.run_dir).cards)
    start = Start(container, os.getpid(), start_time(os.getpid()), "/none", None, "", time.time())
    assert ledger.claim(start, request)
    ledger.confirm(start)


def explain(node: nodes.SimulatedNode, *words: str, status: int = 0) -> dict[str, Any]:
    command = [*node.vgpuctl_command(), "explain", *words, "--output", "json"]
    done = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def manifest(directory: Path, *limits: dict[str, int], **fields: Any) -> str:
    containers = [{"name": f"c{at}", "resources": {"limits": of}} for at, of in enumerate(limits)]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **fields}, "spec": {"containers": containers}}
    path = directory / "pod.yaml"
    path.write_text(yaml.safe_dump(pod))
    return str(path)


def test_a_pod_of_two_containers_beside_others(node: nodes.SimulatedNode, tmp_path: Path) -> None:
    """The second container sees what the first one takes, and each card has its reason."""
    hold(node, "other", Request(1, 80, 8 << 30))
    path = manifest(tmp_path, {CORE: 60, MEMORY: 16}, {CORE: 60, MEMORY: 16})
    before = sorted(os.listdir(node.settings.run_dir))
    first, second = explain(node, path, status=1)["containers"]
    cards = read_inventory(node.settings.run_dir).cards
    (held,) = [claim.cards[0].uuid for claim in Ledger(node.settings, cards).claims()]
    (free,) = [card.uuid for card in cards if card.uuid != held]
    assert first["cards"] == [free] and first["error"] == ""
    assert first["refusals"] == {held: first["refusals"][held]} and "20 cores free of 100" in first["refusals"][held]
    assert second["cards"] == []
    assert set(second["refusals"]) == {held, free} and "p/c0" in second["refusals"][free]
    assert "no card fits" in second["error"]
    assert sorted(os.listdir(node.settings.run_dir)) == before, "nothing changes"


@pytest.mark.parametrize("example", SHIPPED)
def test_the_shipped_pods(tmp_path: Path, example: str) -> None:
    settings, wanted = SHIPPED[example]
    made = nodes.SimulatedNode(tmp_path / "node", "a100x2", **settings)
    made.take_inventory()
    found = explain(made, str(EXAMPLES / f"{example}.yaml"))["containers"]
    assert [len(item["cards"]) for item in found] == [len(cards) for cards in wanted.values()]
    assert not any(item["error"] for item in found)


def test_the_wishes_of_a_pod_count(node: nodes.SimulatedNode, tmp_path: Path) -> None:
    uuids = [card.uuid for card in read_inventory(node.settings.run_dir).cards]
    path = manifest(tmp_path, {CORE: 10, MEMORY: 4}, annotations={"nvidia.com/nouse-gpuuuid": uuids[0]})
    (found,) = explain(node, path)["containers"]
    assert found["cards"] == [uuids[1]]
    assert found["refusals"] == {uuids[0]: "excluded by nouse-gpuuuid"}


def test_instances_by_the_names_of_their_profiles(tmp_path: Path) -> None:
    node = nodes.SimulatedNode(tmp_path / "node", "a100x2", **{"resources.mig_strategy": "mixed"})
    node.divide(1, "3g.20gb", "1g.5gb")
    node.take_inventory()
    path = manifest(tmp_path, {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/mig-1g.5gb": 1}, {CORE: 100})
    first, second, third = explain(node, path, status=1)["containers"]
    whole = [card.uuid for card in node.inventory().cards if not card.parent]
    assert (first["cards"], second["cards"], third["cards"]) == ([node.instances()["1g.5gb"].uuid], [], whole)
    assert "held whole by p/c0" in second["error"]
    (line,) = explain(node, manifest(tmp_path, {"nvidia.com/mig-2g.10gb": 1}), status=1)["errors"]
    assert line.endswith("nvidia.com/mig-2g.10gb: expected a MIG profile of this node's instances, found another one")


@pytest.mark.parametrize("text", ["", "kind: Service", "- 1", "a: [", "kind: Pod\nspec: 3\nmetadata: {}"])
def test_other_files_are_refused_in_one_line(node: nodes.SimulatedNode, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    (line,) = explain(node, str(tmp_path / "x.yaml"), status=1)["errors"]
    assert line.startswith(f"vgpuctl: {tmp_path}/x.yaml: expected ") or str(tmp_path) in line


def test_the_claims_of_a_manifest(node: nodes.SimulatedNode, tmp_path: Path) -> None:
    """test_claim_manifest.py has what they get. Here are the verb's two forms, and the driver's words."""
    template = (CHECKOUT / "packaging/kubernetes/claims/soft-share.yaml").read_text()
    path = tmp_path / "claim.yaml"
    path.write_text(template + "---\n" + template.replace("core-limit: soft", "core-limit: loose"))
    good, bad = explain(node, str(path), status=1)["claims"]
    wanted = "30 cores and 8192 MiB, at most 100 cores while the card is idle, first with idle time"
    assert [(one["request"], one["wanted"], len(one["cards"])) for one in good["requests"]] == [("gpu", wanted, 1)]
    assert good["notes"] == ["this node offers no card by claims: kubernetes.dra is false"]
    assert bad["error"].startswith("claim default/soft-share: config: core-limit: expected hard, soft or a whole")
    command = [*node.vgpuctl_command(), "explain", str(path)]
    done = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, bad["error"] in done.stdout, f"request gpu: {wanted}" in done.stdout) == (1, True, True)


def bundle(directory: Path, **annotations: str) -> Path:
    for name in ("etc", "usr/bin", "usr/lib", "dev", "proc"):
        (directory / "rootfs" / name).mkdir(parents=True)
    (directory / "rootfs/etc/debian_version").write_text("12\n")
    config = {
        "ociVersion": "1.0.2", "process": {"args": ["true"], "cwd": "/"}, "root": {"path": "rootfs"},
        "annotations": annotations, "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_bundle(node: nodes.SimulatedNode, tmp_path: Path) -> None:
    share = bundle(tmp_path / "share", **{"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"})
    hook = ("--hook", str(node.hook))
    found = explain(node, str(share), *hook)
    assert found["error"] == "" and found["plan"][0].startswith("card ")
    assert any(line.startswith("allow character devices ") for line in found["plan"])
    assert explain(node, str(bundle(tmp_path / "plain")), *hook) == {"plan": [], "error": ""}
    large = bundle(tmp_path / "large", **{"vgpu.io/cores": "30", "vgpu.io/memory": "900Gi"})
    assert "no card fits" in explain(node, str(large), *hook, status=1)["error"]
    newer = node.compiled_by_a_newer_version()
    again = explain(node, str(share), *hook)
    assert (again["error"], again["plan"][0], again["plan"][-1]) == ("", found["plan"][0], newer), again


def test_what_the_hook_did(node: nodes.SimulatedNode, tmp_path: Path) -> None:
    large = bundle(tmp_path / "large", **{"vgpu.io/cores": "30", "vgpu.io/memory": "900Gi"})
    state = {"ociVersion": "1.0.2", "id": "train", "status": "creating", "bundle": str(large), "pid": os.getpid()}
    done = subprocess.run(
        [node.hook, "--config", node.config, "prestart"], input=json.dumps(state), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, "no card has so much memory"
    found = explain(node, "train", "--last")
    assert found["error"] in done.stderr and found["stage"] == "prestart"
    names = [item["step"] for item in found["steps"]]
    assert names[:2] == ["state", "identity"] and names[-1] == "allocation"
    assert 0 < sum(item["seconds"] for item in found["steps"]) <= found["seconds"]
    command = [*node.vgpuctl_command(), "explain", "train", "--last"]
    shown = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=True).stdout
    assert "identity" in shown and found["error"].partition(":")[0] in shown


def test_lines_of_an_older_hook_have_no_steps(node: nodes.SimulatedNode) -> None:
    line = hooklog.record("prestart", {"id": "old", "pid": 7}, ["a note"], "")
    del line["steps"]
    hooklog.write(node.settings.run_dir, line)
    assert Path(paths.hook_log(node.settings.run_dir)).exists()
    assert explain(node, "old", "--last")["steps"] == []
    assert "expected a container that the hook's log has" in explain(node, "none", "--last", status=1)["errors"][0]
