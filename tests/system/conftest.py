"""Fixtures of the tests that start containers: a simulated GPU node, root file systems and real runtimes."""

from __future__ import annotations

import copy
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import attack_records
import bundles
import cgroup_trees
import cluster_site
import container_site
import containerd_bed
import flooded_card
import nodes
import oci_images
import pod_site
import pytest
import roots
import trees
from checkout import BUILD, DATA
from driver_fixtures import driver_parts, driver_root  # noqa: F401 - fixtures

CUDA_FIXTURES = DATA / "cuda"


@pytest.fixture(scope="session")
def cudaprobe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA program that prints what a container sees."""
    program = tmp_path_factory.mktemp("programs") / "cudaprobe"
    source = CUDA_FIXTURES / "cudaprobe.c"
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-ldl"], check=True)
    return program


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Iterator[attack_records.Attack]:
    """The record of this test's attack, written when the test has ended."""
    name, who = request.function.attack
    file, case, full = request.path.stem, request.node.name, request.config.getoption("--long")
    code, before = attack_records.code_of_now(), attack_records.last(file, name, case)
    made = attack_records.Attack(name, who, full, case, attack_records.percent_of_now(), before, code)
    yield made
    attack_records.save(made.record(), file)


@pytest.fixture(scope="session")
def debs(repository: Path) -> list[Path]:
    """The packages vgpu and vgpu-device-plugin, built once for a state of the checkout by `make deb`'s own script."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("needs dpkg-deb: no Debian here")
    key = packaged_sources(repository)
    with (BUILD / "debs.lock").open("a+") as record:  # the processes of a parallel run build in the same folder
        fcntl.flock(record, fcntl.LOCK_EX)
        record.seek(0)
        built_from, *names = record.read().split() or [""]
        since = os.fstat(record.fileno()).st_mtime
        if built_from != key or not all(_is_older(repository / name, since) for name in names):
            record.truncate(0)
            names = build_debs(repository)
            record.write(" ".join([key, *names]))
    return [repository / name for name in names]


def _is_older(deb: Path, time: float) -> bool:
    """Whether a package is there and nobody has built it anew since."""
    return deb.exists() and deb.stat().st_mtime <= time


def packaged_sources(repository: Path) -> str:
    """A key of all files that may get into the packages."""
    command = ["git", "-C", repository, "ls-files", "-co", "--exclude-standard", "-z", "--", ".", ":!tests"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return roots.key(
        *(part for name in names if (repository / name).is_file() for part in (name, (repository / name).read_bytes()))
    )


def build_debs(repository: Path) -> list[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [repository / "packaging/deb/build"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.split()


@pytest.fixture(scope="session")
def deb(debs: list[Path]) -> Path:
    """The package vgpu."""
    return debs[0]


@pytest.fixture(scope="session")
def plugin_deb(debs: list[Path]) -> Path:
    """The package vgpu-device-plugin."""
    return debs[1]


@pytest.fixture(scope="session")
def base_trees(tmp_path_factory: pytest.TempPathFactory, cudaprobe: Path) -> dict[str, Path]:
    """One pristine root file system per kind; tests get copies."""
    directory = tmp_path_factory.mktemp("trees")
    return {kind: trees.make(kind, directory / kind, {"cudaprobe": cudaprobe}) for kind in trees.KINDS}


@pytest.fixture(scope="module")
def cluster(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster_site.Site]:
    """A real cluster of one node. Its image has the names and programs that the shipped pods use."""
    tree = tmp_path_factory.mktemp("image") / "tree"
    subprocess.run(["cp", "-a", base_trees["debian"], tree], check=True)
    for program in ("python", "bash"):
        (tree / "usr/bin" / program).write_text("#!/bin/sh\ncudaprobe info; exec sleep 86400\n")
        (tree / "usr/bin" / program).chmod(0o755)
    image = oci_images.write(tree, tree.with_name("base.tar"), containerd_bed.IMAGE, ["sleep", "86400"])
    pods = [item for path in pod_site.EXAMPLES.glob("*.yaml") for item in cluster_site.documents(path)]
    names = sorted({container["image"] for pod in pods for container in pod["spec"]["containers"]})
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:  # a socket's path is at most 107 characters long
        made = cluster_site.Site(Path(name), image, names)
        try:
            yield made.start()
        finally:
            made.end()


@pytest.fixture
def rootfs(base_trees: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A fresh copy of a root file system of a kind."""

    return lambda kind="debian": container_site.copied(base_trees[kind], tmp_path)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> nodes.SimulatedNode:
    """A node of two A100 with the simulated driver and an inventory. To make one takes longer than most tests."""
    made = nodes.SimulatedNode(tmp_path_factory.mktemp("site") / "node", "a100x2")
    made.take_inventory()
    subprocess.run(["cp", "-a", made.directory, made.directory.with_name("pristine")], check=True)
    return made


@pytest.fixture
def node(pristine: nodes.SimulatedNode) -> nodes.SimulatedNode:
    """That node as it was: nothing that another test did on it is left."""
    shutil.rmtree(pristine.directory)
    subprocess.run(["cp", "-a", pristine.directory.with_name("pristine"), pristine.directory], check=True)
    made = copy.copy(pristine)
    made.settings = copy.deepcopy(pristine.settings)
    return made


@pytest.fixture
def site(
    request: pytest.FixtureRequest, node: nodes.SimulatedNode, base_trees: dict[str, Path], tmp_path: Path
) -> Iterator[container_site.Site]:
    """The node with containers by runc on cgroup v1, or by another runtime (BOTH and CRUN of container_site)."""
    made = container_site.Site(node, tmp_path, base_trees, getattr(request, "param", "runc"))
    yield made
    made.end()


@pytest.fixture
def make_site(base_trees: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., container_site.Site]]:
    """Makes sites on nodes with another profile or other settings."""
    made: list[container_site.Site] = []

    def make(profile: str, **settings: object) -> container_site.Site:
        node = nodes.SimulatedNode(tmp_path / f"node{len(made)}", profile, **settings)
        node.take_inventory()
        made.append(container_site.Site(node, tmp_path, base_trees))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def image(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root file system of the kind debian as an image for containerd, whose containers sleep."""
    archive = tmp_path_factory.mktemp("image") / "base.tar"
    return oci_images.write(base_trees["debian"], archive, containerd_bed.IMAGE, ["sleep", "86400"])


@pytest.fixture(scope="module")
def containerds(
    image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., containerd_bed.Containerd]]:
    """One daemon per version of containerd and of cgroup, started at its first use, on a node of its own."""
    running: dict[tuple[str, int], containerd_bed.Containerd] = {}

    def daemon(version: str, cgroup: int = 1) -> containerd_bed.Containerd:
        if (version, cgroup) not in running:
            directory = tmp_path_factory.mktemp("ctd")
            node = nodes.SimulatedNode(directory / "node", "a100x2")
            node.take_inventory()
            made = containerd_bed.Containerd(directory / "bed", containerd_bed.programs(version), node, cgroup)
            assert made.version.startswith(version)
            running[version, cgroup] = made.start(image)
        return running[version, cgroup]

    yield daemon
    for made in running.values():
        made.stop()


@pytest.fixture
def cgroup() -> Iterator[str]:
    """A cgroup path of this test's own, removed from every hierarchy afterwards."""
    name = f"/vgpu-test-{uuid.uuid4().hex[:8]}"
    yield name
    cgroup_trees.remove(name)


@pytest.fixture(autouse=True)
def nothing_left_on_the_host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Fails a test that leaves its own mounts or the hook's in the host's namespace."""
    own = [tmp_path, *([request.getfixturevalue("pristine").directory] if "pristine" in request.fixturenames else [])]
    texts = (*map(str, own), "/usr/local/vgpu", "/usr/local/nvidia")
    before = mounts(texts)
    yield
    assert mounts(texts) <= before


def mounts(texts: tuple[str, ...]) -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if any(text in line for text in texts)}


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The benchmark's load generator."""
    return bundles.load_generator(tmp_path_factory.mktemp("load"))


@pytest.fixture
def card(site: container_site.Site, load: Path) -> flooded_card.FloodedCard:
    """The node's first card, for containers by runc that flood it."""
    return flooded_card.FloodedCard(site, load)
