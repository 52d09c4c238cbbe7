"""The doctor's check of CDI: settings, specifications and containerd's files compared with each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doctor_tree import Tree, only

from vgpu.config.settings import Settings
from vgpu.node.doctor import cdi_devices, runtimes
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext
from vgpu.node.runtimes import cdi_spec as specification
from vgpu.node.runtimes.registration import Wish

V1_7 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
V2_1 = 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n'
VGPU = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.vgpu.options]'
SHIM = f'{VGPU}\nBinaryName = "/usr/bin/vgpu-runtime"\n'
HOOKS_D = '{"version": "1.0.0", "hook": {"path": "/usr/bin/vgpu-hook"}, "when": {}, "stages": ["prestart"]}'


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def context(tree: Tree, on: bool = True) -> CheckContext:
    return replace(tree.context, settings=Settings({"plugin.cdi": on}))


def generated(tree: Tree) -> None:
    tree.write("etc/cdi/vgpu.json", specification.text(Wish()))


def test_off_and_not_defined(tree: Tree) -> None:
    tree.write("etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    assert only(cdi_devices.cdi, context(tree, on=False)).status == OK


def test_defined_and_nobody_names_it(tree: Tree) -> None:
    generated(tree)
    found = only(cdi_devices.cdi, context(tree, on=False))
    assert (found.status, found.found) == (
        WARNING, "/etc/cdi/vgpu.json defines vgpu.io/share=grant, and plugin.cdi is false",
    )  # fmt: skip


def test_named_and_not_defined(tree: Tree) -> None:
    """Also beside the specification of another vendor, and one of ours with another device."""
    tree.write("etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    tree.write("etc/cdi/old.yaml", "kind: vgpu.io/hook\n")
    found = only(cdi_devices.cdi, context(tree))
    assert (found.status, found.do.split(";")[0]) == (FAILURE, "run vgpuctl cdi generate")


@pytest.mark.parametrize("text", ["", V2_1, V1_7 + "enable_cdi = true\n", 'version = 2\n[grpc]\naddress = "/x"\n'])
def test_defined_named_and_switched_on(tree: Tree, text: str) -> None:
    generated(tree)
    tree.write("etc/containerd/config.toml", text)
    assert only(cdi_devices.cdi, context(tree)).status == OK


@pytest.mark.parametrize(
    ("text", "expected"), [(V1_7, "no enable_cdi"), (V2_1 + "  enable_cdi = false\n", "enable_cdi = false")]
)
def test_a_containerd_with_cdi_off(tree: Tree, text: str, expected: str) -> None:
    generated(tree)
    tree.write("etc/containerd/config.toml", text)
    found = only(cdi_devices.cdi, context(tree))
    assert found.status == WARNING
    assert found.found.startswith(f"/etc/containerd/config.toml: {expected}")


def test_two_registrations(tree: Tree) -> None:
    generated(tree)
    tree.write("etc/containerd/conf.d/99-vgpu.toml", V2_1 + SHIM)
    found = only(cdi_devices.cdi, context(tree))
    assert (found.status, found.found.endswith("calls the hook, too")) == (WARNING, True)


def test_hooks_of_podman_are_no_second_registration(tree: Tree) -> None:
    """CRI-O reads the same directory, and then they are."""
    generated(tree)
    tree.write("usr/share/containers/oci/hooks.d/vgpu.json", HOOKS_D)
    assert only(cdi_devices.cdi, context(tree)).status == OK
    tree.write("etc/crio/crio.conf", "")
    assert only(cdi_devices.cdi, context(tree)).status == WARNING


def test_a_specification_whose_hook_is_gone(tree: Tree) -> None:
    """Its containers do not start."""
    tree.write("usr/bin/vgpu-hook", "", 0o755)
    generated(tree)
    assert only(runtimes.runtime_configuration, tree.context).status == OK
    (tree.path / "usr/bin/vgpu-hook").unlink()
    found = only(runtimes.runtime_configuration, tree.context)
    assert (found.status, found.found) == (FAILURE, "CDI (/etc/cdi/vgpu.json): /usr/bin/vgpu-hook is not a program")
