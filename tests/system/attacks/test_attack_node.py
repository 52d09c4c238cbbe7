"""Attacks on the node's own processes: vgpud, the hook, vgpuctl, what they ask, and what outlives a container."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import daemons
import pytest
from attack_bed import Neighbour, Site
from attack_records import Attack, attack
from checkout import CHECKOUT
from fake_systemd import Behaviour, FakeSystemd, Unit, reply

from vgpu.config import claims, paths
from vgpu.config.errors import VgpuError
from vgpu.hook.devices import systemd

pytestmark = pytest.mark.root

USAGE = "/usr/local/vgpu/usage"
SOON = 20.0  #: seconds in which vgpud answers on a busy machine; one that waits for a tenant never does
SYS_clone3 = 435
HASTY = 2  #: seconds; the shipped gate waits 30


@pytest.fixture
def daemon(site: Site) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(site.node).start().ready()
    yield made
    made.kill()


def answers(daemon: daemons.Daemon, rounds: int) -> None:
    for _ in range(rounds):
        began = time.monotonic()
        assert daemon.health(), "vgpud does not answer"
        assert time.monotonic() - began < SOON
        time.sleep(0.2)


@pytest.mark.parametrize(("way", "kind"), [("fanotify", "filesystem"), ("fuse", "lookup")], ids=["fanotify", "fuse"])
@attack("opens below the usage directory that are never answered (fanotify, FUSE)", "strong tenant: CAP_SYS_ADMIN")
def test_vgpud_and_vgpuctl_do_not_hang(
    site: Site, neighbour: Neighbour, daemon: daemons.Daemon, attack: Attack, way: str, kind: str
) -> None:
    """Starts, `vgpuctl set` and vgpud go on; vgpuctl status ends by itself."""
    bundle = site.bundle(strong=True)
    if way == "fuse":
        bundle.config["linux"]["resources"]["devices"].append(
            {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
        )
    container = site.start(bundle, "tenant", way, kind, USAGE)
    daemons.wait_for(lambda: "ready" in site.printed(bundle), what=lambda: site.printed(bundle))
    count = attack.rounds(200, 20)
    answers(daemon, count)
    site.starts(attack.rounds(50, 2))
    for verb in (
        ["status"],
        ["top"],
        ["set", container, "--memory", "768Mi"],
        ["set", neighbour.container, "--memory", "2Gi"],
    ):
        done = subprocess.run(
            [*site.node.vgpuctl_command(), *verb], env=site.node.environment(), capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    answers(daemon, 3)
    site.runtime.delete(container)
    daemon.rounds(1)
    attack.held(count, "vgpud answers within 20 s, no start waits")


@pytest.fixture(scope="module")
def hasty_hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook, whose gate gives up a start that makes no progress for HASTY seconds."""
    built = tmp_path_factory.mktemp("gate")
    options = [f"-DVGPU_HOOK_SECONDS={HASTY}"]
    subprocess.run(["cmake", "-S", CHECKOUT / "hook/gate", "-B", built, *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", built], check=True, capture_output=True)
    return built / "bin/vgpu-hook"


WAITS = [("fanotify", "inode"), ("fuse", "lookup"), ("fuse", "open")]


@pytest.mark.parametrize(("way", "kind"), WAITS, ids=["-".join(words) for words in WAITS])
@attack("a volume of a start that never answers (fanotify, FUSE), where the hook looks", "strong tenant: CAP_SYS_ADMIN")
def test_a_volume_that_never_answers(
    site: Site, neighbour: Neighbour, hasty_hook: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    way: str, kind: str,
) -> None:  # fmt: skip
    """The start is refused by one line, what else needs the hook ends, and other containers start meanwhile."""
    monkeypatch.setattr(site.node, "hook", hasty_hook)
    volume = tmp_path / "volume"
    volume.mkdir()
    places = ["/usr/local/lib", "/usr/local/cuda/lib64", "/etc", "/dev", "/usr/local/vgpu"]
    count = attack.rounds(20, 1)
    for number in range(count):
        for place in places if attack.full else places[:1]:
            share = site.bundle().bind(volume, place)
            with site.process(way, kind, str(volume)):
                done = site.runtime.run(share)
                line = done.stderr.partition("vgpu-hook: ")[2]
                assert done.returncode == 0 or line.count("\\n") == 1, f"round {number}, {place}: {done.stderr}"
                assert "expected some progress" in line or place != places[0], "it was not in the hook's way"
                for verb in (["explain", str(share.path), "--hook", str(hasty_hook)], ["ps"], ["top"], ["doctor"]):
                    asked = subprocess.run(
                        [*site.node.vgpuctl_command(), *verb], env=site.node.environment(), capture_output=True,
                        timeout=60, check=False, text=True,
                    )  # fmt: skip
                    assert "Traceback" not in asked.stderr, asked.stderr
                site.starts(1)
            if way == "fuse":
                subprocess.run(["umount", "-l", volume], check=True)
            site.starts(1, cores="60", memory="10Gi")
    attack.held(count * (len(places) if attack.full else 1), "one line within the bound, no other start waits")


@attack("leases on the usage region, and other kinds of files in its place", "tenant, uid 0")
def test_odd_usage_regions(site: Site, neighbour: Neighbour, daemon: daemons.Daemon, attack: Attack) -> None:
    """vgpud answers, vgpuctl ends, and the container's figures are whatever they are."""
    place = f"{USAGE}/usage"
    kinds = {
        "a write lease": f"exec tenant lease write {place}",
        "a read lease": f"exec tenant lease read {place}",
        "a fifo": f"rm {place}; busybox mkfifo {place}; echo ready; exec sleep 600",
        "a device": f"rm {place}; busybox mknod {place} c 1 5; echo ready; exec sleep 600",
        "a directory": f"rm {place}; busybox mkdir {place}; echo ready; exec sleep 600",
        "a link to a process of the host": f"rm {place}; busybox ln -s /proc/1/mem {place}; echo ready; exec sleep 600",
        "a link to itself": f"rm {place}; busybox ln -s usage {place}; echo ready; exec sleep 600",
        "no bytes": f"echo -n > {place}; echo ready; exec sleep 600",
        "garbage": f"busybox head -c 2000000 /dev/urandom > {place}; echo ready; exec sleep 600",
    }
    count = attack.rounds(20, 1)
    for _ in range(count):
        for what, script in kinds.items():
            bundle = site.bundle(cores="5", memory="256Mi")
            container = site.start(bundle, "sh", "-c", script)
            daemons.wait_for(lambda bundle=bundle: "ready" in site.printed(bundle), what=what)
            answers(daemon, 5)
            assert site.node.vgpuctl("status", check=False).returncode == 0, what
            site.starts(1, cores="5", memory="256Mi")
            site.runtime.delete(container)
    answers(daemon, 1)
    attack.held(count * len(kinds), "vgpud answers within 20 s, no start waits")


@attack("SIGSTOP of vgpud", "strong tenant: hostPID")
def test_starts_do_not_need_vgpud(site: Site, neighbour: Neighbour, daemon: daemons.Daemon, attack: Attack) -> None:
    """Such a tenant can stop every process of root. The hook asks nobody, so starts and ends go on."""
    container = site.attacker("stop", str(daemon.pid), host_pids=True)
    daemons.wait_for(lambda: "T (stopped)" in Path(f"/proc/{daemon.pid}/status").read_text())
    count = attack.rounds(200, 3)
    site.starts(count)
    site.runtime.delete(container)
    os.kill(daemon.pid, signal.SIGCONT)
    answers(daemon, 1)
    attack.held(count, "every start succeeds")


@attack("ptrace of vgpud and of init by a container without CAP_SYS_PTRACE", "tenant with hostPID")
def test_no_process_of_the_host_is_traced(
    site: Site, neighbour: Neighbour, daemon: daemons.Daemon, attack: Attack
) -> None:
    bundle = site.bundle()
    namespaces = bundle.config["linux"]["namespaces"]
    bundle.config["linux"]["namespaces"] = [item for item in namespaces if item["type"] != "pid"]
    pids = ["1", str(daemon.pid), str(neighbour.pid)]
    count = attack.rounds(200, 2)
    for _ in range(count):
        done = site.runtime.run(bundle.command("tenant", "trace", *pids))
        assert "attached" not in done.stdout.replace(f"{neighbour.pid} attached", ""), done.stdout
    answers(daemon, 1)
    attack.held(count, "the kernel refuses: they have more capabilities")


@attack("a new process with the pid of a dead container's init", "tenant")
def test_a_reused_pid_holds_nothing(site: Site, neighbour: Neighbour, attack: Attack) -> None:
    """The dead container's poststop never came. Its claim counts for nobody, though a process has its pid."""
    count = attack.rounds(200, 3)
    for _ in range(count):
        container = site.start(site.bundle(cores="60", memory="10Gi"), "sleep", "600")
        pid, directory = site.pid(container), Path(paths.container(site.node.settings.run_dir, container))
        kept = {path.name: (path.read_bytes(), path.stat().st_mode) for path in directory.iterdir()}
        site.runtime.delete(container)
        directory.mkdir(mode=0o700, exist_ok=True)
        for name, (data, mode) in kept.items():  # as if no poststop had come
            (directory / name).write_bytes(data)
            (directory / name).chmod(mode & 0o777)
        child = clone_with_pid(pid)
        try:
            site.starts(1, cores="60", memory="10Gi")
            claim = claims.read(site.node.settings.run_dir, container)
            assert claim.pid == pid
            status = json.loads(site.node.vgpuctl("status", "--output", "json").stdout)
            states = [row["state"] for row in status["containers"] if row["container"] == container]
            assert set(states) <= {"stopped"}
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            shutil.rmtree(directory)
    attack.held(count, "the card is free for others")


def clone_with_pid(pid: int) -> int:
    """A child of this process with this pid, which sleeps."""
    chosen = (ctypes.c_int * 1)(pid)
    words = [0] * 11
    words[4], words[8], words[9] = signal.SIGCHLD, ctypes.addressof(chosen), 1  # exit_signal, set_tid, set_tid_size
    arguments = (ctypes.c_uint64 * 11)(*words)
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(100):
        made = int(libc.syscall(SYS_clone3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
        if made == 0:
            os.execv("/bin/sleep", ["sleep", "600"])
        if made > 0:
            return made
        time.sleep(0.02)  # the pid is not free yet
    raise OSError(ctypes.get_errno(), "clone3")


GARBAGE = {
    "silent": Behaviour(silent_at="auth"),
    "silent later": Behaviour(silent_at="GetUnit"),
    "slow": Behaviour(pause=0.05),
    "no greeting": Behaviour(greeting=b"\0" * 4096),
    "endless greeting": Behaviour(greeting=b"OK " + b"0" * (1 << 20)),
    "a length of four gigabytes": Behaviour(raw_at={"GetUnit": b"l\2\1\1\xff\xff\xff\xff\1\0\0\0\xff\xff\xff\xff"}),
    "fields beyond the end": Behaviour(raw_at={"GetUnit": b"l\2\1\1\0\0\0\0\1\0\0\0\xf0\xff\0\0" + b"\xff" * 64}),
    "deep nesting": Behaviour(
        raw_at={"GetUnit": b"l\2\1\1\x08\0\0\0\1\0\0\0\x48\0\0\0\x08\1g\0\x40" + b"(" * 64 + b"\0" * 16}
    ),
    "an array without an end": Behaviour(
        raw_at={"Get DevicePolicy": reply(2, "v", (("a(tt)", ((1, 2),)),)).replace(b"a(tt)", b"a(())")}
    ),
    "another byte order": Behaviour(raw_at={"GetUnit": b"B\2\1\1" + b"\0" * 12}),
    "half an answer": Behaviour(raw_at={"GetUnit": b"l\2\1\1"}),
    "an error of many lines": Behaviour(error_at={"Get DevicePolicy": ("a.b\nc", "d\n\x1b[2J" * 10_000)}),
    "a version of other digits": Behaviour(version="\u00b2"),
    "many signals": Behaviour(signals=200),
    "it forgets": Behaviour(forgets=True),
}


@attack("a system bus that is silent, slow, or sends garbage of every length", "whoever answers as systemd")
def test_a_hostile_bus(tmp_path: Path, attack: Attack) -> None:
    """The hook ends in bounded time with one line; it never believes a list that was not read back."""
    count = attack.rounds(50, 1)
    for _ in range(count):
        for name, behaviour in GARBAGE.items():
            run = tmp_path / name.replace(" ", "-")
            with FakeSystemd({"a.scope": Unit(allow=[("/dev/char/1:3", "rwm")])}, behaviour).listening(
                run / "systemd/private"
            ):
                began = time.monotonic()
                try:
                    access = systemd.allow("a.scope", ((195, 0),), "rw", {}, str(run), 0.3)
                    assert name in ("slow", "many signals", "a version of other digits") or not access.listed, name
                except VgpuError as error:
                    assert "\n" not in str(error)
                assert time.monotonic() - began < 60, name
            shutil.rmtree(run)
    attack.held(count * len(GARBAGE), "one line in bounded time")


@attack("clients of vgpud's socket without root, and requests that are cut, huge or never end", "any user of the host")
def test_hostile_clients_of_vgpud(site: Site, neighbour: Neighbour, daemon: daemons.Daemon, attack: Attack) -> None:
    path = paths.vgpud_socket(site.node.settings.run_dir)
    assert os.stat(path).st_mode & 0o077 == 0
    user = [sys.executable, "-c", f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"]
    denied = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", *user], capture_output=True, check=False)
    assert denied.returncode != 0
    count = attack.rounds(200, 5)
    held = []
    for number in range(count):
        for data in (b"", b"{", b"[" * 100_000, b"\xff" * 4096, b'{"ask": 1}\n', b'{"ask": "' + b"x" * 10_000_000):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.settimeout(5)
            try:
                client.connect(path)
                client.sendall(data)
            except OSError:
                pass
            held.append(client)
        if number % 5 == 4:
            answers(daemon, 1)
            while held:
                held.pop().close()
    while held:
        held.pop().close()
    answers(daemon, 1)
    attack.held(6 * count, "vgpud answers others")
