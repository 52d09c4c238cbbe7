"""The device plugin and vgpud under a standing fault at one system call: what do they say of their cards meanwhile?

Belongs here: the rounds of both in one thread, as fault_hook shows their system calls, and a protocol on stdin and
stdout, one JSON object a line. {"phase": p, "site": s, "error": n, "times": t} does the phase while the call fails so
often (0: always); the answer is what changed. With the site "" all sites go into the file for what happens. The rounds
are the product's own. Left out are threads, kubelet's socket and times: clocks are put forward instead.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from vgpu.config import health, inventory, paths, records
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import staleness
from vgpu.node.cards import health_monitor
from vgpu.node.cards.health_monitor import HealthMonitor, Pace
from vgpu.node.daemon.main import Daemon
from vgpu.node.service.log import Log
from vgpu.node.service.sd_notify import Notifier
from vgpu.plugin.background import BackgroundServices
from vgpu.plugin.cards.inventory import GRACE
from vgpu.plugin.main import DevicePlugin

LASTING = 3  #: rounds for which a fault stands: the grace of the plugin's inventory passes between them
WAITS = 10_000  #: looks for messages or workers, of some ms each, until what was started has answered

#: A phase: what happens in it, as rounds of the product. Only inside them system calls fail.
Phase = Callable[[], Iterator[None]]


class Watched:
    """A program under faults. `state` is what it says of its cards, `phases` what can happen."""

    def __init__(self, config: str, faults: Any) -> None:
        self.config = config
        self.faults = faults
        self.log = Log(io.StringIO(), levels=False)
        self.notifier = Notifier({}, os.getpid())

    phases: dict[str, Phase]

    def state(self) -> object:
        raise NotImplementedError

    def settle(self) -> None:
        """A round without a fault."""


class Plugin(Watched):
    """The plugin of a node with two cards, of which the second is ill by vgpud's record."""

    def __init__(self, config: str, faults: Any) -> None:
        super().__init__(config, faults)
        BackgroundServices._start_grant_gc = lambda _: None  # type: ignore[method-assign]
        self.passed = 0.0
        self.phases = {"round": self.round, "start": self.start}
        self.plugin = self.made()
        self.settle()
        self.allocated = 0

    def made(self) -> DevicePlugin:
        made = DevicePlugin(self.config, self.log, self.notifier)
        made.inventory.clock = made.background.clock = lambda: time.monotonic() + self.passed
        return made

    def settle(self) -> None:
        for _ in range(2):
            self.passed += 100.0
            self.plugin.round()

    def round(self) -> Iterator[None]:
        """Rounds of the loop; the inventory is read again in each."""
        yield
        for _ in range(LASTING):
            self.passed += GRACE
            self.plugin.inventory._file = (-1,)
            self.plugin.round()

    def start(self) -> Iterator[None]:
        """Another plugin starts in place of this one; systemd starts it again if it ends."""
        self.plugin.close()
        yield
        try:
            self.plugin = self.made()
            self.plugin.round()
            self.plugin.round()
        except (VgpuError, OSError):
            self.faults.disarm()
            self.plugin = self.made()

    def state(self) -> object:
        """What kubelet hears of each device, and an Allocate of the first card."""
        found = []
        for one in self.plugin.servers:
            resource = one.device_list.resource
            first = next(iter(resource.slots[0].ids()))
            self.plugin.allocator._take_back(self.plugin.allocator.allocate(resource, [[first]]))
            found.append((resource.name, one.device_list._response))
        return found, sorted(self.plugin._reasons().items())


class Vgpud(Watched):
    """vgpud of such a node, whose second card has a recorded fault that needs a reset."""

    def __init__(self, config: str, faults: Any) -> None:
        super().__init__(config, faults)
        health_monitor.Pace = lambda: Pace(0.2, 1e9, 60.0, 1e9, 0.0, 0.0)  # type: ignore[misc, assignment]
        self.daemon = Daemon(config, self.log, self.notifier)
        self.phases = {"round": self.round, "probes": self.probes}
        self.settle()

    def settle(self) -> None:
        for _ in self.round():
            pass
        self.monitor._not_before = 0.0
        self.answered(lambda: False)

    @property
    def monitor(self) -> HealthMonitor:
        return self.daemon.card_health

    def answered(self, failed: Callable[[], object]) -> None:
        """Rounds of the monitor until the processes of both cards have answered, or the monitor has failed."""
        for number in range(WAITS):
            self.monitor.look(self.daemon.inventory.found)
            if self.monitor._session and all(probe.messages > 2 for probe in self.monitor._probes()):
                return
            if number > LASTING and failed():
                return
            self.daemon._wait(0.01)
        assert failed(), f"no answer: {self.log.stream.getvalue()[-1000:]}"  # type: ignore[attr-defined]

    def probes(self) -> Iterator[None]:
        """The processes that hold NVML end and start again."""
        self.monitor.close_nvml()
        self.monitor._not_before, self.monitor._next_apart = 0.0, {}
        yield
        self.answered(lambda: self.monitor.not_known() or self.faults.hits > LASTING)

    def round(self) -> Iterator[None]:
        """An inventory is taken anew, a round is recorded, and so is the cards' health."""
        refresher = self.daemon.inventory
        refresher._taken, refresher._file, refresher._not_before = (), (-1,), 0.0
        self.monitor._to_save = True
        yield
        self.daemon.round()
        for number in range(WAITS):
            failed = number > LASTING and "inventory file" in self.daemon.conditions.present
            if refresher.worker is None or failed:
                break
            self.daemon._wait(0.01)
            self.daemon._part("inventory file", refresher.look)
        self.daemon.round()

    def state(self) -> object:
        """The cards in force, on disk, and in the round's record; their health, and as it is recorded."""
        run_dir = self.daemon.settings.run_dir
        found = self.daemon.inventory.found
        in_force = [card.uuid for card in found.cards] if found else []
        on_disk = inventory.read(run_dir).record()
        shown: Any = records.read(paths.round_record(run_dir))["cards"]
        rows = [(row["uuid"], row["memory"], row["fault"]) for row in shown]
        recorded = health.read(run_dir, staleness.boot_id())
        ill = self.monitor.reasons(), recorded.reasons if recorded else None
        return in_force, on_disk["cards"], on_disk["devices"], rows, ill


PROGRAMS = {"plugin": Plugin, "vgpud": Vgpud}


def serve(watched: Watched, faults: Any) -> None:
    """Answer until stdin ends."""
    before = watched.state()
    for line in sys.stdin:
        order = json.loads(line)
        phase = watched.phases[order["phase"]]()
        next(phase)
        faults.arm(order)
        during: object = ""
        problem = ""
        try:
            faults.entry(phase)
            during = watched.state()
        except BaseException as error:  # whatever ends the program
            problem = f"{type(error).__name__}: {error}"
        faults.disarm()
        nothing_yet = order["phase"] == "start" and during == ([], [])
        if not problem and during != before and not nothing_yet:
            problem = f"the cards change: {before} to {during}"
        watched.settle()
        after = watched.state()
        if after != before:
            problem += f"; the cards stay changed: {before} to {after}"
        print(json.dumps({"problem": problem[:2000]}), flush=True)
