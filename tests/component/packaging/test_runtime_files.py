"""The files that configure runtimes to run the hook. All of them have the same hook."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from checkout import CHECKOUT

from vgpu.config import cdi_device
from vgpu.node.runtimes import cdi_spec as specification
from vgpu.node.runtimes.registration import Wish

PACKAGING = CHECKOUT / "packaging"
STAGES = {"createRuntime", "poststop"}
FILES = ("hooks.d/vgpu.json", "hooks.d/00-vgpu-poststop.json")


def entry(stage: str) -> dict[str, Any]:
    return {
        "path": "/usr/bin/vgpu-hook",
        "args": ["vgpu-hook", stage],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 60,
    }


def test_hooks_of_a_base_specification() -> None:
    shipped = json.loads((PACKAGING / "containerd/hooks.json").read_text())
    assert shipped == {stage: [entry(stage)] for stage in STAGES}


def test_cdi() -> None:
    text = (PACKAGING / "cdi/vgpu.json").read_text()
    assert text == specification.text(Wish()), "what vgpuctl cdi generate writes"
    shipped = json.loads(text)
    (device,) = shipped["devices"]
    assert f"{shipped['kind']}={device['name']}" == cdi_device.DEVICE
    assert set(shipped) == {"cdiVersion", "kind", "devices"}
    found = {hook.pop("hookName"): hook for hook in device["containerEdits"]["hooks"]}
    assert found == {stage: entry(stage) for stage in STAGES}
    assert list(device["containerEdits"]) == ["hooks"], "what a container gets is decided by its grants"


def test_hooks_d() -> None:
    assert {str(path.relative_to(PACKAGING)) for path in PACKAGING.glob("hooks.d/*")} == set(FILES)
    shipped = [json.loads((PACKAGING / name).read_text()) for name in FILES]
    assert {stage for record in shipped for stage in record["stages"]} == STAGES
    for record in shipped:
        assert record["version"] == "1.0.0"
        assert record["hook"] == entry(*record["stages"])


@pytest.mark.parametrize("name", FILES)
def test_hooks_d_conditions(name: str) -> None:
    """Any annotation of vgpu matches, with any value, as CRI-O overrides a container's values with the pod's."""
    when = json.loads((PACKAGING / name).read_text())["when"]
    assert list(when) == ["annotations"]
    ((key, value),) = when["annotations"].items()
    for annotation in ("vgpu.io/cores", "vgpu.io/grant-cores", "vgpu.io/grant-gpu"):
        assert re.search(key, annotation)
    for annotation in ("xvgpu.io/cores", "vgpuXio/cores", "other/vgpu.io/cores"):
        assert not re.search(key, annotation)
    assert re.search(value, "")
