"""The parts of opening a device cgroup that need no kernel: the plan's line and the candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import allow, bpf_program, cgroup_v2
from vgpu.hook.devices.rules import ANY, ContainerRules, Rule

DENY_ALL = Rule("a", ANY, ANY, "rwm", False)


def test_describe_is_one_line() -> None:
    operation = allow.AllowDevices(4711, ((195, 0), (195, 255)), "rw", ContainerRules([DENY_ALL]))
    assert operation.describe() == (
        "allow character devices 195:0, 195:255 (rw) in the device cgroup of process 4711"
    )  # fmt: skip


def test_the_known_programs_are_all_different() -> None:
    known = cgroup_v2.known_programs(ContainerRules([DENY_ALL]))
    names = ["runc", "crun", "runc without tun", "crun without tun", "crun with a blank rule"]
    assert [item.name for item in known] == names
    opened = [item.opened([Rule("c", 195, 0, "rw")]) for item in known]
    codes = {bpf_program.program(item.rules, item.mov) for item in known + opened}
    assert len(codes) == 10


def test_rules_that_runc_refuses_can_only_be_cruns() -> None:
    hole = [Rule("c", 195, ANY, "rwm"), Rule("c", 195, 0, "rw", False)]
    known = cgroup_v2.known_programs(ContainerRules([DENY_ALL, *hole]))
    assert [item.name for item in known] == ["crun", "crun without tun", "crun with a blank rule"]
    assert cgroup_v2.narrowest(ContainerRules([DENY_ALL, *hole])).name == "crun without tun"


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match="cannot be read"):
        allow.AllowDevices(1, ((195, 0),), "rw", ContainerRules([DENY_ALL])).execute(str(tmp_path))
