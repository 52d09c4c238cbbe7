"""The byte code of device programs, executed and compared with a direct evaluation of the rules."""

from __future__ import annotations

import bpf_interpreter
import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import bpf_program
from vgpu.hook.devices.rules import Filter, Rule


def test_the_largest_program_and_one_rule_more() -> None:
    rule = Rule("c", 195, 0, "rw")  # 8 instructions, beside 6 of the prologue and 2 of the end
    fits = (bpf_program.MAX_INSNS - 8) // 8
    assert len(bpf_program.program(Filter([rule] * fits, False))) == bpf_program.MAX_INSNS * 8
    with pytest.raises(VgpuError, match=r"at most 4096 BPF instructions.*512 rules, 4104 instructions; use wildcards"):
        bpf_program.program(Filter([rule] * (fits + 1), False))


@pytest.mark.parametrize(
    "insns",
    [
        [],
        [bpf_program.insn(bpf_program.EXIT)],
        [bpf_program.insn(bpf_program.MOV32_K, 0, imm=1)],
        [bpf_program.insn(bpf_program.JNE_K, 1, off=5)],
        [bpf_program.insn(bpf_program.LDX_W, 2, 1, 12)],
        [bpf_program.insn(0x07, 0)],
    ],
)
def test_the_interpreter_refuses_what_the_verifier_refuses(insns: list[bytes]) -> None:
    with pytest.raises(bpf_interpreter.VerifierError):
        bpf_interpreter.permits(b"".join(insns), "c", 1, 3, "r")
