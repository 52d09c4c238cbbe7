"""The packaged vgpud.service under a real systemd: it works despite its hardening."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
import systemd_bed
from daemons import wait_for
from systemd_bed import Bed

from vgpu.config import usage

pytestmark = pytest.mark.root


#: Does what vgpud does with its rights, and tries what they are not for, in the sandbox of the unit.
PROBE = """
import ctypes, json, os, socket, sys
sys.path.insert(0, "/usr/lib/vgpu/python")
from vgpu.config import usage
from vgpu.hook.devices import bpf_program, rules, systemd
from vgpu.hook.linux import bpf
from vgpu.node.daemon import reader, usage_regions
from vgpu.hook.linux import procfs

VERSION, HOLDER = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)

def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def region_of_a_container():
    fd = usage_regions.open_region(HOLDER, procfs.start_time(HOLDER))
    assert os.pread(fd, 8, 0) == usage.BEGINNING[:8]

def device_rules():
    if VERSION == 1:
        with open("/sys/fs/cgroup/devices/probe/devices.allow", "w") as stream:
            stream.write("c 195:255 rw")
        return
    fd = os.open("/sys/fs/cgroup/probe", os.O_RDONLY)
    program = bpf.prog_load(bpf_program.program(rules.Filter([], False)), "probe")
    bpf.prog_attach(fd, program, bpf.BPF_F_ALLOW_MULTI)
    assert len(bpf.prog_query(fd)[0]) == 1
    bpf.prog_detach(fd, program)

def enter_a_cgroup():
    top = "/sys/fs/cgroup/devices/probe" if VERSION == 1 else "/sys/fs/cgroup/probe"
    child = os.fork()
    if not child:
        with open(top + "/cgroup.procs", "w") as stream:
            stream.write("0")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def node():
    os.mknod("/dev/probe", 0o20600, os.makedev(195, 250))
    os.chmod("/dev/probe", 0o660)
    os.chown("/dev/probe", 0, 44)
    os.unlink("/dev/probe")

def limits_in_place():
    with open("/run/vgpu/probe", "r+b") as stream:
        stream.write(b"x")

def record():
    with open("/var/lib/vgpu/probe", "w") as stream:
        stream.write("x")
    assert os.stat("/var/lib/vgpu/probe").st_mode & 0o777 == 0o600
    os.unlink("/var/lib/vgpu/probe")

def systemds_bus():
    assert not systemd.allow("no-such.scope", ((195, 0),), "rw", {}).listed

def callback():
    kind = ctypes.CFUNCTYPE(ctypes.c_int)
    assert kind(lambda: 7)() == 7

def write_elsewhere():
    open("/etc/probe", "w")

def network():
    socket.socket(socket.AF_INET)

def mount():
    checked(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None))

def load_a_module():
    checked(libc.syscall(175, None, 0, b""))

def trace():
    checked(libc.ptrace(16, HOLDER, 0, 0))

def set_the_clock():
    checked(libc.settimeofday(ctypes.create_string_buffer(16), None))

def become_another_user():
    os.setuid(1)

def raw_handles():
    checked(libc.syscall(304, os.open("/", os.O_RDONLY), ctypes.create_string_buffer(64), 0))

def memory_of_another():
    checked(libc.syscall(310, HOLDER, None, 0, None, 0, 0))

found = {}
for name, work in list(globals().items()):
    if callable(work) and getattr(work, "__module__", "") == "__main__" and name != "checked":
        try:
            work()
            found[name] = ""
        except Exception as error:
            found[name] = repr(error)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
found["status"] = {key: status[key].strip() for key in ("CapBnd", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")}
json.dump(found, open("/run/vgpu/probed", "w"))
"""

PROBE_DROP_IN = """
[Service]
Type=oneshot
Restart=no
WatchdogSec=0
ExecStart=
ExecStart=/usr/bin/python3 /usr/lib/vgpu/probe.py {version} {holder}
"""

WORKS = {
    "region_of_a_container", "device_rules", "enter_a_cgroup", "node", "limits_in_place", "record", "systemds_bus",
    "callback",
}  # fmt: skip
REFUSED = {
    "write_elsewhere", "network", "mount", "load_a_module", "trace", "set_the_clock", "become_another_user",
    "raw_handles", "memory_of_another",
}  # fmt: skip
RIGHTS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_MKNOD")
NUMBERS = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27,
}  # fmt: skip


@pytest.fixture
def bed(node: nodes.SimulatedNode, deb: Path) -> Iterator[Bed]:
    with booted(2, node, deb) as made:
        yield made


@contextlib.contextmanager
def booted(version: int, node: nodes.SimulatedNode, deb: Path) -> Iterator[Bed]:
    scratch = Path(f"/tmp/vgpu-bed-{uuid.uuid4().hex[:8]}")
    suite = "bullseye" if version == 1 else ""
    with systemd_bed.booted(version, suite, scratch, [node.directory, deb.parent]) as made:
        yield made


def test_the_unit_runs_hardened_and_takes_the_inventory(bed: Bed, deb: Path, node: nodes.SimulatedNode) -> None:
    bed.call("dpkg", "-i", str(deb), timeout=600)
    bed.simulate_driver(node.driver, node.sim, "vgpud")
    bed.call("vgpuctl", "config", "apply")
    bed.call("systemctl", "daemon-reload")
    bed.call("systemctl", "restart", "vgpud.service", check=False)
    state = bed.call("systemctl", "is-active", "vgpud.service", check=False).strip()
    assert state == "active", bed.call("systemctl", "status", "-l", "--no-pager", "vgpud.service", check=False)
    health = json.loads(bed.call("vgpuctl", "health", "--output", "json"))
    inventory = bed.call("vgpuctl", "inventory", "show", "--output", "json", check=False)
    assert "A100" in inventory, bed.call("journalctl", "--no-pager", "-u", "vgpud", check=False)
    assert health["version"]
    pid = bed.call("systemctl", "show", "-P", "MainPID", "vgpud.service").strip()
    bed.call("sh", "-c", f"kill -9 {pid}")
    wait_for(
        lambda: bed.call("systemctl", "show", "-P", "MainPID", "vgpud.service").strip() not in ("0", pid),
        300,
        bed.journal,
    )
    bed.call("systemctl", "stop", "vgpud.service")


@pytest.mark.parametrize("version", [1, 2])
def test_the_sandbox_permits_the_work_and_nothing_else(
    version: int, deb: Path, repository: Path, node: nodes.SimulatedNode
) -> None:
    """The unit as it ships, but for its program, which does what vgpud does and tries what it never does."""
    with booted(version, node, deb) as bed:
        bed.call("dpkg-deb", "-x", str(deb), "/run/vgpu-deb")
        bed.call("sh", "-c", "cp -a /run/vgpu-deb/usr/lib/vgpu /usr/lib/ && mkdir -p /run/vgpu /var/lib/vgpu")
        bed.call("sh", "-c", "cp /run/vgpu-deb/usr/lib/systemd/system/vgpud.service /etc/systemd/system/")
        bed.write("/usr/lib/vgpu/probe.py", PROBE)
        holder = region_holder(bed)
        top = "/sys/fs/cgroup/devices/probe" if version == 1 else "/sys/fs/cgroup/probe"
        bed.call("sh", "-c", f"mkdir {top}; touch /run/vgpu/probe; chmod 444 /run/vgpu/probe")
        drop_in = PROBE_DROP_IN.format(version=version, holder=holder)
        bed.write("/etc/systemd/system/vgpud.service.d/probe.conf", drop_in)
        bed.call("systemctl", "daemon-reload")
        bed.call("systemctl", "start", "vgpud.service", check=False)
        probed = bed.call("cat", "/run/vgpu/probed", check=False)
        assert probed, bed.call("systemctl", "status", "-l", "--no-pager", "vgpud.service", check=False)
        bed.call("sh", "-c", f"kill -9 {holder}; rmdir {top}", check=False)
    found = json.loads(probed)
    status = found.pop("status")
    assert {name: error for name, error in found.items() if error and name in WORKS} == {}
    assert {name for name, error in found.items() if name in REFUSED and not error} == set()
    assert set(found) == WORKS | REFUSED
    rights = sum(1 << NUMBERS[name] for name in RIGHTS)
    assert (int(status["CapBnd"], 16), int(status["CapEff"], 16), int(status["CapAmb"], 16)) == (rights, rights, 0)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def region_holder(bed: Bed) -> int:
    """The pid of a process with a usage region in a mount namespace of its own, owned by another user."""
    script = (
        "mount -t tmpfs x /usr/local; mkdir -p /usr/local/vgpu/usage; chmod 700 /usr/local/vgpu/usage; "
        "cp /run/region /usr/local/vgpu/usage/usage; chmod 600 /usr/local/vgpu/usage/usage; "
        "chown -R 1000 /usr/local/vgpu; echo $$ > /run/pid; mv /run/pid /run/holder; exec sleep 600"
    )
    identity = "".join(f"\\{byte:03o}" for byte in usage.BEGINNING)
    bed.call("sh", "-c", f"printf '{identity}' > /run/region; truncate -s {usage.SIZE} /run/region")
    bed.call("sh", "-c", f"cat > /run/hold <<'END'\n{script}\nEND")
    bed.call("systemd-run", "--unit=holder", "unshare", "-m", "sh", "/run/hold")
    return int(wait_for(lambda: bed.call("cat", "/run/holder", check=False).strip(), 300, bed.journal))
