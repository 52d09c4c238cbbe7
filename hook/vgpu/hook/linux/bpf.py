"""bpf(2) as far as device programs need it: constants, structures and calls as in linux/bpf.h.

Belongs here: the structures of bpf(2). Not here: those of mounts and namespaces (syscalls), or any policy. Errors are
OSError whose text is the call. Every descriptor that the kernel returns here is close-on-exec already.
"""

from __future__ import annotations

import errno
import os
import resource

from vgpu.hook.linux import libc
from vgpu.hook.linux.syscalls import syscall

BPF_PROG_LOAD = 5
BPF_OBJ_PIN = 6
BPF_OBJ_GET = 7
BPF_PROG_ATTACH = 8
BPF_PROG_DETACH = 9
BPF_PROG_GET_FD_BY_ID = 13
BPF_OBJ_GET_INFO_BY_FD = 15
BPF_PROG_QUERY = 16

BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
BPF_F_ALLOW_MULTI = 1 << 1
BPF_F_REPLACE = 1 << 2  # Linux 5.6
BPF_F_QUERY_EFFECTIVE = 1 << 0

MAX_PROGRAMS = 64  # BPF_CGROUP_MAX_PROGS, of one cgroup; effective programs add up over the ancestors

_NAMES = {
    BPF_PROG_LOAD: "BPF_PROG_LOAD",
    BPF_OBJ_PIN: "BPF_OBJ_PIN",
    BPF_OBJ_GET: "BPF_OBJ_GET",
    BPF_PROG_ATTACH: "BPF_PROG_ATTACH",
    BPF_PROG_DETACH: "BPF_PROG_DETACH",
    BPF_PROG_GET_FD_BY_ID: "BPF_PROG_GET_FD_BY_ID",
    BPF_OBJ_GET_INFO_BY_FD: "BPF_OBJ_GET_INFO_BY_FD",
    BPF_PROG_QUERY: "BPF_PROG_QUERY",
}
#: 280 in asm-generic (arm64, riscv64, loongarch64), and the architectures with numbers of their own.
SYS_bpf = {"x86_64": 321, "i686": 357, "ppc64le": 361, "s390x": 351, "armv7l": 386}.get(os.uname().machine, 280)

_u32, _u64 = libc.c_uint32, libc.c_uint64


class _Load(libc.Structure):
    _fields_ = (
        ("prog_type", _u32), ("insn_cnt", _u32), ("insns", _u64), ("license", _u64), ("log_level", _u32),
        ("log_size", _u32), ("log_buf", _u64), ("kern_version", _u32), ("prog_flags", _u32),
        ("prog_name", libc.c_char * 16),
    )  # fmt: skip


class _Attach(libc.Structure):
    _fields_ = (
        ("target_fd", _u32), ("attach_bpf_fd", _u32), ("attach_type", _u32), ("attach_flags", _u32),
        ("replace_bpf_fd", _u32),
    )  # fmt: skip


class _Query(libc.Structure):
    _fields_ = (
        ("target_fd", _u32), ("attach_type", _u32), ("query_flags", _u32), ("attach_flags", _u32), ("prog_ids", _u64),
        ("prog_cnt", _u32),
    )  # fmt: skip


class _Id(libc.Structure):
    _fields_ = (("id", _u32), ("next_id", _u32), ("open_flags", _u32))


class _Object(libc.Structure):
    _fields_ = (("pathname", _u64), ("bpf_fd", _u32), ("file_flags", _u32))


class _Info(libc.Structure):
    _fields_ = (("bpf_fd", _u32), ("info_len", _u32), ("info", _u64))


class bpf_attr(libc.Union):
    """Longer than in any kernel; the rest is zero. Linux 6.17 to 7.1 write past a shorter one in BPF_PROG_QUERY."""

    _fields_ = (
        ("load", _Load), ("attach", _Attach), ("query", _Query), ("id", _Id), ("info", _Info),
        ("object", _Object), ("size", libc.c_uint8 * 256),
    )  # fmt: skip


class bpf_prog_info(libc.Structure):
    """As of Linux 4.15. The kernel fills in as much as there is room for."""

    _fields_ = (
        ("type", _u32), ("id", _u32), ("tag", libc.c_uint8 * 8), ("jited_prog_len", _u32),
        ("xlated_prog_len", _u32), ("jited_prog_insns", _u64), ("xlated_prog_insns", _u64), ("load_time", _u64),
        ("created_by_uid", _u32), ("nr_map_ids", _u32), ("map_ids", _u64), ("name", libc.c_char * 16),
    )  # fmt: skip


def _bpf(command: int, attr: bpf_attr) -> int:
    try:
        return syscall("bpf", SYS_bpf, command, libc.byref(attr), libc.sizeof(attr))
    except OSError as error:
        number = error.errno or 0
        raise OSError(number, f"bpf({_NAMES[command]}, ...): {os.strerror(number)}") from None


def prog_load(insns: bytes, name: str) -> int:
    """An fd of a new device program. Linux 4.15."""
    code = libc.buffer(insns)
    license_ = libc.buffer(b"Apache-2.0\0")
    attr = bpf_attr()
    attr.load.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE
    attr.load.insn_cnt = len(insns) // 8
    attr.load.insns = libc.addressof(code)
    attr.load.license = libc.addressof(license_)
    attr.load.prog_name = name.encode("ascii")
    try:
        return _bpf(BPF_PROG_LOAD, attr)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    _raise_memlock()
    return _bpf(BPF_PROG_LOAD, attr)


def _raise_memlock() -> None:
    """Before Linux 5.11 programs count against RLIMIT_MEMLOCK; over the limit bpf(2) fails with EPERM."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError:  # no CAP_SYS_RESOURCE
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def prog_query(cgroup_fd: int, query_flags: int = 0) -> tuple[list[int], int]:
    """(ids of the device programs of a cgroup, the flags with which they were attached)."""
    room = MAX_PROGRAMS
    while True:
        ids = (_u32 * room)()
        attr = bpf_attr()
        attr.query.target_fd = cgroup_fd
        attr.query.attach_type = BPF_CGROUP_DEVICE
        attr.query.query_flags = query_flags
        attr.query.prog_ids = libc.addressof(ids)
        attr.query.prog_cnt = room
        try:
            _bpf(BPF_PROG_QUERY, attr)
        except OSError as error:
            if error.errno != errno.ENOSPC or room >= MAX_PROGRAMS * 64:
                raise
            room *= 8
            continue
        return list(ids[: attr.query.prog_cnt]), int(attr.query.attach_flags)


def prog_attach(cgroup_fd: int, prog_fd: int, attach_flags: int, replace_fd: int = 0) -> None:
    """With BPF_F_REPLACE the program replaces `replace_fd` in one step; EINVAL before Linux 5.6."""
    attr = bpf_attr()
    attr.attach.target_fd = cgroup_fd
    attr.attach.attach_bpf_fd = prog_fd
    attr.attach.attach_type = BPF_CGROUP_DEVICE
    attr.attach.attach_flags = attach_flags
    attr.attach.replace_bpf_fd = replace_fd
    _bpf(BPF_PROG_ATTACH, attr)


def prog_detach(cgroup_fd: int, prog_fd: int) -> None:
    attr = bpf_attr()
    attr.attach.target_fd = cgroup_fd
    attr.attach.attach_bpf_fd = prog_fd
    attr.attach.attach_type = BPF_CGROUP_DEVICE
    _bpf(BPF_PROG_DETACH, attr)


def prog_get_fd_by_id(prog_id: int) -> int:
    attr = bpf_attr()
    attr.id.id = prog_id
    return _bpf(BPF_PROG_GET_FD_BY_ID, attr)


def prog_info(prog_fd: int) -> bpf_prog_info:
    """Id, name and tag. The tag is a digest of the instructions as they were loaded."""
    info = bpf_prog_info()
    attr = bpf_attr()
    attr.info.bpf_fd = prog_fd
    attr.info.info_len = libc.sizeof(info)
    attr.info.info = libc.addressof(info)
    _bpf(BPF_OBJ_GET_INFO_BY_FD, attr)
    return info


def obj_get(path: str) -> int:
    """An fd of the object that is pinned at `path` in a bpf file system."""
    name = libc.buffer(os.fsencode(path) + b"\0")
    attr = bpf_attr()
    attr.object.pathname = libc.addressof(name)
    return _bpf(BPF_OBJ_GET, attr)


def obj_pin(path: str, fd: int) -> None:
    """Pin `fd` at `path`, which must not exist; a name with a dot is EPERM."""
    name = libc.buffer(os.fsencode(path) + b"\0")
    attr = bpf_attr()
    attr.object.pathname = libc.addressof(name)
    attr.object.bpf_fd = fd
    _bpf(BPF_OBJ_PIN, attr)
