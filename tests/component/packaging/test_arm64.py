"""The packages for arm64, built on another processor: what is in them, and that their programs work in an emulator.

Belongs here: the gate's and libvcuda's own tests, repeated with programs for arm64. qemu's user mode runs one process
as arm64 on this kernel. It answers /proc/self/stat by itself, with a start of the process that is some ticks later than
the kernel's, so a process takes another one for dead: tests with several processes of a container are left out. So are
tests that load libvcuda into this machine's Python, and those of the runtime shim that compare its own path.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import recorded_drivers
import roots
from checkout import BUILD, CHECKOUT

TOOLCHAIN = CHECKOUT / "packaging/setup/arm64.cmake"
PREFIX = "aarch64-linux-gnu-"
SYSTEM = "/usr/aarch64-linux-gnu"
EMULATOR = "qemu-aarch64-static"
LIBVCUDA, GATE = CHECKOUT / "tests/component/libvcuda", CHECKOUT / "tests/component/gate"
#: file of tests -> the tests of it that an emulator can run
SAMPLE = {
    LIBVCUDA / "test_limit.py": "each_way or the_limit or cut_short or scribbles",
    GATE / "test_hook_marker.py": "test_bad_config and static",
}
ALL = {
    LIBVCUDA / "test_limit.py": "",
    LIBVCUDA / "test_ctl_set.py": "",
    GATE / "test_hook_marker.py": "not sanitized",
    GATE / "test_runtime_shim.py": "test_command_lines and not sanitized",
}

pytestmark = pytest.mark.skipif(platform.machine() == "aarch64", reason="builds for another processor than its own")


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Where everything is built for arm64, and by what. What is compiled stays for the next run."""
    for program, package in {f"{PREFIX}gcc": "gcc-aarch64-linux-gnu", EMULATOR: "qemu-user-static"}.items():
        if not shutil.which(program):
            pytest.skip(f"needs {program} (Debian: {package})")
    build = BUILD / "arm64"
    with roots.locked(build):
        build.mkdir(exist_ok=True)
        yield {**os.environ, "VGPU_BUILD": str(build), "ARCHITECTURE": "arm64", "PYTHON": sys.executable}


@pytest.fixture(scope="module")
def packages(environment: dict[str, str]) -> list[Path]:
    """The deb packages, then the rpm packages of the same trees."""
    build = Path(environment["VGPU_BUILD"])
    built: list[Path] = []
    for command in (["deb/build"], ["rpm/build", "--repack", str(build / "packages-arm64"), str(build), "1"]):
        command[0] = str(CHECKOUT / "packaging" / command[0])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        built += map(Path, done.stdout.split())
    return built


@pytest.fixture(scope="module")
def tree(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the package vgpu installs."""
    path = tmp_path_factory.mktemp("tree")
    subprocess.run(["dpkg-deb", "-x", packages[0], path], check=True)
    return path


def test_every_program_and_library_is_for_arm64(tree: Path) -> None:
    programs = {
        str(path.relative_to(tree)): output(f"{PREFIX}readelf", "-hl", path)
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"
    }
    assert {name: re.findall(r"Machine: +(.*)", header) for name, header in programs.items()} == {
        "usr/bin/vgpu-gate": ["AArch64"],
        "usr/lib/vgpu/python/psutil/_psutil_linux.abi3.so": ["AArch64"],
        "usr/lib/vgpu/vcuda/libcuda.so.1": ["AArch64"],
        "usr/lib/vgpu/vcuda/libnvidia-ml.so.1": ["AArch64"],
        "usr/lib/vgpu/vgpu-selftest": ["AArch64"],
    }
    assert "INTERP" not in programs["usr/bin/vgpu-gate"]


def test_both_formats_name_the_processor_and_have_the_same_files(packages: list[Path], tree: Path) -> None:
    deb, plugin_deb, rpm, plugin_rpm = packages
    assert output("dpkg-deb", "-f", deb, "Architecture").strip() == "arm64"
    assert output("dpkg-deb", "-f", plugin_deb, "Architecture").strip() == "all"
    assert output("rpm", "-qp", "--qf", "%{ARCH}", rpm) == "aarch64"
    assert output("rpm", "-qp", "--qf", "%{ARCH}", plugin_rpm) == "noarch"
    assert [deb.parent.name, plugin_deb.parent.name] == ["packages-arm64", "arm64"]
    programs = {
        line for line in output("rpm", "-qpl", rpm).splitlines() if line.startswith(("/usr/bin", "/usr/lib/vgpu"))
    }
    assert programs >= {f"/{path.relative_to(tree)}" for path in (tree / "usr/lib/vgpu/vcuda").iterdir()}
    assert programs >= {f"/usr/bin/{path.name}" for path in (tree / "usr/bin").iterdir()}


@pytest.mark.parametrize("library", recorded_drivers.LIBRARIES)
def test_libvcuda_exports_the_same_names_and_needs_no_newer_glibc(tree: Path, library: str) -> None:
    path = tree / "usr/lib/vgpu/vcuda" / recorded_drivers.LIBRARIES[library]
    symbols = output(f"{PREFIX}nm", "-D", "--defined-only", "--format=posix", path)
    assert {line.split()[0] for line in symbols.splitlines()} >= recorded_drivers.functions(library)
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", output(f"{PREFIX}objdump", "-T", path))
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)
    assert "/usr/local/vgpu/driver" in output(f"{PREFIX}readelf", "-dW", path)


def test_the_programs_start(tree: Path) -> None:
    assert output(EMULATOR, tree / "usr/bin/vgpu-hook", "--version").startswith("vgpu-hook ")
    command = [EMULATOR, "-L", SYSTEM, tree / "usr/lib/vgpu/vgpu-selftest"]
    done = subprocess.run(command, input="hello\n", check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.startswith('{"missing": "libcuda.so.1: ')
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", output(f"{PREFIX}objdump", "-T", command[-1]))
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)


@pytest.mark.root
@pytest.mark.parametrize("tests", [SAMPLE, pytest.param(ALL, marks=pytest.mark.long)], ids=["sample", "all"])
def test_the_tests_of_gate_and_libvcuda_in_an_emulator(
    environment: dict[str, str], packages: list[Path], tests: dict[Path, str]
) -> None:
    build = Path(environment["VGPU_BUILD"]) / "packages-arm64/cmake"  # of the packages
    if tests is ALL:
        command = ["cmake", "--build", build, "--parallel", "2", "--target", "sim_libcuda", "sim_libnvidia-ml"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    emulated = {
        **environment,
        **({"VGPU_SAMPLE": "all"} if tests is ALL else {}),
        "VGPU_BUILD": str(build),
        "CMAKE_TOOLCHAIN_FILE": str(TOOLCHAIN),
        "VGPU_COMPILER": f"{PREFIX}gcc",
        "VGPU_EMULATOR": f"{EMULATOR} -L {SYSTEM}",
    }
    for file, selection in tests.items():
        options = ["-q", "-p", "no:cacheprovider", "-m", "not long", "-k", selection]
        command = [sys.executable, "-m", "pytest", *options, file]
        with tempfile.TemporaryDirectory() as place:  # this pytest's own one would lose its mode
            emulated["PYTEST_DEBUG_TEMPROOT"] = place
            done = subprocess.run(command, cwd=CHECKOUT, env=emulated, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:]
        assert re.search(r"\b\d\d+ passed", done.stdout), done.stdout[-300:]
        assert "skipped" not in done.stdout, done.stdout[-300:]
