"""The client of vgpud's socket: one request, one answer. vgpuctl and the doctor use it.

Belongs here: the client's side, with limits of time and size. Does not belong here: the server's side
(vgpu.node.daemon.server), and what the answers contain (vgpu.node.daemon.main).
"""

from __future__ import annotations

import socket

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.node.service import installation

TIMEOUT = 3.0
MAX_ANSWER = 32 << 20


def ask(run_dir: str, what: str, timeout: float = TIMEOUT) -> dict[str, object]:
    """vgpud's answer to the request `what`; VgpuError if vgpud does not run, does not answer in time or refuses."""
    path = paths.vgpud_socket(run_dir)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall((records.encode({"ask": what}) + "\n").encode("ascii"))
            answer = records.decode_object(_line(connection), path)
    except PermissionError as error:
        raise VgpuError(path, expected="to ask vgpud", found=error.strerror, do="run as root") from error
    except OSError as error:
        do = f"{installation.start_vgpud()}; containers start and run without it"
        found = "no answer in time" if isinstance(error, socket.timeout) else error.strerror or str(error)
        raise VgpuError("vgpud", expected=f"an answer at {path}", found=found, do=do) from error
    if "error" in answer:
        raise VgpuError("vgpud", found=answer["error"])
    return answer


def _line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        data = connection.recv(1 << 16)
        received += data
        if not data or len(received) > MAX_ANSWER:
            break
    return bytes(received)
