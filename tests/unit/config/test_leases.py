"""Opening a file on which a tenant may hold a lease: no wait inside the kernel, and a bounded number of attempts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vgpu.config import core_schedule, leases, limits
from vgpu.config.errors import VgpuError


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of opens that still fail, as with a lease in the way. Every open must be one with O_NONBLOCK."""
    left = [0]
    really_open = os.open

    def opens(path: str, flags: int, *rest: int) -> int:
        assert flags & os.O_NONBLOCK, "the kernel would wait for the lease's holder"
        if left[0]:
            left[0] -= 1
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", path)
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", opens)
    return left


def test_without_patience_the_first_refusal_is_the_answer(tmp_path: Path, leased: list[int]) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    leased[0] = 1
    with pytest.raises(VgpuError, match="found one that a process has a lease on"):
        leases.opened(str(path), os.O_RDONLY)
    os.close(leases.opened(str(path), os.O_RDONLY))


def test_with_patience_it_tries_again_and_ends(tmp_path: Path, leased: list[int]) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    slept: list[float] = []
    leased[0] = 3
    os.close(leases.opened(str(path), os.O_RDONLY, 1.0, slept.append))
    assert len(slept) == 3
    leased[0] = 10_000
    slept.clear()
    with pytest.raises(VgpuError, match="end that container"):
        leases.opened(str(path), os.O_RDONLY, 1.0, slept.append)
    assert sum(slept) == pytest.approx(1.0)


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        leases.opened(str(tmp_path / "none"), os.O_RDONLY)


def test_an_update_of_a_leased_file_fails_at_once_and_leaves_it(tmp_path: Path, leased: list[int]) -> None:
    card = limits.CardLimit("GPU-00000000-0000-0000-0000-000000000000", 1 << 30, 30, 30)
    path, schedules = tmp_path / "limits", tmp_path / "cards"
    path.write_bytes(limits.encode("c1", [card]))
    schedules.write_bytes(core_schedule.encode([core_schedule.CoreSchedule(card.uuid)]))
    before = path.read_bytes(), schedules.read_bytes()
    leased[0] = 1
    with pytest.raises(VgpuError, match="lease"):
        limits.update(str(path), "c1", [card])
    leased[0] = 1
    with pytest.raises(VgpuError, match="lease"):
        core_schedule.update(str(schedules), core_schedule.CoreSchedule(card.uuid, 5))
    assert (path.read_bytes(), schedules.read_bytes()) == before
