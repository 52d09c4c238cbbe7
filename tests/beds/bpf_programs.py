"""The BPF programs that the kernel holds. Tests count those that vgpu leaves behind. Needs root."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator

from vgpu.hook.linux import bpf
from vgpu.hook.linux.syscalls import syscall

BPF_PROG_GET_NEXT_ID = 11


def ids() -> Iterator[int]:
    """The ids of all programs, in ascending order."""
    attr = bpf.bpf_attr()
    while True:
        try:
            syscall("bpf", bpf.SYS_bpf, BPF_PROG_GET_NEXT_ID, ctypes.byref(attr), ctypes.sizeof(attr))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        attr.id.id = attr.id.next_id
        yield int(attr.id.next_id)
