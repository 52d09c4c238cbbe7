"""An error of the plugin's or vgpud's own process at each system call on which card health depends: no card changes.

The calls are those of a trace: the rounds of both programs on a simulated node of two cards, with vgpud's processes
that probe the cards and its worker that takes the inventory (fault_health). One card has a recorded fault. It stays
ill and the other one well, and Allocate is answered, while the call fails again and again, and afterwards. `make test`
takes some faults by rotation, `make test-long` all.
"""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nodes
import pytest
from fault_bed import Fault, Outcome, Tools
from fault_journal import Journal

from vgpu.config import health, inventory
from vgpu.config.clock import since_boot
from vgpu.hook.linux import staleness

pytestmark = pytest.mark.root

#: Errors that speak of the process that looks. EINTR comes once at a time: Python repeats the call.
ERRORS = ("EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EINTR", "EACCES", "EIO")
#: Program -> its phases, and the functions in which it finds out what its cards are.
LOOKS = {
    "plugin": (("round", "start"), ("main.round", "health.", "main.__init__")),
    "vgpud": (
        ("round", "probes"),
        ("inventory_refresh.", "main._look_at_upgrade", "health_monitor.", "probe_process."),
    ),
}


class Program:
    """The program on a node of its own."""

    def __init__(self, name: str, directory: Path, tools: Tools) -> None:
        self.name = name
        self.tools = tools
        self.node = nodes.SimulatedNode(directory, "a100x2", **{
            "metrics.listen": "", "plugin.http": "", "plugin.socket_dir": str(directory), "kubernetes.api": "never",
        })  # fmt: skip
        self.node.take_inventory()
        ill = inventory.read(self.node.settings.run_dir).cards[1]
        version = staleness.driver_version(self.node.settings.text("driver.proc_root"))
        fault: dict[str, object] = {"card": ill.uuid, "text": "Xid 62, reset", "at": 1.0, "reset": True}
        record = health.Health({ill.uuid: "Xid 62"}, True, since_boot(), [version, 0], [fault])
        health.write(self.node.settings.run_dir, record, staleness.boot_id())
        self.process: subprocess.Popen[str] | None = None

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """The program's answer; {} when it has died."""
        if self.process is None:
            command = self.tools.command(Fault("none"), self.name, str(self.node.config))
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.node.environment(), cwd="/"
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.end()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    def faults(self) -> list[tuple[str, Fault]]:
        """Phase and fault, the errors in turns."""
        phase_of: dict[str, str] = {}
        for phase in LOOKS[self.name][0]:
            phase_of = {**dict.fromkeys(self.traced(phase), phase), **phase_of}
        return [
            (phase, Fault(site, 1, ERRORS[(number + turn) % len(ERRORS)]))
            for turn in range(len(ERRORS))
            for number, (site, phase) in enumerate(phase_of.items())
        ]

    def traced(self, phase: str) -> list[str]:
        """The sites that a phase has each time: whether a process answers in this round or the next is chance."""
        traces = []
        for _ in range(2):
            assert self.ask({"phase": phase, "site": "", "error": 0, "times": 0}).get("problem") == ""
            traces.append(self.tools.sites())
            self.tools.out.write_text("")
        concerns = LOOKS[self.name][1]
        both = [site for site in dict.fromkeys(traces[0]) if site in set(traces[1])]
        return [site for site in both if any(name in site for name in concerns)]

    def round(self, phase: str, fault: Fault) -> Outcome:
        order = {
            "phase": phase,
            "site": fault.site,
            "error": getattr(errno, fault.error),
            "times": fault.error == "EINTR",
        }
        answer = self.ask(order)
        met = self.tools.happened(fault)
        self.tools.out.write_text("")
        if not answer:
            return Outcome("died", "", ["the program has died"])
        return Outcome("kept" if met else "not met", "", [answer["problem"]] if answer["problem"] else [])

    def end(self) -> None:
        if self.process is not None and self.process.stdin and self.process.stdout:
            self.process.stdin.close()
            self.process.wait(60)
            self.process.stdout.close()
            self.process = None


@pytest.fixture
def program(tmp_path: Path, tools: Tools) -> Iterator[Callable[[str], Program]]:
    made = []

    def make(name: str) -> Program:
        made.append(Program(name, tmp_path / name, tools))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize("name", LOOKS)
def test_no_card_changes_when_its_program_cannot_look(
    program: Callable[[str], Program], journal: Callable[..., Journal], name: str
) -> None:
    one = program(name)
    found = one.faults()
    phases = {fault.describe(): phase for phase, fault in found}
    sites = {fault.site for _, fault in found}
    counts = journal(f"faults-cards-{name}", 15)
    counts.run([fault for _, fault in found], lambda fault: one.round(phases[fault.describe()], fault))
    counts.judge(f"an error at a system call on which card health depends ({name})", len(found), len(sites))
