"""The suite again with libvcuda built under sanitizers. Their findings are in the clients' log and fail the test.

Every run has a sample. `make test-long` runs all of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from checkout import BUILD, CHECKOUT

RUNTIMES = {"address,undefined": "libasan.so", "thread": "libtsan.so"}
#: In virtual time one thread runs at a time. Under a sanitizer other threads are so slow that they count as stuck.
NOT_VIRTUAL = "not test_cores and not test_time_slices"
#: Of the races for contexts one that has all kinds of threads.
RACES = "(racing or forked or exec or scribbles) and not (64 or makers or few_fill or many_fill or many_hold)"
#: ThreadSanitizer finds nothing where one thread calls.
SAMPLES = {
    "address,undefined": f"(test_kinds or test_graph_memory or test_virtual_memory or {RACES}) and {NOT_VIRTUAL}",
    "thread": f"{RACES} and {NOT_VIRTUAL}",
}
LEFT_OUT = ("test_products", "test_sanitizers", "test_fuzz", "test_unknown_functions", "test_cores")
ALL = " and ".join(f"not {name}" for name in LEFT_OUT)
#: The locks of AddressSanitizer's allocator may stay locked in a child of a threaded process; glibc's do not.
NOT_UNDER = {"address,undefined": " and not (test_lifecycle and forks)", "thread": ""}


def build(sanitizers: str) -> Path:
    if os.environ.get("VGPU_SANITIZER"):
        pytest.skip("runs the suite, and is not run by it")
    directory = BUILD / "sanitizers" / sanitizers.replace(",", "-")  # what is compiled stays for the next run
    compile_targets(directory, sanitizers, "vcuda", "vcuda_nvml")
    simulator = directory / "lib/sim"
    if not simulator.is_symlink():
        simulator.rmdir()  # cmake makes it
        simulator.symlink_to(BUILD / "lib/sim")
    return directory


def compile_targets(directory: Path, sanitizers: str, *targets: str, flags: str = "") -> None:
    options = [f"-DVCUDA_SANITIZE={sanitizers}", f"-DCMAKE_C_FLAGS={flags}"]
    configure = ["cmake", "-S", str(CHECKOUT / "libvcuda"), "-B", str(directory), *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    command = ["cmake", "--build", str(directory), "--target", *targets, "--parallel", "2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def suite(sanitizers: str, selection: str, directory: Path) -> None:
    runtime = subprocess.run(
        ["gcc", f"-print-file-name={RUNTIMES[sanitizers]}"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    if not Path(runtime).exists():
        pytest.skip(f"needs gcc's {RUNTIMES[sanitizers]}")
    environment = {**os.environ, "VGPU_BUILD": str(directory), "VGPU_SANITIZER": runtime}
    if selection not in SAMPLES.values():
        environment["VGPU_SAMPLE"] = "all"
    suite_of = str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", selection, suite_of]
    with tempfile.TemporaryDirectory() as place:  # this pytest's own one would lose its mode
        done = subprocess.run(
            ["setarch", "-R", *command],  # ThreadSanitizer needs an address space without randomization
            cwd=CHECKOUT,
            env={**environment, "PYTEST_DEBUG_TEMPROOT": place},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert "is not built" not in done.stdout, done.stdout[-6000:]


@pytest.mark.parametrize("sanitizers", RUNTIMES)
def test_a_sample_under_sanitizers(sanitizers: str) -> None:
    suite(sanitizers, SAMPLES[sanitizers], build(sanitizers))


@pytest.mark.long
@pytest.mark.parametrize("sanitizers", RUNTIMES)
def test_all_under_sanitizers(sanitizers: str, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("full counts: make test-long")
    suite(sanitizers, ALL + NOT_UNDER[sanitizers], build(sanitizers))


@pytest.mark.long
def test_the_simulator_under_a_sanitizer(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("full counts: make test-long")
    both, targets = "address,undefined", ("vcuda", "vcuda_nvml", "sim_libcuda", "sim_libnvidia-ml")
    compile_targets(tmp_path, both, *targets, flags=f"-fsanitize={both} -g")
    suite(both, "test_memory_sequences or test_graph_memory or racing", tmp_path)
