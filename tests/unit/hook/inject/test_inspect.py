"""The inspection of a root file system, on real trees: layouts, copies, links out of the root, and bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from root_trees import Look, looks, plant

from vgpu.hook.inject import inspect, library_search
from vgpu.hook.inject.inspect import DEBIAN, MUSL, REDHAT

MULTIARCH = "/usr/lib/x86_64-linux-gnu"


@pytest.fixture(params=["openat2", "walk"])
def look(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    return looks(tmp_path / "root", monkeypatch, request.param)


@pytest.mark.parametrize(
    ("tree", "machine", "layout", "directory", "directory_32"),
    [
        (["/etc/debian_version"], "x86_64", DEBIAN, MULTIARCH, "/usr/lib/i386-linux-gnu"),
        ([MULTIARCH + "/"], "x86_64", DEBIAN, MULTIARCH, "/usr/lib/i386-linux-gnu"),  # distroless
        (["/lib -> usr/lib", MULTIARCH + "/"], "x86_64", DEBIAN, MULTIARCH, "/usr/lib/i386-linux-gnu"),
        (
            ["/usr/lib -> /opt/lib", "/opt/lib/x86_64-linux-gnu/"],
            "x86_64",
            DEBIAN,
            MULTIARCH,
            "/usr/lib/i386-linux-gnu",
        ),
        (["/etc/debian_version"], "aarch64", DEBIAN, "/usr/lib/aarch64-linux-gnu", "/usr/lib/arm-linux-gnueabihf"),
        (["/usr/lib64/"], "x86_64", REDHAT, "/usr/lib64", "/usr/lib"),
        (["/usr/lib64/", "/usr/lib32/"], "x86_64", REDHAT, "/usr/lib64", "/usr/lib32"),
        ([], "x86_64", REDHAT, "/usr/lib64", "/usr/lib"),
        (["/lib/ld-musl-x86_64.so.1"], "x86_64", MUSL, "/usr/lib", "/usr/lib32"),
        (["/lib -> usr/lib", "/usr/lib/ld-musl-x86_64.so.1"], "x86_64", MUSL, "/usr/lib", "/usr/lib32"),
        (["/lib/ld-musl-x86_64.so.1"], "aarch64", REDHAT, "/usr/lib64", "/usr/lib"),
        # a Debian with the musl package beside it is a Debian
        (["/etc/debian_version", "/lib/ld-musl-x86_64.so.1"], "x86_64", DEBIAN, MULTIARCH, "/usr/lib/i386-linux-gnu"),
        # a marker that leads nowhere is none
        (["/etc/debian_version -> /nowhere"], "x86_64", REDHAT, "/usr/lib64", "/usr/lib"),
    ],
)
def test_layouts(
    look: Look, tmp_path: Path, tree: list[str], machine: str, layout: str, directory: str, directory_32: str
) -> None:
    plant(tmp_path / "root", *tree)
    facts = look(machine=machine)
    assert (facts.layout, facts.library_dir, facts.library_dir_32) == (layout, directory, directory_32)
    assert facts.machine == machine


@pytest.mark.parametrize(
    ("tree", "files", "copies"),
    [
        ([f"{MULTIARCH}/libcuda.so.1"], {"libcuda.so.1"}, set()),
        ([f"{MULTIARCH}/libcuda.so.535.1", f"{MULTIARCH}/libcuda.so"], {"libcuda.so.535.1", "libcuda.so"}, set()),
        ([f"{MULTIARCH}/libcuda.so.1 -> libcuda.so.535.1"], set(), set()),  # links are replaced, not covered
        ([f"{MULTIARCH}/libcuda.so.1/"], set(), set()),
        ([f"{MULTIARCH}/libcudart.so.12", f"{MULTIARCH}/libcuda.sox.1", f"{MULTIARCH}/libcuda.so.conf"], set(), set()),
        (
            [MULTIARCH + "/", "/usr/lib64/libcuda.so.1", "/usr/local/lib/libnvidia-ml.so.1"],
            set(),
            {"/usr/lib64/libcuda.so.1", "/usr/local/lib/libnvidia-ml.so.1"},
        ),
        # one directory under several names counts once
        (
            [MULTIARCH + "/", "/usr/lib64/libcuda.so.1", "/lib64 -> usr/lib64", "/usr/local/lib64 -> /usr/lib64"],
            set(),
            {"/usr/lib64/libcuda.so.1"},
        ),
        ([f"{MULTIARCH}/libcuda.so.1", f"/lib/x86_64-linux-gnu -> {MULTIARCH}"], {"libcuda.so.1"}, set()),
        # links that leave the root stay inside
        ([MULTIARCH + "/", "/usr/lib64 -> ../../../../../../usr/lib"], set(), set()),
        ([MULTIARCH + "/", "/usr/lib64 -> /usr/lib64"], set(), set()),
    ],
)
def test_files_and_copies(look: Look, tmp_path: Path, tree: list[str], files: set[str], copies: set[str]) -> None:
    plant(tmp_path / "root", *tree)
    facts = look()
    assert set(facts.files) == files
    assert set(facts.copies) == copies
    assert facts.compat == ()


def test_compat_libraries_of_every_toolkit_once(look: Look, tmp_path: Path) -> None:
    plant(
        tmp_path / "root",
        "/usr/local/cuda -> cuda-12.4",
        "/usr/local/cuda-12.4/compat/libcuda.so.550.1",
        "/usr/local/cuda-12.4/compat/libcuda.so.1 -> libcuda.so.550.1",
        "/usr/local/cuda-12.4/compat/libnvidia-nvvm.so.4",
        "/usr/local/cuda-11.8/compat/lib/libnvidia-ptxjitcompiler.so.520.1",
        "/usr/local/cuda-11.8/compat/lib.real/libcuda.so.520.1",
        "/usr/local/cudnn/compat/libcuda.so.1",
    )
    assert sorted(look().compat) == [
        "/usr/local/cuda-11.8/compat/lib.real/libcuda.so.520.1",
        "/usr/local/cuda-11.8/compat/lib/libnvidia-ptxjitcompiler.so.520.1",
        "/usr/local/cuda/compat/libcuda.so.550.1",
    ]


def test_toolkits_are_bounded(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MAX_TOOLKITS", 2)
    plant(tmp_path / "root", *(f"/usr/local/cuda-{at}/compat/libcuda.so.{at}" for at in range(5)))
    assert len(look().compat) == 2


def test_listings_are_bounded(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_search, "MAX_LISTING", 10)
    plant(tmp_path / "root", *(f"/usr/lib64/libcuda.so.{at}" for at in range(30)))
    assert len(look().files) == 10


@pytest.mark.parametrize(
    ("tree", "content"),
    [
        (["/etc/ld.so.cache"], b"image"),
        ([], None),
        (["/etc/ld.so.cache -> /elsewhere", "/elsewhere"], b"image"),
        (["/etc/ld.so.cache -> /nowhere"], None),
        (["/etc/ld.so.cache/"], None),
        (["/etc/ld.so.cache -> ../../../../../../../../etc/passwd"], None),  # not the host's
    ],
)
def test_the_loader_cache(look: Look, tmp_path: Path, tree: list[str], content: bytes | None) -> None:
    plant(tmp_path / "root", "/etc/", *tree)
    assert look().cache == content


def test_a_fifo_for_a_cache_is_not_waited_for(look: Look, tmp_path: Path) -> None:
    plant(tmp_path / "root", "/etc/")
    os.mkfifo(tmp_path / "root/etc/ld.so.cache")
    assert look().cache is None


def test_an_oversized_cache_is_none(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MAX_CACHE", 4)
    plant(tmp_path / "root", "/etc/ld.so.cache")
    assert look().cache is None


def test_musl_has_a_path_and_no_cache(look: Look, tmp_path: Path) -> None:
    plant(tmp_path / "root", "/lib/ld-musl-x86_64.so.1", "/etc/ld.so.cache", "/etc/ld-musl-x86_64.path")
    facts = look()
    assert facts.cache is None
    assert facts.musl_path == ("/etc/ld-musl-x86_64.path", b"image")


def test_glibc_has_a_cache_and_no_path(look: Look, tmp_path: Path) -> None:
    plant(tmp_path / "root", "/etc/debian_version", "/etc/ld.so.cache", "/etc/ld-musl-x86_64.path")
    facts = look()
    assert facts.cache == b"image"
    assert facts.musl_path is None


def test_hosts_dev_is_recognised(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "root", "/dev/")
    assert not look().host_dev
    real = os.stat

    def shared(path: object, *rest: object, **fields: object) -> os.stat_result:
        return real(tmp_path / "root/dev") if path == "/dev" else real(path, *rest, **fields)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", shared)
    assert look().host_dev


@pytest.mark.parametrize(
    ("tree", "there"),
    [
        ([], False),
        (["/proc/driver/nvidia/"], True),
        (["/proc/driver/nvidia"], False),
        (["/proc/driver -> /x", "/x/nvidia/"], True),
    ],
)
def test_proc_driver(look: Look, tmp_path: Path, tree: list[str], there: bool) -> None:
    plant(tmp_path / "root", *tree)
    assert look().proc_driver is there
