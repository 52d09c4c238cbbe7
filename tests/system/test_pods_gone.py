"""With real runc: a start beside the grant of a pod that is over, by the pod's own cgroup, on v1 and v2."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import nodes
import pytest

pytestmark = pytest.mark.root

GIB = 1 << 30
Rootfs = Callable[..., Path]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def shim(request: pytest.FixtureRequest, tmp_path: Path, node: nodes.SimulatedNode) -> Iterator[bundles.Runtime]:
    """vgpu-runtime over real runc, on a cgroup version."""
    command = (str(node.shim), "--vgpu-config", str(node.config))
    made = bundles.Runtime(tmp_path / "shim", *command, cgroup=request.param)
    yield made
    made.cleanup()


class Pod:
    """A pod of one container with these grants; its cgroup is as kubelet's cgroupfs driver makes it."""

    def __init__(self, top: str, **amounts: int) -> None:
        self.uid = str(uuid.uuid4())
        self.cgroup = f"{top}/kubepods/burstable/pod{self.uid}"
        self.amounts = amounts
        self.ids: dict[str, str] = {}

    def run(self, shim: bundles.Runtime, node: nodes.SimulatedNode, root: Path, path: Path) -> str:
        """Run the container to its end; returns runc's error, "" without one."""
        self.ids = self.ids or {name: node.grant(name, amount) for name, amount in self.amounts.items()}
        made = bundles.Bundle(path / uuid.uuid4().hex[:8], root).simulated(node)
        made.config["linux"]["cgroupsPath"] = f"{self.cgroup}/c1"
        made.config["annotations"] = {
            "io.kubernetes.cri.sandbox-uid": self.uid, "io.kubernetes.cri.container-name": "main",
            "io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.sandbox-name": "old",
        }  # fmt: skip
        made.config["process"]["env"] += [f"VGPU_GRANT_{name.upper()}={found}" for name, found in self.ids.items()]
        done = shim.run(made.command("true"))
        return done.stderr if done.returncode else ""

    def directories(self) -> list[Path]:
        found = [Path(f"{hierarchy}{self.cgroup}") for hierarchy in Path("/sys/fs/cgroup").iterdir()]
        return [path for path in found if path.is_dir()]

    def remove(self) -> None:
        """What kubelet does when the pod is over."""
        for top in self.directories():
            for directory, _, _ in os.walk(top, topdown=False):
                os.rmdir(directory)


def test_whole_cards_after_a_share_whose_pod_is_over(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path
) -> None:
    """The container has ended and the pod's cgroup is empty: the next pod waits until kubelet has removed it."""
    root = rootfs()
    share, whole = Pod(cgroup, cores=30, memory=GIB), Pod(cgroup, cores=200)
    assert share.run(shim, node, root, tmp_path) == ""
    assert share.directories(), "runc has left the pod's cgroup to kubelet"
    refused = whole.run(shim, node, root, tmp_path)
    assert "shared by default/old/main (30 cores, 1024 MiB)" in refused, "its sandbox may be made anew"
    timer = threading.Timer(0.3, share.remove)
    timer.start()
    started = time.monotonic()
    assert whole.run(shim, node, root, tmp_path) == ""
    timer.join()
    assert time.monotonic() - started > 0.3
    assert not share.directories()
    assert whole.run(shim, node, root, tmp_path) == "", "its own grant is not in its way"


def test_a_crash_loop_keeps_its_share(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path
) -> None:
    root = rootfs()
    share, whole = Pod(cgroup, cores=30, memory=GIB), Pod(cgroup, cores=200)
    assert share.run(shim, node, root, tmp_path) == ""
    pause = bundles.Bundle(tmp_path / "pause", root)
    pause.config["linux"]["cgroupsPath"] = f"{share.cgroup}/pause"
    container, done = shim.create(pause.command("sleep", "60"))
    assert done.returncode == 0, done.stdout
    started = time.monotonic()
    assert "shared by default/old/main" in whole.run(shim, node, root, tmp_path)
    assert time.monotonic() - started < 300
    assert share.run(shim, node, root, tmp_path) == ""
    shim.delete(container)
    share.remove()
    assert whole.run(shim, node, root, tmp_path) == ""
