"""Images that are made to be run beside a privileged hook: what is in them is neither executed, loaded nor believed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import containerd_bed
import nodes
import oci_images
import pytest
import trees
from attack_bed import Neighbour, Site
from attack_records import Attack, attack
from attack_rounds import LONGEST
from podman_bed import Podman

pytestmark = pytest.mark.root

LIBRARIES = f"usr/lib/{trees.MULTIARCH}"
HOSTILE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((constructor)) static void run(void)
{
	char link[256] = "";

	if (readlink("/proc/self/exe", link, sizeof(link) - 1) < 0 || access(MARK_DIRECTORY, F_OK) != 0)
		return;
	close(open(MARK_DIRECTORY "/executed", O_CREAT | O_WRONLY, 0600));
}
int main(void) { return 0; }
"""


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A library and a program that write into a directory of the host when anything of the host loads them."""
    marks = tmp_path / "marks"
    marks.mkdir()
    source = tmp_path / "hostile.c"
    source.write_text(HOSTILE)
    define = f'-DMARK_DIRECTORY="{marks}"'
    library, program = tmp_path / "hostile.so", tmp_path / "hostile"
    subprocess.run(["cc", "-shared", "-fPIC", define, "-o", str(library), str(source)], check=True)
    subprocess.run(["cc", "-static", define, "-o", str(program), str(source)], check=True)
    for command, preload in (([program], ""), (["true"], str(library))):
        subprocess.run(command, env={**os.environ, "LD_PRELOAD": preload}, check=True)
        assert executed(marks), "they do write when something runs them"
        (marks / "executed").unlink()
    return library, program, marks


def executed(marks: Path) -> bool:
    return bool(list(marks.iterdir()))


@attack("LD_PRELOAD, LD_AUDIT, LD_LIBRARY_PATH, PYTHON* and GCONV_PATH in the image's environment", "image")
def test_the_environment_of_the_image_reaches_no_privileged_process(
    site: Site, neighbour: Neighbour, attack: Attack, hostile: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """CVE-2025-23266. The hook's own registration has them too, as an older runtime would hand them down."""
    library, _, marks = hostile
    shutil.copy(library, site.root / "hostile.so")
    (tmp_path / "sitecustomize.py").write_text(f"open('{marks}/executed', 'w')\n")
    names = {
        "LD_PRELOAD": str(library), "LD_AUDIT": str(library), "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "sitecustomize.py"), "GCONV_PATH": str(tmp_path),
        "PYTHONINSPECT": "1", "PYTHONBREAKPOINT": "sitecustomize", "TMPDIR": str(tmp_path), "LD_BIND_NOW": "1",
    }  # fmt: skip
    count = attack.rounds(200, 3)
    for _ in range(count):
        share = site.bundle()
        share.config["process"]["env"] += [f"{name}={value}" for name, value in names.items()]
        for stage in ("prestart", "poststop"):
            share.config["hooks"][stage][0]["env"] += [f"{name}={value}" for name, value in names.items()]
        done = site.runtime.run(share)
        assert done.returncode == 0, done.stderr
        assert not executed(marks)
    attack.held(count, "no file of the image or of the environment's choice is loaded")


@attack("programs of the image in the places of ldconfig, python3, nvidia-smi and a shell", "image")
def test_nothing_of_the_image_is_executed(
    site: Site, neighbour: Neighbour, attack: Attack, hostile: tuple[Path, Path, Path]
) -> None:
    """CVE-2024-0136 and 0137 (an ldconfig of the image), CVE-2019-5736 (a program that is a link to /proc/self/exe)."""
    library, program, marks = hostile
    places = [*("usr/sbin/ldconfig", "usr/sbin/ldconfig.real", "usr/bin/python3", "usr/bin/env", "usr/bin/nvidia-smi")]
    places += [f"{LIBRARIES}/{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1", "ld-linux-x86-64.so.2")]
    before = site.node.hook.read_bytes()
    count = attack.rounds(200, 3)
    for number in range(count):
        for place in places:
            (site.root / place).unlink(missing_ok=True)
            if number % 2:
                (site.root / place).symlink_to("/proc/self/exe")
            else:
                shutil.copy(library if ".so" in place else program, site.root / place)
        found = site.rounds(site.bundle(), 1)
        assert found["broken"] == []
        assert not executed(marks)
        site.runtime.run(site.bundle().command("/usr/bin/env"))
        assert site.node.hook.read_bytes() == before
        assert not executed(marks)
    attack.held(count, "nothing of the image runs outside its container, the hook's program is as before")


@attack("descriptors of the host that a container could inherit", "image")
def test_no_descriptor_of_the_host_is_inherited(
    site: Site, neighbour: Neighbour, attack: Attack, outside: Path
) -> None:
    """CVE-2024-21626: a working directory of /proc/self/fd/N would be the host's."""
    count = attack.rounds(200, 2)
    for _ in range(count):
        done = site.runtime.run(site.bundle().command("tenant", "descriptors"))
        assert done.returncode == 0, done.stderr
        found = [line for line in done.stdout.splitlines() if line.split(" ", 1)[-1].startswith("/")]
        assert [line for line in found if "/proc" not in line and "/dev/" not in line] == []
        inside = site.bundle()
        inside.config["process"]["cwd"] = "/proc/self/fd/8"
        done = site.runtime.run(inside.command("ls", "../" * 16 + str(outside).lstrip("/")))
        assert done.returncode != 0
        assert "file" not in done.stdout.split(), "the host's directory"
    attack.held(count, "the container has its own three only")


CACHES = {
    "empty": b"",
    "text": b"ld.so-1.7.0\0" * 100,
    "a header and no more": b"glibc-ld.so.cache1.1" + b"\xff" * 28,
    "a count of four billion": b"glibc-ld.so.cache1.1" + b"\xff\xff\xff\xff" + b"\xff" * 4096,
    "four megabytes": b"glibc-ld.so.cache1.1" + bytes(4 << 20),
    "sixteen megabytes": bytes(16 << 20),
    "random": os.urandom(1 << 20),
}


@attack("loader caches and search paths that are cut, huge, or full of lies", "image")
def test_a_hostile_loader_cache(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    """CVE-2025-23267. The container starts all the same: the loader ignores such a cache too."""
    cache, count = site.root / "etc/ld.so.cache", attack.rounds(30, 1)
    sound = cache.read_bytes()
    cut = {f"cut at {at}": sound[:at] for at in range(0, len(sound), max(1, len(sound) // attack.rounds(200, 8)))}
    for name, data in {**CACHES, **cut}.items():
        cache.unlink()
        cache.write_bytes(data)
        found = site.rounds(site.bundle(), count)
        assert found["broken"] == [], name
        assert found["refused"] == {}, name
        assert float(found["longest"]) < LONGEST, name
    attack.held(count * (len(CACHES) + len(cut)), "the container starts")


@attack("thousands of copies of driver libraries, and directories with many names", "image")
def test_an_image_of_many_files(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    many = attack.amount(30_000, 3_000)
    for number in range(many):
        (site.root / LIBRARIES / f"libother.so.{number}").touch()
    for number in range(300):
        (site.root / LIBRARIES / f"libcuda.so.1.{number}").touch()
    found = site.rounds(site.bundle(), 2)
    assert found["broken"] == []
    assert float(found["longest"]) < LONGEST
    attack.held(2, "refused with the bound, or started, in time")


@attack("annotations and environment of megabytes, of odd names and in great number", "pod")
def test_huge_annotations(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    odd = {"vgpu.io/cores": "9" * 100_000, "vgpu.io/" + "x" * 100_000: "1", "vgpu.io/cores\n": "30", "vgpu.io/": "\0"}
    many = {f"vgpu.io/x{number}": "y" * 100 for number in range(attack.amount(50_000, 5_000))}
    for extra in (*({key: value} for key, value in odd.items()), many, {"big": "z" * (12 << 20), "vgpu.io/cores": "1"}):
        share = site.bundle()
        share.config["annotations"].update(extra)
        found = site.rounds(share, 1)
        assert found["broken"] == [], next(iter(extra))[:40]
        assert float(found["longest"]) < LONGEST
        assert all(len(line) < 5_000 for line in found["refused"]), "a line that somebody can read"
    attack.held(len(odd) + 2, "refused by one line, in time")


@attack(
    "annotations in an image's manifest that ask for a card, for the sandbox's exemption, and name another caller",
    "image",
)
def test_an_image_asks_for_no_card(
    keyed: nodes.SimulatedNode, attack: Attack, tmp_path: Path, rootfs: Callable[..., Path]
) -> None:
    """podman copies a manifest's annotations into config.json: `podman run IMAGE` gets no card by them."""
    forged = {
        "vgpu.io/cores": "30", "vgpu.io/memory": "1Gi", "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "sandbox", "org.opencontainers.image.title": "harmless",
        f"vgpu.io/request-{'0' * 32}": "cores=30,memory=1Gi",
    }  # fmt: skip
    names = list(forged)
    sets = [{key: forged[key] for key in chosen} for chosen in (names[:2], names[:3], names[5:], names)]
    for number, extra in enumerate(sets):
        image = annotated(rootfs(), tmp_path / f"image{number}", extra)
        podman = Podman(keyed)
        try:
            assert podman.call("pull", "--quiet", f"oci:{image}").returncode == 0
            name = podman.call("images", "--quiet").stdout.split()[0]
            done = podman.call("run", "--rm", f"--cgroup-parent={podman.cgroup}", name, "ls", "/dev", "/usr/local")
            assert "nvidia" not in done.stdout, done.stdout
            assert done.returncode == 0 or "vgpu-hook" in done.stderr, done.stderr
        finally:
            podman.cleanup()
    assert not list(Path(keyed.settings.run_dir, "containers").iterdir())
    attack.held(len(sets), "no card")


def annotated(tree: Path, directory: Path, annotations: dict[str, str]) -> Path:
    """An OCI image of `tree` whose manifest carries `annotations`."""
    directory.mkdir()
    archive = oci_images.write(tree, directory.with_suffix(".tar"), containerd_bed.IMAGE, ["true"])
    subprocess.run(["tar", "-xf", str(archive), "-C", str(directory)], check=True)
    index = json.loads((directory / "index.json").read_text())
    entry = index["manifests"][0]
    blob = directory / "blobs" / entry["digest"].replace(":", "/")
    manifest = {**json.loads(blob.read_text()), "annotations": annotations}
    data = json.dumps(manifest).encode()
    made = oci_images.hashlib.sha256(data).hexdigest()
    (blob.parent / made).write_bytes(data)
    entry.update(digest=f"sha256:{made}", size=len(data))
    (directory / "index.json").write_text(json.dumps(index))
    return directory
