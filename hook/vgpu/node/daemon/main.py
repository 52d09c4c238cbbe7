"""vgpud's process: one instance for each node, its loop, its signals, and the answers on its socket.

Belongs here: the order of the parts in a round, which runs every TICK seconds. Between two rounds the process sleeps in
poll(2). In between only those parts run that have something to do: the watches when a worker has answered, and the
lender while a container may borrow a card's time. Does not belong here: the work of a part, which is in a module of its
own.

A round reads a stat, three small files of /proc, and some small files for each claim, some 0.1 ms each. SIGTERM ends
vgpud. SIGHUP makes it read the settings again. If a part fails, vgpud logs the error and runs the part again in the
next round.
"""

from __future__ import annotations

import functools
import gc
import math
import os
import selectors
import signal
import sys
from collections.abc import Callable
from importlib import metadata

from vgpu.config import driver_upgrade, grants, paths
from vgpu.config import settings as node_settings
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError, could_not_look
from vgpu.config.inventory import Inventory
from vgpu.hook import error_line
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import staleness
from vgpu.node.cards.health_monitor import HealthMonitor
from vgpu.node.daemon.card_use import CardUseMonitor
from vgpu.node.daemon.context_sizes import ContextSizes
from vgpu.node.daemon.copy_removal import CopyRemoval
from vgpu.node.daemon.device_monitor import DeviceMonitor
from vgpu.node.daemon.driver_overhead import DriverOverhead
from vgpu.node.daemon.foreign_processes import ForeignProcessMonitor
from vgpu.node.daemon.held_time import HeldTime
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.inventory_refresh import InventoryRefresher
from vgpu.node.daemon.lender import Lender
from vgpu.node.daemon.lock_floods import LockFloods
from vgpu.node.daemon.memory_watch import MemoryWatch
from vgpu.node.daemon.reaper import Reaper
from vgpu.node.daemon.region_readers import RegionReaders
from vgpu.node.daemon.registrations import Registrations
from vgpu.node.daemon.round_record import Parts, RoundRecorder
from vgpu.node.daemon.server import Server
from vgpu.node.daemon.unlimited_processes import UnlimitedProcesses
from vgpu.node.daemon.usage_monitor import UsageMonitor
from vgpu.node.daemon.worker import Work, Worker
from vgpu.node.service import descriptors, privilege, single_instance
from vgpu.node.service.log import Conditions, Log
from vgpu.node.service.sd_notify import Notifier

TICK = 2.0
WORKER_TICK = 0.05  #: seconds from a worker's answer to its use: by then the kernel has released the worker
READY_AFTER = 30.0  #: seconds: vgpud reports that it is ready after the first inventory, or after this time
#: The parts that find out which cards there are, and whether the driver may be used.
CARD_HEALTH = {"inventory file", "driver upgrade file", "card health"}
MAX_AGE = 1.0  #: seconds for which an answer with all processes is used again, so that clients cannot load vgpud


class Daemon:
    """vgpud on the node that the compiled settings at `config_path` describe. `proc` is the root of procfs."""

    def __init__(self, config_path: str, log: Log, notifier: Notifier, proc: str = "/proc") -> None:
        self.config_path = config_path
        self.log = log
        self.notifier = notifier
        self.proc = proc
        self.settings = node_settings.read(config_path)
        self.started = since_boot()
        self.conditions = Conditions(log)
        self.not_known: set[str] = set()  # the parts of CARD_HEALTH that could not look in their last round
        self.lock = _only_instance(self.settings.run_dir)
        self.selector = selectors.DefaultSelector()
        self.wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.selector.register(self.wake[0], selectors.EVENT_READ, self._woken)
        self.server = Server(paths.vgpud_socket(self.settings.run_dir), self.selector, self.answer, since_boot)
        self.workers: list[Worker] = []  # all workers that are not waited for yet, also those whose result is unused
        self.incidents = Incidents()
        self.held_time = HeldTime(self.settings, proc)
        self.driver_upgrade = ""  # why NVML must stay closed: the GPU operator upgrades the driver
        self.card_health = HealthMonitor(
            self.settings, self.conditions, self.selector, proc, away=lambda: self.driver_upgrade
        )
        self._note_settings()
        self._create_parts()
        self.stopping = False
        self.reload = False
        self.ready = False
        self._collect_at = math.inf  # when to use the answers of workers
        self.rounds = 0
        self._processes_answer: tuple[float, dict[str, object]] = (-MAX_AGE, {})

    def _create_parts(self) -> None:
        self.inventory = InventoryRefresher(self.settings, self.conditions, self._spawn, self.proc)
        self.reaper = Reaper(self.settings, self.conditions, self.proc)
        self.copy_removal = CopyRemoval(self.settings, self.log)
        self.registrations = Registrations(self.settings)
        self.region_readers = RegionReaders(self.conditions, self.proc)
        self.context_sizes = ContextSizes(self.settings, self.conditions, self.region_readers, self.proc)
        use = DriverOverhead(self.settings, self.region_readers, self.proc, context_sizes=self.context_sizes)
        self.unlimited = UnlimitedProcesses(self.conditions, self.region_readers, self.incidents, self.proc)
        self.foreign_processes = ForeignProcessMonitor(
            self.settings, self.conditions, self._spawn, self.proc, driver_overhead=use, unlimited=self.unlimited
        )
        self.lender = Lender(self.settings, self.proc, regions=self.region_readers)
        self.device_monitor = DeviceMonitor(self.settings, self.conditions, self._spawn, self.region_readers, self.proc)
        self.usage_monitor = UsageMonitor(self.settings, self.conditions, self._spawn, self.lender, self.proc)
        self.memory_watch = MemoryWatch(
            self.settings, self.conditions, self._spawn, self.proc, incidents=self.incidents
        )
        self.lock_floods = LockFloods(
            self.settings, self.conditions, self.lender, self.region_readers, self.incidents, self.proc
        )
        self.card_use = CardUseMonitor(self.settings, self.conditions, self._spawn, self.proc)
        parts = Parts(
            self.lender, self.usage_monitor, self.card_use, self.foreign_processes, self.memory_watch,
            self.region_readers, self.lock_floods, self.card_health, self.unlimited,
        )  # fmt: skip
        self.round_recorder = RoundRecorder(self.settings, parts, self.proc, incidents=self.incidents)

    def run(self) -> None:
        """Run rounds until SIGTERM or SIGINT."""
        self._take_signals()
        gc.freeze()  # what is loaded now stays: neither this process nor its children go over it again and again
        self.log.info("started", version=version(), run=self.settings.run_dir)
        while not self.stopping:
            self.round()
            self._sleep()
        self.close()

    def round(self) -> None:
        begun = since_boot()
        if self.reload:
            self.reload = False
            self._part("settings", self._reload)
        self._part("driver upgrade file", self._look_at_upgrade)
        self._part("inventory file", self.inventory.look)
        self._part("card health", lambda: self.card_health.look(self.inventory.found))
        self._part("reaper", self.reaper.look)
        self._part("copies of libvcuda", lambda: self.copy_removal.look(self.inventory.found))
        self._part("registrations", self.registrations.look)
        self._part("context sizes", lambda: self.context_sizes.look_at_reports(self.lender.contexts()))
        self._part("arbiter", self.lender.look)
        self._part("region readers", lambda: self.region_readers.look(self._living()))
        self._part("lock watch", self.lock_floods.look)
        self._watch()
        self.conditions.set("card pages", self.lender.failed)
        self.conditions.set("file locks", self.lender.without_locks())
        self.conditions.set("futexes", self.lender.without_waits())
        self.server.tick()
        self._part("held time", self._count_held)
        self._part("round record", lambda: self._record_round(begun))
        self.conditions.set("records of the plugin", self.round_recorder.not_known)
        if not self.ready and (self.inventory.attempts or since_boot() - self.started > READY_AFTER):
            self.ready = True
            self.notifier.ready()
        self.notifier.status(self._summary())
        self.notifier.alive()

    def _watch(self) -> None:
        """The watches, which have workers: they use the answers that are there, and start the workers that are due."""
        found = self._usable()
        self._part("foreign watch", lambda: self.foreign_processes.look(found))
        self._part("device watch", self.device_monitor.look)
        self._part("share watch", lambda: self.usage_monitor.look(found))
        self._part("memory watch", lambda: self.memory_watch.look(found))
        self._part("card use", lambda: self.card_use.look(found))
        self.inventory.saw(self.card_use.use())
        self.workers = [worker for worker in self.workers if not worker.gone()]

    def _usable(self) -> Inventory | None:
        """The inventory whose NVML may be called now."""
        return None if self.driver_upgrade else self.inventory.found

    def _look_at_upgrade(self) -> None:
        """Close NVML while the device plugin says that the driver is being upgraded: the module is to be unloaded."""
        self.driver_upgrade = driver_upgrade.read(self.settings.run_dir, staleness.boot_id(self.proc), since_boot())
        self.inventory.paused = bool(self.driver_upgrade)
        text = f"NVML is closed, no inventory is taken: {self.driver_upgrade}" if self.driver_upgrade else ""
        self.conditions.set("driver upgrade", text)
        if self.driver_upgrade:
            for monitor in (
                self.inventory, self.foreign_processes, self.usage_monitor, self.memory_watch, self.card_use,
            ):  # fmt: skip
                monitor.abandon()
            self.card_health.close_nvml()

    def close(self) -> None:
        self.notifier.stopping()
        self._stop_parts()
        self.card_health.stop()
        self._part("held time", self.held_time.close)
        self.round_recorder.remove()
        self.server.close()
        self.selector.close()
        for fd in (*self.wake, self.lock):
            os.close(fd)
        self.log.info("stopped")

    def _count_held(self) -> None:
        ledger = Ledger(self.settings, [], self.proc)
        found = self.inventory.found
        self.conditions.set("held time before", self.held_time.problem)
        sizes = {card.uuid: card.memory for card in found.cards} if found else {}
        self.held_time.look(ledger.claims(), ledger.lives, sizes)

    def _stop_parts(self) -> None:
        self.inventory.stop()
        self.foreign_processes.stop()
        self.device_monitor.stop()
        self.usage_monitor.stop()
        self.memory_watch.stop()
        self.card_use.stop()
        self.lender.stop()

    def _living(self) -> list[Claim]:
        ledger = Ledger(self.settings, [], self.proc)
        return [claim for claim in ledger.claims() if claim.pid > 0 and ledger.lives(claim)]

    def _part(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (VgpuError, OSError, MemoryError) as error:
            if could_not_look(error):
                self.not_known.add(name)
            self.conditions.set(name, str(error_line.meaning(name, error)))
        else:
            self.not_known.discard(name)
            self.conditions.set(name, "")

    # Waiting

    def _sleep(self) -> None:
        """Serve clients and workers until the next round is due."""
        due = since_boot() + min(TICK, self.notifier.interval or TICK)
        while not (self.stopping or self.reload) and since_boot() < due:
            if since_boot() >= self._collect_at and self._collect():
                return
            self._wait(min(due, self._collect_at) - since_boot())

    def _wait(self, seconds: float) -> None:
        """Wait for a client, a worker or the lender's next look, at most so long."""
        lender_due = self.lender.due()
        for key, mask in self.selector.select(max(seconds if lender_due is None else min(seconds, lender_due), 0.0)):
            key.data(mask)
        self._part("arbitration", self.lender.tick)

    def _collect(self) -> bool:
        """Use the answers of the workers. Whether the inventory is among them: then a whole round is due."""
        self._collect_at = math.inf
        attempts = self.inventory.attempts
        self._part("inventory file", self.inventory.look)
        self._watch()
        return self.inventory.attempts > attempts

    def _spawn(self, work: Work, deadline: float) -> Worker:
        worker = Worker(work, deadline, self.selector, self._hurry)
        self.workers.append(worker)
        return worker

    def _hurry(self) -> None:
        self._collect_at = min(self._collect_at, since_boot() + WORKER_TICK)

    def _take_signals(self) -> None:
        signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _hang_up(self, *_: object) -> None:
        self.reload = True

    def _woken(self, _mask: int) -> None:
        os.read(self.wake[0], 4096)

    def _reload(self) -> None:
        """Use the settings on disk. If they cannot be used, keep the present ones and raise the reason."""
        found = node_settings.read(self.config_path)
        if found.run_dir != self.settings.run_dir:
            raise VgpuError("paths.run", expected=self.settings.run_dir, found=found.run_dir, do="restart vgpud")
        self._stop_parts()
        self.settings = found
        self._note_settings()
        self._create_parts()
        self.card_health.reload(found)
        self.held_time.settings = found
        self.log.info("settings read again", path=self.config_path)

    def _note_settings(self) -> None:
        self.conditions.set("newer settings", "; ".join(self.settings.notes))

    # Answers

    def answer(self, request: str) -> dict[str, object]:
        if request == "health":
            return self.status()
        if request == "processes":
            return self.processes()
        raise VgpuError("ask", expected="health or processes", found=request)

    def status(self) -> dict[str, object]:
        found = self.inventory.found
        return {
            "version": version(),
            "pid": os.getpid(),
            "uptime": since_boot() - self.started,
            "inventory": {
                "state": self.inventory.state,
                "driver_version": found.driver_version if found else "",
                "cards": len(found.cards) if found else 0,
                "taken": found.taken if found else 0.0,
                "error": self.inventory.error,
            },
            "driver_upgrade": self.driver_upgrade,
            "card_health": self.card_health.reasons(),
            "reaper": {"last": self.reaper.last, "released": self.reaper.released},
            "claims": dict(self.reaper.counts),
            "devices": {"reopened": self.device_monitor.reopened},
            "foreign": {
                uuid: [{"pid": user.pid, "command": user.command, "kind": user.kind} for user in users]
                for uuid, users in self.foreign_processes.users.items()
            },
            "cores": [self._core_figures(row) for row in self.lender.figures()],
            "memory": self.memory_watch.figures(),
            "unlimited": self.unlimited.figures(),
            "warnings": list(self.conditions.present.values()),
        }

    def _core_figures(self, row: dict[str, object]) -> dict[str, object]:
        place = str(row["container"]), str(row["card"])
        return {**row, "seen": self.usage_monitor.seen(*place), "judged": self.usage_monitor.has_judged(*place)}

    def _record_round(self, begun: float) -> None:
        """Write what metrics and `vgpuctl top` show."""
        self.rounds += 1
        self.round_recorder.write(self.inventory.found, {
            "vgpud": {
                "version": version(), "pid": os.getpid(), "started": self.started, "rounds": self.rounds,
                "round_seconds": since_boot() - begun, "released": self.reaper.released,
                "inventory": {"state": self.inventory.state, "error": self.inventory.error},
                "warnings": list(self.conditions.present.values()),
                "health_known": not (self.not_known & CARD_HEALTH or self.card_health.not_known()),
            },
            "registrations": self.registrations.counts,
            "ledger": {"claims": dict(self.reaper.counts), "grants": grants.count(self.settings.state_dir)},
            "held": [
                {"namespace": one.namespace, "pod": one.pod, "container_name": one.container,
                 "core_seconds": one.core_seconds, "memory_byte_seconds": one.memory_byte_seconds}
                for one in self.held_time.sums
            ],
        })  # fmt: skip

    def processes(self) -> dict[str, object]:
        """Each living container with the pid and start time of its processes, at most MAX_AGE seconds old."""
        taken, answer = self._processes_answer
        if since_boot() - taken >= MAX_AGE:
            living = self._living()
            container_processes = ContainerProcesses(living, self.proc)
            answer = {"containers": [_described(claim, container_processes.of(claim)) for claim in living]}
            self._processes_answer = since_boot(), answer
        return answer

    def _summary(self) -> str:
        counts = self.reaper.counts
        warnings = len(self.conditions.present)
        return f"inventory {self.inventory.state}, {counts['living']} containers, {warnings} warnings"


def _described(claim: Claim, found: list[tuple[int, int]]) -> dict[str, object]:
    rows = [{"pid": pid, "start_time": start_time} for pid, start_time in found]
    return {"container": claim.container, "name": claim.name, "pid": claim.pid, "processes": rows}


@functools.cache
def version() -> str:
    """The version of the installed package, which is that of this process until its end."""
    return metadata.version("vgpu")


def _only_instance(run_dir: str) -> int:
    """An fd that holds the instance's lock until this process ends; VgpuError if another vgpud holds it."""
    path = paths.vgpud_lock(run_dir)
    fd = single_instance.take(path)
    if fd < 0:
        raise VgpuError(path, expected="to be the only vgpud of this node", found="another vgpud, which is running")
    return fd


def run(config_path: str) -> None:
    """Be vgpud until SIGTERM or SIGINT."""
    log = Log()
    descriptors.raise_limit()
    try:
        Daemon(config_path, log, Notifier(os.environ, os.getpid())).run()
    except (VgpuError, OSError) as error:
        log.warning(privilege.line(error, "vgpud"))
        sys.exit(1)
