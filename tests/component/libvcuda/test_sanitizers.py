"""The suite again with libvcuda built under sanitizers. Their findings are in the clients' log and fail the test.

Every run has a sample. `make test-long` runs all of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import BUILD, CHECKOUT

RUNTIMES = {"address,undefined": "libasan.so", "thread": "libtsan.so"}
#: In virtual time one thread runs at a time. Under a sanitizer other threads are so slow that they count as stuck.
SAMPLE = (
    "(test_kinds or test_graph_memory or test_virtual_memory or racing or forked or exec or scribbles)"
    " and not 64 and not test_cores and not test_time_slices"
)
LEFT_OUT = ("test_products", "test_sanitizers", "test_fuzz", "test_unknown_functions", "test_cores")
ALL = " and ".join(f"not {name}" for name in LEFT_OUT)
#: The locks of AddressSanitizer's allocator may stay locked in a child of a threaded process; glibc's do not.
NOT_UNDER = {
    "address,undefined": " and not (test_lifecycle and forks)",
    "thread": "",
}


def suite(sanitizers: str, selection: str) -> None:
    if os.environ.get("VGPU_SANITIZER"):
        pytest.skip("runs the suite, and is not run by it")
    directory = BUILD / "sanitizers" / sanitizers.replace(",", "-")  # what is compiled stays for the next run
    configure = ["cmake", "-S", str(CHECKOUT / "libvcuda"), "-B", str(directory), f"-DVCUDA_SANITIZE={sanitizers}"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    targets = ["--target", "vcuda", "vcuda_nvml", "--parallel", "2"]
    subprocess.run(["cmake", "--build", str(directory), *targets], check=True, stdout=subprocess.DEVNULL)
    if not (directory / "lib/sim").exists():
        (directory / "lib/sim").symlink_to(BUILD / "lib/sim")
    runtime = subprocess.run(
        ["gcc", f"-print-file-name={RUNTIMES[sanitizers]}"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    if not Path(runtime).exists():
        pytest.skip(f"needs gcc's {RUNTIMES[sanitizers]}")
    environment = {**os.environ, "VGPU_BUILD": str(directory), "VGPU_SANITIZER": runtime}
    suite_of = str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", selection, suite_of]
    done = subprocess.run(
        ["setarch", "-R", *command],  # ThreadSanitizer needs an address space without randomization
        cwd=CHECKOUT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("sanitizers", RUNTIMES)
def test_a_sample_under_sanitizers(sanitizers: str) -> None:
    suite(sanitizers, SAMPLE)


@pytest.mark.long
@pytest.mark.parametrize("sanitizers", RUNTIMES)
def test_all_under_sanitizers(sanitizers: str, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("full counts: make test-long")
    suite(sanitizers, ALL + NOT_UNDER[sanitizers])
