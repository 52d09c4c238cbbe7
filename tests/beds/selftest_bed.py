"""A simulated node in virtual time on which `vgpuctl selftest` runs, by containers or bare.

Belongs here: the node, the wrappers of runtimes, and starting the verb. A wrapper adds the simulated driver's state
to a bundle, which a real driver does not need. `Node.selftest` returns the ended verb, `Node.report` its report.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nodes
import podman_bed
from checkout import BUILD

PATIENCE = 1200  #: seconds after which a run hangs, on a busy machine too
WRAPPER = """#!{python}
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = words[words.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        made = json.load(file)
    mount = {{"destination": "/run/vgpu-sim", "type": "bind", "source": {sim!r}, "options": ["rbind", "rw"]}}
    made["mounts"] = [one for one in made["mounts"] if one != mount] + [mount]
    with open(path, "w") as file:
        json.dump(made, file)
os.execvp({command!r}[0], [*{command!r}, *words])
"""


class Node(nodes.SimulatedNode):
    """`libvcuda`: the directory of another libvcuda, such as one with a fault."""

    def __init__(
        self, directory: Path, profile: str = "t4x1", libvcuda: Path = BUILD / "lib/vcuda", **memory_and_timing: Any
    ) -> None:
        self.programs = directory / "programs"
        self.programs.mkdir(parents=True)
        super().__init__(directory, profile, **{"paths.libvcuda": str(libvcuda)})
        self.take_inventory()
        for name in ("vgpu-hook", "vgpu-selftest"):
            (self.programs / name).symlink_to(BUILD / "bin" / name)
        for name, prefix in (("runc", ()), ("crun", podman_bed.V1_ONLY)):
            if found := shutil.which(name):
                wrapper = self.programs / name
                wrapper.write_text(WRAPPER.format(python=sys.executable, sim=str(self.sim), command=[*prefix, found]))
                wrapper.chmod(0o755)
        self.new_state(profile, **memory_and_timing)

    def new_state(self, profile: str, **sections: dict[str, Any]) -> None:
        """Fresh cards whose time is virtual. `sections` change the profile."""
        shutil.rmtree(self.sim)
        simctl = nodes.simctl()
        made = simctl.load_profile(profile)
        made = {**made, **{name: {**made.get(name, {}), **values} for name, values in sections.items()}}
        simctl.make_state(str(self.sim), made, False, "virtual", 1)

    def environment(self) -> dict[str, str]:
        libraries = next(self.driver.rglob("libcuda.so.1")).parent
        path = f"{self.programs}:{os.environ['PATH']}"
        return {**super().environment(), "PATH": path, "LD_LIBRARY_PATH": str(libraries)}

    def start(self, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*prefix, *self.vgpuctl_command(), "selftest", *words]
        return subprocess.Popen(
            command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def selftest(self, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, prefix=prefix)
        output, errors = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def report(self, *words: str) -> dict[str, Any]:
        done = self.selftest(*words, "--output", "json")
        assert done.returncode in (0, 1), done.stderr
        made: dict[str, Any] = json.loads(done.stdout)
        return made


def failed(report: dict[str, Any]) -> list[str]:
    return [row["id"] for row in report["rows"] if row["verdict"] == "fail"]
