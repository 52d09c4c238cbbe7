"""Merged loader caches with the real ldconfig and the real loader, in a chroot."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from vgpu.hook.formats import ldcache
from vgpu.hook.formats.elf import EM_386, EM_X86_64
from vgpu.hook.formats.ldcache import Addition

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
    pytest.mark.skipif(not LDCONFIG or not shutil.which("cc"), reason="ldconfig or cc is missing"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="names of directories are those of x86-64"),
]

LIBRARY_DIR = "usr/lib/x86_64-linux-gnu"

PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	struct link_map *map;
	void *library = dlopen(argv[1], RTLD_NOW);

	if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	puts(map->l_name);
	return 0;
}
"""

#: Names whose order is not that of bytes: numbers of several digits, digits against letters, signs, leading zeros.
NAMES = (
    "libfoo.so.1", "libfoo.so.2", "libfoo.so.10", "libfoo.so.1.2", "libfoo.so.1.10", "libfoo-2.so", "libfoo1.so",
    "libfoo10.so", "libfoo9.so", "libfooa.so", "libfoo_a.so", "libfoo+a.so", "libFoo.so", "libfoo.so", "lib7z.so.1",
    "libz.so.1", "libzz.so.1", "lib.so.1", "libx264.so.164", "libx265.so.199", "libx2.so.20240116", "libcuda.so.1",
    "libcudart.so.12", "libcuda1.so.1", "libc.so.6.0", "libnvidia-ml.so.1", "libnvidia-ml1.so.1", "libnvidia-m.so.1",
)  # fmt: skip


def compile_into(target: Path, source: str, *flags: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source_path = target.parent / (target.name + ".c")
    source_path.write_text(source)
    subprocess.run(["cc", "-o", target, source_path, *flags], check=True)
    source_path.unlink()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints which file dlopen opened, and a library of each word size without a DT_SONAME."""
    directory = tmp_path_factory.mktemp("parts")
    compile_into(directory / "opens", PROGRAM, "-ldl")
    compile_into(directory / "lib64.so", "int x;", "-shared", "-nostdlib")
    stub = directory / "libc32.so"  # ldconfig writes FLAG_ELF_LIBC6 for 32-bit libraries that need libc.so.6
    compile_into(stub, "int y;", "-shared", "-nostdlib", "-m32", "-Wl,-soname,libc.so.6")
    flags = ("-shared", "-nostdlib", "-m32", "-Wl,--no-as-needed", str(stub))
    compile_into(directory / "lib32.so", "int x;", *flags)
    return directory


@pytest.fixture
def root(parts: Path, tmp_path: Path) -> Path:
    """A root file system with the loader, libc, ldconfig and `opens`; the library directory is in ld.so.conf."""
    listed = subprocess.run(["ldd", parts / "opens"], check=True, capture_output=True, text=True).stdout
    needed = [word for word in listed.split() if word.startswith("/")]
    for path in (*needed, str(LDCONFIG)):
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(parts / "opens", tmp_path / "opens")
    for name in (LIBRARY_DIR, "usr/lib32", "etc", "opt/driver"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/ld.so.conf").write_text(f"/lib/x86_64-linux-gnu\n/{LIBRARY_DIR}\n/usr/lib32\n")
    shutil.copy(parts / "lib64.so", tmp_path / "opt/driver/libcuda.so.1")
    return tmp_path


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["chroot", root, *command], check=False, capture_output=True, text=True)


def ldconfig(root: Path, *options: str) -> str:
    done = run(root, str(LDCONFIG), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def opened(root: Path, name: str) -> str:
    """The file that the loader opens for `name`, "" for none."""
    return run(root, "/opens", name).stdout.strip()


def merge(root: Path, additions: list[Addition]) -> None:
    path = root / "etc/ld.so.cache"
    path.write_bytes(ldcache.merge(path.read_bytes() if path.exists() else None, additions))


DRIVER = [Addition("libcuda.so.1", "/opt/driver/libcuda.so.1")]


@pytest.mark.parametrize("form", ["new", "compat", "old"])
def test_the_loader_finds_an_addition_only_through_the_cache(root: Path, parts: Path, form: str) -> None:
    for name in NAMES:
        if name != "libcuda.so.1":
            shutil.copy(parts / "lib64.so", root / LIBRARY_DIR / name)
    ldconfig(root, "-c", form)
    assert opened(root, "libcuda.so.1") == ""
    before = opened(root, "libfoo.so.10")
    assert before.endswith("/libfoo.so.10")
    merge(root, DRIVER)
    assert opened(root, "libcuda.so.1") == "/opt/driver/libcuda.so.1"
    assert opened(root, "libfoo.so.10") == before
    listed = ldconfig(root, "-p")
    assert "libcuda.so.1 (libc6,x86-64) => /opt/driver/libcuda.so.1" in listed
    assert all(f"\t{name} (" in listed for name in NAMES)
    for name in NAMES:
        assert opened(root, name), name


def test_without_a_cache_the_loader_uses_the_one_that_was_made(root: Path) -> None:
    (root / "etc/ld.so.cache").unlink(missing_ok=True)
    merge(root, DRIVER)
    assert opened(root, "libcuda.so.1") == "/opt/driver/libcuda.so.1"
    assert "1 libs found" in ldconfig(root, "-p")


def test_the_driver_is_found_instead_of_the_images_own(root: Path, parts: Path) -> None:
    shutil.copy(parts / "lib64.so", root / LIBRARY_DIR / "libcuda.so.1")
    ldconfig(root)
    assert opened(root, "libcuda.so.1").endswith(f"/{LIBRARY_DIR.removeprefix('usr/')}/libcuda.so.1")
    merge(root, DRIVER)
    assert opened(root, "libcuda.so.1") == "/opt/driver/libcuda.so.1"


def test_glibc_hwcaps_stay_and_do_not_precede_the_driver(root: Path, parts: Path) -> None:
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        directory = root / LIBRARY_DIR / "glibc-hwcaps" / level
        directory.mkdir(parents=True)
        for name in ("libz.so.1", "libcuda.so.1"):
            shutil.copy(parts / "lib64.so", directory / name)
    for name in ("libz.so.1", "libcuda.so.1"):
        shutil.copy(parts / "lib64.so", root / LIBRARY_DIR / name)
    ldconfig(root)
    before, best = ldconfig(root, "-p"), opened(root, "libz.so.1")
    assert 'hwcap: "x86-64-v3"' in before
    assert "glibc-hwcaps" in best
    merge(root, DRIVER)
    assert opened(root, "libz.so.1") == best
    assert opened(root, "libcuda.so.1") == "/opt/driver/libcuda.so.1"
    after = [line for line in ldconfig(root, "-p").splitlines() if "libz" in line]
    assert after == [line for line in before.splitlines() if "libz" in line]


def test_ldconfig_afterwards_succeeds_and_finds_libraries_in_its_directories(root: Path, parts: Path) -> None:
    """A package's installation in the container runs ldconfig. The driver is in the image's own library directory."""
    ldconfig(root)
    shutil.copy(parts / "lib64.so", root / LIBRARY_DIR / "libcuda.so.1")
    merge(root, [Addition("libcuda.so.1", f"/{LIBRARY_DIR}/libcuda.so.1")])
    assert opened(root, "libcuda.so.1") == f"/{LIBRARY_DIR}/libcuda.so.1"
    ldconfig(root)
    assert "libcuda.so.1 (libc6,x86-64) => /" in ldconfig(root, "-p")
    assert opened(root, "libcuda.so.1").endswith("/libcuda.so.1")


def test_order_and_flags_are_those_of_ldconfig(root: Path, parts: Path) -> None:
    """A cache of ldconfig is equal to one to which the same entries were added in three parts."""
    for name in NAMES:
        shutil.copy(parts / "lib64.so", root / LIBRARY_DIR / name)
        shutil.copy(parts / "lib32.so", root / "usr/lib32" / name)
    ldconfig(root)
    data = (root / "etc/ld.so.cache").read_bytes()
    entries = ldcache.parse(data).entries
    assert {entry.flags for entry in entries} == {0x0303, 0x0003}
    for start in range(3):
        chosen = entries[start::3]
        names = tuple({entry.name.decode() for entry in chosen})
        gone = [entry for entry in entries if entry.name.decode() in names]
        abis = {0x0303: (64, EM_X86_64), 0x0003: (32, EM_386)}
        again = [Addition(entry.name.decode(), entry.path.decode(), *abis[entry.flags]) for entry in gone]
        merged = ldcache.merge(ldcache.merge(data, [], names), again)
        found = [(entry.flags, entry.name, entry.path) for entry in ldcache.parse(merged).entries]
        assert found == [(entry.flags, entry.name, entry.path) for entry in entries]
