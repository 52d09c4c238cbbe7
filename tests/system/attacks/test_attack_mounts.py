"""Images and volumes whose paths lead elsewhere, or change while the hook works on them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attack_bed
import bundles
import pytest
import trees
from attack_bed import OLD_KERNEL, Neighbour, Site
from attack_records import Attack, attack
from attack_rounds import LONGEST

pytestmark = pytest.mark.root

LIBRARIES = f"usr/lib/{trees.MULTIARCH}"
WAYS = pytest.mark.parametrize("without", ["", OLD_KERNEL], ids=["new", "old"])
CRAFTED = b"crafted"


def long(value: str) -> Any:
    """A case for make test-long."""
    return pytest.param(value, marks=pytest.mark.long)


def sound(found: dict[str, object], rounds: int) -> None:
    assert found["broken"] == []
    assert found["rounds"] == rounds


@contextmanager
def flipping(site: Site, *pairs: tuple[Path, Path]) -> Iterator[None]:
    with ExitStack() as stack:
        for first, second in pairs:
            stack.enter_context(site.process("flip", str(first), str(second)))
        yield


def untouched(outside: Path, before: dict[str, str]) -> None:
    assert listing(outside) == before


def listing(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top)): os.readlink(path)
        if path.is_symlink()
        else path.read_text()
        if path.is_file()
        else "/"
        for path in sorted(top.rglob("*"))
    }


@WAYS
@pytest.mark.parametrize("component", [LIBRARIES, long("usr/bin"), long("usr/local"), long("etc"), "dev"])
@attack(
    "a directory of the image exchanged with a link to a directory of the host while the hook works", "image, tenant"
)
def test_links_that_flip_lead_nowhere_outside(
    site: Site, neighbour: Neighbour, attack: Attack, outside: Path, component: str, without: str
) -> None:
    """CVE-2024-0132, CVE-2025-23359, CVE-2026-24260, and of runc CVE-2021-30465."""
    (site.root / "link").symlink_to("../" * 16 + str(outside).lstrip("/"))
    (site.root / "absolute").symlink_to(outside)
    count = attack.rounds(1_000, 10)
    with flipping(site, (site.root / component, site.root / ("link" if count % 2 else "absolute"))):
        found = site.rounds(site.bundle(), count, untouched=[outside], without=without)
    sound(found, count)
    attack.held(count, "no file, link or mount outside the root; a failed start leaves nothing")


def volumes_over(root: Path, names: set[str]) -> list[tuple[Path, str]]:
    """Volumes of one file each, as subPath makes them, at the names of the driver's libraries in a second directory.

    Both directories have files of those names, so that a volume lies in whichever is there when it is mounted.
    """
    (root / "decoy").mkdir()
    pairs = []
    for name in sorted(names):
        for directory in ("decoy", LIBRARIES):
            (root / directory / name).write_text("")
        source = root.parent / f"volume-{name}"
        source.write_text("a tenant's")
        pairs.append((source, f"/decoy/{name}"))
    return pairs


@WAYS
@attack("a target exchanged with a volume's file between the mount and its remount", "tenant")
def test_every_file_of_the_host_is_read_only(site: Site, neighbour: Neighbour, attack: Attack, without: str) -> None:
    """The tenant's volumes lie at the same names as the driver's, so that a second lookup finds another mount."""
    count = attack.rounds(10_000, 40)
    names = {path.name for path in attack_bed.driver_files(site.node) if path.name.startswith("lib")}
    volumes = volumes_over(site.root, names)
    with flipping(site, (site.root / LIBRARIES, site.root / "decoy")):
        found = site.rounds(site.bundle(), count, volumes, without=without)
    sound(found, count)
    attack.held(count, "every file of the host is read-only inside")


@attack("/etc exchanged with a link into a volume between reading and writing the loader's cache", "tenant")
def test_no_cache_is_written_where_the_tenant_may_not(
    site: Site, neighbour: Neighbour, attack: Attack, outside: Path
) -> None:
    """The volume is of another owner; the cache that the tenant crafted must not come to lie there."""
    (outside / "ld.so.cache").write_bytes(CRAFTED)
    (site.root / "volume").mkdir()
    (site.root / "link").symlink_to("/volume")
    count = attack.rounds(10_000, 60)
    with flipping(site, (site.root / "etc", site.root / "link")):
        found = site.rounds(site.bundle(), count, [(outside, "/volume")], untouched=[outside])
    sound(found, count)
    assert (outside / "ld.so.cache").read_bytes() == CRAFTED
    attack.held(count, "the volume is as before")


@WAYS
@pytest.mark.parametrize("component", [LIBRARIES, long("usr/bin"), long("usr/local/nvidia"), long("usr/local"), "etc"])
@attack("directories of the image that are links into a volume", "image, tenant with any uid")
def test_nothing_is_made_in_a_volume(
    site: Site, neighbour: Neighbour, attack: Attack, outside: Path, component: str, without: str
) -> None:
    """Without a race: the hook makes no directory, link, file or cache on a mount other than the root file system's."""
    before = listing(outside)
    (site.root / "volume").mkdir()
    place = site.root / component
    if place.exists():
        place.rename(site.root / "moved")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to("/volume/lib" if component == LIBRARIES else "/volume")
    bundle = site.bundle()
    bundle.config["process"]["user"] = {"uid": 65534, "gid": 65534}
    count = attack.rounds(200, 1)
    sound(site.rounds(bundle, count, [(outside, "/volume")], [outside], without), count)
    starts = attack.rounds(20, 1)
    for _ in range(starts):
        share = site.bundle().bind(outside, "/volume", "rw")
        share.config["process"]["user"] = {"uid": 65534, "gid": 65534}
        site.runtime.run(share)
        untouched(outside, before)
    attack.held(count + starts, "the volume is as before")


@attack("a volume with shared propagation over the targets", "pod")
def test_no_mount_is_left_by_a_shared_volume(
    site: Site, neighbour: Neighbour, attack: Attack, outside: Path, tmp_path: Path
) -> None:
    """What is mounted on a volume that is rshared would appear on the host, and stay there."""
    subprocess.run(["mount", "--bind", str(outside), str(outside)], check=True)
    subprocess.run(["mount", "--make-shared", str(outside)], check=True)
    targets, count = ("/usr/local", "/usr/bin/volume", f"/{LIBRARIES}"), attack.rounds(70, 1)
    try:
        for target in targets:
            for _ in range(count):
                before = own_mounts(outside)
                share = site.bundle(strong=True)
                share.config["linux"]["rootfsPropagation"] = "rshared"
                if target == f"/{LIBRARIES}":
                    subprocess.run(["cp", "-a", f"{site.root}{target}/.", str(outside)], check=True)
                site.runtime.run(share.bind(outside, target, "rw", "rshared"))
                assert own_mounts(outside) == before
    finally:
        subprocess.run(["umount", "--lazy", "--recursive", str(outside)], check=True)
    attack.held(count * len(targets), "no mount of the hook on the host")


def own_mounts(top: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {top}" in line]


@attack("a place that blocks the last step of a start", "image")
def test_a_failure_after_mounting_leaves_nothing(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    """Mounts, links and the cache are undone, whichever step it is that fails."""
    count = 0
    for place in ("usr/bin/nvidia-smi", f"{LIBRARIES}/libcuda.so.1", "etc/ld.so.cache", "usr/local/nvidia", "dev"):
        target = site.root / place
        if target.is_dir():
            target.rename(f"{target}-moved")
        kept = target.read_bytes() if target.is_file() else None
        target.unlink(missing_ok=True)
        if place.endswith(("nvidia-smi", "libcuda.so.1", "ld.so.cache")):
            (target / "blocks").mkdir(parents=True)
        else:
            target.write_text("blocks")
        before = listing_of_links(site.root)
        found = site.rounds(site.bundle(), attack.rounds(40, 2))
        sound(found, attack.rounds(40, 2))
        count += int(str(found["rounds"]))
        if found["refused"]:
            assert listing_of_links(site.root) == before, place
        subprocess.run(["rm", "-rf", str(target)], check=True)
        if Path(f"{target}-moved").exists():
            Path(f"{target}-moved").rename(target)
        elif kept is not None:
            target.write_bytes(kept)
    attack.held(count, "nothing is left in the image")


def listing_of_links(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("place", ["dev/nvidia0", long("dev/nvidiactl"), "usr/bin/nvidia-smi", "etc/ld.so.cache"])
@attack("fifos, devices and links in a loop where the hook mounts or reads", "image")
def test_odd_files_do_not_stop_the_hook(site: Site, neighbour: Neighbour, attack: Attack, place: str) -> None:
    """The hook ends in time, with the container started or one line."""
    target, count = site.root / place, attack.rounds(50, 1)
    kinds = {
        "fifo": lambda: os.mkfifo(target),
        "device": lambda: os.mknod(target, 0o20666, os.makedev(10, 130)),  # a watchdog: to open it has an effect
        "disk": lambda: os.mknod(target, 0o60666, os.makedev(8, 0)),
        "loop": lambda: target.symlink_to(target.name),
        "dangling": lambda: target.symlink_to("/proc/1/root/etc/shadow"),
        "self": lambda: target.symlink_to("/proc/self/exe"),
    }
    for make in kinds.values():
        target.unlink(missing_ok=True)
        make()
        found = site.rounds(site.bundle(), count)
        sound(found, count)
        assert float(str(found["longest"])) < LONGEST
        assert not [line for line in found["refused"] if "Error" in line], found["refused"]  # type: ignore[attr-defined]
    attack.held(len(kinds) * count, "the hook ends at once, with one line or the container started")


@WAYS
@attack("the link exchange between two containers of one pod, by runc", "two tenants with a common volume")
def test_a_volume_that_flips_by_runc(
    site: Site, neighbour: Neighbour, attack: Attack, outside: Path, tmp_path: Path, without: str
) -> None:
    """One container flips names in a volume; the other starts with its library directory in that volume."""
    shared = tmp_path / "shared"
    subprocess.run(["cp", "-a", str(site.root / "usr"), str(shared)], check=True)
    (shared / "link").symlink_to("../" * 16 + str(outside).lstrip("/"))
    before, count = listing(outside), attack.rounds(200, 5)
    flipper = site.bundle().bind(shared, "/shared", "rw")
    site.start(flipper, "tenant", "flip", "/shared/local", "/shared/link")
    for _ in range(count):
        share = site.bundle().bind(shared, "/usr", "rw").bind(site.programs["tenant"], "/usr/bin/tenant", "ro")
        if without:
            numbers = tuple(map(int, without.split(",")))
            share.hooks(site.node, without=numbers)
        done = site.runtime.run(share)
        assert done.returncode == 0 or "vgpu-hook: " in done.stderr or "exec" in done.stderr, done.stderr
        untouched(outside, before)
    attack.held(count, "nothing outside the root changes")


def test_the_rounds_find_what_they_look_for(site: Site, tmp_path: Path) -> None:
    """A writable file of the host, a mount outside the root and a file outside are found: here nothing is attacked."""
    bundle: bundles.Bundle = site.bundle()
    found = site.rounds(bundle, 1, untouched=[site.root])
    assert any("outside the root changed" in line for line in found["broken"]), "the hook writes into the root"
