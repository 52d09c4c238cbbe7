"""A booted systemd that containers run under, on cgroup v2 or v1, in namespaces and cgroups of its own.

Belongs here: booting it, entering it, and removing it completely. Its root is an overlay over a distribution's root
(roots.py); the upper layer is a tmpfs. Directories of the tests are bound at their own paths, so a node and its bundles
have the same paths inside and outside.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import cgroup_trees
import roots

BOOT_TIMEOUT = 300.0

V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")

TARGET = """\
[Unit]
Description=A manager and its bus, nothing else
Wants=dbus.service
"""

#: nspawn needs a cgroup beside the one that it makes for its payload, or the next boot finds that one busy.
BOOT_V2 = """
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/$NAME/launcher
echo $$ > /sys/fs/cgroup/$NAME/launcher/cgroup.procs
. $PREPARE
SYSTEMD_SECCOMP=0 exec systemd-nspawn -q -D $ROOT -b -M $NAME --register=no --keep-unit --console=pipe \
  --private-network --capability=all --link-journal=no $NSPAWN_BINDS systemd.unit=bed.target systemd.mask=tmp.mount
"""

#: nspawn mounts v1 controllers read-only, so this script boots systemd itself and mounts the hierarchies before.
BOOT_V1 = """
for controller in $CONTROLLERS systemd; do
    mkdir -p /sys/fs/cgroup/$controller/$NAME
    for set in cpuset.cpus cpuset.mems; do
        from=/sys/fs/cgroup/$controller/$set
        [ ! -e $from ] || cat $from > /sys/fs/cgroup/$controller/$NAME/$set
    done
    echo $$ > /sys/fs/cgroup/$controller/$NAME/cgroup.procs
done
exec unshare -C -m -p -i -u -n --fork --kill-child sh -ec '
. $PREPARE
mount -t proc proc $ROOT/proc
mount -t sysfs sysfs $ROOT/sys
mount -t tmpfs -o mode=755 tmpfs $ROOT/sys/fs/cgroup
for controller in $CONTROLLERS; do
    mkdir $ROOT/sys/fs/cgroup/$controller
    mount -t cgroup -o $controller cgroup $ROOT/sys/fs/cgroup/$controller
done
mkdir $ROOT/sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup $ROOT/sys/fs/cgroup/systemd
mount -t tmpfs -o mode=755 tmpfs $ROOT/dev
for node in null zero full random urandom tty; do cp -a /dev/$node $ROOT/dev/; done
mkdir $ROOT/dev/shm $ROOT/dev/pts
mount -t tmpfs -o mode=1777 tmpfs $ROOT/dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts $ROOT/dev/pts
ln -s pts/ptmx $ROOT/dev/ptmx
mount -t tmpfs -o mode=755 tmpfs $ROOT/run
for directory in $BINDS; do mkdir -p $ROOT$directory; mount --rbind $directory $ROOT$directory; done
mkdir $ROOT/old
cd $ROOT
pivot_root . old
umount -l /old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd systemd.unit=bed.target \
  systemd.mask=tmp.mount systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1 \
  </dev/null >/dev/null 2>&1
'
"""

#: The overlay and the directories that have the same paths on both sides.
PREPARE = """
mkdir -p $ROOT
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs $SCRATCH
mkdir $SCRATCH/upper $SCRATCH/work $ROOT
mount -t overlay overlay -o lowerdir=$LOWER,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work $ROOT
mkdir -p $ROOT/etc/systemd/system $ROOT/sys $ROOT/proc
[ -e $ROOT/etc/hosts ] || : > $ROOT/etc/hosts
cp $TARGET $ROOT/etc/systemd/system/bed.target
for directory in $BINDS; do mkdir -p $ROOT$directory; done
"""


class BedError(Exception):
    """The bed could not be made, or did not boot."""


class Bed:
    """A running systemd. The prefix `enter` runs a command in it."""

    def __init__(self, version: int, lower: Path, scratch: Path, binds: list[Path]) -> None:
        self.version = version
        self.name = f"vgpu-bed-{uuid.uuid4().hex[:8]}"
        self.scratch = scratch
        self.leader = 0
        self._start(lower, binds)

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "-a", "-t", str(self.leader)]

    def call(self, *arguments: str, check: bool = True, timeout: float = 300) -> str:
        """Run a command in the bed. Returns its output."""
        done = subprocess.run(
            [*self.enter, *arguments],
            capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise BedError(f"{shlex.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def write(self, path: str, content: str) -> None:
        self.call("sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path} <<'END'\n{content}\nEND")

    def simulate_driver(self, driver: Path, sim: Path, *units: str) -> None:
        """Show the simulated driver, which lies below /tmp here, to packaged units; their rest is as it ships."""
        self.write(
            "/etc/vgpu/config.yaml", f"driver: {{root: {driver}, dev_root: {driver}/dev, proc_root: {driver}/proc}}"
        )
        lines = (
            f"PrivateTmp=no\nEnvironment=VGPU_SIM_DIR={sim} VGPU_SIM_DEVICE_NODES=0\nReadWritePaths={driver}/dev {sim}"
        )
        for unit in units:
            self.write(f"/etc/systemd/system/{unit}.service.d/sim.conf", f"[Service]\n{lines}")

    def _start(self, lower: Path, binds: list[Path]) -> None:
        self.scratch.mkdir(parents=True)
        (self.scratch / "bed.target").write_text(TARGET)
        (self.scratch / "prepare").write_text(PREPARE)
        paths = [str(path) for path in binds]
        mounted = self.scratch / "mounted"
        mounted.mkdir()
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "NAME": self.name,
            "LOWER": str(lower),
            "SCRATCH": str(mounted),
            "ROOT": str(mounted / "root"),
            "TARGET": str(self.scratch / "bed.target"),
            "PREPARE": str(self.scratch / "prepare"),
            "BINDS": " ".join(paths),
            "NSPAWN_BINDS": " ".join(f"--bind={path}" for path in paths),
            "CONTROLLERS": " ".join(V1_CONTROLLERS),
        }
        script = BOOT_V1 if self.version == 1 else BOOT_V2
        with open(self.scratch / "log", "w") as log:
            self.launcher = subprocess.Popen(
                ["unshare", "-m", "sh", "-ec", script],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            self._await_boot()
            self.show_boot_id()
        except BaseException:
            self.stop()
            raise

    def _await_boot(self) -> None:
        deadline = time.monotonic() + BOOT_TIMEOUT
        while time.monotonic() < deadline and self.launcher.poll() is None:
            self.leader = self.leader or self._find_leader()
            if self.leader and self._is_up():
                return
            time.sleep(0.1)
        raise BedError(f"systemd did not come up: {(self.scratch / 'log').read_text()[-2000:]}")

    def _is_up(self) -> bool:
        running = self._says("is-system-running") in ("running", "degraded")
        return running and self._says("is-active", "dbus") == "active"

    def _says(self, *arguments: str) -> str:
        return self.call("systemctl", *arguments, check=False).strip()

    def _find_leader(self) -> int:
        """The systemd that is pid 1 in the bed: the launcher's child."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        for child in children.read_text().split() if children.exists() else []:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return 0

    def show_boot_id(self) -> None:
        """nspawn mounts a boot id of its own over the kernel's, but a container on a node sees the node's."""
        self.call("sh", "-c", "while umount /proc/sys/kernel/random/boot_id 2>/dev/null; do :; done")

    def mount_bpf(self) -> None:
        """Mount a bpf file system, which nspawn does not. With one, crun pins its programs."""
        self.call("sh", "-ec", "mount -o remount,rw /sys; mkdir -p /sys/fs/bpf; mount -t bpf bpf /sys/fs/bpf")

    def open_legacy_top(self) -> None:
        """crun 0.17 makes a directory for the unified hierarchy although none is mounted."""
        self.call("mount", "-o", "remount,rw", "/sys/fs/cgroup")

    def reload(self, times: int = 2) -> None:
        for _ in range(times):
            self.call("systemctl", "daemon-reload")

    def journal(self) -> str:
        return self.call("journalctl", "--no-pager", "-q", check=False)

    def stop(self) -> None:
        """End everything in the bed and remove its cgroups."""
        for pid in (self.leader, self.launcher.pid):
            if pid and (pid != self.launcher.pid or self.launcher.poll() is None):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                if pid == self.leader:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.launcher.wait(60)
        self.launcher.wait(120)
        cgroup_trees.remove(f"/{self.name}")
        shutil.rmtree(self.scratch)


@contextlib.contextmanager
def booted(version: int, suite: str, scratch: Path, binds: list[Path]) -> Iterator[Bed]:
    """A bed on the root of a node (suite ""), or of a Debian suite."""
    bed = Bed(version, roots.made("booted", suite) if suite else roots.node(), scratch, binds)
    try:
        yield bed
    finally:
        bed.stop()
