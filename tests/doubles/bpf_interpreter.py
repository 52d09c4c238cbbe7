"""An interpreter of device programs' byte code, for the instructions that such programs use and no others.

Registers are 64 bits wide. A 32 bit operation clears the upper half; an immediate of a 64 bit operation is
sign-extended (Linux, Documentation/bpf/standardization/instruction-set.rst). Programs that the kernel's verifier
refuses raise VerifierError: they read an unset register or outside the context, jump backwards or out of the program,
or run past its end.
"""

from __future__ import annotations

import functools
import struct
import sys

_TYPES = {"b": 1, "c": 2}
_ACCESS = {"m": 1, "r": 2, "w": 4}
_WORD = (1 << 64) - 1
_HALF = (1 << 32) - 1


class VerifierError(Exception):
    pass


@functools.lru_cache(64)
def decode(code: bytes) -> list[tuple[int, int, int, int, int]]:
    """(opcode, dst, src, offset, immediate) of each instruction."""
    insns = []
    for opcode, registers, offset, immediate in struct.iter_unpack("=BBhi", code):
        low, high = registers & 15, registers >> 4
        dst, src = (low, high) if sys.byteorder == "little" else (high, low)
        insns.append((opcode, dst, src, offset, immediate))
    return insns


def permits(code: bytes, kind: str, major: int, minor: int, access: str) -> bool:
    """The program's answer to a request. Major and minor are unsigned 32 bits, as the kernel passes them."""
    mask = sum(_ACCESS[letter] for letter in access)
    return run(decode(code), struct.pack("=III", mask << 16 | _TYPES[kind], major, minor)) == 1


def run(insns: list[tuple[int, int, int, int, int]], context: bytes) -> int:
    registers: dict[int, int] = {1: 0}
    pointer, at = True, 0  # whether r1 is still the context
    while at < len(insns):
        opcode, dst, src, offset, immediate = insns[at]
        at += 1
        if opcode == 0x95:  # exit
            return _get(registers, 0)
        if opcode == 0x61:  # ldx u32
            if not (src == 1 and pointer and 0 <= offset <= len(context) - 4 and offset % 4 == 0):
                raise VerifierError(f"load at {at - 1}")
            registers[dst] = int(struct.unpack_from("=I", context, offset)[0])
        elif opcode in (0x54, 0x74, 0xB4, 0xBC):  # 32 bit and, rsh, mov immediate, mov register
            operand = _get(registers, src) if opcode == 0xBC else immediate
            value = {0x54: lambda a, b: a & b, 0x74: lambda a, b: (a & _HALF) >> b}.get(opcode, lambda a, b: b)
            old = _get(registers, dst) if opcode in (0x54, 0x74) else 0
            registers[dst] = value(old, operand & _HALF) & _HALF
        elif opcode == 0xB7:  # 64 bit mov immediate
            registers[dst] = immediate & _WORD
        elif opcode in (0x55, 0x5D):  # jne immediate, jne register
            operand = immediate & _WORD if opcode == 0x55 else _get(registers, src)
            if offset < 0 or at + offset >= len(insns):
                raise VerifierError(f"jump at {at - 1}")
            at += offset if _get(registers, dst) != operand else 0
        else:
            raise VerifierError(f"opcode {opcode:#x} at {at - 1}")
        pointer = pointer and not (dst == 1 and opcode not in (0x55, 0x5D))
    raise VerifierError("the end is passed")


def _get(registers: dict[int, int], number: int) -> int:
    if number not in registers:
        raise VerifierError(f"r{number} is read before it is set")
    return registers[number]
