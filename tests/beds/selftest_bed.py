"""A simulated node in virtual time on which `vgpuctl selftest` runs, by containers or bare.

Belongs here: the node, the wrappers of runtimes, and starting the verb. A wrapper adds the simulated driver's state
to a bundle, which a real driver does not need. `Node.selftest` returns the ended verb, `Node.report` its report.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodes
import podman_bed
from checkout import BUILD, CHECKOUT

from vgpu.config import inventory
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux import procfs

NOBODY = """
if [ "$1" ]; then
    mount --bind "$0" /mnt; mount -t tmpfs -o mode=755 none "$1"; mkdir -p "$0"; mount --bind /mnt "$0"; umount /mnt
fi
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \\
    env HOME=/proc "$@"
"""
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


#: A client before which options are put into its first `run`.
CLIENT = """#!/bin/sh
for word; do
    shift
    set -- "$@" "$word"
    if [ "$word" = run ] && [ ! "$seen" ]; then set -- "$@" {options}; seen=1; fi
done
exec {command} "$@"
"""


class Node(nodes.SimulatedNode):
    """`libvcuda`: the directory of another libvcuda, such as one with a fault. `prefix` begins the verb's command."""

    prefix: tuple[str, ...] = ()

    def __init__(
        self, directory: Path, profile: str = "t4x1", libvcuda: Path = BUILD / "lib/vcuda",
        runtimes: Path | None = None, **changes: dict[str, Any],
    ) -> None:  # fmt: skip
        self.pids: list[int] = []  #: of the runs
        self.programs = directory / "programs"
        self.programs.mkdir(parents=True)
        super().__init__(directory, profile, **{"paths.libvcuda": str(libvcuda)})
        self.take_inventory()
        for name in ("vgpu-hook", "vgpu-selftest"):
            (self.programs / name).symlink_to(BUILD / "bin" / name)
        for name, prefix in (("runc", ()), ("crun", podman_bed.V1_ONLY)):
            if found := shutil.which(name, path=f"{runtimes or ''}:{os.environ['PATH']}"):
                wrapper = self.programs / name
                wrapper.write_text(WRAPPER.format(python=sys.executable, sim=str(self.sim), command=[*prefix, found]))
                wrapper.chmod(0o755)
        self.new_state(profile, **changes)

    def new_state(self, profile: str, **changes: dict[str, Any]) -> None:
        """Fresh cards whose time is virtual. `changes` are of the profile; `model` has those of its models."""
        shutil.rmtree(self.sim)
        simctl = nodes.simctl()
        made = simctl.load_profile(profile)
        for model in made["models"].values():
            model.update(changes.pop("model", {}))
        made = {**made, **{name: {**made.get(name, {}), **values} for name, values in changes.items()}}
        simctl.make_state(str(self.sim), made, True, "virtual", 1)

    def add_client(self, name: str, command: list[str], *options: str) -> None:
        """A runtime's client for the node's PATH: `command`, and `options` of its containers."""
        script = self.programs / name
        words = [*options, f"--volume={self.sim}:/run/vgpu-sim"]
        script.write_text(CLIENT.format(command=shlex.join(command), options=shlex.join(words)))
        script.chmod(0o755)

    def as_nobody(self) -> tuple[str, ...]:
        """What begins a command of an ordinary user who has no right and a home without writing, like one of a
        container without capabilities. A checkout below root's home is made visible, in a mount namespace."""
        for path in (self.directory, *self.directory.parents):
            if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o005:
                path.chmod(0o755)
        for path in self.sim.iterdir():
            path.chmod(0o666)
        hidden = next((path for path in reversed(CHECKOUT.parents) if not path.stat().st_mode & 0o001), None)
        return ("unshare", "-m", "sh", "-ec", NOBODY, str(CHECKOUT), str(hidden or ""))

    @contextmanager
    def other_program(self) -> Iterator[int]:
        """A program of somebody else with a context on the first card; its pid."""
        program = subprocess.Popen(
            [self.programs / "vgpu-selftest"], env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert program.stdin and program.stdout
        program.stdin.write("hello\nuse 0\n")
        program.stdin.flush()
        assert [json.loads(program.stdout.readline()).get("code", 0) for _ in range(2)] == [0, 0]
        yield program.pid
        program.communicate()

    def hold_cards(self, container: str) -> Callable[[], object]:
        """Claim all cards for a container, whose init is this process. The result gives them back."""
        ledger = Ledger(self.settings, inventory.read(self.settings.run_dir).cards)
        start = Start(container, os.getpid(), procfs.start_time(os.getpid()), "/b", None, "", time.time())
        ledger.claim(start, Request(len(ledger.cards), 30, 1 << 30))
        ledger.confirm(start)
        return lambda: ledger.withdraw(start)

    def left(self) -> list[str]:
        """What a run has left: its directory, claims, mounts and processes on the cards."""
        run = self.run_dir
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(run) in line]
        there = ["the directory"] if (run / "selftest").exists() else []
        return [
            *there,
            *self.held(),
            *mounts,
            *(str(card["processes"]) for card in self.read_cards() if card["processes"]),
        ]

    def environment(self) -> dict[str, str]:
        libraries = next(self.driver.rglob("libcuda.so.1")).parent
        path = f"{self.programs}:{os.environ['PATH']}"
        return {**super().environment(), "PATH": path, "LD_LIBRARY_PATH": str(libraries)}

    def start(self, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*(prefix or self.prefix), *self.vgpuctl_command(), "selftest", *words]
        process = subprocess.Popen(
            command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.pids.append(process.pid)
        return process

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
