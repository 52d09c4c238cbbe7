"""Puts the record of vgpud's last round together: `<run>/metrics/round.json`, for the exporter and `vgpuctl top`.

Belongs here: which figure comes from which part of vgpud, the regions' figures of memory, and the sums over time that
no part keeps. Does not belong here: the file itself (vgpu.config.rounds). A container's files are read in a reader, so
that no container can stop vgpud. The record has living containers only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from vgpu.config import limits, paths, plugin_state, records, rounds, usage
from vgpu.config.claims import Claim, one_of_each_budget
from vgpu.config.clock import since_boot
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.config.inventory import Card, Inventory
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import staleness
from vgpu.hook.placement.placement import Commitment
from vgpu.node.cards.health_monitor import HealthMonitor
from vgpu.node.daemon import usage_regions
from vgpu.node.daemon.card_use import CardUseMonitor
from vgpu.node.daemon.container_names import Labels
from vgpu.node.daemon.foreign_processes import ForeignProcessMonitor
from vgpu.node.daemon.hook_counts import HookCounts
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.lender import Lender
from vgpu.node.daemon.lock_floods import LockFloods
from vgpu.node.daemon.memory_watch import MemoryWatch
from vgpu.node.daemon.unlimited_processes import UnlimitedProcesses
from vgpu.node.daemon.usage_monitor import UsageMonitor
from vgpu.node.daemon.usage_regions import CallsReaders

MAX_STEP = 60.0  #: seconds between two rounds for which lent time is counted: no longer gap is known to be one loan
MAX_PIDS = 256  #: of a container in the record; `processes` has the number of all
NS = 1_000_000_000

Key = tuple[str, str]  #: a container and a card's uuid
Record = dict[str, object]


class Parts:
    """The parts of vgpud whose figures the record shows."""

    def __init__(
        self,
        lender: Lender,
        usage_monitor: UsageMonitor,
        card_use: CardUseMonitor,
        foreign_processes: ForeignProcessMonitor,
        memory_watch: MemoryWatch,
        readers: CallsReaders,
        lock_floods: LockFloods,
        card_health: HealthMonitor | None = None,
        unlimited: UnlimitedProcesses | None = None,
    ) -> None:
        self.unlimited = unlimited
        self.card_health = card_health
        self.lender = lender
        self.usage_monitor = usage_monitor
        self.card_use = card_use
        self.foreign_processes = foreign_processes
        self.memory_watch = memory_watch
        self.readers = readers
        self.lock_floods = lock_floods


class RoundRecorder:
    """Call `write` at the end of each round. `proc` is the root of procfs.

    `not_known`: why the device plugin's record could not be looked at, or "". The round's record then has what was in
    it last.
    """

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
        incidents: Incidents | None = None,
    ) -> None:
        self.settings = settings
        self.parts = parts
        self.incidents = incidents or Incidents(wall_clock)
        self.proc = proc
        self.clock = clock
        self.wall_clock = wall_clock
        self.hook_counts = HookCounts(settings.run_dir)
        self.labels = Labels(settings.run_dir)
        self.not_known = ""
        self._plugin: plugin_state.State = {}
        self._last = clock()
        self._lent: dict[Key, float] = {}
        self._borrowed: dict[Key, float] = {}
        self._lent_by_card: dict[str, float] = {}

    def write(self, inventory: Inventory | None, more: Record) -> None:
        """Replace the record. `more` are the keys that other parts add."""
        self.hook_counts.look()
        self._look_at_plugin()
        ledger = Ledger(self.settings, inventory.cards if inventory else [], self.proc)
        living = [claim for claim in ledger.claims() if claim.pid > 0 and ledger.lives(claim)]
        figures = {(str(row["container"]), str(row["card"])): row for row in self.parts.lender.figures()}
        self._sum_up(living, figures)
        self.incidents.look_at_refusals(living, self._refusals)
        now = self.clock()
        rounds.write(self.settings.run_dir, {
            "boot_id": staleness.boot_id(self.proc), "taken": now, "time": self.wall_clock(),
            "node": self._node(),
            "driver_version": inventory.driver_version if inventory else "",
            "cards": self._cards(inventory, ledger),
            "containers": self._containers(living, figures),
            "hook": self.hook_counts.record(),
            "violations": [
                {"container": container, "uuid": uuid} for container, uuid in sorted(self.parts.memory_watch.violations)
            ],
            "lock_floods": [
                {"container": container, "uuid": uuid} for container, uuid in sorted(self.parts.lock_floods.holders)
            ],
            "violation_counts": {
                "reported": self.parts.memory_watch.found, "killed": self.parts.memory_watch.stopped,
            },
            "incidents": self.incidents.records(),
            "plugin": self._plugin,
            **more,
        }, int(self.settings.number("metrics.group")))  # fmt: skip

    def _refusals(self, container: str) -> dict[str, int] | None:
        """Refused allocations by card, as the container reports them; None if its report is not known."""
        share = self.parts.lender.shares.get(container)
        if share is None or share.report is None:
            return None
        return {uuid: row[1] for uuid, row in share.report.counts.items()}

    def remove(self) -> None:
        rounds.remove(self.settings.run_dir)

    def _sum_up(self, living: list[Claim], figures: dict[Key, Record]) -> None:
        """Add the time since the last round to what was lent, and to what the borrowers say that they used of it."""
        now = self.clock()
        passed = min(now - self._last, MAX_STEP)
        self._last = now
        keys = {(claim.container, card.uuid): card.cores for claim in living for card in claim.cards}
        self._lent = {key: value for key, value in self._lent.items() if key in keys}
        self._borrowed = {key: value for key, value in self._borrowed.items() if key in keys}
        for key, row in figures.items():
            rate, used = row.get("lent"), row.get("used")
            if key not in keys or not isinstance(rate, int) or rate <= keys[key]:
                continue
            beyond = rate - keys[key]
            over = min(max(used - keys[key], 0.0), beyond) if isinstance(used, float) else 0.0
            self._lent[key] = self._lent.get(key, 0.0) + passed * beyond / 100
            self._borrowed[key] = self._borrowed.get(key, 0.0) + passed * over / 100
            self._lent_by_card[key[1]] = self._lent_by_card.get(key[1], 0.0) + passed * beyond / 100

    # Cards

    def _cards(self, inventory: Inventory | None, ledger: Ledger) -> list[Record]:
        if inventory is None:
            return []
        committed = ledger.commitments()
        use = self.parts.card_use.use()
        ill = self.parts.card_health.reasons() if self.parts.card_health else {}
        return [
            self._card(card, committed.get(card.uuid, Commitment()), use.get(card.uuid, (None, None)),
                       ill.get(card.uuid, ""))
            for card in inventory.cards
        ]  # fmt: skip

    def _node(self) -> str:
        """The node's name in Kubernetes where vgpud's or the plugin's environment has it, else that of the settings."""
        known = os.environ.get("NODE_NAME") or str(self._plugin.get("node", ""))
        return known or self.settings.node or os.uname().nodename

    def _look_at_plugin(self) -> None:
        try:
            boot_id = staleness.boot_id(self.proc)
            self._plugin = plugin_state.read(self.settings.run_dir, boot_id, since_boot())
        except NotKnown as error:
            self.not_known = str(error)
        else:
            self.not_known = ""

    def _card(self, card: Card, held: Commitment, use: tuple[int | None, int | None], fault: str) -> Record:
        users = self.parts.foreign_processes.users.get(card.uuid, [])
        return {
            "uuid": card.uuid, "index": card.index, "minor": card.minor, "bus_id": card.bus_id, "name": card.name,
            "memory": card.memory, "memory_used": use[0], "utilization": use[1],
            "cores_held": held.cores, "memory_held": card.memory if held.exclusive else held.memory,
            "exclusive": bool(held.exclusive), "holders": len(held.holders),
            "lent_ns": int(self._lent_by_card.get(card.uuid, 0.0) * NS),
            "foreign": [{"pid": user.pid, "command": user.command, "kind": user.kind} for user in users],
            "fault": fault,
        }  # fmt: skip

    # Containers

    def _containers(self, living: list[Claim], figures: dict[Key, Record]) -> list[Record]:
        processes = ContainerProcesses(living, self.proc)
        seen, names = self._seen(living, processes), self.labels.of(living)
        counted = {claim.container for claim in one_of_each_budget(living)}
        return [
            {
                **self._container(
                    claim, names[claim.container], figures,
                    seen.get(claim.container) or {"pids": _pids(processes, claim)},
                ),
                "counted": claim.container in counted,
            }
            for claim in living
        ]  # fmt: skip

    def _seen(self, living: list[Claim], processes: ContainerProcesses) -> dict[str, dict[str, Any]]:
        """What a reader finds of each share: its pids, and the memory that its programs hold by their own account, by
        card uuid: [all, allocated]. The reader goes over the processes of the node anyway, after it has read a region.
        """
        shares = [claim for claim in living if not claim.exclusive and claim.ready]

        def look(claim: Claim) -> object:
            held = usage_regions.holdings(claim.pid, claim.start_time, lambda: processes.of_budget(claim), self.proc)
            return {"held": held, "pids": _pids(processes, claim)}

        answers = self.parts.readers.call(shares, look)
        return {container: answer for container, answer in answers.items() if isinstance(answer, dict)}

    def _container(
        self, claim: Claim, names: tuple[str, str, str], figures: dict[Key, Record], seen: dict[str, Any]
    ) -> Record:
        pids, held = seen["pids"], seen.get("held")
        namespace, pod, name = names
        return {
            "container": claim.container, "name": claim.name, "namespace": namespace, "pod": pod,
            "container_name": name, "pod_uid": claim.holder.pod_uid if claim.holder else "", "pid": claim.pid,
            "start_time": claim.start_time, "created": claim.created, "exclusive": claim.exclusive,
            "ready": claim.ready, "priority": claim.priority, "pids": pids[:MAX_PIDS],
            "processes": len(pids), "state": "running" if claim.ready else "starting",
            "unlimited": self._unlimited(claim), "uncovered": len(claim.uncovered),
            "cards": [
                self._container_card(claim, card, overhead, figures.get((claim.container, card.uuid), {}),
                                     held if isinstance(held, dict) else None)
                for card, overhead in self._in_force(claim)
            ],
        }  # fmt: skip

    def _unlimited(self, claim: Claim) -> int:
        return len(self.parts.unlimited.of(claim.container)) if self.parts.unlimited else 0

    def _container_card(self, claim: Claim, card: CardLimit, overhead: int, row: Record, held: Record | None) -> Record:
        key = (claim.container, card.uuid)
        return {
            "uuid": card.uuid, "memory_limit": None if card.memory == UNLIMITED else card.memory,
            "cores": card.cores, "core_limit": card.core_limit, "oversubscribe": card.oversubscribe,
            "cores_used": row.get("used"), "cores_seen": self.parts.usage_monitor.seen(*key),
            "lent": row.get("lent", 0), "doubted": bool(row.get("doubted")),
            "lent_ns": int(self._lent.get(key, 0.0) * NS), "borrowed_ns": int(self._borrowed.get(key, 0.0) * NS),
            "memory_driver": overhead, "memory_measured": self.parts.memory_watch.measured(*key),
            "reported": None if held is None else self._reported(claim, card, held.get(card.uuid, [0, 0])),
        }  # fmt: skip

    def _reported(self, claim: Claim, card: CardLimit, held: object) -> Record:
        memory, allocated = held if isinstance(held, list) else (0, 0)
        share = self.parts.lender.shares.get(claim.container)
        report = share.report if share else None
        times = report.times.get(card.uuid) if report else None
        now = self.parts.lender.clock()
        seen = share.observe(now).get(card.uuid) if share and report else None
        return {
            "memory": memory, "allocated": allocated, "used_ns": times[0] if times else 0,
            "idle_ns": max(now - seen.wanted, 0) if seen and seen.wanted else None,
            **_counts(report.counts.get(card.uuid) if report else None),
        }  # fmt: skip

    def _in_force(self, claim: Claim) -> list[tuple[CardLimit, int]]:
        """The limits that libvcuda reads with the host's figure of the driver's memory; else the claim's own."""
        path = paths.limits(self.settings.run_dir, claim.container)
        try:
            return limits.in_force(records.read_bounded(path, limits.SIZE), int(self.wall_clock()), path)
        except (OSError, VgpuError):
            return [(card, 0) for card in claim.cards]


def _pids(processes: ContainerProcesses, claim: Claim) -> list[int]:
    return [pid for pid, _ in processes.of(claim)]


def _counts(row: tuple[int, ...] | None) -> Record:
    """What libvcuda counts of waits and refusals; nothing where it is of a version that does not."""
    if row is None:
        return {}
    throttled, refusals, *waits = row
    histogram = {"bounds": list(usage.WAITS), "buckets": waits, "sum": throttled / NS}
    return {"throttled_ns": throttled, "refusals": refusals, "waits": histogram}
