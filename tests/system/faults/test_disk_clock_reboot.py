"""A full disk, a read-only one, a clock that jumps, and a reboot in the middle of a write. The next start works."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import attack_records
import daemons
import pytest
from fault_bed import Bed, Container, Fault, Tools

from vgpu.config import claims, grants, paths
from vgpu.config import inventory as inventories
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet.allocate import Allocator

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
    """The node's run and state directories on a tmpfs of their own, from `fill` to `empty`: its bytes or its inodes."""

    def __init__(self, bed: Bed, what: str) -> None:
        self.what = what
        self.tops = [Path(bed.node.settings.run_dir), Path(bed.node.settings.state_dir)]
        for top in self.tops:
            kept = top.with_name(top.name + ".kept")
            top.mkdir(exist_ok=True)
            shutil.copytree(top, kept, symlinks=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,nr_inodes=400", "vgpu-test", top], check=True)
            shutil.copytree(kept, top, dirs_exist_ok=True)

    def fill(self) -> None:
        for top in self.tops:
            fillers = top / "fillers"
            fillers.mkdir()
            with suppress(OSError):
                if self.what == "bytes":
                    with (fillers / "filler").open("wb", buffering=0) as stream:
                        while stream.write(b"x" * 512):
                            pass
                for number in itertools.count():
                    (fillers / str(number)).touch()

    def empty(self) -> None:
        for top in self.tops:
            shutil.rmtree(top / "fillers")

    def remount(self, mode: str) -> None:
        for top in self.tops:
            subprocess.run(["mount", "-o", f"remount,{mode}", top], check=True)

    def begin(self) -> None:
        self.remount("ro") if self.what == "read-only" else self.fill()

    def over(self) -> None:
        self.remount("rw") if self.what == "read-only" else self.empty()

    def end(self) -> None:
        for top in self.tops:
            subprocess.run(["umount", "-l", top], check=True)


WHATS = {"bytes": "make room there", "inodes": "make room there", "read-only": "mount it read-write"}


@pytest.fixture(params=WHATS)
def disk(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(bed, request.param)
    bed.expected = bed.full_share()  # its mounts are of another file system now
    yield made
    made.end()


def test_a_disk_without_room_refuses_a_start_and_loses_nothing(bed: Bed, disk: Disk) -> None:
    """The line names the path and the remedy."""
    container = bed.container()
    before = bed.records()
    disk.begin()
    line = refused(bed, container)
    assert any(str(top) in line for top in disk.tops), line
    assert WHATS[disk.what] in line
    disk.over()
    assert bed.records() == before
    bed.end(container)
    assert bed.next_start() == []


def test_a_stop_needs_no_room(bed: Bed, disk: Disk) -> None:
    """On a read-only disk it says so, and the claim counts for nobody."""
    ended = bed.ended()
    disk.begin()
    status = bed.run(ended, Fault("none"), "poststop").returncode
    line = bed.last.stderr.decode()
    assert status == (disk.what == "read-only"), line
    assert not status or (str(disk.tops[0]) in line and WHATS[disk.what] in line), line
    disk.over()
    assert bed.next_start() == []


VERBS = (["status"], ["ps"], ["gc"], ["doctor"], ["explain"], ["inventory", "refresh"], ["set", "--memory", "2Gi"])


def test_vgpud_allocate_and_vgpuctl_without_room(bed: Bed, disk: Disk) -> None:
    """Each says what is wrong and where, and goes on when room is back. No grant is left by halves. The kernel makes no
    disk read-only on which vgpud has open files. So there vgpud starts in vain, with a line; systemd starts it again.
    """
    settings = bed.node.settings
    [cores, *_] = kubelet_resources.advertised(settings, inventories.read(settings.run_dir).cards)
    allocator = Allocator(settings)
    ids = [[f"{cores.slots[0].tag}-{number}"] for number in range(3)]
    daemon = daemons.Daemon(bed.node)
    living = bed.container((20, 1))
    bed.healthy(living, "prestart")
    try:
        if disk.what != "read-only":
            daemon.start().ready()
        before = [grant.record() for grant in grants.read_all(settings.state_dir)[0]]
        disk.begin()
        with pytest.raises(OSError, match=re.escape(settings.state_dir)):
            allocator.allocate(cores, ids)
        for verb in VERBS:
            more = {"set": [living.id], "explain": [living.id, "--hook", str(bed.node.hook)]}.get(verb[0], [])
            words = [*verb[:1], *more, *verb[1:]]
            done = bed.node.vgpuctl(*words, check=False)
            said = done.stderr + done.stdout
            assert "Traceback" not in said, said
            assert (
                done.returncode == 0
                or verb == ["doctor"]
                or (any(str(top) in said for top in disk.tops) and WHATS[disk.what] in said)
            )
        if disk.what == "read-only":
            daemon.start()
            daemons.wait_for(lambda: not daemon.alive)
            assert daemon.text().count("\n") == 1 and WHATS[disk.what] in daemon.text(), daemon.text()
        else:
            daemons.wait_for(lambda: complaints(daemon, disk), what=daemon.text)
            daemon.rounds(9)
            assert daemon.text().count('topic="foreign watch"') <= 1, "said once, and not in each round"
        disk.over()
        assert [grant.record() for grant in grants.read_all(settings.state_dir)[0]] == before
        assert len(allocator.allocate(cores, ids)) == 3
        if disk.what == "read-only":
            daemon.start().ready()
        daemons.wait_for(lambda: not complaints(daemon, disk))
    finally:
        daemon.kill()
        bed.end(living)


def complaints(daemon: daemons.Daemon, disk: Disk) -> list[str]:
    found = [text for text in daemon.health()["warnings"] if WHATS[disk.what] in text]
    assert all(str(disk.tops[0]) in text or str(disk.tops[1]) in text for text in found), found
    return found


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
