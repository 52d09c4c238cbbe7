"""The execution of a plan in a mount namespace while the host's files are replaced, as a package's upgrade does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.inject import execute
from vgpu.hook.inject.execute import Execution
from vgpu.hook.inject.mounts import ClassicMounts, Handle, NewMounts
from vgpu.hook.inject.operations import Bind
from vgpu.hook.linux.rootfs import Rootfs

pytestmark = pytest.mark.root


class Replaced(Bind):
    """A mount whose source is replaced `times` times, each time after it was opened."""

    __slots__ = ("times",)

    def __init__(self, source: Path, path: Path, times: int) -> None:
        super().__init__(str(source), str(path))
        self.times = times

    def open(self, how: NewMounts | ClassicMounts) -> Handle:
        handle = super().open(how)
        if self.times:
            self.times -= 1
            Path(self.source + ".new").write_text(f"{self.times} to come")
            os.rename(self.source + ".new", self.source)
        return handle


@pytest.fixture
def container() -> Iterator[int]:
    """A process with a mount namespace of its own."""
    process = subprocess.Popen(["unshare", "-m", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def mounted(container: int, tmp_path: Path, times: int) -> str:
    """What the container sees at the target of a mount whose source is replaced that often."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("old")
    root = Rootfs(os.open(f"/proc/{container}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        execution = Execution((Replaced(source, target, times),), root, str(tmp_path / "staging"))
        execution.begin(container)
        execution.finish()
        execution.keep()
    finally:
        root.close()
    return Path(f"/proc/{container}/root{target}").read_text()


@pytest.mark.parametrize(("times", "content"), [(0, "old"), (1, "0 to come"), (2, "0 to come")])
def test_a_file_that_is_replaced_meanwhile_is_mounted_as_it_is_now(
    container: int, tmp_path: Path, times: int, content: str
) -> None:
    assert mounted(container, tmp_path, times) == content
    assert (tmp_path / "target").read_text() == "", "outside nothing is mounted"


def test_a_file_that_is_replaced_each_time_fails_the_start_and_leaves_nothing(container: int, tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match="No such file or directory"):
        mounted(container, tmp_path, execute.ATTEMPTS)
    assert not (tmp_path / "target").exists()
