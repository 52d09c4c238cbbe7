"""The byte code of device programs for whole configurations of the runtimes, compared with the rules by running it."""

from __future__ import annotations

import random

import bpf_interpreter
import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import bpf_program, rules
from vgpu.hook.devices.rules import ANY, ContainerRules, Filter, Rule

ACCESSES = ("r", "w", "m", "rw", "rm", "wm", "rwm")
NUMBERS = (0, 1, 3, 5, 9, 195, 200, 229, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def same_on_the_grid(filter_: Filter, mov: int = bpf_program.MOV32_K) -> None:
    code = bpf_program.program(filter_, mov)
    numbers = sorted({*NUMBERS} | {n for rule in filter_.rules for n in (rule.major, rule.minor) if n != ANY})
    insns = bpf_interpreter.decode(code)
    assert len(insns) * 8 == len(code)
    for kind in "bc":
        for major in numbers:
            for minor in numbers:
                for access in ACCESSES:
                    expected = filter_.permits(kind, major, minor, access)
                    request = (kind, major, minor, access)
                    assert bpf_interpreter.permits(code, *request) is expected, request


def test_the_defaults_of_the_runtimes() -> None:
    container_rules = ContainerRules([Rule("a", ANY, ANY, "rwm", False)])
    opening = rules.opening([(195, 0), (195, 255), (10, 229)], "rw")
    for filter_ in (rules.runc(container_rules), rules.runc(container_rules).opened(opening)):
        same_on_the_grid(filter_)
    for filter_ in (rules.crun(container_rules), rules.crun(container_rules).opened(opening)):
        same_on_the_grid(filter_, bpf_program.MOV64_K)


@pytest.mark.parametrize("seed", range(30))
def test_any_rules(seed: int) -> None:
    chance = random.Random(seed)
    items = [
        Rule(
            chance.choice("abc"), chance.choice((ANY, *NUMBERS[:-2])), chance.choice((ANY, *NUMBERS[:-2])),
            chance.choice((*ACCESSES, "")), chance.random() < 0.6,
        )
        for _ in range(chance.randrange(12))
    ]  # fmt: skip
    same_on_the_grid(Filter(items, chance.random() < 0.3), chance.choice((bpf_program.MOV32_K, bpf_program.MOV64_K)))


@pytest.mark.parametrize("seed", range(10))
def test_any_config_opened_is_the_config_and_the_devices(seed: int) -> None:
    chance = random.Random(seed)
    items = [Rule("a", ANY, ANY, "rwm", chance.random() < 0.3)]
    for _ in range(chance.randrange(8)):
        items.append(Rule(chance.choice("bc"), chance.choice(NUMBERS[:6]), chance.choice(NUMBERS[:6]),
                          chance.choice(ACCESSES), chance.random() < 0.7))  # fmt: skip
    container_rules = ContainerRules(items)
    for base in (rules.crun(container_rules), *_runc(container_rules)):
        opened = base.opened(rules.opening([(195, 0)], "rw"))
        code, old = bpf_program.program(opened), bpf_program.program(base)
        for kind in "bc":
            for major in NUMBERS:
                for minor in NUMBERS:
                    for access in ACCESSES:
                        ours = (kind, major, minor) == ("c", 195, 0) and "m" not in access
                        expected = ours or bpf_interpreter.permits(old, kind, major, minor, access)
                        assert bpf_interpreter.permits(code, kind, major, minor, access) is expected


def _runc(container_rules: ContainerRules) -> list[Filter]:
    try:
        return [rules.runc(container_rules)]
    except VgpuError:  # a hole in the defaults' wildcards
        return []
