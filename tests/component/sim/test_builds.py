"""The simulated driver in other builds: under sanitizers with the C programs of these tests, and for arm64."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import DATA

CHECKS = {"memory": "t4x1", "work": "t4x1", "objects": "h200x8"}
CROSS = "aarch64-linux-gnu-gcc"


def build(repository: Path, directory: Path, *options: str) -> Path:
    """The directory of the two libraries."""
    configure = ["cmake", "-S", repository / "libvcuda/sim", "-B", directory, "-DVGPU_WERROR=ON", *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    targets = ["--target", "sim_libcuda", "sim_libnvidia-ml", "--parallel", "2"]
    subprocess.run(["cmake", "--build", directory, *targets], check=True, stdout=subprocess.DEVNULL)
    return directory / "lib/sim"


@pytest.mark.long
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_under_sanitizers(
    repository: Path,
    tmp_path: Path,
    make_node: Callable[..., Any],
    sanitizers: str,
    pytestconfig: pytest.Config,
) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("takes minutes: make test-long")
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g"]
    libraries = build(repository, tmp_path / "build", f"-DCMAKE_C_FLAGS={' '.join(flags)}")
    (libraries / "libcuda.so.1").symlink_to(next(libraries.glob("libcuda.so.*")).name)
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")
    for name, profile in CHECKS.items():
        source, program = DATA / f"sim/{name}_check.c", tmp_path / name
        subprocess.run(["gcc", *flags, source, "-o", program, f"-L{libraries}", "-lcuda", "-lpthread"], check=True)
        environment = make_node(profile).environment(LD_LIBRARY_PATH=str(libraries))
        done = subprocess.run(  # ThreadSanitizer needs an address space without randomization
            ["setarch", "-R", program], check=False, env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name


@pytest.mark.long
def test_arm64(repository: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("takes minutes: make test-long")
    if not shutil.which(CROSS):
        pytest.skip(f"needs {CROSS} (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)")
    processor = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    libraries = build(repository, tmp_path, f"-DCMAKE_C_COMPILER={CROSS}", *processor)
    for library in libraries.iterdir():
        header = subprocess.run(["readelf", "-h", library], check=True, capture_output=True, text=True).stdout
        assert "AArch64" in header
