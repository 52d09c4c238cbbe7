"""The drivers and boxes in which libvcuda's tests run programs. vcuda_boxes describes a box."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest
import sharing_containers
from checkout import BENCH
from vcuda_boxes import AWKWARD_UUID, BUILD, NVML, SOURCES, Box, Compiled, SimBox, compile_c, load_simctl, need_root


@pytest.fixture
def compiled(tmp_path: Path) -> Compiled:
    """Compiles a source of tests/data/cuda with further arguments. Returns the program."""
    return lambda source, *options: compile_c(tmp_path / Path(source).stem, SOURCES / source, *options)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with driver_client and awkward/libcuda.so.1."""
    if not (BUILD / "lib/vcuda/libcuda.so.1").exists():
        pytest.skip(f"libvcuda is not built in {BUILD}: run `make build`")
    path = tmp_path_factory.mktemp("programs")
    (path / "awkward").mkdir()
    compile_c(path / "driver_client", SOURCES / "driver_client.c", "-ldl", "-lpthread")
    soname = "-Wl,-soname,libcuda.so.1"
    compile_c(path / "awkward/libcuda.so.1", SOURCES / "awkward_driver.c", "-shared", "-fPIC", soname)
    return path


@pytest.fixture(scope="session")
def bench() -> Iterator[Any]:
    """The benchmark's modules (`bench.scenario` and others), and workers that run scenarios in virtual time."""
    need_root()
    sys.path.insert(0, str(BENCH))
    names = ("scenario", "mix", "share", "tenants", "change", "workers")
    modules = {name: importlib.import_module(f"cores_{name}") for name in names}
    sys.path.remove(str(BENCH))
    with modules.pop("workers").Workers() as workers:
        yield SimpleNamespace(**modules, workers=workers)


@pytest.fixture
def awkward(programs: Path, tmp_path: Path) -> Iterator[Box]:
    """A box on the awkward driver."""
    need_root()
    (tmp_path / "ledger").write_bytes(bytes(16))
    environment = {"AWKWARD_LEDGER": str(tmp_path / "ledger")}
    box = Box(tmp_path / "box", programs / "awkward", programs / "driver_client", environment, AWKWARD_UUID)
    yield box
    box.close()


@pytest.fixture(scope="session")
def sim_driver(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the simulated libraries under their names at the private path. NVML has its own."""
    path = tmp_path_factory.mktemp("sim_driver")
    (path / "nvml").mkdir()
    for name, target in (("libcuda", path / "libcuda.so.1"), ("libnvidia-ml", path / "nvml" / NVML)):
        found = sorted((BUILD / "lib/sim").glob(f"{name}.so.*"))
        if not found:
            pytest.skip(f"the simulated driver is not built in {BUILD}: run `make build`")
        shutil.copy(found[0], target)
    return path


@pytest.fixture
def sim_box(programs: Path, sim_driver: Path, tmp_path: Path) -> Iterator[Callable[..., SimBox]]:
    """Makes boxes on a simulated node with the cards of a profile. All boxes of a test share the node.

    `pids`: the box has a PID namespace of its own, as a container has.
    Without NVML libvcuda cannot see the driver's own memory, so it charges only what a test allocates.
    """
    need_root()
    boxes: list[SimBox] = []
    simctl = load_simctl()
    state = tmp_path / "state"

    def make(profile: str | dict[str, Any], nvml: bool = False, pids: bool = False, clock: str = "wall") -> SimBox:
        if not state.exists():
            simctl.make_state(str(state), profile, device_nodes=False, clock=clock, parties=1)
        uuid = simctl.read_state(str(state))["cards"][0]["uuid"]
        path = tmp_path / f"box{len(boxes)}"
        if nvml:
            shutil.copy(sim_driver / "nvml" / NVML, sim_driver)
        else:
            (sim_driver / NVML).unlink(missing_ok=True)
        box = SimBox(path, sim_driver, programs / "driver_client", {"VGPU_SIM_DIR": str(state)}, uuid, pids)
        box.simctl = simctl
        boxes.append(box)
        return box

    yield make
    for box in boxes:
        box.close()


@pytest.fixture(scope="session")
def sharing_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sharing_containers.compiled(tmp_path_factory.mktemp("sharing"))


@pytest.fixture
def make_sharing(
    sim_box: Callable[..., SimBox], tmp_path: Path, sharing_programs: Path
) -> Iterator[Callable[[str], sharing_containers.Node]]:
    """Makes a node by its clock, on which containers share cards."""
    made: list[sharing_containers.Node] = []

    def make(clock: str) -> sharing_containers.Node:
        made.append(sharing_containers.Node(sim_box, tmp_path, sharing_programs, clock))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_sharing: Callable[[str], sharing_containers.Node]) -> sharing_containers.Node:
    return make_sharing("virtual")


@pytest.fixture
def real_node(make_sharing: Callable[[str], sharing_containers.Node]) -> sharing_containers.Node:
    return make_sharing("wall")


@pytest.fixture
def t4(sim_box: Callable[..., SimBox]) -> SimBox:
    """A box on a node with one simulated T4."""
    return sim_box("t4x1")


@pytest.fixture
def t4_nvml(sim_box: Callable[..., SimBox]) -> SimBox:
    """The same with NVML: contexts are charged too."""
    return sim_box("t4x1", nvml=True)
