"""Old and new programs from the package index, unchanged, in a container on simulated drivers of several releases.

They choose functions by what they find, so they see what a driver has and what libvcuda adds. They are in build/clients
(`make clients`; VGPU_CLIENTS names another one), the old ones each in a directory of its own below it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import recorded_drivers
from vcuda_boxes import BUILD, SimBox, load_simctl, need_root

PROGRAMS = recorded_drivers.DATA / "sim/client_programs.py"
CLIENTS = Path(os.environ.get("VGPU_CLIENTS", BUILD / "clients"))
PYTHON = CLIENTS / "bin/python"
LIMIT = 2 << 30


@pytest.fixture
def box(request: pytest.FixtureRequest, programs: Path, tmp_path: Path) -> Iterator[SimBox]:
    """A box with a limit on one simulated T4, with the simulated driver of a release."""
    need_root()
    if not (CLIENTS / "bin/nvitop").exists():
        pytest.skip(f"{CLIENTS} is missing: make clients")
    version = recorded_drivers.RELEASES[request.param]
    driver = tmp_path / "driver"
    driver.mkdir()
    for library, soname in recorded_drivers.LIBRARIES.items():
        (driver / soname).symlink_to(BUILD / f"lib/drivers/{version}/{library}.so.{version}")
    simctl = load_simctl()
    state = tmp_path / "state"
    simctl.make_state(str(state), "t4x1", device_nodes=False)
    uuid = simctl.read_state(str(state))["cards"][0]["uuid"]
    made = SimBox(tmp_path / "box", driver, programs / "driver_client", {"VGPU_SIM_DIR": str(state)}, uuid)
    made.libraries = recorded_drivers.libvcuda(request.param, driver, tmp_path / "libvcuda")
    made.environment.update(LD_LIBRARY_PATH=str(made.libraries), HOME=str(tmp_path), PYTHONWARNINGS="ignore")
    made.simctl = simctl
    made.limit(LIMIT)
    yield made
    made.close()


def run(box: SimBox, *command: object, packages: str = "") -> str:
    environment = {**box.environment, "PYTHONPATH": str(CLIENTS / packages) if packages else ""}
    done = subprocess.run(
        box.command(*map(str, command)), check=False, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on(*releases: str, **options: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("box", releases, indirect=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("box", "packages"),
    [
        ("470", "numba-0.59"),
        ("550", "numba-0.59"),
        *(
            pytest.param(release, packages, marks=pytest.mark.long)
            for packages, releases in (
                ("numba-0.59", ("535",)),
                ("numba-0.61", ("470", "535", "550")),
                ("numba", ("470", "535", "550", "580", "615")),
            )
            for release in releases
        ),
    ],
    indirect=["box"],
)
def test_arrays_and_events_of_numba(box: SimBox, packages: str) -> None:
    """Numba 0.61 and older cannot use R580 and newer, with libvcuda or without: cuCtxGetDevice_v2 takes more there."""
    run(box, PYTHON, PROGRAMS, "numba_arrays", packages=packages)


@on("535", "615")
@pytest.mark.parametrize("packages", ["", "cuda-bindings-13"])
def test_cuda_bindings_of_two_major_versions(box: SimBox, packages: str) -> None:
    """They need cuGetProcAddress_v2, which R470 does not have."""
    run(box, PYTHON, PROGRAMS, "cuda_bindings", packages=packages)


@on("550")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cuda_bindings_newer", ""),
        ("tinygrad", ""),
        *(pytest.param(name, "long", marks=pytest.mark.long) for name in ("numba_cuda", "pycuda")),
    ],
)
def test_programs_that_launch_kernels_and_graphs(box: SimBox, name: str, place: str) -> None:
    """Those of `make clients-long` bring a compiler. PyCUDA is linked with libcurand, which comes from a wheel."""
    if place and not (CLIENTS / ".completelong").exists():
        pytest.skip(f"{CLIENTS / place} is not complete: make clients-long")
    wheels = (CLIENTS / place).glob("lib/python3*/site-packages/nvidia/*/lib")
    libraries = os.pathsep.join(map(str, [box.libraries, *wheels]))
    box.environment.update(LD_LIBRARY_PATH=libraries, DEV="CUDA", CACHELEVEL="0")
    run(box, CLIENTS / place / "bin/python", PROGRAMS, name)
    assert box.cards()[0]["used"] == 0


@on("470", "550", "615")
def test_monitors_show_the_limit_and_the_temperature(box: SimBox) -> None:
    run(box, PYTHON, PROGRAMS, "monitored")
    assert f"/ {LIMIT >> 20} MB" in " ".join(run(box, PYTHON, "-m", "gpustat", "--no-color").split())
    assert f"{LIMIT >> 20}MiB" in run(box, PYTHON, "-m", "nvitop", "--once", "--ascii")
