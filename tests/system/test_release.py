"""A host that has nothing of vgpu but a release: its pods under upgrades and ways back, and its removal.

containerd 1.7 and 2.1 run where there is no Python. vgpu-release asks them over CRI, and their configuration and their
process stay as they are. What kills and damages do to a release is in component/plugin/test_release.py.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
import release_site
from containerd_bed import Containerd, programs
from daemons import wait_for
from kubelet import Pod
from pod_site import share, short_directory
from release_site import RELEASE, ReleaseSite, picture

pytestmark = pytest.mark.root
SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
VERSIONS = ("1.0", "1.1", "1.2")
#: A program that allocates and launches without end, beside others that start, do the same, and end. Each is refused
#: what is more than the share. They say what failed.
WORKS = """trap 'exit 0' TERM
cudaprobe work 64 2048 /tmp/long 0 &
while cudaprobe work 64 2048 /tmp/short 20; do echo >> /tmp/ended; done
sleep 86400"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The roots of the images of three versions."""
    directory = tmp_path_factory.mktemp("images")
    first = release_site.image(directory / "0", VERSIONS[0])
    others = [shutil.copytree(first, directory / str(number), symlinks=True) for number in (1, 2)]
    return [first, *(release_site.numbered(root, version) for root, version in zip(others, VERSIONS[1:]))]


@pytest.fixture(scope="module", params=[pytest.param("1.7", marks=pytest.mark.long), "2.1"])
def site(request: pytest.FixtureRequest, image: Path) -> Iterator[ReleaseSite]:
    directory = short_directory()
    made = ReleaseSite(directory, request.param, image)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(directory, ignore_errors=True)


def rounds(pid: int) -> list[int]:
    """How much the program without end has done, and how many others have started and ended well."""
    found = [Path(f"/proc/{pid}/root/tmp/{name}") for name in ("long", "ended")]
    return [path.stat().st_size if path.exists() else 0 for path in found]


def go_on(pid: int, seen: list[int], pod: Pod) -> None:
    """Wait until both have gone on for more than what was under way at `seen`."""
    wait_for(lambda: all(now > then + 1 for now, then in zip(rounds(pid), seen)), 60, lambda: pod.output("c"))


def test_from_nothing_to_a_share_through_versions_and_back_to_nothing(site: ReleaseSite, images: list[Path]) -> None:
    assert site.bed.process
    runtime = (site.bed.process.pid, (site.bed.directory / "config.toml").read_bytes())
    before = picture(site.host.parent / "opt", site.specifications)
    done = site.install(images[0])
    assert done.returncode == 0, done.stdout
    assert "written, for containerd" in done.stdout

    pod = site.runs(share(30, 4, command=["sh", "-c", WORKS]))
    claim = site.claim(pod)
    mix = random.Random(SEED)
    for step in [*mix.sample([1, 2], 2), *mix.choices(range(3), k=3)]:
        seen = rounds(claim.pid)
        done = site.install(images[step])
        assert done.returncode == 0, f"seed {SEED}: {done.stdout}"
        assert site.in_force() == VERSIONS[step], f"seed {SEED}"
        go_on(claim.pid, seen, pod)
        late = site.runs(share(10, 2))
        site.checked_card(late, 10, 2)
        site.kubelet.delete(late)
    assert "failed" not in pod.output("c"), f"seed {SEED}: {pod.output('c')}"
    assert site.claim(pod).record() == claim.record()
    os.kill(claim.pid, 9)
    wait_for(lambda: pod.statuses["c"].running and pod.statuses["c"].started == 2, 60, lambda: str(pod.events))
    go_on(site.claim(pod).pid, [0, 0], pod)
    assert "failed" not in pod.output("c")

    refused = site.remove()
    assert refused.returncode == 1
    assert "containers with a share: expected none" in refused.stdout
    again = site.runs(share(10, 2))
    for one in (again, pod):
        site.kubelet.delete(one)
    assert site.node.claims() == {}
    assert (site.bed.process.pid, (site.bed.directory / "config.toml").read_bytes()) == runtime
    done = site.remove()
    assert done.returncode == 0, done.stdout
    assert picture(site.host.parent / "opt", site.specifications) == before


@pytest.mark.parametrize(("version", "line"), [("1.6", "CDI off"), ("1.7", "one that the runtime reads")])
def test_a_runtime_that_would_not_call_the_hook_is_refused(
    version: str, line: str, image: Path, images: list[Path]
) -> None:  # fmt: skip
    """containerd 1.6 has no CDI; 1.7 reads other directories than the one that is asked for."""
    directory = short_directory()
    bed = Containerd(directory / "bed", programs(version), nodes.SimulatedNode(directory / "node"), patterns=())
    try:
        bed.start(image)
        command = [RELEASE, "install", "--source", str(images[0]), "--socket", str(bed.socket)]
        places = ["--directory", str(directory / "opt"), "--cdi-directory", "/nowhere"]
        done = subprocess.run([*command, *places], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert line in done.stdout
        assert not (directory / "opt").exists()
    finally:
        bed.stop()
        shutil.rmtree(directory, ignore_errors=True)
