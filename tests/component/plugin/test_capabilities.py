"""The capabilities that vgpu-release leaves to vgpud: each is needed for what the unit's file says, no other is left.

What vgpud does with them in a sandbox is in system/test_daemon_unit.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.plugin.release import capabilities

pytestmark = pytest.mark.root

UNIT = (CHECKOUT / "packaging/systemd/vgpud.service").read_text()
START = """
import json, os, sys
from vgpu.plugin.release import capabilities
capabilities.keep(json.loads(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""
#: Tries what needs one capability each, on a file and a process of another user, and prints what was refused.
PROBE = """
import json, os, sys
from vgpu.hook.linux import bpf
file, pid = sys.argv[1], int(sys.argv[2])
work = {
    "CHOWN": lambda: os.chown(file + ".own", 1, 1),
    "DAC_OVERRIDE": lambda: open(file, "r+b"),
    "KILL": lambda: os.kill(pid, 0),
    "SYS_PTRACE": lambda: os.readlink(f"/proc/{pid}/root"),
    "SYS_ADMIN": lambda: os.close(bpf.prog_load(bytes([0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]), "x")),
    "MKNOD": lambda: os.mknod(file + ".node", 0o20600, os.makedev(195, 250)),
}
refused = []
for name, probe in work.items():
    try:
        probe()
    except PermissionError:
        refused.append(name)
lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps([refused, *(int(lines[key], 16) for key in ("CapEff", "CapBnd", "NoNewPrivs"))]))
"""


def probe(directory: Path, kept: list[int]) -> list[object]:
    """What is refused to a program of these capabilities, and its effective, its bounding set and its way to others."""
    file = directory / "file"
    for path in (file, file.with_suffix(".own")):
        path.touch(0o444)
    subprocess.run(["chown", "1:1", file], check=True)
    with subprocess.Popen(["sleep", "60"], user=1) as other:
        command = [sys.executable, "-c", START, json.dumps(kept), PROBE, str(file), str(other.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        other.kill()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("missing", ["", *capabilities.VGPUD])
def test_each_capability_is_needed(tmp_path: Path, missing: str) -> None:
    kept = [number for name, number in capabilities.VGPUD.items() if name != missing]
    mask = sum(1 << number for number in kept)
    assert probe(tmp_path, kept) == [[missing] if missing else [], mask, mask, 1]


def test_they_are_those_of_the_unit() -> None:
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT, re.MULTILINE)
    assert {f"CAP_{name}" for name in capabilities.VGPUD} == {*line.split()}
    assert capabilities.KEPT["vgpud"] is capabilities.KEPT["vgpuctl"] is capabilities.VGPUD


def test_a_program_does_without_what_its_container_lacks() -> None:
    kept = json.dumps([*capabilities.PLUGIN.values()])
    command = [sys.executable, "-c", START, "[]", START, kept, "print(open('/proc/self/status').read())"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(r"^CapEff:\s0+$", done.stdout, re.MULTILINE), done.stderr


#: What containerd gives to a container by default.
CONTAINER = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)


@pytest.mark.parametrize("program", capabilities.KEPT)
def test_root_of_a_container_with_the_hosts_processes_reads_no_file_of_it(program: str) -> None:
    """As /proc/<pid>/root/var/run/secrets. Of a process without any capability it may."""
    for kept, refused in (([*capabilities.KEPT[program].values()], True), ([], False)):
        wait = [sys.executable, "-c", START, json.dumps(kept), "print(flush=True); input()"]
        with subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"\n"
            look = f"import os; os.readlink('/proc/{victim.pid}/root')"
            command = [sys.executable, "-c", START, json.dumps(CONTAINER), look]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            victim.kill()
        assert ("PermissionError" in done.stderr) is refused, done.stderr
