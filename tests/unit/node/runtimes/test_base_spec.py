"""The base specification: what is taken over, where the hooks stand, and what is not written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import base_spec
from vgpu.node.runtimes.registration import Wish

SPEC = {"ociVersion": "1.0.2", "process": {"rlimits": [1]}, "root": {}, "mounts": [], "linux": {"seccomp": {"a": 1}}}
OTHER = {"path": "/usr/bin/other"}


def made(spec: dict[str, Any], wish: Wish, source: str = "ctr oci spec") -> dict[str, Any]:
    return json.loads(base_spec.make(json.dumps(spec), wish, source))  # type: ignore[no-any-return]


def test_containers_get_no_limits_that_they_had_not(wish: Wish) -> None:
    """containerd removes rlimits, AppArmor and seccomp of its own default, but not those of a base specification."""
    found = made(SPEC, wish)
    assert found["process"] == {}
    assert found["linux"] == {}
    assert made(SPEC, wish, "/etc/mine.json")["process"] == SPEC["process"], "an administrator's own stays"


def test_the_hook_is_last_before_the_start_and_first_at_the_end(wish: Wish) -> None:
    found = made({**SPEC, "hooks": {"createRuntime": [OTHER], "poststop": [OTHER]}}, wish)["hooks"]
    assert [hook["path"] for hook in found["createRuntime"]] == [OTHER["path"], wish.hook]
    assert [hook["path"] for hook in found["poststop"]] == [wish.hook, OTHER["path"]]
    assert base_spec.hook_programs({"hooks": found}) == [wish.hook]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ociVersion": 1}', json.dumps({**SPEC, "mounts": {}})])
def test_what_containerd_could_not_read_is_not_written(text: str, wish: Wish) -> None:
    with pytest.raises(VgpuError, match=r"^ctr oci spec: "):
        base_spec.make(text, wish, "ctr oci spec: it")


def test_a_program_that_is_missing_is_not_named(wish: Wish) -> None:
    with pytest.raises(VgpuError, match="expected a program, found /nowhere/vgpu-hook"):
        base_spec.make(json.dumps(SPEC), replace(wish, programs="/nowhere"), "ctr oci spec")


@pytest.mark.parametrize(("status", "output"), [(1, ""), (0, ""), (0, "\n")])
def test_an_empty_answer_of_ctr_is_an_error(status: int, output: str, fp: Any) -> None:
    fp.register(["ctr", "oci", "spec"], returncode=status, stdout=output, stderr="ctr: no")
    with pytest.raises(VgpuError, match="ctr oci spec: expected a specification"):
        base_spec.default()
