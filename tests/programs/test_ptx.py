"""The self-test's kernels are code for every card from Maxwell to Blackwell: NVIDIA's own compilers take them.

Belongs here: assembling the PTX in the built program by ptxas and the compiler library of the package index. No card is
needed; what the kernels do on one is nowhere shown here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import roots
from checkout import BUILD

pytestmark = pytest.mark.long

#: Package -> its hash, and the files of it that are wanted. For x86-64.
PACKAGES = {
    "nvidia-cuda-nvcc-cu12==12.9.86": (
        "sha256:5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0", "nvidia/cuda_nvcc/bin/ptxas",
    ),
    "nvidia-cuda-nvcc==13.0.88": (
        "sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03", "nvidia/cu13/bin/ptxas",
    ),
    "nvidia-nvptxcompiler==13.5.37": (
        "sha256:d5cd17d43e4e6370c16b7d998f1bb92988f94b5bd1bf774c60fda5acb9253213",
        "nvidia/cu13/lib/libnvptxcompiler_static.a",
    ),
}  # fmt: skip
CUDA_12, CUDA_13, LIBRARY = PACKAGES
#: Maxwell, Pascal and Volta, for which CUDA 13 makes no code; then Turing to Blackwell.
OLD = ("sm_50", "sm_52", "sm_53", "sm_60", "sm_61", "sm_62", "sm_70", "sm_72")
NEW = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


@pytest.fixture(scope="module")
def compilers() -> Path:
    """A directory with the wanted files of all packages."""
    place = roots.CACHE / f"ptx-{roots.key(*PACKAGES)}"
    with roots.making(place) as new:
        if new:
            _fetch(new)
    return place


def _fetch(place: Path) -> None:
    files = {file for _, file in PACKAGES.values()}
    with roots.wheels({package: found[0] for package, found in PACKAGES.items()}) as wheels:
        for wheel in wheels:
            wheel.extractall(place, files & set(wheel.namelist()))
    for file in files:
        (place / file).chmod(0o755)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The PTX, as it lies in the program."""
    program = (BUILD / "bin/vgpu-selftest").read_bytes()
    begin = program.index(b".version 6.0\n")
    path = tmp_path_factory.mktemp("ptx") / "code.ptx"
    path.write_bytes(program[begin : program.index(b"\0", begin)])
    assert path.read_text().count(".visible .entry") == 3
    yield path


@pytest.mark.parametrize(("package", "architectures"), [(CUDA_12, OLD + NEW), (CUDA_13, NEW)], ids=["12", "13"])
def test_ptxas_takes_the_kernels(
    compilers: Path, code: Path, tmp_path: Path, package: str, architectures: tuple[str, ...]
) -> None:
    for architecture in architectures:
        output = tmp_path / architecture
        command = [compilers / PACKAGES[package][1], "-arch", architecture, code, "-o", output]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (architecture, done.stdout + done.stderr)
        assert all(name in output.read_bytes() for name in (b"spin_ns", b"trace_ns", b"clock_ns"))


def test_the_compiler_library_takes_the_kernels(compilers: Path, code: Path, tmp_path: Path) -> None:
    program = tmp_path / "ptx_compiler"
    source = Path(__file__).with_name("ptx_compiler.c")
    options = ["-Wall", "-Wextra", "-Werror", "-lstdc++", "-lm", "-lpthread", "-ldl"]
    subprocess.run(["gcc", "-o", program, source, compilers / PACKAGES[LIBRARY][1], *options], check=True)
    done = subprocess.run([program, code, *NEW, "sm_50"], check=True, capture_output=True, text=True)
    results = dict(line.split() for line in done.stdout.splitlines())
    assert [results[architecture] for architecture in NEW] == ["0"] * len(NEW)
    assert results["sm_50"] != "0"  # it can refuse
