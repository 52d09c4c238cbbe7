"""A full disk, a read-only one, a clock that jumps, and a reboot in the middle of a write. The next start works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import attack_records
import pytest
from fault_bed import Bed, Container, Fault, Tools

from vgpu.config import claims, paths

pytestmark = pytest.mark.root

#: CLOCK_REALTIME of a process, moved by an environment variable; the kernel's own clock is everybody's.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && clock == CLOCK_REALTIME)
        now->tv_sec += atol(getenv("VGPU_TEST_CLOCK"));
    return result;
}
"""
DAY = 86400
RECORDS = ("claim.json", "limits", "cards")
HOW = ["half", "zeros", *(pytest.param(how, marks=pytest.mark.long) for how in ("empty", "doubled"))]


@pytest.fixture(params=["pod", pytest.param("standalone", marks=pytest.mark.long)])
def bed(request: pytest.FixtureRequest, tmp_path: Path, tools: Tools, base_trees: dict[str, Path]) -> Iterator[Bed]:
    made = Bed(
        tmp_path / "bed", tools, base_trees["debian"], f"/vgpu-test-{uuid.uuid4().hex[:8]}", request.param == "pod"
    )
    yield made
    made.close()


def refused(bed: Bed, container: Container) -> str:
    """The line of a start that is refused; nothing of it is left in the container."""
    before = (container.mounts(), container.files())
    done = bed.run(container, Fault("none"), "prestart")
    line = done.stderr.decode()
    assert done.returncode == 1, line
    assert line.startswith("vgpu-hook: "), line
    assert line.count("\n") == 1, line
    assert (container.mounts(), container.files()) == before
    return line


# Disks


class Disk:
    """The node's run and state directories on a tmpfs of their own, from `fill` to `empty`."""

    def __init__(self, bed: Bed) -> None:
        self.tops = [Path(bed.node.settings.run_dir), Path(bed.node.settings.state_dir)]
        for top in self.tops:
            kept = top.with_name(top.name + ".kept")
            top.mkdir(exist_ok=True)
            shutil.copytree(top, kept, symlinks=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "vgpu-test", top], check=True)
            shutil.copytree(kept, top, dirs_exist_ok=True)

    def fill(self) -> None:
        for top in self.tops:
            with (top / "filler").open("wb", buffering=0) as stream:
                try:
                    while stream.write(b"x" * 512):
                        pass
                except OSError:
                    pass

    def empty(self) -> None:
        for top in self.tops:
            (top / "filler").unlink()

    def remount(self, mode: str) -> None:
        for top in self.tops:
            subprocess.run(["mount", "-o", f"remount,{mode}", top], check=True)

    def end(self) -> None:
        for top in self.tops:
            subprocess.run(["umount", "-l", top], check=True)


@pytest.fixture
def disk(bed: Bed) -> Iterator[Disk]:
    made = Disk(bed)
    bed.expected = bed.full_share()  # its mounts are of another file system now
    yield made
    made.end()


def test_a_full_disk_refuses_a_start_and_loses_nothing(bed: Bed, disk: Disk) -> None:
    container = bed.container()
    before = bed.records()
    disk.fill()
    line = refused(bed, container)
    assert "No space left on device" in line
    disk.empty()
    assert bed.records() == before
    bed.end(container)
    assert bed.next_start() == []


def test_a_stop_needs_no_room(bed: Bed, disk: Disk) -> None:
    ended = bed.ended()
    disk.fill()
    assert bed.run(ended, Fault("none"), "poststop").returncode == 0, bed.last.stderr
    disk.empty()
    assert bed.next_start() == []


def test_a_read_only_disk_refuses_a_start_with_its_reason(bed: Bed, disk: Disk) -> None:
    container = bed.container()
    before = bed.records()
    disk.remount("ro")
    line = refused(bed, container)
    assert "ead-only file system" in line
    disk.remount("rw")
    assert bed.records() == before
    bed.end(container)
    assert bed.next_start() == []


# Clocks


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """A command's prefix that moves its CLOCK_REALTIME by seconds."""
    directory = tmp_path_factory.mktemp("clock")
    (directory / "clock.c").write_text(CLOCK)
    library = directory / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, directory / "clock.c", "-ldl"], check=True)
    return lambda seconds: ["env", f"LD_PRELOAD={library}", f"VGPU_TEST_CLOCK={seconds}"]


@pytest.mark.parametrize("jump", [-365 * DAY, 365 * DAY], ids=["year back", "year ahead"])
def test_a_start_and_a_stop_on_both_sides_of_a_jump(bed: Bed, clock: Callable[[int], list[str]], jump: int) -> None:
    """The first container starts before the jump; the others start, stop and are reaped after it."""
    before = bed.at_rest
    first = bed.container((20, 1))
    bed.healthy(first, "prestart")
    bed.at_rest = bed.records()
    bed.prefix = clock(jump)
    assert bed.next_start() == []
    read = claims.read(bed.node.settings.run_dir, first.id)
    assert read.ready, "the reaper took no living container's claim"
    bed.end(first)
    bed.healthy(first, "poststop")
    bed.at_rest = before
    assert bed.leftovers() == []
    bed.prefix = []
    assert bed.next_start() == []
    name = f"CLOCK_REALTIME jumps by {jump // DAY} days"
    attack_records.save(attack_records.row(name, "the node", 1, "same as without a jump"), f"faults-clock-{jump}")


# Reboots


def damaged(data: bytes, how: str) -> bytes:
    return {"empty": b"", "half": data[: len(data) // 2], "doubled": data + data, "zeros": bytes(len(data))}[how]


def left_by_a_reboot(bed: Bed) -> Path:
    """The directory of a container of another boot: paths.run lies on a disk here."""
    gone = bed.container()
    bed.healthy(gone, "prestart")
    bed.end(gone)
    folder = Path(paths.container(bed.node.settings.run_dir, gone.id))
    claim = json.loads((folder / "claim.json").read_text())
    claim.update(boot_id="00000000-0000-0000-0000-000000000000", pid=os.getpid(), start_time=1)
    (folder / "claim.json").write_text(json.dumps(claim))
    return folder


def damage(path: Path, how: str) -> None:
    data = damaged(path.read_bytes(), how)
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_claim_of_another_boot_counts_nowhere(bed: Bed) -> None:
    left_by_a_reboot(bed)
    assert bed.next_start() == []


@pytest.mark.parametrize("how", HOW)
def test_a_claim_that_a_reboot_cut_off_goes_with_the_reaper(bed: Bed, how: str) -> None:
    """Its limits file stands in for it until no process has that mounted; then the card is free."""
    folder = left_by_a_reboot(bed)
    damage(folder / "claim.json", how)
    (folder / ".claim.json.77.tmp").write_bytes(b"{")
    assert bed.leftovers() == []
    assert bed.next_start() == []


@pytest.mark.parametrize("how", HOW)
def test_a_whole_record_that_a_reboot_cut_off_holds_no_card(bed: Bed, how: str) -> None:
    """Claim and limits are damaged: the next start gets its share, and the directory stays for a person to remove."""
    folder = left_by_a_reboot(bed)
    for name in RECORDS:
        damage(folder / name, how)
    problems = bed.next_start()
    assert len(problems) <= 1
    assert all(problem.startswith("left over: ") and str(folder) in problem for problem in problems), problems
    shutil.rmtree(folder, ignore_errors=True)
    assert bed.next_start() == []


@pytest.mark.parametrize("how", HOW)
def test_damaged_files_of_the_whole_node(bed: Bed, how: str) -> None:
    """A presence file of another size gets its own. A damaged inventory refuses a start, and the line says why."""
    run = Path(bed.node.settings.run_dir)
    (presence,), inventory = run.glob("presence-*"), run / "inventory.json"
    sound = inventory.read_bytes()
    inode = presence.stat().st_ino
    presence.chmod(0o600)
    presence.write_bytes(damaged(bytes(4096), how))
    assert bed.next_start() == []
    assert (presence.stat().st_size, presence.stat().st_mode & 0o777) == (4096, 0o444)
    assert presence.stat().st_ino == inode, "locks are on it, and running containers have it"
    inventory.write_bytes(damaged(sound, how))
    container = bed.container()
    assert "vgpuctl inventory refresh" in refused(bed, container)
    bed.end(container)
    inventory.write_bytes(sound)
    assert bed.next_start() == []
