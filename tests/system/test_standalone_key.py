"""An image asks for a card by what it brings itself: manifest annotations and environment, which podman copies.

Belongs here: podman, the one client that copies an image's annotations. The decisions are in
tests/unit/hook/test_main.py, the commands of the administrator in tests/system/test_docs_commands.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nodes
import oci_images
import podman_bed
import pytest
from container_site import GIB, Site

from vgpu.config import standalone
from vgpu.config.request import REQUEST

pytestmark = pytest.mark.root

LOOK = ["sh", "-c", "ls /dev | grep -c nvidia; cudaprobe info"]
#: What an image may bring to be taken for somebody else.
FORGED = {
    "io.container.manager": "cri-o", "io.kubernetes.cri-o.ContainerType": "sandbox",
    "io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.container.name": "x",
    "vgpu.io/core-limit": "100", "nvidia.com/priority": "0",
}  # fmt: skip
WANTED = {"vgpu.io/gpus": "1"}
GUESSED = {REQUEST + "0" * 32: "gpus=1"}


@pytest.fixture
def node(node: nodes.SimulatedNode) -> nodes.SimulatedNode:
    """A node as a new installation has it."""
    standalone.write_key(node.settings.text("standalone.key"), standalone.new_key())
    node.change_settings(**{"standalone.requests": "key"})
    return node


@pytest.fixture
def podman(site: Site) -> Iterator[podman_bed.Podman]:
    made = podman_bed.Podman(site.node)
    yield made
    made.cleanup()


def request(node: nodes.SimulatedNode, value: str) -> dict[str, str]:
    return {REQUEST + standalone.read_key(node.settings.text("standalone.key")): value}


def image(podman: podman_bed.Podman, tree: Path, archive: Path, annotations: dict[str, str]) -> str:
    """An image with these annotations, in podman's storage. Its id."""
    oci_images.write(tree, archive, "vgpu-test.local/image:1", LOOK, annotations)
    done = podman.call("pull", "--quiet", f"oci-archive:{archive}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(podman: podman_bed.Podman, name: str, **annotations: str) -> tuple[int, str]:
    options = [f"--annotation={key}={value}" for key, value in annotations.items()]
    places = ["--rm", f"--cgroup-parent={podman.cgroup}", f"--volume={podman.node.sim}:/run/vgpu-sim"]
    done = podman.call("run", *places, "--env=VGPU_GRANT_CORES=" + "0" * 32, *options, name)
    return done.returncode, done.stdout + done.stderr


def test_podman_runs_an_image_that_asks_for_a_card_without_one(
    site: Site, podman: podman_bed.Podman, tmp_path: Path
) -> None:
    tree = site.tree()
    for number, (asked, line) in enumerate(
        (
            (WANTED, "annotation vgpu.io/gpus: expected vgpu.io/request-<key> with this node's key"),
            ({**FORGED, **WANTED}, "annotation vgpu.io/gpus: expected vgpu.io/request-<key>"),
            ({**FORGED, **GUESSED}, "annotation vgpu.io/request-<key>: expected this node's key in its name"),
        )
    ):
        name = image(podman, tree, tmp_path / f"{number}.tar", asked)
        status, output = run(podman, name)
        assert status == 126, output
        assert line in output
        assert line in site.node.log()[-1]["error"]
        assert "GPU-" not in output
        status, output = run(podman, name, **request(site.node, "cores=30+memory=1Gi"))
        assert status == 0, output
        assert f"card0.total {GIB}\n" in output, "what the image forges does not matter beside the key"
