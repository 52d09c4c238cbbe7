"""Byte code of a BPF_PROG_TYPE_CGROUP_DEVICE program from a filter of device rules. Pure: rules in, bytes out.

Belongs here: the instructions and their bounds. Not here: the rules (rules) and the loading (cgroup_v2). The context is
struct bpf_cgroup_dev_ctx: u32 access_type (accesses << 16 | type), u32 major, u32 minor. The result is 1 to permit, 0
to refuse. The kernel runs the programs of a cgroup and of all its ancestors, and all of them have to permit.

For a runtime's own filter the bytes are the same as the runtime loads, so that the kernel computes the same tag for
both. That is how an attached program is recognised without a dump, which is useless under net.core.bpf_jit_harden.
"""

from __future__ import annotations

import struct
import sys

from vgpu.config.errors import VgpuError
from vgpu.hook.devices.rules import ANY, Filter, Rule

MAX_INSNS = 4096  # BPF_MAXINSNS; a million since Linux 5.2, which no list of device rules needs

BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR = 1, 2
_TYPES = {"b": BPF_DEVCG_DEV_BLOCK, "c": BPF_DEVCG_DEV_CHAR}
_ALL = 7

# linux/bpf_common.h, linux/bpf.h: class | operation | source
LDX_W = 0x61  # BPF_LDX | BPF_MEM | BPF_W
AND32_K = 0x54  # BPF_ALU | BPF_AND | BPF_K
RSH32_K = 0x74  # BPF_ALU | BPF_RSH | BPF_K
MOV32_X = 0xBC  # BPF_ALU | BPF_MOV | BPF_X
MOV32_K = 0xB4  # BPF_ALU | BPF_MOV | BPF_K
MOV64_K = 0xB7  # BPF_ALU64 | BPF_MOV | BPF_K
JNE_K = 0x55  # BPF_JMP | BPF_JNE | BPF_K
JNE_X = 0x5D  # BPF_JMP | BPF_JNE | BPF_X
EXIT = 0x95  # BPF_JMP | BPF_EXIT

_INSN = struct.Struct("=BBhi")  # struct bpf_insn; the two registers share a byte as bit fields
_TYPE, _ACCESS, _MAJOR, _MINOR, _SCRATCH = 2, 3, 4, 5, 1


def insn(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    registers = src << 4 | dst if sys.byteorder == "little" else dst << 4 | src
    return _INSN.pack(code, registers, off, imm)


_PROLOGUE = (
    insn(LDX_W, _TYPE, 1, 0),
    insn(AND32_K, _TYPE, imm=0xFFFF),
    insn(LDX_W, _ACCESS, 1, 0),
    insn(RSH32_K, _ACCESS, imm=16),
    insn(LDX_W, _MAJOR, 1, 4),
    insn(LDX_W, _MINOR, 1, 8),
)


def program(rules: Filter, mov: int = MOV32_K) -> bytes:
    """The byte code that decides like `rules`. `mov` is the instruction for the result: runc MOV32_K, crun MOV64_K."""
    parts = list(_PROLOGUE)
    for rule in rules.rules:
        parts += _block(rule, mov)
    parts += _result(rules.default, mov)
    if len(parts) > MAX_INSNS:
        raise VgpuError("device rules", expected=f"rules for at most {MAX_INSNS} BPF instructions",
                        found=f"{len(rules.rules)} rules, {len(parts)} instructions",
                        do="use wildcards in linux.resources.devices of the container's config.json")  # fmt: skip
    return b"".join(parts)


def _block(rule: Rule, mov: int) -> list[bytes]:
    """One rule. A test that fails jumps behind the block; after all tests comes the result."""
    tests = []
    if rule.type != "a":
        tests.append((JNE_K, _TYPE, 0, _TYPES[rule.type]))
    if rule.mask != _ALL:  # an access that the rule lacks: (access & mask) != access
        tests.append((MOV32_X, _SCRATCH, _ACCESS, 0))
        tests.append((AND32_K, _SCRATCH, 0, rule.mask))
        tests.append((JNE_X, _SCRATCH, _ACCESS, 0))
    if rule.major != ANY:
        tests.append((JNE_K, _MAJOR, 0, rule.major))
    if rule.minor != ANY:
        tests.append((JNE_K, _MINOR, 0, rule.minor))
    result = _result(rule.allow, mov)
    size = len(tests) + len(result)
    block = []
    for index, (code, dst, src, imm) in enumerate(tests):
        jump = size - index - 1 if code in (JNE_K, JNE_X) else 0
        block.append(insn(code, dst, src, jump, imm))
    return block + result


def _result(allow: bool, mov: int) -> list[bytes]:
    return [insn(mov, 0, imm=int(allow)), insn(EXIT)]
