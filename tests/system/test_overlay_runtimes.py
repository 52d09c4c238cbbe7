"""Leases and remounts by tenants of real runtimes: they delay no open on the host, and no start of another
container."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bundles
import nodes
import pytest
from checkout import CHECKOUT
from container_site import OLD_KERNELS, Site
from daemons import wait_for
from runtime_clients import ByPodman, ByRuntime

from vgpu.config import core_schedule, limits
from vgpu.hook.inject.plan import LIMITED

pytestmark = pytest.mark.root

SOURCE = CHECKOUT / "tests/data/cuda/lease.c"
SOON = 40.0  #: seconds for a start or a command; who waits for a lease waits for 45
SHARE, WHOLE = {"cores": "20", "memory": "1Gi"}, {"cores": "100"}
#: Cell -> what runs its containers.
CELLS: dict[str, Any] = {
    "runc": ByRuntime,
    "runc-5.4": lambda site: ByRuntime(site, OLD_KERNELS["5.4"]),
    "runc-4.18": lambda site: ByRuntime(site, OLD_KERNELS["4.18"]),
    "runc-mapped": lambda site: ByRuntime(site, mapped=True),
    "crun": ByRuntime,
    "podman": ByPodman,
    "podman-crun": lambda site: ByPodman(site, "crun"),
    "podman-mapped": lambda site: ByPodman(site, mapped=True),
}
#: (cell, annotations); some whole cards only in the long run.
LONG = ("runc-5.4", "runc-mapped", "crun", "podman", "podman-crun")
CASES = [
    *(pytest.param(cell, SHARE, id=f"{cell}-share") for cell in CELLS),
    *(pytest.param(cell, WHOLE, id=f"{cell}-whole", marks=[pytest.mark.long] * (cell in LONG)) for cell in CELLS),
]


@pytest.fixture
def tenants(
    request: pytest.FixtureRequest, node: nodes.SimulatedNode, base_trees: dict[str, Path], tmp_path: Path
) -> Iterator[Any]:
    """Runs the containers of a cell, by default by runc. Their trees have the program `lease`."""
    cell = getattr(request, "param", "runc")
    tree = tmp_path / "debian"
    subprocess.run(["cp", "-a", base_trees["debian"], tree], check=True)
    bundles.static_program(SOURCE, tree / "usr/bin")
    site = Site(node, tmp_path, {"debian": tree}, "crun" if cell == "crun" else "runc")
    made = CELLS[cell](site)
    yield made
    if isinstance(made, ByPodman):
        made.podman.cleanup()
    site.end()


def host_files(node: nodes.SimulatedNode, share: bool) -> list[Path]:
    """The host's files that a container of a card gets."""
    inventory = json.loads((node.run_dir / "inventory.json").read_text())
    driver = [Path(item["path"]) for item in inventory["libraries"] if item["capability"] in ("compute", "utility")]
    if not share:
        return driver
    own = [path for name in ("limits", "cards") for path in node.containers.glob(f"*/{name}")]
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


def begin_leases(tenants: Any, kind: str, annotations: dict[str, str], *places: str) -> int:
    """A container that takes leases on these files in a loop; all of its driver's files where there are none."""
    mark = tenants.node.sim / f"leased-{uuid.uuid4().hex[:6]}"
    files = " ".join(places) or "$(grep -E ' - overlay vgpu' /proc/self/mountinfo | cut -d' ' -f5)"
    if tenants.mapped:  # there the file's uid is not the tenant's: the kernel refuses the lease
        return int(tenants.pid(tenants.start("sleep 600", **annotations)))
    container = tenants.start(f"lease {kind} {files} > /run/vgpu-sim/{mark.name}", **annotations)
    wait_for(lambda: mark.exists() and mark.read_text() == "leased\n")
    return int(tenants.pid(container))


def assert_soon(began: float) -> None:
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize(("tenants", "annotations"), CASES, indirect=["tenants"])
def test_leases_on_everything_that_a_container_got_reach_nothing_of_the_host(
    tenants: Any, node: nodes.SimulatedNode, annotations: dict[str, str]
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
        (container,) = node.held()
        began = time.monotonic()
        node.vgpuctl("set", container, "--cores", "30")
        assert_soon(began)


@pytest.fixture(params=["w", "r"])
def presence_lease(request: pytest.FixtureRequest, tenants: Any) -> str:
    """The kind of lease that a tenant takes on the presence file again and again."""
    kind = str(request.param)
    begin_leases(tenants, kind, SHARE, core_schedule.PRESENCE_PATH)
    return kind


@pytest.mark.usefixtures("presence_lease")
def test_a_lease_on_the_presence_file_refuses_and_delays_no_start(tenants: Any, node: nodes.SimulatedNode) -> None:
    """The presence file is one inode for all. Before, the hook opened it for reading: 34 of 34 starts were refused."""
    for _ in range(3):
        began = time.monotonic()
        container = tenants.start("exec sleep 600", **SHARE)
        assert_soon(began)
    began = time.monotonic()
    node.vgpuctl("set", container, "--cores", "25")
    assert_soon(began)


def test_a_program_of_another_container_waits_for_no_lease(
    tenants: Any, node: nodes.SimulatedNode, presence_lease: str
) -> None:
    """libvcuda opens the presence file without waiting, and in its own container the limits and the core schedules."""
    out = node.sim / "out"
    own = f"lease r {limits.LIMITS_PATH} {core_schedule.PATH} >/dev/null &" if presence_lease == "r" else ""
    began = time.monotonic()
    script = f"{own} cudaprobe info > /run/vgpu-sim/out 2>&1; echo done >> /run/vgpu-sim/out; exec sleep 600"
    tenants.start(script, **SHARE)
    wait_for(lambda: out.exists() and "done" in out.read_text())
    assert_soon(began)
    assert f"card0.total {1 << 30}" in out.read_text()


def test_a_strong_tenant_cannot_make_them_writable(site: Site) -> None:
    share = site.bundle(**SHARE)
    names = ("bounding", "effective", "permitted")
    capabilities = [*share.config["process"]["capabilities"]["effective"], "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]
    share.config["process"]["capabilities"] = dict.fromkeys(names, capabilities)
    before = {path: path.read_bytes() for path in host_files(site.node, share=False)}
    script = (
        "for place in $(grep -E ' - overlay vgpu' /proc/self/mountinfo | cut -d' ' -f5); do"
        " busybox mount -o remount,rw $place && echo remounted $place; busybox mount -o remount,bind,rw $place;"
        " (echo x >> $place) 2>/dev/null && echo wrote $place; (: > $place) 2>/dev/null && echo cut $place;"
        " count=$((count + 1)); done; echo $count files"
    )
    done = site.runtime.run(share.command("sh", "-c", script))
    assert int(done.stdout.split()[0]) >= 5, done.stdout + done.stderr
    assert done.stdout.splitlines()[1:] == []
    assert {path: path.read_bytes() for path in before} == before
