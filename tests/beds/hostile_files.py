"""Programs that make whoever opens or reads a tenant's file wait, as a container with CAP_SYS_ADMIN can.

Belongs here: compiling hostile_files.c, and starting and ending its attacks. A process that waits for an attack goes on
when the attack ends: `end` therefore leaves nothing behind. Does not belong here: what must hold meanwhile.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("hostile_files.c")
USAGE = "/usr/local/vgpu/usage"
REGION = f"{USAGE}/usage"

#: Every way in which the host's readers of a usage region can be made to wait.
ON_THE_REGION = (
    ("fanotify", "inode", USAGE),
    ("fanotify", "mount", USAGE),
    ("fanotify", "filesystem", USAGE),
    ("fuse", "lookup", USAGE),
    ("fuse", "open", USAGE),
    ("fuse", "read", USAGE),
    ("fuse", "lookup", "/usr/local"),
)


def compiled(directory: Path) -> Path:
    """The program, without shared libraries, so that any root file system can run it."""
    program = directory / "hostile_files"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]
    subprocess.run(["cc", *flags, "-o", program, SOURCE], check=True)
    return program


def missing() -> str:
    """What this machine lacks for the attacks, or ""."""
    return "" if os.path.exists("/dev/fuse") else "/dev/fuse"


class Attacks:
    """Attacks that run at the same time, each a process of `program`, until `end`."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.running: list[subprocess.Popen[str]] = []

    def start(self, init: int, *words: str) -> subprocess.Popen[str]:
        """Start one in the mount namespace of process `init`, and wait until it is in force."""
        command = [str(self.program), "--enter", str(init), *words]
        attack = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.running.append(attack)
        assert attack.stdout is not None
        assert attack.stdout.readline() == "ready\n", f"{words} did not begin: {attack.wait(120)}"
        return attack

    def end(self) -> None:
        for attack in self.running:
            attack.kill()
        for attack in self.running:
            attack.communicate(timeout=120)
        self.running.clear()
