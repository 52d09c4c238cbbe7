"""The execution of a plan in a mount namespace: against files that change meanwhile, and undone as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemons import wait_for

from vgpu.config.errors import VgpuError
from vgpu.hook.inject import execute, mounts
from vgpu.hook.inject.execute import Execution
from vgpu.hook.inject.mounts import Entry, Handle, Mounts
from vgpu.hook.inject.operations import (
    Bind,
    BindDirectory,
    Inside,
    Operation,
    OverlayFile,
    ReplaceFile,
    Symlink,
    Tmpfs,
)
from vgpu.hook.linux import syscalls
from vgpu.hook.linux.selinux import Labels

pytestmark = pytest.mark.root


class Replaced(Bind):
    """A mount whose source is replaced `times` times, each time after it was opened."""

    __slots__ = ()

    def __init__(self, source: Path, path: str, times: int) -> None:
        super().__init__(str(source), path)
        source.write_text(f"{times} to come")  # each attempt has a process of its own

    def open(self, how: Mounts) -> Handle:
        handle = super().open(how)
        to_come = int(Path(self.source).read_text().partition(" ")[0])
        if to_come:
            Path(self.source + ".new").write_text(f"{to_come - 1} to come")
            os.rename(self.source + ".new", self.source)
        return handle


class Container:
    """A process in a mount namespace of its own, as a runtime leaves it to its hooks, with a root file system `tree`.

    `host` is a directory outside the tree.
    """

    def __init__(self, directory: Path) -> None:
        self.tree, self.host = directory / "tree", directory / "host"
        self.tree.mkdir()
        self.host.mkdir()
        script = f"mount --bind {self.tree} {self.tree}; echo; exec sleep 600"
        self.process = subprocess.Popen(["unshare", "-m", "sh", "-ec", script], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.pid = self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def bind(self, source: Path, below: str, *options: str) -> None:
        """Mount a volume on the directory `below` the tree."""
        (self.tree / below).mkdir(parents=True, exist_ok=True)
        command = ["nsenter", "-m", "-t", str(self.pid), "mount", "--bind", source, self.tree / below]
        subprocess.run(command, check=True)

    def mounts(self) -> dict[str, str]:
        """Options by place of the mounts in the namespace, on the tree and on `host`."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        found = [line.split() for line in lines]
        return {fields[4]: fields[5] for fields in found if fields[4].startswith((str(self.tree), str(self.host)))}

    def listing(self) -> dict[str, str]:
        """Everything in the tree: kind, mode, owner, content."""
        found = {}
        for path in sorted(self.tree.rglob("*")):
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
            found[str(path)] = f"{status.st_mode:o} {status.st_uid} {content!r}"
        return found

    def execution(self, *operations: Operation) -> Execution:
        """The execution of these operations, finished; undone when one of them fails."""
        made = Execution(operations, execute.open_rootfs(self.pid, str(self.tree)), str(self.host / "staging"))
        try:
            made.begin(self.pid)
            made.finish()
        except VgpuError as error:
            raise VgpuError(f"{error}{made.undo()}") from error
        return made


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.end()


def missing(*_: object) -> int:
    raise OSError(38, "Function not implemented")


def without_setattr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "mount_setattr", missing)


def without_new_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    without_setattr(monkeypatch)
    monkeypatch.setattr(syscalls, "open_tree", missing)
    monkeypatch.setattr(syscalls, "openat2", missing)


WAYS = {"new": lambda _: None, "5.4": without_setattr, "classic": without_new_calls}


@pytest.fixture(params=WAYS.values(), ids=list(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that a kernel of today has, and older ones."""
    request.param(monkeypatch)


def plan(container: Container) -> tuple[Operation, ...]:
    """One operation of each kind, with an image that has files and links where they go."""
    (container.host / "library").write_text("host")
    (container.host / "directory").mkdir()
    (container.tree / "etc").mkdir()
    (container.tree / "etc/cache").write_bytes(b"old")
    (container.tree / "etc/cache").chmod(0o600)
    os.chown(container.tree / "etc/cache", 12, 34)
    (container.tree / "lib").mkdir()
    (container.tree / "lib/link").symlink_to("was")
    (container.tree / "lib/place").symlink_to("/nowhere")
    library = str(container.host / "library")
    entries = (Entry("below"), Entry("file", b"content", mode=0o444), Entry("link", link="file"))
    return (
        Tmpfs("/opt/vgpu", entries, 64 << 10, mounts.READ_ONLY_FILE),
        Bind(library, "/opt/vgpu/file"),
        BindDirectory(str(container.host / "directory"), "/opt/vgpu/below", mounts.READ_ONLY_DATA),
        Bind(library, "/lib/new/libcuda.so"),
        Bind(library, "/lib/place"),
        Symlink("/lib/link", "is"),
        Symlink("/lib/other", "is"),
        ReplaceFile("/etc/cache", b"new", b"old"),
    )


# A host that changes


def mounted(container: Container, times: int) -> str:
    """What the container sees at the target of a mount whose source is replaced that often."""
    container.execution(Replaced(container.host / "source", "/target", times)).keep()
    return Path(f"/proc/{container.pid}/root{container.tree}/target").read_text()


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_file_that_is_replaced_meanwhile_is_mounted_as_it_is_now(container: Container, times: int) -> None:
    assert mounted(container, times) == "0 to come"
    assert (container.tree / "target").read_text() == "", "outside nothing is mounted"


def test_a_file_that_is_replaced_each_time_fails_the_start_and_leaves_nothing(container: Container) -> None:
    with pytest.raises(VgpuError, match="No such file or directory"):
        mounted(container, execute.ATTEMPTS)
    assert not (container.tree / "target").exists()


# Undone as a whole


def test_all_operations_are_kept_or_undone_as_a_whole(container: Container, way: None) -> None:
    operations = plan(container)
    before, mounts_before = container.listing(), container.mounts()
    execution = container.execution(*operations)
    inside = Path(f"/proc/{container.pid}/root{container.tree}")
    assert (inside / "opt/vgpu/file").read_text() == (inside / "lib/place").read_text() == "host"
    assert (inside / "etc/cache").read_bytes() == b"new"
    new = {place.removeprefix(str(container.tree)): options for place, options in container.mounts().items()
           if place not in mounts_before}  # fmt: skip
    assert {place: options.split(",relatime")[0] for place, options in new.items()} == {
        "/opt/vgpu": "ro,nosuid,nodev", "/opt/vgpu/file": "ro,nosuid,nodev",
        "/opt/vgpu/below": "ro,nosuid,nodev,noexec", "/lib/new/libcuda.so": "ro,nosuid,nodev",
        "/lib/place": "ro,nosuid,nodev",
    }, "no mount for staging is left, and each has its flags"  # fmt: skip
    assert execution.undo() == ""
    assert container.listing() == before
    assert container.mounts() == mounts_before
    container.execution(*operations).keep()
    assert (inside / "lib/place").read_text() == "host"


def test_each_mount_of_vgpu_has_its_label(
    container: Container, way: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the kernel gets it: without SELinux it refuses the option, so the test takes it out."""
    label = "user:role:%s:s0:c1,c2"
    set_string, mount = syscalls.fsconfig_set_string, syscalls.mount

    def note(kind: str, text: str) -> None:
        with (tmp_path / "labels").open("a") as stream:
            stream.write(f"{kind} {text}\n")

    def fsconfig_set_string(fd: int, key: str, value: str) -> None:
        if key == mounts.CONTEXT:
            note("fsconfig", f"{key}={value}")
        else:
            set_string(fd, key, value)

    def old_mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        rest, comma, given = data.partition(f",{mounts.CONTEXT}=")
        if comma:
            assert given == f'"{given[1:-1]}"', "commas are in quotes"
            note(kind, f"{mounts.CONTEXT}={given[1:-1]}")
        mount(source, target, kind, flags, rest)

    monkeypatch.setattr(syscalls, "fsconfig_set_string", fsconfig_set_string)
    monkeypatch.setattr(syscalls, "mount", old_mount)
    (container.host / "lib").mkdir()
    (container.host / "lib/library").write_text("host")
    operations = (
        Tmpfs("/read", (), 4096, mounts.READ_ONLY_FILE),
        Tmpfs("/write", (), 4096, mounts.DATA),
        OverlayFile(str(container.host / "lib/library"), "/library"),
    )
    labels = Labels(label % "writable", label % "read_only")
    root = execute.open_rootfs(container.pid, str(container.tree))
    made = Execution(operations, root, str(container.host / "staging"), labels)
    made.begin(container.pid)
    made.finish()
    assert made.undo() == ""
    found = sorted(line.split(" ", 1)[1] for line in (tmp_path / "labels").read_text().splitlines())
    read, write = (f"{mounts.CONTEXT}={one}" for one in (labels.read_only, labels.writable))
    assert found == [read, read, write]


def test_a_failing_last_operation_undoes_all_others(container: Container, way: None) -> None:
    operations = plan(container)
    (container.tree / "last").mkdir()
    before, mounts_before = container.listing(), container.mounts()
    with pytest.raises(VgpuError, match=r"on /last ro,nosuid,nodev: Is a directory$"):
        container.execution(*operations, Bind(str(container.host / "library"), "/last"))
    assert container.listing() == before
    assert container.mounts() == mounts_before


def in_a_child(work: Callable[[], None]) -> None:
    """Run `work` in a process that then kills itself. What it raises fails the test."""
    with tempfile.TemporaryFile() as raised:
        child = os.fork()
        if child == 0:
            try:
                work()
            except BaseException:
                raised.write(traceback.format_exc().encode())
                raised.flush()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        raised.seek(0)
        assert raised.read().decode() == ""


def ended(pid: int) -> bool:
    """Whether the process is gone, or is a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("finished", [False, True], ids=["in the middle", "before the record"])
def test_everything_is_undone_when_the_hook_is_killed(container: Container, way: None, finished: bool) -> None:
    operations = plan(container)
    before, mounts_before = container.listing(), container.mounts()

    def start() -> None:
        root = execute.open_rootfs(container.pid, str(container.tree))
        execution = Execution(operations, root, str(container.host / "staging"))
        execution.begin(container.pid)
        (container.host / "child").write_text(str(execution._child))
        if finished:
            execution.finish()

    in_a_child(start)
    wait_for(lambda: ended(int((container.host / "child").read_text())))
    assert container.listing() == before
    assert container.mounts() == mounts_before


def test_a_start_that_is_kept_leaves_no_process(container: Container) -> None:
    """crun waits for the SIGCHLD of its hook, and an orphan's hides it."""
    execution = container.execution(*plan(container))
    child = execution._child
    assert not ended(child)
    execution.keep()
    assert not Path(f"/proc/{child}").exists()


class Killed(Operation):
    """Kills the child that executes it."""

    __slots__ = ()

    def describe(self) -> str:
        return "kill -9"

    def execute(self, inside: Inside, handle: Handle | None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_files_are_restored_when_the_child_is_killed(container: Container, way: None) -> None:
    """Its mounts go with the container's namespace, because the start fails."""
    operations = plan(container)
    before = container.listing()
    with pytest.raises(VgpuError, match=r"found its end; it was killed$"):
        container.execution(*operations, Killed("/"))
    assert container.listing() == before
    execution = container.execution(*operations)
    os.kill(execution._child, signal.SIGKILL)  # between its report and the answer
    assert execution.undo() == ""
    assert container.listing() == before


# Volumes


def test_nothing_is_written_on_a_volume(container: Container, way: None) -> None:
    """A link of the image leads into a directory of the host, where the container's user may not write."""
    operations = plan(container)
    volume = container.host / "volume"
    volume.mkdir()
    (volume / "link").symlink_to("was")
    (volume / "file").write_bytes(b"old")
    container.bind(volume, "mnt/volume")
    (container.tree / "opt").symlink_to("mnt/volume")
    before, mounts_before = container.listing(), container.mounts()
    library = str(container.host / "library")
    for last in (
        Tmpfs("/opt/new", (), 64 << 10, mounts.DATA),
        Bind(library, "/opt/new"),
        Bind(library, "/opt/link"),
        Symlink("/opt/new", "is"),
        Symlink("/opt/link", "is"),
        ReplaceFile("/opt/file", b"new", b"old"),
        ReplaceFile("/opt/new", b"new", None),
    ):
        with pytest.raises(
            VgpuError, match="would be made on the volume that is mounted at /mnt/volume, and vgpu writes"
        ):
            container.execution(*operations[3:], last)
        assert sorted(path.name for path in volume.iterdir()) == ["file", "link"]
        assert (os.readlink(volume / "link"), (volume / "file").read_bytes()) == ("was", b"old")
        assert container.listing() == before
        assert container.mounts() == mounts_before


def test_a_file_on_a_volume_can_be_covered(container: Container, way: None) -> None:
    (container.host / "library").write_text("host")
    volume = container.host / "volume"
    volume.mkdir()
    (volume / "libcuda.so").write_text("volume")
    container.bind(volume, "lib")
    container.execution(Bind(str(container.host / "library"), "/lib/libcuda.so")).keep()
    assert Path(f"/proc/{container.pid}/root{container.tree}/lib/libcuda.so").read_text() == "host"
    assert (volume / "libcuda.so").read_text() == "volume"
