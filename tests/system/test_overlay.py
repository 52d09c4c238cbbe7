"""The container's overlay: what a tenant does to the files that it got never reaches the host, nor another container.

The three ways of mounting it run in process, on a mount namespace. The rest runs with real runtimes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.hook.inject import mounts, overlay
from vgpu.hook.inject.execute import Execution
from vgpu.hook.inject.mounts import ClassicMounts, Handle, NewMounts
from vgpu.hook.inject.operations import Bind, Operation, OverlayFile
from vgpu.hook.inject.overlay import OverNewMounts, Sources
from vgpu.hook.linux import mountinfo
from vgpu.hook.linux.rootfs import Rootfs

pytestmark = pytest.mark.root

SOON = 40.0  #: seconds; who waits for a lease waits for 45


class AttachedFirst(OverNewMounts):
    """As before Linux 6.15, where nothing of a detached mount can be cloned."""

    __slots__ = ()

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources)
        self._attached = True


def as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "choose", NewMounts)


def as_before_6_15(monkeypatch: pytest.MonkeyPatch) -> None:
    as_new(monkeypatch)
    monkeypatch.setattr(overlay, "OverNewMounts", AttachedFirst)


def as_classic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "choose", ClassicMounts)


@pytest.fixture(params=[as_new, as_before_6_15, as_classic])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that a kernel of today has, and older ones."""
    request.param(monkeypatch)


@pytest.fixture
def container() -> Iterator[int]:
    """A process with a mount namespace of its own."""
    process = subprocess.Popen(["unshare", "-m", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


class Host:
    """Files of a host in two directories, and where a container gets them."""

    def __init__(self, directory: Path, container: int) -> None:
        self.directory = directory
        self.container = container
        self.inside = Path(f"/proc/{container}/root{directory}")
        self.files = {name: directory / name for name in ("run/limits", "lib/libcuda.so", "lib/vdpau/x.so")}
        for name, file in self.files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)

    def target(self, name: str) -> Path:
        return self.directory / ("got-" + os.path.basename(name))

    def seen(self, name: str) -> Path:
        return Path(f"/proc/{self.container}/root{self.target(name)}")

    def operations(self, kind: type[Bind] = OverlayFile) -> tuple[Operation, ...]:
        data = mounts.READ_ONLY_DATA
        return tuple(
            kind(str(file), str(self.target(name)), data if name == "run/limits" else mounts.READ_ONLY_FILE)
            for name, file in self.files.items()
        )

    def execute(self, *operations: Operation) -> list[str]:
        """The notes of an execution."""
        root = os.open(f"/proc/{self.container}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        tree = Rootfs(root, (0, 0), mountinfo.read(self.container, root))
        execution = Execution(operations or self.operations(), tree, str(self.directory / "staging"))
        execution.begin(self.container)
        execution.finish()
        execution.keep()
        return execution.notes

    def mounted(self) -> dict[str, list[str]]:
        """The fields of mountinfo in the container by the name of the file."""
        lines = Path(f"/proc/{self.container}/mountinfo").read_text().splitlines()
        return {
            os.path.basename(line.split()[4])[len("got-") :]: line.split()
            for line in lines
            if "/got-" in line.split()[4]
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the container's mount namespace, as a strong tenant runs it."""
        enter = ["nsenter", "-t", str(self.container), "-m", *command]
        return subprocess.run(enter, capture_output=True, text=True, check=False)


@pytest.fixture
def host(tmp_path: Path, container: int) -> Host:
    return Host(tmp_path, container)


def overlays(pid: int | str) -> list[str]:
    """The hook's overlays that the process sees. Other tests' runtimes mount theirs meanwhile."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if " - overlay vgpu " in line]


@pytest.mark.usefixtures("way")
def test_each_file_is_one_of_an_overlay_and_nothing_stays_on_the_host(host: Host) -> None:
    before = overlays("self")
    assert host.execute() == []
    assert overlays("self") == before == []
    found = host.mounted()
    assert sorted(found) == ["libcuda.so", "limits", "x.so"]
    for name, file in host.files.items():
        fields = found[file.name]
        kind = fields[fields.index("-") + 1]
        assert (kind, host.seen(name).read_text()) == ("overlay", name)
        assert host.seen(name).stat().st_ino == file.stat().st_ino
        flags = {"ro", "nosuid", "nodev", "noexec"} if name == "run/limits" else {"ro", "nosuid", "nodev"}
        assert set(fields[5].split(",")) & {"rw", "ro", "nosuid", "nodev", "noexec"} == flags
        assert fields[6] == "-", "the mount propagates nothing"
    assert len({fields[2] for fields in found.values()}) == 1, "one overlay for all"
    assert len(overlays(host.container)) == len(found), "the overlay itself is not attached"


@pytest.mark.usefixtures("way")
def test_a_mapping_shows_what_the_host_writes_in_place(host: Host) -> None:
    host.execute()
    program = (
        "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "print(m[:3].decode(), flush=True); sys.stdin.readline(); print(m[:3].decode())"
    )
    command = ["nsenter", "-t", str(host.container), "-m", "python3", "-c", program, str(host.target("run/limits"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "run\n"
        with host.files["run/limits"].open("r+") as file:
            file.write("NEW")
        assert reader.communicate("\n")[0] == "NEW\n"


@pytest.mark.usefixtures("way")
def test_no_strong_tenant_makes_it_writable(host: Host) -> None:
    host.execute()
    for name, file in host.files.items():
        target = str(host.target(name))
        assert host.run("mount", "-o", "remount,rw", target).returncode != 0
        host.run("mount", "-o", "remount,bind,rw", target)
        for script in ('echo x > "$0"', 'chmod 777 "$0"', 'truncate -s 0 "$0"', 'touch "$0"'):
            assert host.run("sh", "-c", script, target).returncode != 0, script
        assert file.read_text() == name


class Lease:
    """A lease on a file, in a process that never gives it up."""

    def __init__(self, path: Path, kind: int) -> None:
        self.path, self.kind = path, kind

    def __enter__(self) -> Lease:
        self.before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        self.fd = os.open(self.path, os.O_RDONLY)
        fcntl.fcntl(self.fd, fcntl.F_SETLEASE, self.kind)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        signal.signal(signal.SIGIO, self.before)

    def is_held(self) -> bool:
        return fcntl.fcntl(self.fd, fcntl.F_GETLEASE) == self.kind


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", [fcntl.F_RDLCK, fcntl.F_WRLCK], ids=["read", "write"])
def test_a_lease_in_the_container_delays_no_open_on_the_host(host: Host, kind: int) -> None:
    host.execute()
    for name, file in host.files.items():
        with Lease(host.seen(name), kind) as lease:
            began = time.monotonic()
            for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                os.close(os.open(file, flags))
            assert time.monotonic() - began < SOON
            assert lease.is_held(), "nobody broke it"


@pytest.mark.usefixtures("way")
def test_a_lease_on_a_bind_mount_does_reach_the_host(host: Host) -> None:
    """What the overlay is for. If this fails, the kernel has changed."""
    host.execute(*host.operations(Bind))
    with Lease(host.seen("run/limits"), fcntl.F_RDLCK), pytest.raises(BlockingIOError):
        os.open(host.files["run/limits"], os.O_RDWR | os.O_NONBLOCK)


@pytest.mark.usefixtures("way")
def test_a_name_in_two_directories_is_each_time_the_right_file(host: Host) -> None:
    host.files["run/libcuda.so"] = host.directory / "run/libcuda.so"
    host.files["run/libcuda.so"].write_text("another")
    (host.directory / "lib/limits").symlink_to("/nowhere")
    targets = {name: str(host.directory / f"got-{number}") for number, name in enumerate(host.files)}
    operations = [OverlayFile(str(host.files[name]), target) for name, target in targets.items()]
    notes = host.execute(*operations)
    for name, target in targets.items():
        content = Path(f"/proc/{host.container}/root{target}").read_text()
        assert content == host.files[name].read_text()
    assert notes == []
    kinds = {fields[fields.index("-") + 1] for fields in host.mounted().values()}
    assert kinds == {"overlay"}


def test_a_file_that_is_replaced_while_it_is_opened_is_mounted_as_it_is_now(host: Host) -> None:
    """Of a bind mount the kernel says so when it is attached; of an overlay's file the number of links does."""

    class Replaced(OverlayFile):
        __slots__ = ()

        def open(self, how: NewMounts | ClassicMounts) -> Handle:
            handle = super().open(how)
            if Path(self.source).read_text() != "new":  # each attempt has a process of its own
                Path(self.source + ".new").write_text("new")
                os.rename(self.source + ".new", self.source)
            return handle

    name = "lib/libcuda.so"
    assert host.execute(Replaced(str(host.files[name]), str(host.target(name)))) == []
    assert host.seen(name).read_text() == "new"


@pytest.mark.usefixtures("way")
def test_where_the_kernel_refuses_an_overlay_the_files_are_bound_and_a_note_says_so(host: Host) -> None:
    """procfs is never a lower layer: the files of the other file system are in an overlay all the same."""
    host.files["proc"] = Path("/proc/version")
    (note,) = host.execute()
    assert note.startswith("no overlay of /proc (")
    assert "leases" in note
    kinds = {name: fields[fields.index("-") + 1] for name, fields in host.mounted().items()}
    assert kinds == {"limits": "overlay", "libcuda.so": "overlay", "x.so": "overlay", "proc": "proc"}
    assert host.seen("proc").read_text() == Path("/proc/version").read_text()


@pytest.mark.usefixtures("way")
def test_without_overlays_in_the_kernel_everything_is_bound(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "OVERLAY", "none-such")
    (note,) = host.execute()
    assert "no overlay of " in note
    assert "No such device" in note
    for name, file in host.files.items():
        assert host.seen(name).read_text() == name
        fields = host.mounted()[file.name]
        assert fields[fields.index("-") + 1] != "overlay"


def test_a_file_that_the_host_removes_stays_in_the_container(host: Host) -> None:
    """As with a bind mount: an upgrade of the driver takes nothing away from what runs."""
    host.execute()
    host.files["lib/libcuda.so"].unlink()
    (host.directory / "lib/new").write_text("new")
    (host.directory / "lib/new").rename(host.files["lib/libcuda.so"])
    assert host.seen("lib/libcuda.so").read_text() == "lib/libcuda.so"


def test_all_containers_share_the_pages_of_a_file(host: Host) -> None:
    """A mapping of a file of the overlay maps the host's inode: a library is in memory once for all."""
    host.execute()
    name = "lib/libcuda.so"
    program = (
        "import mmap, os, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); m[:1]\n"
        "print([line.split()[4] for line in open('/proc/self/maps') if sys.argv[1] in line][0])"
    )
    done = host.run("python3", "-c", program, str(host.target(name)))
    assert done.stdout.strip() == str(host.files[name].stat().st_ino), done.stderr
