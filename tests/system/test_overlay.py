"""The container's overlay in each of the three ways of mounting it, in process, on a mount namespace.

That every runtime's containers have it is in test_runtime_contract.py, what tenants do with it in attacks/.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.hook.inject import classic_mounts, execute, mounts, overlay
from vgpu.hook.inject.classic_mounts import OverClassicMounts
from vgpu.hook.inject.execute import Execution
from vgpu.hook.inject.mounts import Handle, Mounts
from vgpu.hook.inject.operations import Operation, OverlayFile
from vgpu.hook.inject.overlay import OverNewMounts, Sources
from vgpu.hook.linux import mountinfo
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.hook.linux.selinux import Labels

pytestmark = pytest.mark.root


class AttachedFirst(OverNewMounts):
    """As before Linux 6.15, where nothing of a detached mount can be cloned."""

    __slots__ = ()

    def __init__(self, sources: Sources, labels: Labels) -> None:
        super().__init__(sources, labels)
        self._attached = True


def as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "way_of_mounting", lambda: OverNewMounts)


def as_before_6_15(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "way_of_mounting", lambda: AttachedFirst)


def as_classic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "way_of_mounting", lambda: OverClassicMounts)


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
    """Files of a host in two directories. The container's root is the directory of both, whatever mount that is on."""

    def __init__(self, directory: Path, container: int) -> None:
        self.directory = directory
        self.container = container
        self.files = {name: directory / name for name in ("run/limits", "lib/libcuda.so", "lib/vdpau/x.so")}
        for name, file in self.files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)

    def target(self, name: str) -> Path:
        return Path("/got-" + os.path.basename(name))

    def seen(self, name: str) -> Path:
        return Path(f"/proc/{self.container}/root{self.directory}{self.target(name)}")

    def operations(self) -> tuple[Operation, ...]:
        data = mounts.READ_ONLY_DATA
        return tuple(
            OverlayFile(str(file), str(self.target(name)), data if name == "run/limits" else mounts.READ_ONLY_FILE)
            for name, file in self.files.items()
        )

    def execute(self, *operations: Operation) -> list[str]:
        """The notes of an execution."""
        root = os.open(f"/proc/{self.container}/root{self.directory}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
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
def test_a_name_in_two_directories_is_each_time_the_right_file(host: Host) -> None:
    host.files["run/libcuda.so"] = host.directory / "run/libcuda.so"
    host.files["run/libcuda.so"].write_text("another")
    (host.directory / "lib/limits").symlink_to("/nowhere")
    targets = {name: f"/got-{number}" for number, name in enumerate(host.files)}
    operations = [OverlayFile(str(host.files[name]), target) for name, target in targets.items()]
    notes = host.execute(*operations)
    for name, target in targets.items():
        content = Path(f"/proc/{host.container}/root{host.directory}{target}").read_text()
        assert content == host.files[name].read_text()
    assert notes == []
    kinds = {fields[fields.index("-") + 1] for fields in host.mounted().values()}
    assert kinds == {"overlay"}


def test_a_file_that_is_replaced_while_it_is_opened_is_mounted_as_it_is_now(host: Host) -> None:
    """Of a bind mount the kernel says so when it is attached; of an overlay's file the number of links does."""

    class Replaced(OverlayFile):
        __slots__ = ()

        def open(self, how: Mounts) -> Handle:
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
    for module in (overlay, classic_mounts):
        monkeypatch.setattr(module, "OVERLAY", "none-such")
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
