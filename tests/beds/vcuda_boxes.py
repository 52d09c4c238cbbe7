"""Boxes for libvcuda's tests. A program in one finds libvcuda as libcuda.so.1, and its private files at their paths.

A box is a private mount namespace that a process keeps open, with a directory of the test bound to /usr/local/vgpu. The
host's tree does not change. Programs run in it with libvcuda's build directory as LD_LIBRARY_PATH, and the test sends
them commands line by line. Needs root for the namespace, gcc, and the build (VGPU_BUILD, default build/).
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import pytest
from checkout import BUILD, CHECKOUT, COMPILER, EMULATOR

from vgpu.config import limits, usage

SOURCES = CHECKOUT / "tests/data/cuda"
INCLUDE = CHECKOUT / "libvcuda/include"
AWKWARD_UUID = limits.uuid_text(b"awkward-instance")
#: A sanitizer's runtime that all programs preload when libvcuda was built with it: test_sanitizers.py.
SANITIZER = os.environ.get("VGPU_SANITIZER", "")
COMPLAINTS = ("Sanitizer", "runtime error:")
PATIENCE = 300.0  #: seconds after which a client counts as stuck, on a busy machine too
NVML = "libnvidia-ml.so.1"
SLOTS_OFFSET = usage.HEADER.size + limits.MAX_CARDS * usage.CARD.size
PIDS = ("--pid", "--fork", "--kill-child", "--mount-proc")
NESTED = ("unshare", "--pid", "--fork", "--kill-child")
CONNECT = (
    "globals().update(peer=(lambda s:(s.{way}('\\0{name}'),s)[1])"
    "(__import__('socket').socket(__import__('socket').AF_UNIX,__import__('socket').SOCK_DGRAM)))"
)
PASSES = itertools.count()
# A /dev of its own: tmpfs in a private mount namespace, with the nodes that the arguments name.
IN_OWN_DEV = """
mount -t tmpfs none /dev && mkdir /dev/nvidia-caps && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9
for node in $NODES; do mknod /dev/${node%%=*} c $(echo ${node##*=} | tr : ' '); done
exec setpriv --bounding-set "${BOUNDING:--sys_admin}" "$@"
"""
OWN_DEV = ("unshare", "--mount", "sh", "-ec", IN_OWN_DEV, "sh")
ENTER = """
mount -t tmpfs none /usr/local && mkdir /usr/local/vgpu && mount --bind "$0" /usr/local/vgpu && echo in && exec cat
"""


def compile_c(output: Path, source: Path, *options: str) -> Path:
    command = [COMPILER, "-O1", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-o", str(output), str(source), *options]
    subprocess.run(command, check=True)
    return output


Compiled = Callable[..., Path]


class Client:
    """A running driver_client. `ask` sends one command and returns the words of its answer."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment, text=True
            )
        self.timer = threading.Timer(PATIENCE, self.process.kill)
        self.timer.start()

    def send(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> list[str]:
        assert self.process.stdout
        return self.process.stdout.readline().split()

    def ask(self, line: str) -> list[str]:
        self.send(line)
        return self.receive()

    def numbers(self, line: str) -> tuple[int, ...]:
        return tuple(int(word) for word in self.ask(line))

    def made(self, line: str) -> int:
        """The handle that a call returns, which has to succeed."""
        result, handle, *_ = self.numbers(line)
        assert result == 0
        return handle

    def does(self, line: str) -> None:
        """Make a call that has to succeed."""
        assert self.numbers(line)[0] == 0, line

    def left(self) -> int:
        """The free bytes by cuMemGetInfo."""
        result, available, _ = self.numbers("cuMemGetInfo_v2 & &")
        assert result == 0
        return available

    def alloc(self, size: int, how: str = "alloc") -> tuple[int, int]:
        """(CUresult, pointer)."""
        result, pointer, *_ = self.numbers(f"{how} {size}")
        return result, pointer

    def free_bytes(self) -> int:
        result, available, _ = self.numbers("info")
        assert result == 0
        return available

    def fills(self, step: int) -> int:
        """Allocate `step` bytes at a time until a call fails, by out-of-memory. Returns the bytes allocated."""
        granted = 0
        while (result := self.alloc(step)[0]) == 0:
            granted += step
        assert result == 2
        return granted

    def pass_file(self, receiver: Client, file: int) -> int:
        """Pass a descriptor from one caller to another, by a socket. Returns its number there."""
        name = f"vgpu-test-{os.getpid()}-{next(PASSES)}"
        receiver.ask(f"python {CONNECT.format(way='bind', name=name)}")
        self.ask(f"python {CONNECT.format(way='connect', name=name)}")
        self.ask(f"python __import__('socket').send_fds(globals()['peer'],[b'm'],[{file}])")
        return int(receiver.ask("python __import__('socket').recv_fds(globals()['peer'],1,1)[1][0]")[0])

    def close(self) -> int:
        self.timer.cancel()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        """SIGKILL: no destructor runs."""
        self.process.kill()
        self.close()


class Box:
    """A mount namespace like a container's. `path` is its /usr/local/vgpu. `start` runs a program in it."""

    libraries = BUILD / "lib/vcuda"

    def __init__(
        self, path: Path, driver: Path, program: Path, environment: dict[str, str], uuid: str, pids: bool = False
    ) -> None:
        self.path = path
        self.program = program
        self.uuid = uuid
        self.clients: list[Client] = []
        self.environment = {**environment, "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.libraries)}
        if SANITIZER:
            self.environment["LD_PRELOAD"] = SANITIZER
            self.environment["ASAN_OPTIONS"] = "detect_leaks=0"
        (path / "usage").mkdir(parents=True)
        for name in usage.SHARE_FILES:
            (path / "usage" / name).touch()
            (path / "usage" / name).chmod(0o666)
        shutil.copytree(driver, path / "driver")
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", *(PIDS if pids else ()), "sh", "-c", ENTER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout and self.holder.stdout.readline() == "in\n"
        self.namespaces = [f"--mount=/proc/{self.holder.pid}/ns/mnt"]
        if pids:
            init = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().strip()
            self.namespaces = [f"--mount=/proc/{init}/ns/mnt", f"--pid=/proc/{init}/ns/pid"]

    def ledger(self) -> tuple[int, int]:
        """(bytes held by all processes, the most that they held at once), by the awkward driver's ledger."""
        held, most = struct.unpack("=QQ", Path(self.environment["AWKWARD_LEDGER"]).read_bytes())
        return held, most

    def usage(self) -> tuple[int, int, int]:
        """(occupied slots, bytes attempted, bytes reserved) of card 0, from the usage region."""
        data = (self.path / "usage/usage").read_bytes()
        slots = data[SLOTS_OFFSET : usage.CHARGES_OFFSET]
        charges = data[usage.CHARGES_OFFSET :][: usage.SLOTS * usage.CHARGE.size]
        owners = [bool(slot[0]) for slot in usage.SLOT.iter_unpack(slots)]
        attempted, reserved = (sum(column) for column in zip(*usage.CHARGE.iter_unpack(charges)))
        return sum(owners), attempted, reserved

    @property
    def log(self) -> str:
        return (self.path / "log").read_text()

    def limit(self, memory: int, uuid: str = "") -> None:
        """Write the limits file, or change it in place if there is one."""
        cards = [limits.CardLimit(uuid or self.uuid, memory)]
        file = self.path / "limits"
        if file.exists():
            limits.update(str(file), "box", cards)
        else:
            file.write_bytes(limits.encode("box", cards))

    def command(self, *words: str) -> list[str]:
        return ["nsenter", *self.namespaces, *words]

    def _begin(self, how: str, level: str, library: str, *prefix: str) -> Client:
        environment = {**self.environment, "VGPU_LOG_LEVEL": level}
        client = Client(
            self.command(*prefix, *EMULATOR, str(self.program), how, library), environment, self.path / "log"
        )
        self.clients.append(client)
        return client

    def run(self, program: Path, *words: str) -> Client:
        """Another program, which answers lines too."""
        client = Client(self.command(*EMULATOR, str(program), *words), self.environment, self.path / "log")
        self.clients.append(client)
        return client

    def start(self, how: str = "local", level: str = "error", library: str = "libcuda.so.1") -> Client:
        client = self._begin(how, level, library)
        assert client.receive() == ["ready"], self.log
        return client

    def nested(self) -> Client:
        """A client with a context on the device, in a PID namespace of its own below the box's."""
        client = self._begin("local", "error", "libcuda.so.1", *NESTED)
        for command, answer in ("", "ready"), ("init", "0"), ("open 0", "0 0"):
            if command:
                client.send(command)
            assert client.receive() == answer.split(), self.log
        return client

    def caller(self, device: int = 0, level: str = "error") -> Client:
        """The same with a context on the device."""
        return self.initialized(self.uninitialized(level), device)

    def initialized(self, client: Client, device: int) -> Client:
        assert client.numbers("cuInit 0") == (0,), self.log
        result, context = client.numbers(f"cuDevicePrimaryCtxRetain & {device}")
        assert (result, client.numbers(f"cuCtxSetCurrent {context}")) == (0, (0,))
        return client

    def uninitialized(self, level: str = "error", nested: bool = False) -> Client:
        """A client for any call (tests/data/cuda/calls.py), `nested` in a PID namespace of its own below the box's."""
        environment = {**self.environment, "VGPU_LOG_LEVEL": level}
        command = self.command(*NESTED * nested, sys.executable, "-S", str(SOURCES / "calls.py"))
        client = Client(command, environment, self.path / "log")
        self.clients.append(client)
        assert client.receive() == ["ready"], self.log
        return client

    def opened(self, how: str = "local", level: str = "error", device: int = 0) -> Client:
        """A client with a context on the device."""
        client = self.start(how, level)
        assert client.ask("init") == ["0"], self.log
        assert client.ask(f"open {device}") == ["0", "0"]
        return client

    def close(self) -> None:
        for client in self.clients:
            if len(self.namespaces) == 1:
                client.kill()
            else:  # what nsenter started would be the host's, and the PID namespace waits for it
                client.close()
        assert self.holder.stdin and self.holder.stdout
        self.holder.stdin.close()
        self.holder.stdout.close()
        self.holder.wait(PATIENCE)
        if SANITIZER and (self.path / "log").exists():
            assert not any(complaint in self.log for complaint in COMPLAINTS), self.log


def load_simctl() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simctl", CHECKOUT / "libvcuda/sim/tools/simctl.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class SimBox(Box):
    """A box on the simulated driver, whose ledger has each process's memory."""

    simctl: ModuleType

    def cards(self) -> list[dict[str, Any]]:
        return self.simctl.read_state(self.environment["VGPU_SIM_DIR"])["cards"]  # type: ignore[no-any-return]

    def forget_most_used(self) -> None:
        """Let the cards' most_used begin anew. No process may allocate meanwhile."""
        layout = self.simctl.layout
        with Path(self.environment["VGPU_SIM_DIR"], "cards").open("r+b") as file:
            for board in range(layout.MAX_CARDS):
                file.seek(
                    layout.File.boards.offset + board * ctypes.sizeof(layout.Board) + layout.Board.most_used.offset
                )
                file.write(bytes(8))

    @property
    def context(self) -> int:
        """Bytes that a process's context takes from card 0."""
        return int(self.cards()[0]["context_overhead"])

    def held(self, card: int = 0) -> int:
        """Bytes allocated by all processes, without their contexts."""
        return sum(process["allocated"] for process in self.cards()[card]["processes"])


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a private mount namespace")
