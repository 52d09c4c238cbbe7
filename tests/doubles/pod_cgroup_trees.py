"""kubelet's cgroups as trees in a temporary root, with the mountinfo that shows them: v1 and v2, both cgroup drivers.

Belongs here: where a pod's cgroups lie, and making and removing them. A cgroup is a directory with a cgroup.procs. As
the kernel does, `show` writes the same into /proc/<pid>/cgroup.
"""

from __future__ import annotations

import shutil
from pathlib import Path

V1, V2 = "v1", "v2"
CGROUPFS, SYSTEMD = "cgroupfs", "systemd"
HIERARCHIES = {V1: ("devices", "memory"), V2: ("unified",)}


class PodCgroupTree:
    """The hierarchies below `path`, with /proc in `proc`. `prefix`: a cgroup that the node itself is in, as in kind."""

    def __init__(
        self, path: Path, proc: Path, version: str = V2, driver: str = SYSTEMD, prefix: str = "", boot_id: str = "boot1"
    ) -> None:
        self.path = path
        self.proc = proc
        self.version = version
        self.driver = driver
        self.prefix = prefix
        self.mount()
        self.boot(boot_id)

    def mount(self) -> None:
        """Write mountinfo."""
        kind = {V1: "cgroup", V2: "cgroup2"}[self.version]
        lines = [
            f"{number} 20 0:{number} / {self.path}/{name} rw - {kind} {kind} rw,{name}"
            for number, name in enumerate(HIERARCHIES[self.version], 30)
        ]
        (self.proc / "self").mkdir(parents=True, exist_ok=True)
        (self.proc / "self/mountinfo").write_text("\n".join(lines) + "\n")

    def boot(self, boot_id: str) -> None:
        """Begin a boot: kubelet's own cgroup is there, and no pod's."""
        shutil.rmtree(self.path, ignore_errors=True)
        for directory in self._directories(self.kubepods()):
            self._make(directory)
        random = self.proc / "sys/kernel/random"
        random.mkdir(parents=True, exist_ok=True)
        (random / "boot_id").write_text(boot_id + "\n")
        self.show()

    def kubepods(self) -> str:
        """The cgroup above the pods."""
        tops = {CGROUPFS: "/kubepods/besteffort", SYSTEMD: "/kubepods.slice/kubepods-besteffort.slice"}
        return self.prefix + tops[self.driver]

    def pod(self, uid: str) -> str:
        """The pod's cgroup path."""
        slice_name = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
        return f"{self.kubepods()}/{f'pod{uid}' if self.driver == CGROUPFS else slice_name}"

    def container(self, uid: str, container: str) -> str:
        """`<controllers>:<path>` of a container's init, as cgroup.own_of returns it."""
        name = container if self.driver == CGROUPFS else f"cri-containerd-{container}.scope"
        return f"{'devices' if self.version == V1 else ''}:{self.pod(uid)}/{name}"

    def put(self, uid: str, name: str, *pids: int) -> None:
        """Make the pod's cgroup, and in it that of the container `name` ("" for none) with these processes."""
        for directory in self._directories(self.pod(uid)):
            self._make(directory)
            if name:
                self._make(directory / name, *pids)
        self.show()

    def take(self, uid: str, name: str = "") -> None:
        """Remove the container's cgroup, or without a name the whole pod's."""
        for directory in self._directories(self.pod(uid)):
            shutil.rmtree(directory / name if name else directory, ignore_errors=True)
        self.show()

    def show(self) -> None:
        """Write /proc/<pid>/cgroup of the processes in the tree, and /proc/<pid>/stat of new ones."""
        for file in self.proc.glob("[0-9]*/cgroup"):
            file.unlink()
        for number, name in enumerate(HIERARCHIES[self.version], 1):
            for procs in (self.path / name).rglob("cgroup.procs"):
                place = procs.parent.relative_to(self.path / name)
                for pid in procs.read_text().split():
                    self._join(pid, f"{number}:{name}:/{place}" if self.version == V1 else f"0::/{place}")

    def _join(self, pid: str, line: str) -> None:
        directory = self.proc / pid
        if not directory.exists():
            directory.mkdir()
            (directory / "stat").write_text(f"{pid} (a) S 1 {'0 ' * 15}1 0 {pid} 0\n")
        with (directory / "cgroup").open("a") as stream:
            stream.write(line + "\n")

    def exists(self, uid: str) -> bool:
        return any(directory.is_dir() for directory in self._directories(self.pod(uid)))

    def _directories(self, path: str) -> list[Path]:
        return [Path(f"{self.path}/{name}{path}") for name in HIERARCHIES[self.version]]

    def _make(self, directory: Path, *pids: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
