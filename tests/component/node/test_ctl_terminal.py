"""A table on a real terminal, and the same table in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

ID = "0123456789ab" + "c" * 52
CODE = (
    "from vgpu.node.ctl.output import Id, Time, print_table; "
    f"print_table([[Id({ID!r}), 'namespace/pod/container', 'text ' * 20, Time(1)]], ('container', 'name', 'x', 'at'))"
)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path)}


def on_terminal(columns: int) -> str:
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        subprocess.run(
            [sys.executable, "-c", CODE], stdin=slave, stdout=slave, stderr=slave, env=environment(), check=True
        )
        return os.read(master, 1 << 16).decode()
    finally:
        os.close(master)
        os.close(slave)


def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe() -> None:
    text = on_terminal(70)
    assert max(map(len, text.splitlines())) <= 70
    assert ID[:12] in text
    assert ID not in text
    done = subprocess.run([sys.executable, "-c", CODE], env=environment(), capture_output=True, text=True, check=True)
    assert ID in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 150
