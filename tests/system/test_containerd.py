"""What only pods on containerd do: the pod's names in the claim, grants that are claimed again, and errors.

What every runtime must do with a container is in test_runtime_contract.py.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import pytest
import runtime_clients
import yaml
from checkout import CHECKOUT
from container_site import INFO, pairs
from cri_client import CriError
from runtime_clients import allocate

pytestmark = pytest.mark.root


@pytest.fixture(params=containerd_bed.SUITES)
def bed(request: pytest.FixtureRequest, containerds: Callable[..., Any]) -> Iterator[containerd_bed.Containerd]:
    """A daemon of each version, and an empty node after each test."""
    made = containerds(request.param)
    yield made
    made.remove_pods()
    left = made.node.claims()
    shutil.rmtree(Path(made.node.settings.state_dir) / "grants", ignore_errors=True)
    assert left == {}


def seen(pod: containerd_bed.Pod, **fields: Any) -> dict[str, str]:
    """What a container of the pod sees, which ends well."""
    container = pod.create(list(INFO), **fields)
    pod.start(container)
    status, output = pod.wait(container)
    assert status == 0, output
    return pairs(output)


def refused(pod: containerd_bed.Pod, **fields: Any) -> str:
    return runtime_clients.refused(pod, pod.create(["true"], **fields))


@pytest.mark.parametrize("way", ["base", "dropped"])
def test_only_the_same_container_of_the_same_pod_claims_again(bed: containerd_bed.Containerd, way: str) -> None:
    first = bed.pod(way)
    grants = allocate(bed.node)
    before = seen(first, **grants)
    blocker = bed.pod("base")  # so that the same card is not chosen because it is emptier
    blocking = blocker.create(["sleep", "60"], name="other", **allocate(bed.node, 70))
    blocker.start(blocking)
    after = seen(first, **grants)
    assert after["card0.uuid"] == before["card0.uuid"]
    again = bed.pod(way, uid=first.uid)  # a new sandbox, as after the node's reboot
    assert seen(again, **grants)["card0.uuid"] == before["card0.uuid"]
    stranger = bed.pod(way)
    line = refused(stranger, **grants)
    assert first.uid in line
    assert "holder" in line or "grant" in line
    assert "train" in refused(again, name="sidecar", **grants)
    assert set(bed.node.claims()) == {blocking}


def test_the_shims_own_refusal_is_reported(bed: containerd_bed.Containerd) -> None:
    """Of a failed create containerd reads only the runtime's log, so the shim writes its line there."""
    pod = bed.pod("shim")
    container = pod.create(["true"], **allocate(bed.node))
    wrapper = bed.directory / "runc-shim"
    sound = wrapper.read_text()
    wrapper.write_text(sound.replace(containerd_bed.RUNC, "/nowhere/runc"))
    try:
        with pytest.raises(CriError, match="vgpu-runtime: find the OCI runtime: expected /nowhere/runc"):
            pod.start(container)
    finally:
        wrapper.write_text(sound)


PAGE = CHECKOUT / "docs/start-kubernetes-packages.md"


def test_the_pages_lines_for_a_pod_give_it_the_simulated_cards(bed: containerd_bed.Containerd) -> None:
    """The lines stand at the end of the page's pod. kubelet's part is here: from the pod's volume to CRI's mount."""
    text = PAGE.read_text(encoding="utf-8")
    (lines,) = re.findall("^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (manifest,) = re.findall("<<'END'\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)
    spec = yaml.safe_load(manifest + lines)["spec"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert f"cards are in {volumes[mount['name']]}. " in text  # where make simulated-cards makes them, and the bed not
    cards = {"host_path": str(bed.node.sim), "container_path": mount["mountPath"]}
    grants = allocate(bed.node)
    assert seen(bed.pod("base"), mounts=[cards], sim=False, **grants)["cards"] == "1"
