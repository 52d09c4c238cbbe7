"""A container of a pod, and the records of the pod that the hook may find."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vgpu.config import paths
from vgpu.config.grants import Holder
from vgpu.config.pods import Pod
from vgpu.config.request import LOW_PRIORITY, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.request import pod_record
from vgpu.hook.request.resolve_grants import WantedGrants

UID = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"


def pod(annotations: dict[str, str], containers: tuple[str, ...] = ("main", "side"), init: tuple[str, ...] = ()) -> Pod:
    limits = {"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}
    return Pod(UID, "default", "p", "n", list(init), list(containers), annotations, limits)


class Facts:
    """A run directory, and what `complete` makes of a redemption there."""

    def __init__(self, path: Path) -> None:
        self.run_dir = str(path)

    def complete(
        self, annotations: dict[str, str] | None = None, container: str = "main", **settings: object
    ) -> tuple[WantedGrants, list[str]]:
        wanted = WantedGrants({"gpu": "0" * 32}, 7, Wishes())
        values = {"paths.run": self.run_dir, **settings}
        found, notes = pod_record.complete(wanted, Holder(UID, container), annotations or {}, Settings(values, "n"))
        assert (wanted.core_limit, wanted.choices, wanted.limits, wanted.wishes.priority) == (7, (), None, LOW_PRIORITY)
        assert found.ids == wanted.ids
        return found, notes

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hold the lock that a plugin holds while its watch of pods is alive."""
        os.makedirs(paths.pods(self.run_dir), exist_ok=True)
        fd = os.open(paths.pods_watched(self.run_dir), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(fd)
