"""The reaper's rules, on a fixture /proc with clocks that the test advances."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest
from host import Host

from vgpu.config import paths, records
from vgpu.config.claims import Claim
from vgpu.config.limits import CardLimit
from vgpu.hook.ledger.lock import Lock
from vgpu.node.daemon import reaper
from vgpu.node.daemon.reaper import Reaper

UUID = "GPU-00000000-0000-0000-0000-000000000001"
BOOT = "4c2b6d0e-0000-4000-8000-000000000001"


class Node(Host):
    """A run directory, a /proc of few processes, and a reaper whose clocks only the test advances."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write("proc/sys/kernel/random/boot_id", BOOT + "\n")
        self.reaper = Reaper(self.settings, self.conditions, str(self.proc), lambda: self.now, lambda: self.wall)
        self.wall = time.time()

    def process(
        self, pid: int, started: int, state: str = "S", cgroup: str = "/", mounted: str = "", source: str = "tmpfs"
    ) -> None:
        self.live(pid, started, state)
        self.write(f"proc/{pid}/cgroup", f"5:devices:{cgroup}\n")
        self.write(
            f"proc/{pid}/mountinfo", f"36 35 0:25 {mounted or '/'} /usr/local/vgpu/limits ro - tmpfs {source} rw\n"
        )

    def held(
        self, name: str, pid: int, started: int, ready: bool = True, boot: str = BOOT, whole: bool = False
    ) -> Path:
        card = CardLimit(UUID) if whole else CardLimit(UUID, 1 << 30, 20, 20)
        self.claim(name, pid, started, card, exclusive=whole, ready=ready, boot_id=boot)
        return Path(paths.container(self.run_dir, name))

    def look(self, later: float = 0.0) -> set[str]:
        """Run a round after `later` seconds. Returns the containers that are left."""
        self.now += later
        self.reaper.look()
        containers = Path(paths.containers(self.settings.run_dir))
        return {path.name for path in containers.iterdir()} if containers.exists() else set()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def age(directory: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in (*directory.iterdir(), directory):
        os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("state", "started", "kept"),
    [("S", 77, True), ("D", 77, True), ("T", 77, True), ("Z", 77, False), ("X", 77, False), ("S", 78, False)],
    ids=["sleeping", "waiting for the driver", "stopped", "zombie", "dead", "another process with its pid"],
)
def test_which_containers_are_alive(node: Node, state: str, started: int, kept: bool) -> None:
    node.process(500, started, state)
    node.held("c", 500, 77)
    node.look()
    assert node.look(1000) == ({"c"} if kept else set())


def test_a_dead_container_waits_for_its_poststop(node: Node) -> None:
    node.held("c", 500, 77)
    assert node.look() == {"c"}
    assert node.look(reaper.GRACE - 1) == {"c"}
    assert node.look(1) == set()
    assert "its init 500 has died, and no poststop hook released it container=c pid=500" in node.log.getvalue()


def test_a_running_hook_has_longer(node: Node) -> None:
    """Its container was killed. The hook notices that by itself, unless it was killed too."""
    node.held("c", 500, 77, ready=False)
    node.look()
    assert node.look(reaper.HOOK_GRACE - 1) == {"c"}
    assert node.look(1) == set()


def test_a_restarted_container_has_its_own_grace_period(node: Node) -> None:
    directory = node.held("c", 500, 77)
    node.look()
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    node.held("c", 501, 78)
    assert node.look(reaper.GRACE) == {"c"}
    assert node.look(reaper.GRACE) == set()


def test_one_that_revives_between_look_and_lock_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook of the same id claims again just before the ledger checks once more."""
    node.held("c", 500, 77)
    node.process(501, 78)
    node.look()
    ripe = node.reaper._ripe

    def claimed_meanwhile(dead: list[Claim]) -> list[Claim]:
        found = ripe(dead)
        path = paths.claim(node.settings.run_dir, "c")
        records.write(path, {**records.read(path), "pid": 501, "start_time": 78})
        return found

    monkeypatch.setattr(node.reaper, "_ripe", claimed_meanwhile)
    assert node.look(100) == {"c"}


def test_an_earlier_boot_is_over(node: Node) -> None:
    node.process(500, 77)
    node.held("old", 500, 77, boot="another")
    node.held("new", 500, 77)
    node.held("before-this-version", 500, 77, boot="")
    node.look()
    assert node.look(10) == {"new", "before-this-version"}


def test_the_lock_of_a_hook_is_not_waited_for(node: Node) -> None:
    node.held("c", 500, 77)
    node.look()
    with (node.path / "run/ledger.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert node.look(100) == {"c"}
    assert node.look() == set()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 99}', "claim missing"])
def test_a_damaged_claim_is_removed_without_evidence_of_life(node: Node, damage: str) -> None:
    directory = node.held("c-id", 500, 77)
    node.process(600, 1, cgroup="/kubepods/other", mounted="/run/vgpu/containers/other/limits")
    if damage == "claim missing":
        (directory / "claim.json").unlink()
    else:
        (directory / "claim.json").write_text(damage)
    age(directory, reaper.DAMAGED_AGE - 5)
    assert node.look() == {"c-id"}
    age(directory, reaper.DAMAGED_AGE + 5)
    assert node.look() == set()


def test_core_schedules_that_others_have_changed_keep_no_damaged_claim(node: Node) -> None:
    directory = node.held("c-id", 500, 77)
    (directory / "claim.json").write_text("{")
    age(directory, reaper.DAMAGED_AGE + 5)
    touched = directory.stat().st_mtime
    (directory / "cards").write_bytes(b"now")
    os.utime(directory, (touched, touched))
    assert node.look() == set()


@pytest.mark.parametrize(
    ("process", "says"),
    [
        ({"cgroup": "/kubepods/pod1/c-id"}, "process 600 is in a cgroup of that name"),
        ({"cgroup": "/system.slice/docker-c-id.scope"}, "process 600 is in a cgroup of that name"),
        ({"mounted": "/vgpu/containers/c-id/limits"}, "process 600 has its limits mounted"),
        ({"mounted": "/limits", "source": "vgpu:c-id"}, "process 600 has its limits mounted"),
    ],
)
def test_a_damaged_claim_stays_while_there_is_evidence_of_life(node: Node, process: dict[str, str], says: str) -> None:
    directory = node.held("c-id", 500, 77)
    (directory / "claim.json").write_text("{")
    age(directory, 10 * reaper.DAMAGED_AGE)
    node.process(600, 1, **process)
    assert node.look() == {"c-id"}
    assert says in node.conditions.present["damaged claims"]
    (node.proc / "600/mountinfo").unlink()
    (node.proc / "600/cgroup").unlink()
    assert node.look() == set()
    assert node.conditions.present == {}


def test_a_damaged_claim_on_a_whole_card_is_left_to_the_administrator(node: Node) -> None:
    """It has no mount that would show whether it is alive."""
    directory = node.held("c", 500, 77, whole=True)
    (directory / "claim.json").write_text("{")
    age(directory, 10 * reaper.DAMAGED_AGE)
    assert node.look() == {"c"}
    assert f"remove {directory}" in node.conditions.present["damaged claims"]
    (directory / "limits").write_bytes(b"x")
    age(directory, 10 * reaper.DAMAGED_AGE)
    assert node.look() == {"c"}, "damaged limits do not count either"


def test_temporary_files_of_the_dead_are_swept(node: Node) -> None:
    kept = [
        node.write("run/containers/c/.claim.json.9.tmp", ""),
        node.write("run/.hidden", ""),
        node.write("run/a.9.tmp", ""),
    ]
    swept = [
        node.write("run/.inventory.json.123.tmp", ""), node.write("state/grants/.abc.json.1.tmp", ""),
        node.write("run/containers/d/.limits.77.tmp", ""),
    ]  # fmt: skip
    for path in (*swept, *kept[1:]):
        os.utime(path, (1, 1))
    node.look()
    assert [path.exists() for path in (*kept, *swept)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so.1.check"])
def test_a_maker_of_copies_that_is_killed_leaves_nothing(node: Node, name: str) -> None:
    """Also where the copy of this driver could not be made, or is of a build that nobody uses now."""
    kept = node.write("state/vcuda/550.1-aa/libcuda.so.1", "copy")
    left = node.write(f"state/vcuda/550.1-aa/.{name}.7.tmp", "part")
    os.utime(left, (1, 1))
    os.utime(kept, (1, 1))
    node.look()
    assert (kept.exists(), left.exists()) == (True, False)


def test_what_a_killed_hook_left_under_the_lock_is_removed_unless_one_holds_it(node: Node) -> None:
    left = [
        node.write("run/containers/.new/limits", ""), node.write("run/containers/.ended/claim.json", "{"),
        node.write("run/.ledger.tmp", ""), node.write("state/grants/.ledger.tmp", "{"),
    ]  # fmt: skip
    with Lock(str(node.path / "run")):
        node.look()
    assert all(path.exists() for path in left)
    assert not {".new", ".ended"} & node.look()
    assert not any(path.exists() for path in left)


def test_strange_names_are_ignored(node: Node) -> None:
    (node.path / "run/containers/.x").mkdir(parents=True)
    node.write("run/containers/file", "")
    age(node.path / "run/containers", 10 * reaper.DAMAGED_AGE)
    assert {".x", "file"} <= node.look()
