"""Each writer is killed between write and rename. vgpud's reaper removes what a record's writer left, in any directory.

What the writer of an operator's file left goes when the next one writes that file.
"""

from __future__ import annotations

import inspect
import io
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vgpu.config import claims, context_sizes, foreign, grants, paths, pods, records, rounds
from vgpu.config.claims import Claim
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.hook.linux import procfs
from vgpu.node.daemon.reaper import TEMPORARY_AGE, Reaper
from vgpu.node.runtimes import registered_files
from vgpu.node.runtimes.registered_files import TOML, Draft, Record
from vgpu.node.service.log import Conditions, Log

#: Every function of vgpu.config.paths that names a record which is replaced, with its arguments after the directory.
RECORDS: dict[Callable[..., str], tuple[str, ...]] = {
    paths.claim: ("c",), paths.limits: ("c",), paths.core_schedules: ("c",), paths.pod: ("uid-1",),
    paths.inventory: (), paths.foreign: (), paths.health: (), paths.presence: ("0a" * 16,), paths.round_record: (),
    paths.common_presence: (),
    paths.grant: ("a" * 32,), paths.device_tags: (), paths.context_sizes: (), paths.driver_upgrade: (),
    paths.plugin_state: (), paths.held_time: (), paths.prepared_claim: ("uid-1",),
}  # fmt: skip
#: Those that name a directory of such records, a lock, a socket or a log, or that name no path.
OTHERS = {
    "containers", "container", "new_container", "ended_container", "mount_source", "staging", "is_container_id",
    "pods", "pods_watched", "is_pod_uid", "ledger_lock", "hook_log", "metrics", "exporter_lock", "vgpud_socket",
    "vgpud_lock", "plugin_lock", "ledger_temporary", "grants", "runtimes", "all_limiter_copies", "limiter_copies",
    "is_grant_id", "selftest", "prepared_claims", "held_log",
}  # fmt: skip
POD = pods.Pod("uid-1", "default", "train", "node", [], ["c"], {}, {})
GRANT = Grant("a" * 32, "cores", 10, 1.0)


class Node:
    """A run and a state directory with one living container, `c`: this process is its init."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_dir, self.state_dir = str(path / "run"), str(path / "state")
        self.settings = Settings({"paths.run": self.run_dir, "paths.state": self.state_dir})
        pid = os.getpid()
        self.claim = Claim("c", pid, procfs.start_time(pid), [], True, None, [], "/b", 1.0, ready=True)
        os.makedirs(paths.container(self.run_dir, "c"))
        records.write(paths.claim(self.run_dir, "c"), self.claim.record())

    def files(self) -> set[str]:
        return {str(path) for path in self.path.rglob("*") if path.is_file() and path.name != "ledger.lock"}

    def killed(self, write: Callable[[], object]) -> list[str]:
        """What `write` leaves when it gets SIGKILL in the place of its first rename."""
        before = self.files()
        child = os.fork()
        if child == 0:
            os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            try:
                write()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        return sorted(self.files() - before)

    def sweep(self, later: float) -> None:
        conditions = Conditions(Log(io.StringIO(), levels=False))
        Reaper(self.settings, conditions, wall_clock=lambda: time.time() + later).look()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_each_function_of_paths_is_in_one_of_the_lists() -> None:
    """A new record's writer can be killed, too."""
    functions = {name for name, item in vars(paths).items() if inspect.isfunction(item)}
    assert functions == OTHERS | {function.__name__ for function in RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_record_leaves_a_temporary_file(node: Node, record: Callable[..., str]) -> None:
    top = node.state_dir if "state_dir" in inspect.signature(record).parameters else node.run_dir
    path = record(top, *RECORDS[record])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    goes(node, lambda: records.write(path, {}))


WRITERS: dict[str, Callable[[Node], object]] = {
    "vgpud's round": lambda node: rounds.write(node.run_dir, {}),
    "vgpud's foreign processes": lambda node: records.write(
        paths.foreign(node.run_dir), foreign.record({}, "boot", 0.0, 60.0)
    ),
    "vgpud's sizes of contexts": lambda node: records.write(
        paths.context_sizes(node.state_dir), context_sizes.record({})
    ),
    "the plugin's pod": lambda node: pods.write(node.run_dir, POD),
    "the plugin's grant": lambda node: grants.write(node.state_dir, GRANT),
    "the hook's ready claim": lambda node: records.write(paths.claim(node.run_dir, "c"), node.claim.record()),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_part_of_vgpu_leaves_a_temporary_file(node: Node, writer: str) -> None:
    os.makedirs(node.state_dir)
    goes(node, lambda: WRITERS[writer](node))
    assert claims.read(node.run_dir, "c").pid == os.getpid()


def goes(node: Node, write: Callable[[], object]) -> None:
    """Two writers leave a file each. Both stay while they may be at work, and go later; the rest stays."""
    before = node.files()
    left = [*node.killed(write), *node.killed(write)]
    assert len(left) == 2
    node.sweep(TEMPORARY_AGE - 60)
    assert node.files() == before.union(left)
    node.sweep(TEMPORARY_AGE + 60)
    assert node.files() == before


def test_no_runtime_s_configuration_keeps_a_temporary_file(node: Node) -> None:
    """The file is whole at any time; each write removes what the one that was killed before it left beside it."""
    directory = node.path / "etc/containerd"
    directory.mkdir(parents=True)
    os.makedirs(paths.runtimes(node.state_dir))
    file = directory / "config.toml"
    file.write_text("version = 2\n")

    def write(text: str) -> None:
        record = Record.read(node.state_dir, "containerd")
        registered_files.apply(record, registered_files.plan(record, [Draft(str(file), text, TOML)]), {}, lambda: None)

    def is_killed(text: str) -> list[str]:
        real, os.rename = os.rename, killed_at(str(file))
        try:
            child = os.fork()
            if child == 0:
                write(text)
                os._exit(0)
        finally:
            os.rename = real
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        return sorted(os.listdir(directory))

    first, second = is_killed("version = 2\none = 1\n"), is_killed("version = 2\none = 1\n")
    assert (len(first), len(second)) == (2, 2)
    assert first != second
    assert file.read_text() == "version = 2\n"
    write("version = 2\ntwo = 2\n")
    assert os.listdir(directory) == ["config.toml"]
    assert file.read_text() == "version = 2\ntwo = 2\n"


def killed_at(target: str) -> Callable[..., None]:
    """os.rename, but for a SIGKILL in its place where `target` would be replaced."""
    real = os.rename

    def rename(source: str, path: str) -> None:
        if path == target:
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, path)

    return rename
