"""crun called directly: its own state JSON (status `created`, a `root`), and its message after a refusal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import nodes
import podman_bed
import pytest

pytestmark = pytest.mark.root

GIB = 1 << 30
Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]


@pytest.fixture
def crun(tmp_path: Path) -> Iterator[bundles.Runtime]:
    """Debian 12's crun on cgroup v1."""
    made = bundles.Runtime(tmp_path / "crun", "crun")
    made.command = [*podman_bed.V1_ONLY, *made.command]
    yield made
    made.cleanup()


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def log(node: nodes.SimulatedNode) -> list[dict[str, object]]:
    return [json.loads(line) for line in (Path(node.settings.run_dir) / "hook.log").read_text().splitlines()]


def claims(node: nodes.SimulatedNode) -> set[str]:
    return {path.parent.name for path in (Path(node.settings.run_dir) / "containers").glob("*/claim.json")}


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_share(
    crun: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, stage: str
) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi")
    del share.config["hooks"]
    done = crun.run(
        share.hooks(node, stage).command(
            "sh", "-c", "cudaprobe info; cudaprobe open /dev/nvidiactl; cudaprobe alloc 512 9"
        )
    )
    assert done.returncode == 0, done.stderr
    found = pairs(done.stdout)
    assert found["card0.total"] == str(2 * GIB)
    assert found["/dev/nvidiactl"] == "No such device or address"
    assert found["refused"] == "2"
    assert [record["stage"] for record in log(node)] == [stage, "poststop"]
    assert claims(node) == set()


def test_its_state_has_its_own_status_and_root(
    crun: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, tmp_path: Path
) -> None:
    """The hook handles this state. The test notices a crun with another one."""
    recorder = tmp_path / "recorder"
    recorder.write_text(f"#!/bin/sh\ncat > {tmp_path}/$1\n")
    recorder.chmod(0o755)
    share = bundle(rootfs(), cores="30", memory="2Gi")
    for name in ("prestart", "poststop"):
        share.config["hooks"][name].append({"path": str(recorder), "args": ["recorder", name]})
    assert crun.run(share.command("true")).returncode == 0
    before, after = (json.loads((tmp_path / name).read_text()) for name in ("prestart", "poststop"))
    assert (before["status"], before["root"]) == ("created", str(share.rootfs))
    assert (after["status"], after["pid"]) == ("stopped", 0)


def test_rootfs_relative_to_the_bundle(crun: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi")
    shutil.move(share.rootfs, share.path / "rootfs")
    share.config["root"]["path"] = "rootfs"
    done = crun.run(share.command("cudaprobe", "info"))
    assert done.returncode == 0, done.stderr
    assert pairs(done.stdout)["card0.total"] == str(2 * GIB)


def test_a_refusal_is_an_exit_status_and_a_line_in_the_log(
    crun: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    done = crun.run(bundle(rootfs(), cores="300").command("true"))
    assert done.returncode != 0
    assert f"error executing hook `{node.hook}` (exit code: 1)" in done.stderr
    assert "vgpu-hook: " not in done.stderr, "newer cruns may tell more: then say so in docs/runtimes.md"
    assert "2 cards" in str(log(node)[-1]["error"])
    assert claims(node) == set()


def test_a_killed_container_is_released_by_delete(
    crun: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    container, done = crun.create(bundle(rootfs(), cores="30", memory="2Gi").command("sleep", "60"))
    assert done.returncode == 0, done.stderr
    assert claims(node) == {container}
    crun.delete(container)
    assert claims(node) == set()


def test_shim_by_its_name(tmp_path: Path, rootfs: Rootfs, node: nodes.SimulatedNode) -> None:
    """vgpu-runtime-crun, as Docker and containerd call it."""
    shim = bundles.Runtime(tmp_path / "shim", str(node.shim) + "-crun", "--vgpu-config", str(node.config))
    shim.command = [*podman_bed.V1_ONLY, *shim.command]
    try:
        share = bundles.Bundle(tmp_path / "b", rootfs(), {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"})
        done = shim.run(share.simulated(node).command("cudaprobe", "info"))
        assert done.returncode == 0, done.stderr
        assert pairs(done.stdout)["card0.total"] == str(2 * GIB)
        assert claims(node) == set()
    finally:
        shim.cleanup()
