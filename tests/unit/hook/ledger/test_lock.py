"""The ledger's lock within one process: the error after a long wait, and the cost of a free lock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.ledger import lock as lock_module
from vgpu.hook.ledger.lock import Lock


def test_a_lock_that_is_held_for_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "TIMEOUT", 0.05)
    with Lock(str(tmp_path)):
        with pytest.raises(VgpuError, match=r"ledger\.lock.*held by another process"), Lock(str(tmp_path)):
            pass
        with pytest.raises(BlockingIOError), Lock(str(tmp_path), wait=False):
            pass
    with Lock(str(tmp_path)):
        pass


def test_a_close_that_fails_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has closed the file nevertheless, so the lock is free, and the work under it stays."""
    real = os.close

    def failing(fd: int) -> None:
        real(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Lock(str(tmp_path)):
        monkeypatch.setattr(os, "close", failing)
    monkeypatch.undo()
    with Lock(str(tmp_path), wait=False):
        pass


def test_a_free_lock_costs_three_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three calls open the file, look at the queue and lock. No ticket is drawn, and nothing sleeps."""
    calls: list[str] = []
    for name in ("fcntl", "flock"):
        real = getattr(lock_module.fcntl, name)
        monkeypatch.setattr(lock_module.fcntl, name, lambda *args, _r=real, _n=name: (calls.append(_n), _r(*args))[1])
    monkeypatch.setattr(lock_module.time, "sleep", calls.append)
    with Lock(str(tmp_path)):
        assert calls == ["fcntl", "flock"]
