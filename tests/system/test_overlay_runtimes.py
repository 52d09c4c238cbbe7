"""Leases and remounts by tenants of real runtimes: they delay no open on the host, and no start of another
container."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import nodes
import podman_bed
import pytest
from checkout import CHECKOUT
from daemons import wait_for

from vgpu.config import core_schedule, limits, paths
from vgpu.hook.inject.plan import LIMITED

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]
SOURCE = CHECKOUT / "tests/data/cuda/lease.c"
SOON = 40.0  #: seconds for a start or a command; who waits for a lease waits for 45
SHARE, WHOLE = {"cores": "20", "memory": "1Gi"}, {"cores": "100"}
#: System calls that answer ENOSYS in the hook, as before Linux 5.12, 5.6 and 5.2: see test_hook_runc.
BEFORE_5_6, BEFORE_5_2 = (437, 442), (428, 429, 430, 437, 442)


@pytest.fixture(scope="module")
def lease(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.static_program(SOURCE, tmp_path_factory.mktemp("lease"))


class Tenants:
    """Containers on one node, each running a shell script. Their /run/vgpu-sim is the node's `sim`."""

    without: tuple[int, ...] = ()
    mapped = False

    def __init__(self, node: nodes.SimulatedNode, rootfs: Rootfs, lease: Path) -> None:
        self.node = node
        self.rootfs = rootfs
        self.lease = lease

    def tree(self) -> Path:
        tree = self.rootfs()
        subprocess.run(["cp", self.lease, tree / "usr/bin/lease"], check=True)
        if self.mapped:
            subprocess.run(["chown", "-hR", "100000:100000", tree], check=True)
            for directory in tree.parents:
                if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o005:
                    directory.chmod(0o755)
        return tree

    def start(self, script: str, annotations: dict[str, str]) -> int:
        """The pid of a new container's init."""
        raise NotImplementedError

    def cleanup(self) -> None:
        raise NotImplementedError


class ByRuntime(Tenants):
    def __init__(self, node: nodes.SimulatedNode, rootfs: Rootfs, lease: Path, directory: Path, program: str) -> None:
        super().__init__(node, rootfs, lease)
        self.directory = directory
        self.runtime = bundles.Runtime(directory / program, program)
        if program == "crun":
            self.runtime.command = [*podman_bed.V1_ONLY, *self.runtime.command]

    def start(self, script: str, annotations: dict[str, str]) -> int:
        keys = {f"vgpu.io/{key}": value for key, value in annotations.items()}
        made = bundles.Bundle(self.directory / f"bundle-{uuid.uuid4().hex[:6]}", self.tree(), keys)
        made.hooks(self.node, without=self.without).simulated(self.node)
        if self.mapped:
            self._map(made)
        container, done = self.runtime.create(made.command("sh", "-c", script))
        assert done.returncode == 0, done.stderr
        self.runtime.call("start", container, check=True)
        return int(self.runtime.state(container)["pid"])

    def _map(self, made: bundles.Bundle) -> None:
        made.config["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            made.config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]

    def cleanup(self) -> None:
        self.runtime.cleanup()


class ByPodman(Tenants):
    def __init__(self, node: nodes.SimulatedNode, rootfs: Rootfs, lease: Path, runtime: str) -> None:
        super().__init__(node, rootfs, lease)
        self.podman = podman_bed.Podman(node, runtime)

    def start(self, script: str, annotations: dict[str, str]) -> int:
        name = f"c{uuid.uuid4().hex[:8]}"
        options = ["--detach", f"--name={name}"]
        if self.mapped:
            options += ["--uidmap=0:100000:65536", "--gidmap=0:100000:65536"]
        done = self.podman.run(self.tree(), "sh", "-c", script, options=tuple(options), **annotations)
        assert done.returncode == 0, done.stderr
        return int(self.podman.call("inspect", "--format={{.State.Pid}}", name).stdout)

    def cleanup(self) -> None:
        self.podman.cleanup()


CELLS = ("runc", "runc-before-5.6", "runc-before-5.2", "runc-mapped", "crun", "podman", "podman-crun", "podman-mapped")
#: (cell, annotations); some whole cards only in the long run.
CASES = [
    *(pytest.param(cell, SHARE, id=f"{cell}-share") for cell in CELLS),
    *(pytest.param(cell, WHOLE, id=f"{cell}-whole") for cell in ("runc", "runc-before-5.2", "podman-mapped")),
    *(
        pytest.param(cell, WHOLE, id=f"{cell}-whole", marks=pytest.mark.long)
        for cell in ("runc-before-5.6", "runc-mapped", "crun", "podman", "podman-crun")
    ),
]


@pytest.fixture
def tenants(
    request: pytest.FixtureRequest, node: nodes.SimulatedNode, rootfs: Rootfs, lease: Path, tmp_path: Path
) -> Iterator[Tenants]:
    cell = getattr(request, "param", "runc")
    made: Tenants
    if cell.startswith("podman"):
        made = ByPodman(node, rootfs, lease, "crun" if cell == "podman-crun" else "runc")
    else:
        made = ByRuntime(node, rootfs, lease, tmp_path, "crun" if cell == "crun" else "runc")
    made.without = BEFORE_5_6 if cell.endswith("5.6") else BEFORE_5_2 if cell.endswith("5.2") else ()
    made.mapped = cell.endswith("mapped")
    yield made
    made.cleanup()


def host_files(node: nodes.SimulatedNode, share: bool) -> list[Path]:
    """The host's files that a container of a card gets."""
    inventory = json.loads((Path(node.settings.run_dir) / "inventory.json").read_text())
    driver = [Path(item["path"]) for item in inventory["libraries"] if item["capability"] in ("compute", "utility")]
    if not share:
        return driver
    containers = Path(paths.containers(node.settings.run_dir))
    own = [path for name in ("limits", "cards") for path in containers.glob(f"*/{name}")]
    assert len(own) >= 2
    return [*own, *(path for path in driver if path.name.partition(".so")[0] in LIMITED)]


def ours(pid: int) -> dict[str, str]:
    """The file systems of the mounts that the hook made of the host's files, by their places in the container."""
    found = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        fields = line.split()
        place, kind = fields[4], fields[fields.index("-") + 1]
        is_file = Path(f"/proc/{pid}/root{place}").is_file()
        if is_file and ("nvidia" in place or "libcuda" in place or place.startswith("/usr/local/vgpu")):
            found[place] = kind
    return found


def begin_leases(tenants: Tenants, kind: str, annotations: dict[str, str], *places: str) -> int:
    """A container that takes leases on these files in a loop; all of its driver's files where there are none."""
    mark = tenants.node.sim / f"leased-{uuid.uuid4().hex[:6]}"
    files = " ".join(places) or "$(grep -E ' - overlay vgpu' /proc/self/mountinfo | cut -d' ' -f5)"
    script = f"lease {kind} {files} > /run/vgpu-sim/{mark.name}"
    pid = tenants.start(script if not tenants.mapped else "sleep 600", annotations)
    if not tenants.mapped:  # there the file's uid is not the tenant's: the kernel refuses the lease
        wait_for(lambda: mark.exists() and mark.read_text() == "leased\n")
    return pid


def assert_soon(began: float) -> None:
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize(("tenants", "annotations"), CASES, indirect=["tenants"])
def test_leases_on_everything_that_a_container_got_reach_nothing_of_the_host(
    tenants: Tenants, node: nodes.SimulatedNode, annotations: dict[str, str]
) -> None:
    pid = begin_leases(tenants, "w", annotations)
    kinds = ours(pid)
    presence = kinds.pop(core_schedule.PRESENCE_PATH, "")
    assert (bool(presence), presence != "overlay") == (annotations is SHARE, True)
    assert len(kinds) >= 5
    assert set(kinds.values()) == {"overlay"}, kinds
    for path in host_files(node, annotations is SHARE):
        for flags in (os.O_RDONLY, os.O_RDWR):
            os.close(os.open(path, flags | os.O_NONBLOCK))  # BlockingIOError: a lease is in the way
    assert " - overlay vgpu" not in Path("/proc/self/mountinfo").read_text(), "nothing of it is on the host"
    if annotations is SHARE:
        (claim,) = Path(paths.containers(node.settings.run_dir)).iterdir()
        began = time.monotonic()
        node.vgpuctl("set", claim.name, "--cores", "30")
        assert_soon(began)


@pytest.fixture(params=["w", "r"])
def presence_lease(request: pytest.FixtureRequest, tenants: Tenants) -> str:
    """The kind of lease that a tenant takes on the presence file again and again."""
    kind = str(request.param)
    begin_leases(tenants, kind, SHARE, core_schedule.PRESENCE_PATH)
    return kind


@pytest.mark.usefixtures("presence_lease")
def test_a_lease_on_the_presence_file_refuses_and_delays_no_start(tenants: Tenants, node: nodes.SimulatedNode) -> None:
    """The presence file is one inode for all. Before, the hook opened it for reading: 34 of 34 starts were refused."""
    for _ in range(3):
        began = time.monotonic()
        tenants.start("exec sleep 600", SHARE)
        assert_soon(began)
    for claim in list(Path(paths.containers(node.settings.run_dir)).iterdir())[:1]:
        began = time.monotonic()
        node.vgpuctl("set", claim.name, "--cores", "25")
        assert_soon(began)


def test_a_program_of_another_container_waits_for_no_lease(
    tenants: Tenants, node: nodes.SimulatedNode, presence_lease: str
) -> None:
    """libvcuda opens the presence file without waiting, and in its own container the limits and the core schedules."""
    out = node.sim / "out"
    own = f"lease r {limits.LIMITS_PATH} {core_schedule.PATH} >/dev/null &" if presence_lease == "r" else ""
    began = time.monotonic()
    tenants.start(
        f"{own} cudaprobe info > /run/vgpu-sim/out 2>&1; echo done >> /run/vgpu-sim/out; exec sleep 600", SHARE
    )
    wait_for(lambda: out.exists() and "done" in out.read_text())
    assert_soon(began)
    assert f"card0.total {1 << 30}" in out.read_text()


def test_a_strong_tenant_cannot_make_them_writable(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    share = bundle(rootfs(), **SHARE)
    names = ("bounding", "effective", "permitted")
    capabilities = [*share.config["process"]["capabilities"]["effective"], "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]
    share.config["process"]["capabilities"] = dict.fromkeys(names, capabilities)
    before = {path: path.read_bytes() for path in host_files(node, share=False)}
    script = (
        "for place in $(grep -E ' - overlay vgpu' /proc/self/mountinfo | cut -d' ' -f5); do"
        " busybox mount -o remount,rw $place && echo remounted $place; busybox mount -o remount,bind,rw $place;"
        " (echo x >> $place) 2>/dev/null && echo wrote $place; (: > $place) 2>/dev/null && echo cut $place;"
        " count=$((count + 1)); done; echo $count files"
    )
    done = runc1.run(share.command("sh", "-c", script))
    assert int(done.stdout.split()[0]) >= 5, done.stdout + done.stderr
    assert done.stdout.splitlines()[1:] == []
    assert {path: path.read_bytes() for path in before} == before
