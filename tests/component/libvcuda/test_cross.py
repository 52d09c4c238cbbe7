"""libvcuda for the other processor: it compiles, links, exports the same names and needs no newer glibc."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT

COMPILER = "aarch64-linux-gnu-gcc"


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which(COMPILER):
        pytest.skip(f"needs {COMPILER} (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)")
    directory = tmp_path_factory.mktemp("arm64")
    configure = ["cmake", "-S", str(CHECKOUT / "libvcuda"), "-B", str(directory), f"-DCMAKE_C_COMPILER={COMPILER}"]
    configure += ["-DVGPU_WERROR=ON", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    targets = ["--target", "vcuda", "vcuda_nvml", "--parallel", "2"]
    subprocess.run(["cmake", "--build", str(directory), *targets], check=True, stdout=subprocess.DEVNULL)
    return directory / "lib/vcuda"


@pytest.mark.parametrize(("library", "names"), [("libcuda.so.1", "cuda_driver.txt"), ("libnvidia-ml.so.1", "nvml.txt")])
def test_arm64(libraries: Path, library: str, names: str) -> None:
    symbols = output("aarch64-linux-gnu-nm", "-D", "--defined-only", "--format=posix", str(libraries / library))
    known = set((CHECKOUT / "libvcuda/src/driver/names" / names).read_text().split())
    assert {line.split()[0] for line in symbols.splitlines()} >= known
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", output("aarch64-linux-gnu-objdump", "-T", str(libraries / library)))
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)
    assert "/usr/local/vgpu/driver" in output("aarch64-linux-gnu-readelf", "-dW", str(libraries / library))
