"""Many starts of the hook in one process, beside an attack: `python attack_rounds.py ORDER`, a file of JSON.

Belongs here: the rounds, each in a mount namespace like a container's before pivot_root, and what must hold after each.
A process of its own runs them, because a seccomp filter may take system calls from it. Not here: the attack, and what
the rounds mean. The order has: `tenant`, the program that makes the namespace; `bundle`; `rootfs`; `volumes`, pairs of
source and path below the root; `rounds`; `host`, files of the host that must stay read-only inside; `untouched`,
directories that must not change. The answer is one line of JSON.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from vgpu.hook import main as hook

#: Seconds; a start that takes longer ends the rounds, and is a finding. One that waits for a tenant's lease takes 45.
LONGEST = 40.0


class Mount:
    """A line of mountinfo."""

    def __init__(self, line: str) -> None:
        words = line.split()
        self.id, self.root, self.point = words[0], words[3], words[4]
        self.options = words[5].split(",")


def mounts_of(pid: int) -> list[Mount]:
    return [Mount(line) for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]


def within_file_system(path: str) -> str:
    """The path of a host's file from the root of its file system, as mountinfo has it."""
    path = os.path.realpath(path)
    around = [mount for mount in mounts_of(os.getpid()) if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")]
    mount = max(around, key=lambda mount: len(mount.point))
    return f"{mount.root.rstrip('/')}/{os.path.relpath(path, mount.point)}"


def tree(top: str) -> dict[str, tuple[int, ...] | str]:
    """What lies below `top`; the change time tells every write, chmod and rename."""
    found: dict[str, tuple[int, ...] | str] = {}
    for directory, directories, files in os.walk(top):
        for name in (".", *directories, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            kept = () if name == "." or name in directories else (status.st_size, status.st_ctime_ns, status.st_nlink)
            found[path] = (status.st_ino, status.st_mode, status.st_uid, *kept)
    return found


class Rounds:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.bundle = Path(order["bundle"])
        config = json.loads((self.bundle / "config.json").read_text())
        self.start = config["hooks"]["prestart"][0]["args"][1:]
        self.stop = config["hooks"]["poststop"][0]["args"][1:]
        self.host = set(map(within_file_system, order["host"]))
        self.found: dict[str, Any] = {"rounds": 0, "started": 0, "refused": {}, "broken": [], "longest": 0.0}

    def run(self) -> dict[str, Any]:
        before = [tree(path) for path in self.order["untouched"]]
        descriptors = len(os.listdir("/proc/self/fd"))
        for number in range(self.order["rounds"]):
            self.round(number)
            self.found["rounds"] += 1
            if [tree(path) for path in self.order["untouched"]] != before:
                self.broken(f"round {number}: files outside the root changed")
                before = [tree(path) for path in self.order["untouched"]]
            if len(os.listdir("/proc/self/fd")) != descriptors:
                self.broken(f"round {number}: descriptors are left open")
            if len(self.found["broken"]) > 20 or self.found["longest"] > LONGEST:
                break
        return self.found

    def round(self, number: int) -> None:
        cell = self.cell()
        container = f"vgpu-attack-{os.getpid()}-{number}"
        try:
            initial = {mount.id for mount in mounts_of(cell.pid)}
            began = time.monotonic()
            status, line = self.call(self.start, container, cell.pid)
            self.found["longest"] = max(self.found["longest"], time.monotonic() - began)
            made = [mount for mount in mounts_of(cell.pid) if mount.id not in initial]
            self.judge(number, status, line, made)
        finally:
            cell.kill()
            cell.wait()
            assert cell.stdout is not None
            cell.stdout.close()
        status, line = self.call(self.stop, container, 0)
        if status:
            self.broken(f"round {number}: poststop: {line}")

    def cell(self) -> subprocess.Popen[bytes]:
        root = self.order["rootfs"]
        volumes = [f"{source}:{root}{path}" for source, path in self.order["volumes"]]
        cell = subprocess.Popen([self.order["tenant"], "cell", root, *volumes], stdout=subprocess.PIPE)
        assert cell.stdout is not None
        assert cell.stdout.readline() == b"ready\n"
        return cell

    def call(self, arguments: list[str], container: str, pid: int) -> tuple[int, str]:
        """The hook's exit status and its line."""
        state = {"ociVersion": "1.0.2", "id": container, "status": "creating", "pid": pid, "bundle": str(self.bundle)}
        read_end, write_end = os.pipe()
        os.write(write_end, json.dumps(state).encode())
        os.close(write_end)
        says = io.StringIO()
        try:
            with redirect_stderr(says):
                status = hook.main(arguments, read_end)
        finally:
            os.close(read_end)
        return status, says.getvalue().strip()

    def judge(self, number: int, status: int, line: str, made: list[Mount]) -> None:
        root = self.order["rootfs"]
        if status == 0:
            self.found["started"] += 1
        else:
            self.found["refused"][line] = self.found["refused"].get(line, 0) + 1
            if made:
                self.broken(f"round {number}: {len(made)} mounts are left after: {line}")
        if "Traceback" in line or line.count("\n"):
            self.broken(f"round {number}: no single line: {line[:200]}")
        for mount in made:
            if not mount.point.startswith(root + "/"):
                self.broken(f"round {number}: a mount outside the root: {mount.point}")
            if mount.root in self.host and "ro" not in mount.options:
                self.broken(f"round {number}: {mount.root} is writable at {mount.point}")

    def broken(self, what: str) -> None:
        self.found["broken"].append(what)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print(json.dumps(Rounds(json.loads(Path(sys.argv[1]).read_text())).run()))
