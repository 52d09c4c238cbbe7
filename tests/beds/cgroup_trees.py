"""A test's cgroups in every hierarchy: enter them, kill their processes, remove them after the last one's exit."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: In new namespaces a cgroup is the top of each hierarchy.
_ENTER = """
for top in /sys/fs/cgroup/*; do
	mkdir -p $top$0
	for file in cpuset.cpus cpuset.mems; do [ ! -e $top/$file ] || cat $top/$file >$top$0/$file; done
	echo $$ >$top$0/cgroup.procs
done
exec unshare -C -m sh -ec '
mount -t tmpfs tmpfs /mnt
for top in /sys/fs/cgroup/*; do
	mkdir /mnt/${top##*/}
	mount --bind $top$0 /mnt/${top##*/}
done
umount -l /sys/fs/cgroup
mount --move /mnt /sys/fs/cgroup
echo
exec sleep infinity' $0
"""


@contextmanager
def own() -> Iterator[list[str]]:
    """The beginning of a command for which a new cgroup is the top of each hierarchy, in its own mount namespace.

    So the paths that runtimes choose (/default, /libpod_parent) are the test's own.
    """
    name = f"/vgpu-test-{uuid.uuid4().hex[:8]}"
    with subprocess.Popen(["sh", "-ec", _ENTER, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.read(1) == b"\n", "no cgroup of its own"
            yield ["nsenter", "-m", "-C", "-t", str(holder.pid)]
        finally:
            holder.kill()
            holder.wait()
            remove(name)


def kill(name: str) -> None:
    """Kill all processes in cgroup `name` (with its leading slash) and below it."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        for directory, _, _ in os.walk(f"{hierarchy}{name}"):
            for pid in Path(directory, "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def remove(name: str, seconds: float = 60) -> None:
    """Remove cgroup `name` (with its leading slash) and all below it. OSError when a process stays in one."""
    end = time.monotonic() + seconds
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        for directory, _, _ in os.walk(f"{hierarchy}{name}", topdown=False):
            remove_one(directory, end)


def remove_one(directory: str, end: float) -> None:
    while True:
        try:
            return os.rmdir(directory)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
        time.sleep(0.02)
