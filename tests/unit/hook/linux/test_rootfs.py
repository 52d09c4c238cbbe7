"""Paths below a container's root: no symlink leads out of it, with openat2 and without."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.hook.linux import syscalls
from vgpu.hook.linux.rootfs import Rootfs


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rootfs]:
    if request.param == "walk":

        def missing(*_: object) -> int:
            raise OSError(errno.ENOSYS, "openat2: Function not implemented")

        monkeypatch.setattr(syscalls, "openat2", missing)
    directory = tmp_path / "root"
    directory.mkdir()
    (tmp_path / "outside").mkdir()
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    made = Rootfs(fd, (os.getuid(), os.getgid()))
    yield made
    made.keep()
    os.close(fd)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "root"


def path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("links", "path", "lands"),
    [
        ({}, "/a/b", "a/b"),
        ({"usr": "elsewhere"}, "/usr/lib", "elsewhere/lib"),
        ({"usr": "/elsewhere"}, "/usr/lib", "elsewhere/lib"),
        ({"usr": "/../../../../elsewhere"}, "/usr/lib", "elsewhere/lib"),
        ({"usr": "../../outside"}, "/usr/x", "outside/x"),
        ({"a": "b", "b": "c"}, "/a/x", "c/x"),
        ({}, "/a/../../../b", "b"),
        ({"var/run": "/run"}, "/var/run/x", "run/x"),
        ({"proc/self": "/outside"}, "/proc/self/x", "outside/x"),
    ],
)
def test_directories_are_made_inside(
    root: Rootfs, tree: Path, tmp_path: Path, links: dict[str, str], path: str, lands: str
) -> None:
    for name, target in links.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target)
    assert path_of(root.directory(path)) == str(tree / lands)
    assert list((tmp_path / "outside").iterdir()) == []


def test_directory_keeps_what_is_there(root: Rootfs, tree: Path) -> None:
    (tree / "usr/lib").mkdir(parents=True, mode=0o700)
    os.close(root.directory("/usr/lib"))
    assert (tree / "usr/lib").stat().st_mode & 0o777 == 0o700
    assert root.undo == []


def test_loop_of_links_ends(root: Rootfs, tree: Path) -> None:
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("a")
    with pytest.raises(OSError, match="levels of symbolic links") as caught:
        root.directory("/a/x")
    assert caught.value.errno == errno.ELOOP


def test_no_magic_link_is_followed(root: Rootfs, tree: Path, tmp_path: Path) -> None:
    secret = tmp_path / "outside/secret"
    secret.write_text("host")
    with secret.open() as stream:
        (tree / "link").symlink_to(f"/proc/self/fd/{stream.fileno()}")
        assert root.read("/link", 100) is None


def test_mount_point_replaces_a_link_and_gives_it_back(root: Rootfs, tree: Path) -> None:
    (tree / "lib").mkdir()
    (tree / "lib/libcuda.so.1").symlink_to("/etc/passwd")
    os.close(root.mount_point("/lib/libcuda.so.1"))
    assert not (tree / "lib/libcuda.so.1").is_symlink()
    assert root.take_back() == []
    assert os.readlink(tree / "lib/libcuda.so.1") == "/etc/passwd"


def test_mount_point_leaves_an_image_file_alone(root: Rootfs, tree: Path) -> None:
    (tree / "file").write_text("image")
    os.close(root.mount_point("/file"))
    assert (tree / "file").read_text() == "image"
    (tree / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        root.mount_point("/directory")


def test_take_back_leaves_the_tree_as_it_was(root: Rootfs, tree: Path) -> None:
    (tree / "etc").mkdir()
    (tree / "etc/ld.so.cache").write_bytes(b"old \xff")
    (tree / "etc/link").symlink_to("was")
    before = sorted(str(path) for path in tree.rglob("*"))
    os.close(root.mount_point("/usr/lib/deep/file"))
    root.symlink("/etc/link", "is")
    root.symlink("/etc/new", "is")
    root.replace("/etc/ld.so.cache", b"new", b"old \xff")
    assert (tree / "etc/ld.so.cache").read_bytes() == b"new"
    assert os.readlink(tree / "etc/link") == "is"
    assert root.take_back() == []
    assert sorted(str(path) for path in tree.rglob("*")) == before
    assert (tree / "etc/ld.so.cache").read_bytes() == b"old \xff"
    assert os.readlink(tree / "etc/link") == "was"


def test_symlink_never_replaces_a_file(root: Rootfs, tree: Path) -> None:
    (tree / "file").write_text("image")
    with pytest.raises(FileExistsError):
        root.symlink("/file", "target")
    assert (tree / "file").read_text() == "image"


def test_what_cannot_be_undone_is_named(root: Rootfs, tree: Path) -> None:
    os.close(root.directory("/made"))
    (tree / "made/by-someone-else").write_text("")
    assert root.take_back() == ["rmdir made: Directory not empty"]


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_read_is_bounded(root: Rootfs, tree: Path, content: bytes) -> None:
    (tree / "file").write_bytes(content)
    assert root.read("/file", 100) == content
    assert root.read("/file", 99) == (content if not content else None)
    assert root.read("/nothing", 100) is None
    os.mkfifo(tree / "fifo")
    assert root.read("/fifo", 100) is None
