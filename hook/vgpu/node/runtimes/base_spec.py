"""The base runtime specification with vgpu's hooks, which containerd reads when it starts.

Belongs here: making it from what `ctr oci spec` prints, and checking it. containerd takes its CRI plugin down if the
file is empty or damaged, and kubelet is then without a runtime; so nothing names the file before it is checked.
"""

from __future__ import annotations

import json
import os
from typing import Any

from vgpu.config.errors import VgpuError, shown
from vgpu.node.runtimes import json_text, programs
from vgpu.node.runtimes.programs import MissingProgram
from vgpu.node.runtimes.registration import Wish

STAGES = ("createRuntime", "poststop")
ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
TIMEOUT = 60
#: The members that a specification for containers has, and their types.
MEMBERS = {"ociVersion": str, "process": dict, "root": dict, "mounts": list, "linux": dict, "hooks": dict}


def hook(wish: Wish, stage: str) -> dict[str, Any]:
    """The hook's entry in a list of hooks."""
    return {"path": wish.hook, "args": wish.hook_arguments(stage), "env": ENVIRONMENT, "timeout": TIMEOUT}


def make(base: str, wish: Wish, source: str) -> str:
    """The specification `base` with the hook: last of the hooks before the start, first of those at the end."""
    spec = json_text.parse(base, source)
    if source.startswith("ctr "):
        _like_without_base(spec)
    hooks = spec.setdefault("hooks", {})
    first, last = (hook(wish, stage) for stage in STAGES)
    hooks["createRuntime"] = [*hooks.get("createRuntime", []), first]
    hooks["poststop"] = [last, *hooks.get("poststop", [])]
    check(spec, source)
    return json.dumps(spec, indent=1) + "\n"


def _like_without_base(spec: dict[str, Any]) -> None:
    """containerd removes these of its own defaults from a container, but not those of a base specification."""
    process, linux = spec.get("process"), spec.get("linux")
    if isinstance(process, dict):
        process.pop("rlimits", None)
        process.pop("apparmorProfile", None)
    if isinstance(linux, dict):
        linux.pop("seccomp", None)


def check(spec: dict[str, Any], source: str) -> None:
    """VgpuError unless containerd can use the specification, and the hooks' programs exist."""
    for name, kind in MEMBERS.items():
        if not isinstance(spec.get(name), kind):
            raise VgpuError(f"{source}: {name}", expected=f"a {kind.__name__}", found=spec.get(name))
    programs = hook_programs(spec)
    if not programs:
        raise VgpuError(f"{source}: hooks", expected="vgpu-hook", found="none")
    for program in programs:
        if not os.access(program, os.X_OK):
            raise VgpuError(f"{source}: hooks", expected="a program", found=program, do="install vgpu")


def hook_programs(spec: dict[str, Any]) -> list[str]:
    """vgpu's programs among the hooks of a specification."""
    hooks = spec.get("hooks")
    lists = hooks.values() if isinstance(hooks, dict) else ()
    entries = [item for one in lists if isinstance(one, list) for item in one if isinstance(item, dict)]
    paths = [str(item.get("path", "")) for item in entries]
    return list(dict.fromkeys(path for path in paths if os.path.basename(path).startswith("vgpu-")))


def default() -> str:
    """containerd's default specification, printed by its client."""
    try:
        done = programs.run(["ctr", "oci", "spec"])
    except MissingProgram as error:
        raise VgpuError(
            "ctr oci spec", expected="a specification", found=error.found, do="install containerd"
        ) from error
    if done.returncode or not done.stdout.strip():
        raise VgpuError("ctr oci spec", expected="a specification", found=shown(done.stderr or "nothing"))
    return done.stdout
