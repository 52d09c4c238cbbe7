"""`vgpuctl top` on a real terminal: its keys, its end, and its screen in tmux."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ctl_node import GIB, Node
from daemons import wait_for

from vgpu.config.request import Request

PATIENCE = 60.0  #: seconds for a screen on a busy machine
PROGRAM = "from vgpu.node.ctl.main import main; main()"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path, "top")
    made.hold("f" * 64, Request(1, 30, 2 * GIB, 50), name="lab/train-0/main")
    return made


def command(node: Node) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "--config", str(node.config), "top"]


def environment() -> dict[str, str]:
    left_out = ("COLUMNS", "LINES", "NO_COLOR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "PYTHONUTF8": "1"}


class Terminal:
    """`vgpuctl top` on a terminal of 80 columns."""

    def __init__(self, node: Node) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process = subprocess.Popen(command(node), env=environment(), start_new_session=True, **ends)
        self.text = ""

    def wait_for(self, word: str) -> None:
        end = time.monotonic() + PATIENCE
        while word not in self.text:
            assert time.monotonic() < end, (word, self.text)
            if select.select([self.master], [], [], 0.2)[0]:
                self.text += os.read(self.master, 1 << 16).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(node: Node) -> Iterator[Terminal]:
    made = Terminal(node)
    yield made
    made.close()


def test_keys_sort_and_q_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.wait_for("sorted by cores")
    assert "lab/train-0/main" in terminal.text
    os.write(terminal.master, b"n")
    terminal.wait_for("sorted by name")
    os.write(terminal.master, b"q")
    terminal.wait_for("\x1b[?1049l")
    assert terminal.process.wait(PATIENCE) == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert "Traceback" not in terminal.text


def test_sigterm_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.wait_for("sorted by cores")
    terminal.process.terminate()
    terminal.wait_for("\x1b[?1049l")
    terminal.process.wait(PATIENCE)
    assert termios.tcgetattr(terminal.slave) == terminal.before


class Tmux:
    """A tmux server of its own, with one session in which `vgpuctl top` runs."""

    def __init__(self, node: Node, columns: int) -> None:
        self.socket = str(node.path / "tmux")
        program = shlex.join(command(node))
        self.call("new-session", "-d", "-x", str(columns), "-y", "30", f"{program}; sleep 1000")

    def call(self, *words: str) -> str:
        run = ["tmux", "-u", "-S", self.socket, "-f", "/dev/null", *words]
        return subprocess.run(run, env=environment(), capture_output=True, text=True, check=True).stdout

    def screen_with(self, what: Callable[[str], bool]) -> str:
        return str(wait_for(lambda: what(screen := self.call("capture-pane", "-p")) and screen))


@pytest.mark.long
@pytest.mark.parametrize("columns", [80, 200])
def test_the_screen_in_tmux(node: Node, columns: int) -> None:
    tmux = Tmux(node, columns)
    try:
        screen = tmux.screen_with(lambda text: "sorted by cores" in text)
        (line,) = (line for line in screen.splitlines() if "lab/train-0/main" in line)
        assert "░" in line
        assert "of 2 GiB" in line
        assert ("running" in line) == (columns == 200)
        assert max(map(len, screen.splitlines())) <= columns
        tmux.call("send-keys", "m")
        tmux.screen_with(lambda text: "sorted by memory" in text)
        tmux.call("send-keys", "q")
        tmux.screen_with(lambda text: "sorted by" not in text)
    finally:
        tmux.call("kill-server")
