"""Paths below a container's root: no symlink leads out of it, with openat2 and without."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.hook.linux import rootfs, syscalls
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
    for _, parent, _, _ in made.undo:
        os.close(parent)
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


def test_an_existing_file_and_where_it_lies(root: Rootfs, tree: Path) -> None:
    (tree / "opt/real").mkdir(parents=True)
    (tree / "opt/real/file").write_text("image")
    (tree / "opt/link").symlink_to("/opt/real")
    (tree / "opt/real/other").symlink_to("file")
    found = root.existing("/opt/link/file")
    assert root.place(found) == "/opt/real/file"
    os.unlink(tree / "opt/real/file")
    assert root.place(found).endswith("(deleted)")
    os.close(found)
    assert [root.existing(f"/opt/real/{name}") for name in ("file", "other", ".")] == [-1, -1, -1]
    assert sorted(os.listdir(tree / "opt/real")) == ["other"], "nothing was made"
    outside = os.open("/", os.O_PATH)
    assert root.place(outside) == ""
    os.close(outside)


def test_mount_point_leaves_an_image_file_alone(root: Rootfs, tree: Path) -> None:
    (tree / "file").write_text("image")
    os.close(root.mount_point("/file"))
    assert (tree / "file").read_text() == "image"
    (tree / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        root.mount_point("/directory")


def test_another_container_makes_the_same_files_in_the_same_root(
    root: Rootfs, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes each of them between this one's look and its own attempt. Who made a file takes it back."""
    make_directory, open_file = os.mkdir, os.open

    def mkdir(name: str, mode: int, *, dir_fd: int) -> None:
        make_directory(name, mode, dir_fd=dir_fd)
        make_directory(name, mode, dir_fd=dir_fd)

    def opened(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_EXCL and not (tree / "usr/lib" / path).exists():
            (tree / "usr/lib" / path).touch()
        return open_file(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "open", opened)
    os.close(root.mount_point("/usr/lib/libcuda.so.1"))
    monkeypatch.undo()
    assert root.undo == []
    assert (tree / "usr/lib/libcuda.so.1").is_file()


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


@pytest.mark.parametrize(("made", "refused"), [("target", False), ("another", True)])
def test_a_link_that_another_hook_has_just_made(
    root: Rootfs, tree: Path, monkeypatch: pytest.MonkeyPatch, made: str, refused: bool
) -> None:
    """Two containers with the same root file system start. The one that is late leaves the other's link."""
    looks = [None, made]
    (tree / "link").symlink_to(made)
    monkeypatch.setattr(rootfs, "_link_target", lambda _parent, _name: looks.pop(0))
    with pytest.raises(FileExistsError) if refused else contextlib.nullcontext():
        root.symlink("/link", "target")
    assert root.take_back() == []
    assert os.readlink(tree / "link") == made


def test_what_cannot_be_undone_is_named(root: Rootfs, tree: Path) -> None:
    os.close(root.directory("/made"))
    (tree / "made/by-someone-else").write_text("")
    assert root.take_back() == ["rmdir made: Directory not empty"]


def test_a_close_that_fails_does_not_stop_the_undoing(
    root: Rootfs, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/one", "/two"):
        os.close(root.directory(path))
    real = os.close

    def failing(fd: int) -> None:
        real(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    failed = root.take_back()
    monkeypatch.undo()
    assert failed == ["rmdir two: Input/output error", "rmdir one: Input/output error"]
    assert list(tree.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_read_is_bounded(root: Rootfs, tree: Path, content: bytes) -> None:
    (tree / "file").write_bytes(content)
    assert root.read("/file", 100) == content
    assert root.read("/file", 99) == (content if not content else None)
    assert root.read("/nothing", 100) is None
    os.mkfifo(tree / "fifo")
    assert root.read("/fifo", 100) is None


# A file that is read to be replaced


def exchange(tree: Path, link: str, target: str) -> None:
    (tree / "new").symlink_to(target)
    (tree / "new").rename(tree / link)


def test_the_directory_that_was_read_is_the_one_that_is_written(root: Rootfs, tree: Path) -> None:
    """/etc is a link that another container flips: from its own directory to one where it may not write."""
    for name in ("theirs", "ours"):
        (tree / name).mkdir()
        (tree / name / "ld.so.cache").write_text(name)
    exchange(tree, "etc", "theirs")
    assert root.read("/etc/ld.so.cache", 100) == b"theirs"
    exchange(tree, "etc", "ours")
    root.replace("/etc/ld.so.cache", b"crafted", b"theirs")
    assert (tree / "ours/ld.so.cache").read_text() == "ours"
    assert (tree / "theirs/ld.so.cache").read_text() == "crafted"


def test_another_start_on_the_same_root_file_system_has_replaced_it(root: Rootfs, tree: Path) -> None:
    path = tree / "etc/ld.so.cache"
    path.parent.mkdir()
    path.write_text("image")
    old = root.read("/etc/ld.so.cache", 100)
    (tree / "other").write_text("new")
    (tree / "other").rename(path)
    root.replace("/etc/ld.so.cache", b"new", old)
    assert root.take_back() == []
    assert path.read_text() == "new"  # the other container uses it


@pytest.mark.parametrize("before", ["file", "link", "nothing"])
@pytest.mark.parametrize("after", ["rewritten", "another file", "link", "nothing"])
def test_a_file_that_has_changed_since_it_was_read_is_not_replaced(
    root: Rootfs, tree: Path, before: str, after: str
) -> None:
    path = tree / "etc/ld.so.cache"
    path.parent.mkdir()
    (tree / "crafted").write_text("crafted")
    if before == "file":
        path.write_text("image")
    elif before == "link":
        path.symlink_to("/crafted")
    assert root.read("/etc/ld.so.cache", 100) == {"file": b"image", "link": b"crafted", "nothing": None}[before]
    if after == "nothing":
        path.unlink(missing_ok=True)
    elif after == "rewritten" and before == "file":
        path.write_text("later")
    else:
        path.unlink(missing_ok=True)
        (tree / "other").symlink_to("/crafted") if after == "link" else (tree / "other").write_text("other")
        (tree / "other").rename(path)
    if before == after == "nothing":
        root.replace("/etc/ld.so.cache", b"new", None)
        return
    with pytest.raises(OSError, match="has changed since it was read"):
        root.replace("/etc/ld.so.cache", b"new", b"image")
    assert root.take_back() == []


@pytest.mark.parametrize("target", ["/srv/cache", "real"])
def test_a_file_behind_a_link_is_read_and_the_link_replaced(root: Rootfs, tree: Path, target: str) -> None:
    for place in ("srv/cache", "etc/real"):
        (tree / place).parent.mkdir()
        (tree / place).write_text("image")
    (tree / "etc/ld.so.cache").symlink_to(target)
    content = root.read("/etc/ld.so.cache", 100)
    assert content == b"image"
    assert root.why_not_replaced("/etc/ld.so.cache", content) == ""
    root.replace("/etc/ld.so.cache", b"new", content)
    assert (tree / "etc/ld.so.cache").read_text() == "new"
    assert (tree / "srv/cache").read_text() == (tree / "etc/real").read_text() == "image"
    assert root.take_back() == []
    assert os.readlink(tree / "etc/ld.so.cache") == target


@pytest.mark.parametrize("kind", ["long", "fifo", "directory", "link to nowhere", "link upwards"])
def test_what_cannot_be_read_stays(root: Rootfs, tree: Path, tmp_path: Path, kind: str) -> None:
    path = tree / "etc/ld.so.cache"
    path.parent.mkdir()
    (tmp_path / "outside/cache").write_text("host")
    (tree / "cache").write_text("image")
    {
        "long": lambda: path.write_text("x" * 101),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "link to nowhere": lambda: path.symlink_to("/nowhere"),
        "link upwards": lambda: path.symlink_to("../../outside/cache"),
    }[kind]()
    assert root.read("/etc/ld.so.cache", 100) is None
    assert root.why_not_replaced("/etc/ld.so.cache", None)


def test_a_file_that_is_missing_may_be_made(root: Rootfs, tree: Path) -> None:
    assert root.read("/etc/ld.so.cache", 100) is None
    assert root.why_not_replaced("/etc/ld.so.cache", None) == ""
    root.replace("/etc/ld.so.cache", b"new", None)
    assert root.take_back() == []
    assert list(tree.iterdir()) == []


def test_a_replaced_file_comes_back_with_its_owner_mode_and_times(root: Rootfs, tree: Path) -> None:
    path = tree / "file"
    path.write_text("image")
    path.chmod(0o640)
    os.utime(path, (1, 2))
    before = path.stat()
    root.replace("/file", b"new", b"image")
    assert root.take_back() == []
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid, after.st_mtime_ns) == (
        before.st_mode, before.st_uid, before.st_gid, before.st_mtime_ns,
    )  # fmt: skip


def test_a_change_that_fails_leaves_nothing_to_undo(root: Rootfs, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "link").symlink_to("was")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("mkdir", "symlink", "rename", "write"):
        monkeypatch.setattr(os, name, full)
    for change in (
        lambda: root.directory("/new"),
        lambda: root.symlink("/new", "is"),
        lambda: root.symlink("/link", "is"),
        lambda: root.replace("/new", b"data", None),
    ):
        with pytest.raises(OSError, match="No space left"):
            change()
        assert root.undo == []
    assert [path.name for path in tree.iterdir()] == ["link"]
