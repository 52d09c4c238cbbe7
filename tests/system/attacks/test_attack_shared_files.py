"""Tenants that take leases and locks on files that the host shares with them: limits, schedules, presence, driver."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attack_bed
import pytest
from attack_bed import Neighbour, Site
from attack_records import Attack, attack
from attack_rounds import LONGEST

from vgpu.config import core_schedule, limits, paths

pytestmark = pytest.mark.root

PRIVATE = "/usr/local/vgpu"


def presence(site: Site) -> str:
    """The name of the presence file of the node's card."""
    return core_schedule.presence_name(str(site.node.read_cards()[0]["uuid"]))


def shared(site: Site) -> list[str]:
    return [f"{PRIVATE}/{name}" for name in ("limits", "cards", f"presence/{presence(site)}")]


def started(found: dict[str, object], rounds: int) -> None:
    assert found["broken"] == []
    assert found["refused"] == {}
    assert found["started"] == rounds
    assert float(str(found["longest"])) < LONGEST


@pytest.mark.parametrize("kind", ["write", "read"])
@attack("leases on limits, schedules and presence, taken again in a loop", "tenant, uid 0")
def test_leases_deny_no_start(site: Site, neighbour: Neighbour, attack: Attack, kind: str) -> None:
    """Neither a start nor `vgpuctl set` nor the end of a container waits for a lease of a tenant."""
    holder = site.attacker("lease", kind, *shared(site))
    count = attack.rounds(10_000, 30)
    started(site.rounds(site.bundle(), count), count)
    starts = attack.rounds(200, 2)
    site.starts(starts)
    run = site.node.settings.run_dir
    for container, memory in ((holder, 512), (holder, 768)):
        began = time.monotonic()
        site.node.vgpuctl("set", container, "--memory", f"{memory}Mi")
        assert time.monotonic() - began < LONGEST
        _, cards, _ = limits.decode(Path(paths.limits(run, container)).read_bytes())
        assert cards[0].memory == memory << 20
    attack.held(count + starts, "no start refused or late, limits changed at once")


@attack("a write lease on the presence file while nobody works", "tenant, uid 0")
def test_a_lease_on_presence_denies_no_start(idle: Site, attack: Attack) -> None:
    """Without a neighbour nobody has the file open, so that the kernel gives the lease to the tenant."""
    idle.attacker("lease", "write", f"{PRIVATE}/presence/{presence(idle)}")
    count = attack.rounds(10_000, 20)
    started(idle.rounds(idle.bundle(), count), count)
    attack.held(count, "no start refused or late")


@attack("leases on the driver's libraries and programs", "tenant, uid 0")
def test_leases_on_driver_files_stall_no_reader_of_the_host(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    bundle = site.bundle()
    files = [f"{PRIVATE}/driver/libcuda.so.1", f"{PRIVATE}/driver/libnvidia-ml.so.1", "/usr/bin/nvidia-smi"]
    container = site.start(bundle, "sh", "-c", f"exec tenant lease write {' '.join(files)} $(ls -d /usr/lib/*/lib*nv*)")
    attack_bed.wait_for(lambda: "ready" in site.printed(bundle))
    count = attack.rounds(200, 20)
    for _ in range(count):
        for path in attack_bed.driver_files(site.node):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))  # EWOULDBLOCK: a lease
    site.runtime.delete(container)
    attack.held(count, "every open of the host succeeds at once")


@pytest.mark.parametrize("kind", ["write", "read"])
@attack("leases of one container on what others open", "tenant, uid 0, against tenants")
def test_leases_stall_no_other_container(site: Site, neighbour: Neighbour, attack: Attack, kind: str) -> None:
    """A program in another container starts, sees its limit and launches kernels, as without the leases."""
    site.attacker("lease", kind, *shared(site))
    count = attack.rounds(200, 2)
    for _ in range(count):
        share = site.bundle(cores="20", memory="1Gi").bind(site.programs["load"], "/usr/bin/cores_load", "ro")
        began = time.monotonic()
        done = site.runtime.run(
            share.command("cores_load", "kernel=fixed:1000000", "wait=0", "end=100000000"), "attack"
        )
        assert done.returncode == 0, done.stderr
        assert time.monotonic() - began < LONGEST
    attack.held(count, "the other's programs start and work at once")


@attack("a lock on the whole range of the presence file", "tenant")
def test_a_lock_on_the_whole_presence_file(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    """The neighbour may wait for the bound of compute-limit.md once, and then has its share."""
    site.attacker("lock", f"{PRIVATE}/presence/{presence(site)}")
    time.sleep(attack.amount(60, 6))
    share = neighbour.share(attack.amount(30, 3))
    assert share > 0.5 * Neighbour.CORES, f"the neighbour has {share:.0f} of its {Neighbour.CORES} percent"
    attack.held(1, "the neighbour has its share")


@attack("writing, truncating, renaming and linking the host's files inside", "tenant, uid 0")
def test_shared_files_cannot_be_written(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    plain = ("chmod 666 {0}", "chown 1 {0}", "truncate -s 0 {0}", "rm {0}", "mv {0} /tmp/x", "ln {0} /tmp/x")
    verbs = ["echo x > {0}", "echo x >> {0}", *(f"busybox {verb}" for verb in plain)]
    names = [*shared(site), f"{PRIVATE}/driver/libcuda.so.1", "/usr/bin/nvidia-smi", "/usr/local/nvidia"]
    script = "; ".join(f"({verb.format(name)}) 2>/dev/null && echo BROKE {name}" for name in names for verb in verbs)
    bundle = site.bundle()
    done = site.runtime.run(bundle.command("sh", "-c", script + "; true"))
    assert done.returncode == 0, done.stderr
    assert "BROKE" not in done.stdout
    attack.held(len(names) * len(verbs), "each is refused")


@attack("remounting every mount read-write and writing the files below", "strong tenant: CAP_SYS_ADMIN")
def test_a_remount_reaches_no_file_of_the_host(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    """The snapshot has the contents of the driver's files and of libvcuda's. Starts go on with a presence file that has
    other bytes: it has to be one inode for all of a card, so it is a bind mount.
    """
    driver = [f"{PRIVATE}/driver/libcuda.so.1", f"{PRIVATE}/driver/libnvidia-ml.so.1", "/usr/bin/nvidia-smi"]
    files = [*shared(site), *driver]
    before = {path: path.read_bytes()[:64] for path in attack_bed.driver_files(site.node)}
    run, count = site.node.settings.run_dir, attack.rounds(200, 2)
    for _ in range(count):
        bundle = site.bundle(strong=True)
        container = site.start(bundle, "sh", "-c", f"tenant remount {' '.join(files)} /usr/lib/*/lib*cuda* ; sleep 600")
        attack_bed.wait_for(lambda bundle=bundle: "ready" in site.printed(bundle))
        assert {path: path.read_bytes()[:64] for path in attack_bed.driver_files(site.node)} == before
        limits.decode(Path(paths.limits(run, container)).read_bytes())
        site.runtime.delete(container)
        site.starts(1)
    path = Path(paths.presence(run, presence(site)))
    path.write_bytes(bytes(core_schedule.PRESENCE_SIZE))  # nobody reads what it contains
    attack.held(count, "no file of the host changes but presence, whose content nobody reads")
