"""libFuzzer on damaged contents of the limits file and the usage region (tests/fuzz)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT

LIBVCUDA = CHECKOUT / "libvcuda"
TARGETS = {"fuzz_limits.c": ["base/log.c"], "fuzz_usage.c": ["base/log.c", "base/process.c", "shared/slot_lock.c"]}
SEEDS = {
    "fuzz_limits.c": [b"VGPU\x01\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0", b"VGPU\x01\0\0\0\x03\0\0\0\0\0\0\0", b"\x5a"],
    "fuzz_usage.c": [b"\0\0" + b"\xff" * 64, b"\0\x44" + b"\x01" * 32, b"\x08\x44" + b"\xff" * 16],
}


def clang() -> str:
    """A clang of any version that has libFuzzer."""
    for directory in os.get_exec_path():
        for name in (Path(directory, "clang"), *sorted(Path(directory).glob("clang-[0-9]*"))):
            if name.exists() and any((resources(name) / "lib").glob("*/libclang_rt.fuzzer*.a")):
                return str(name)
    pytest.skip("needs clang with libFuzzer (Debian: clang, libclang-rt-dev)")


def resources(program: Path) -> Path:
    done = subprocess.run([program, "-print-resource-dir"], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip())


def fuzz(target: str, directory: Path, seconds: int) -> None:
    program = directory / "fuzz"
    sources = [str(LIBVCUDA / "src" / name) for name in TARGETS[target]]
    options = ["-g", "-O1", "-std=gnu11", "-D_GNU_SOURCE", "-fsanitize=fuzzer,address,undefined"]
    options += ["-fno-sanitize-recover=all", f"-I{LIBVCUDA}/include", f"-I{LIBVCUDA}/src"]
    source = str(CHECKOUT / "tests/fuzz" / target)
    subprocess.run([clang(), *options, "-o", program, source, *sources, "-lpthread"], check=True)
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS[target]):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-max_total_time={seconds}", "-timeout=30", "-max_len=4096", "-rss_limit_mb=1024"]
    done = subprocess.run(
        [program, *limits, corpus], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    assert b"Done " in done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes_for_a_moment(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes_for_long(target: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("full counts: make test-long")
    fuzz(target, tmp_path, 300)
