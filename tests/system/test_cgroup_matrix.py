"""Runtimes, cgroup versions and cgroup managers with the real hook: which devices open, and what an update keeps.

A cell is a runtime of one version under one manager. Cells with systemd run in beds of their own (systemd_bed), those
with cgroupfs on this machine or in a bed that has the runtime. docs/decisions/tested-cgroups.md has the reasons why
some combinations do not exist.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import bundles
import cgroup_trees
import docs_commands
import nodes
import podman_bed
import pytest
import systemd_bed
from checkout import CHECKOUT, DATA
from container_site import Site, pairs
from systemd_bed import Bed

pytestmark = pytest.mark.root

Beds = Callable[..., Bed]

PROBE = DATA / "probes/allow_devices_probe.py"
REFUSED, NO_DRIVER = "Operation not permitted", "No such device or address"
#: In the hook's order, by which it recognises a program of an earlier run.
GRANTED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1")
NUMBERS = ((195, 255), (511, 0), (511, 1), (195, 1))
OTHER = "/tmp/other"


class Cell(NamedTuple):
    """`bed` is (cgroup version, Debian suite or "" for this machine's root); None: without systemd."""

    bed: tuple[int, str] | None
    program: str
    manager: str
    prefix: tuple[str, ...] = ()
    pins: bool = False  #: with a bpf file system, where crun pins its program for systemd
    update_resets: bool = False  #: runc 1.0.0-rc93 writes its own rules again at each update
    keeps_rules: bool = True  #: crun 0.17 tells systemd nothing on v1: a reload opens everything, with or without us

    @property
    def systemd(self) -> bool:
        return self.manager == "systemd"


CELLS = {
    "runc1.1-v1-cgroupfs": Cell(None, "runc", "cgroupfs"),
    "runc1.1-v2-cgroupfs": Cell(None, "runc", "cgroupfs", bundles.V2),
    "crun1.8-v1-cgroupfs": Cell(None, "crun", "cgroupfs", podman_bed.V1_ONLY),
    "runc1.0rc93-v1-cgroupfs": Cell((1, "bullseye"), "runc", "cgroupfs", update_resets=True),
    "crun0.17-v1-cgroupfs": Cell((1, "bullseye"), "crun", "cgroupfs"),
    "runc1.3-v2-cgroupfs": Cell((2, "sid"), "runc", "cgroupfs"),
    "crun1.28-v2-cgroupfs": Cell((2, "sid"), "crun", "cgroupfs"),
    "runc1.0rc93-v1-systemd": Cell((1, "bullseye"), "runc", "systemd", update_resets=True),
    "crun0.17-v1-systemd": Cell((1, "bullseye"), "crun", "systemd", keeps_rules=False),
    "runc1.0rc93-v2-systemd": Cell((2, "bullseye"), "runc", "systemd", update_resets=True),
    "runc1.1-v2-systemd": Cell((2, ""), "runc", "systemd"),
    "runc1.3-v2-systemd": Cell((2, "sid"), "runc", "systemd"),
    "crun1.28-v2-systemd": Cell((2, "sid"), "crun", "systemd"),
    "crun1.28-v2-systemd-pins": Cell((2, "sid"), "crun", "systemd", pins=True),
}

RUNC = [name for name, cell in CELLS.items() if cell.systemd and cell.program == "runc"]


class Place(Site):
    """A running cell: its runtime, and the bed that it runs in, if any."""

    def __init__(
        self, cell: Cell, bed: Bed | None, node: nodes.SimulatedNode, directory: Path, trees: dict[str, Path]
    ) -> None:
        self.cell, self.bed = cell, bed
        super().__init__(node, directory, trees)
        self.prefix = (*(bed.enter if bed else ()), *cell.prefix)
        options = ["--systemd-cgroup"] if cell.systemd else []
        if cell.program == "crun" and not cell.systemd:
            options = ["--cgroup-manager=cgroupfs"]
        self.runtime = self.other_runtime(cell.program, *options)
        self.cgroups: list[str] = []

    @property
    def legacy(self) -> bool:
        """Whether the cell has v1's resource controllers. This machine's controllers are v1's."""
        return self.bed.version == 1 if self.bed else self.cell.prefix != bundles.V2

    def host_nodes(self) -> list[str]:
        return [str(self.node.driver / path.lstrip("/")) for path in GRANTED]

    def placed(self, bundle: bundles.Bundle, path: str = "") -> bundles.Bundle:
        """The bundle in a cgroup of its own, or at cgroupsPath `path`."""
        name = f"vgpu-test-{uuid.uuid4().hex[:8]}"
        self.cgroups.append(name)
        own = f"system.slice:vgpu:{name}" if self.cell.systemd else f"/{name}"
        bundle.config["linux"]["cgroupsPath"] = path or own
        if self.cell.bed and self.cell.bed[1] == "bullseye" and self.cell.program == "runc":  # or its exec panics
            sysfs = {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}
            mount = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]}
            bundle.config["mounts"] += [sysfs, mount]
        return bundle

    def begin(self, bundle: bundles.Bundle, path: str = "") -> str:
        return self.start(self.placed(bundle, path))

    def opens(self, container: str, *paths: str) -> dict[str, str]:
        """The result of open(O_RDWR) in the container, by path."""
        return pairs(self.execute(container, "cudaprobe", "open", *(paths or (*GRANTED, OTHER, "/dev/null"))))

    def has_devices(self, container: str, other: str = REFUSED) -> None:
        """Assert that the granted devices open and no others."""
        answers = self.opens(container)
        assert {answers[path] for path in GRANTED} == {NO_DRIVER}, answers
        assert answers[OTHER] == other, answers
        assert answers["/dev/null"] == "opened"

    def reload(self) -> None:
        if self.bed:
            self.bed.reload()

    def update(self, container: str) -> None:
        """Update a running container's resources without mentioning devices, as kubelet does."""
        resources = self.runtime.root / "resources.json"
        resources.write_text(json.dumps({"cpu": {"shares": 512}} if self.legacy else {}))
        done = self.runtime.call("update", "--resources", str(resources), container)
        assert done.returncode == 0, done.stderr

    def open_devices(self, container: str, bundle: bundles.Bundle, run: str = "/run") -> str:
        """Run the hook's device step on a running container. With another `run` directory there is no systemd."""
        devices = [[*number, path] for number, path in zip(NUMBERS, self.host_nodes())]
        pid = self.runtime.state(container)["pid"]
        request = {"pid": pid, "bundle": str(bundle.path), "devices": devices, "run": run}
        command = ["/usr/bin/python3", "-I", "-S", str(PROBE), str(CHECKOUT), json.dumps(request)]
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def notes(self) -> str:
        """The lines of the hook's log about the last container, as one text."""
        return "\n".join(self.node.log()[-1]["notes"])

    def end(self) -> None:
        """Delete with retries, as runc fails on a cgroup whose last process is still exiting."""
        super().end()
        for name in self.cgroups:
            cgroup_trees.remove(f"/{name}")


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Beds]:
    """Beds by (version, suite, pins), each booted when the first test asks for it."""
    for tool in ("systemd-nspawn", "debootstrap", "runc", "crun"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    booted: dict[tuple[int, str, bool], Bed] = {}
    with contextlib.ExitStack() as stack:

        def get(version: int, suite: str, pins: bool = False) -> Bed:
            key = (version, suite, pins)
            if key not in booted:
                binds = [repository, tmp_path_factory.getbasetemp()]
                scratch = Path(f"/tmp/vgpu-bed-{uuid.uuid4().hex[:8]}")
                booted[key] = bed = stack.enter_context(systemd_bed.booted(version, suite, scratch, binds))
                if pins:
                    bed.mount_bpf()
                if version == 1:
                    bed.open_legacy_top()
            return booted[key]

        yield get


@pytest.fixture
def place(
    request: pytest.FixtureRequest, beds: Beds, node: nodes.SimulatedNode, tmp_path: Path, base_trees: dict[str, Path]
) -> Iterator[Place]:
    cell: Cell = CELLS[request.param]
    bed = beds(*cell.bed, cell.pins) if cell.bed else None
    made = Place(cell, bed, node, tmp_path, base_trees)
    yield made
    made.end()


@pytest.fixture
def share(place: Place) -> bundles.Bundle:
    """A share of a card, and the node of a device that is not granted."""
    made = place.share(use_gpuuuid=place.node.read_cards()[0]["uuid"])
    make_nodes(made.rootfs, {OTHER: (195, 99)})
    return made


@pytest.fixture
def plain(place: Place) -> bundles.Bundle:
    """A container without an allocation, but with all nodes."""
    made = place.bundle()
    numbers = {f"/tmp/{path[5:]}": number for path, number in zip(GRANTED, NUMBERS)}
    make_nodes(made.rootfs, {OTHER: (195, 99), **numbers})
    return made


PLAIN_NODES = tuple(f"/tmp/{path[5:]}" for path in GRANTED)


def make_nodes(tree: Path, numbers: dict[str, tuple[int, int]]) -> None:
    for path, (major, minor) in numbers.items():
        subprocess.run(["mknod", tree / path.lstrip("/"), "c", str(major), str(minor)], check=True)


@pytest.mark.sample(5)
@pytest.mark.parametrize("place", CELLS, indirect=True)
def test_which_devices_open_and_stay_open(place: Place, share: bundles.Bundle) -> None:
    container = place.begin(share)
    place.has_devices(container)
    print(place.notes())
    other = REFUSED if place.cell.keeps_rules else NO_DRIVER
    place.reload()
    place.has_devices(container, other)
    place.update(container)
    if place.cell.update_resets:  # the known limit, for which vgpud checks the rules
        assert place.opens(container)["/dev/nvidia1"] == REFUSED
        assert not place.open_devices(container, share).startswith("error")
    place.has_devices(container, other)
    place.reload()
    place.has_devices(container, other)
    again = place.open_devices(container, share)
    assert "the devices were open already" in again or not place.cell.keeps_rules
    assert place.runtime.delete(container).returncode == 0
    assert place.node.held() == set()
    if place.bed and place.cell.pins:
        assert place.bed.call("ls", "/sys/fs/bpf/crun") == ""


@pytest.mark.parametrize("place", ["runc1.1-v2-systemd", "runc1.0rc93-v1-systemd"], indirect=True)
def test_an_instances_nodes_open_and_stay_open(place: Place) -> None:
    """Its own two of /dev/nvidia-caps, in systemd's list too, and not its sibling's."""
    node = place.node
    node.divide(1, "3g.20gb", "1g.5gb")
    node.take_inventory()
    own, sibling = ({f"/tmp/{each.minor}": (each.major, each.minor) for each in node.instances()[profile].nodes[1:]}
                    for profile in ("3g.20gb", "1g.5gb"))  # fmt: skip
    bundle = place.share(profile="3g.20gb")
    make_nodes(bundle.rootfs, {**own, **sibling})
    container = place.begin(bundle)
    for _ in range(2):
        answers = place.opens(container, *own, *sibling)
        assert [path for path in answers if answers[path] != REFUSED] == list(own)
        place.reload()


@pytest.mark.parametrize("place", ["runc1.0rc93-v1-systemd"], indirect=True)
def test_the_commands_of_the_document(place: Place, share: bundles.Bundle) -> None:
    """They show the devices of a container, in systemd's list and in the kernel's."""
    (block,) = [one for one in docs_commands.blocks("docs/cgroups.md") if one.text.startswith("systemctl show")]
    place.begin(share)
    scope = f"vgpu-{place.cgroups[-1]}.scope"
    text = block.text.replace("SCOPE", scope).replace("PATH", f"system.slice/{scope}")
    assert place.bed
    shown = place.bed.call("sh", "-ec", text).splitlines()
    assert "DevicePolicy=strict" in shown
    (allowed,) = [line for line in shown if line.startswith("DeviceAllow=") and "/dev/char/195:1 rw" in line]
    assert "/dev/char/195:99" not in allowed
    assert "c 195:1 rw" in shown
    assert "c 195:99 rw" not in shown


# The known failure


@pytest.mark.parametrize("place", [name for name in RUNC if name != "runc1.0rc93-v2-systemd"], indirect=True)
def test_devices_that_only_the_kernel_has_are_gone_after_a_reload(place: Place, plain: bundles.Bundle) -> None:
    container = place.begin(plain)
    assert set(place.opens(container, *PLAIN_NODES, OTHER).values()) == {REFUSED}
    assert "kernel level only" in place.open_devices(container, plain, run="/nowhere")
    assert set(place.opens(container, *PLAIN_NODES).values()) == {NO_DRIVER}
    place.reload()
    assert set(place.opens(container, *PLAIN_NODES).values()) == {REFUSED}, "the failure has gone without a cure"
    assert "DeviceAllow=" in place.open_devices(container, plain)
    place.reload()
    assert set(place.opens(container, *PLAIN_NODES).values()) == {NO_DRIVER}
    assert place.opens(container, OTHER) == {OTHER: REFUSED}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("crun1.28-v2-systemd", "found systemd's own for the unit; systemd has to change it"),
        ("runc1.0rc93-v2-systemd", "expected one, the runtime's, found"),  # systemd 247 gives its program no name
    ],
    indirect=["place"],
)
def test_systemds_own_program_is_not_replaced_behind_its_back(place: Place, plain: bundles.Bundle, said: str) -> None:
    container = place.begin(plain)
    assert said in place.open_devices(container, plain, run="/nowhere")
    assert set(place.opens(container, *PLAIN_NODES).values()) == {REFUSED}


@pytest.mark.parametrize("place", ["crun1.28-v2-systemd-pins"], indirect=True)
def test_a_pin_is_replaced_with_its_program(place: Place, plain: bundles.Bundle) -> None:
    """systemd applies the pinned program. It leaves a cgroup alone that has the hook's program, and also one that was
    reset.
    """
    container = place.begin(plain)
    assert "also at /sys/fs/bpf/crun/" in place.open_devices(container, plain)
    place.reload()
    assert set(place.opens(container, *PLAIN_NODES).values()) == {NO_DRIVER}
    assert place.opens(container, OTHER) == {OTHER: REFUSED}


# Containers without a unit, and units that systemd refuses to change


@pytest.mark.parametrize("place", ["runc1.1-v2-systemd"], indirect=True)
def test_a_scope_name_that_systemd_does_not_have(place: Place, share: bundles.Bundle) -> None:
    place.runtime.command.remove("--systemd-cgroup")
    container = place.begin(share, f"/vgpu-test-{uuid.uuid4().hex[:8]}.scope")
    place.has_devices(container)
    assert ".scope: kernel level only" in place.notes()


@pytest.mark.parametrize("place", ["runc1.1-v2-systemd", "crun1.28-v2-systemd"], indirect=True)
def test_a_slice_that_refuses_is_an_error_that_names_it(place: Place, share: bundles.Bundle) -> None:
    bed = place.bed
    assert bed is not None
    name = f"vgputest{uuid.uuid4().hex[:8]}.slice"
    bed.call("systemctl", "set-property", "--runtime", name, "DevicePolicy=closed")
    _, done = place.runtime.create(place.placed(share, f"{name}:vgpu:{uuid.uuid4().hex[:8]}"))
    assert done.returncode != 0
    error = place.node.log()[0]["error"]
    assert "c 195:1 rw" in error
    assert f"sd_devices on /sys/fs/cgroup/{name}" in error
    assert place.node.held() == set()


@pytest.mark.parametrize("place", ["crun1.28-v2-systemd"], indirect=True)
@pytest.mark.parametrize("policy", ["auto", "closed"])
def test_a_container_without_a_cgroup_of_its_own(place: Place, share: bundles.Bundle, policy: str) -> None:
    """It is in the service of its runtime, which the hook does not open. Without restrictions nothing is to be done."""
    runtime = place.runtime.command[len(place.prefix) :]
    runtime[runtime.index("--systemd-cgroup")] = "--cgroup-manager=disabled"
    unit = ["systemd-run", "--wait", "--pipe", "-q", "-p", f"DevicePolicy={policy}", "-p", "Delegate=yes"]
    place.runtime.command[:] = [*place.prefix, *unit, shutil.which("env") or "env", *runtime]
    done = place.runtime.run(share.command("cudaprobe", "open", *GRANTED))
    if policy == "closed":
        assert done.returncode != 0
        assert "the container shares it with the runtime" in str(place.node.log())
    else:
        assert done.stdout.count(NO_DRIVER) == len(GRANTED), done.stderr
