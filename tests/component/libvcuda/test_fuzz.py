"""libFuzzer on what libvcuda and the gate read (tests/fuzz): limits, schedules, the usage region, JSON documents."""

from __future__ import annotations

from pathlib import Path

import attack_records
import libfuzzer
import pytest


def fuzz(target: str, directory: Path, seconds: int) -> None:
    if not libfuzzer.clang():
        pytest.skip("needs clang with libFuzzer (Debian: clang, libclang-rt-dev)")
    done = libfuzzer.run(libfuzzer.build(target, directory), seconds)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    assert libfuzzer.rounds(done) > len(list((libfuzzer.FUZZ / "corpus" / target).iterdir()))
    found = attack_records.row(f"libFuzzer: {target}", "tenant, image", libfuzzer.rounds(done), "no finding")
    attack_records.save(found, target)


@pytest.mark.parametrize("target", libfuzzer.TARGETS)
def test_any_bytes_for_a_moment(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("target", libfuzzer.TARGETS)
def test_any_bytes_for_long(target: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("full counts: make test-long")
    fuzz(target, tmp_path, 300)
