"""The monitor of containers that use more of a card than they report.

Belongs here: calling NVML in a worker, because it may hang, and finding the container of each sample. It does so only
while containers with a share live. Does not belong here: comparing the figures (vgpu.node.daemon.usage_audit), and the
penalty: the lender lends such a container nothing and reduces its share (vgpu.node.daemon.lender).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.inventory import Inventory, nvml_of
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.node.daemon.lender import Lender
from vgpu.node.daemon.usage_audit import UsageAudit, Verdict
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.driver import nvml
from vgpu.node.service.log import Conditions

INTERVAL = 5.0  #: seconds between two calls, if NVML is quick
MAX_ROWS = 1024  #: samples for each card
OLDEST = 10_000_000  #: us before the present time from which samples are read: they come late

Key = tuple[str, str]
Rows = dict[str, list[tuple[int, int, int]]]


def sampled(inventory: Inventory, since: int) -> dict[str, object]:
    """NVML's samples as a worker's answer: rows by card uuid, and notes."""
    notes: list[str] = []
    found = nvml.utilization(nvml_of(inventory.libraries), since, notes.append)
    return {"cards": {uuid: rows[:MAX_ROWS] for uuid, rows in found.items()}, "notes": notes}


def rows_of(answer: dict[str, object]) -> Rows:
    """The rows of a worker's answer, with their types: the newest sample of each process."""
    cards_of = answer.get("cards")
    found: Rows = {}
    for uuid, rows in cards_of.items() if isinstance(cards_of, dict) else ():
        newest: dict[int, tuple[int, int, int]] = {}
        for pid, percent, at in rows:
            if pid not in newest or at > newest[pid][2]:
                newest[pid] = (pid, min(max(percent, 0), 100), at)
        found[uuid] = list(newest.values())
    return found


class UsageMonitor(Monitor):
    """`caught` are the containers that use more than they report, by container and card."""

    LIMIT = 60.0
    TOPIC = "use of the cards"
    TROUBLE = "the use that containers report is not checked"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        lender: Lender,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self.lender = lender
        self.caught: dict[Key, Verdict] = {}
        self._audits: dict[Key, UsageAudit] = {}
        self._used: dict[Key, tuple[int, int]] = {}
        self._warnings: dict[Key, str] = {}

    def look(self, inventory: Inventory | None) -> None:
        """Do one round. Without a container that has a share, or without a fresh inventory, NVML is not called."""
        worker = self._finished()
        if worker is not None:
            self._collect(worker)
        if inventory and inventory.cards and self.lender.shares and self._due():
            since = int(time.time() * 1e6) - OLDEST
            self._start(lambda: sampled(inventory, since))

    def seen(self, name: str, uuid: str) -> float | None:
        """Percent that NVML measured last."""
        audit = self._audits.get((name, uuid))
        return audit.seen[-1] if audit and audit.seen else None

    def has_judged(self, name: str, uuid: str) -> bool:
        """Whether there were enough measurements to compare the figures."""
        audit = self._audits.get((name, uuid))
        return audit is not None and audit.has_enough

    def _collect(self, worker: Worker) -> None:
        self._not_before = self.clock() + self._pause_after(INTERVAL)
        self._report(worker.error)
        if not worker.error:
            self.judge(rows_of(worker.result), self._living())

    def judge(self, rows: Rows, living: list[Claim]) -> None:
        """Compare NVML's samples with the containers' reports, and publish which containers use more. Of containers
        with one budget the lender has one, and its report is that of all."""
        shares = [share.claim for share in self.lender.shares.values()]
        claims = [claim for claim in shares if claim.pid > 0]
        container_processes = ContainerProcesses(living, self.proc)
        reported = self._reported_use()
        for claim in claims:
            pids = {pid for pid, _ in container_processes.of_budget(claim)}
            for card in claim.cards:
                key = (claim.container, card.uuid)
                if key in reported:
                    seen = sum(percent for pid, percent, _ in rows.get(card.uuid, []) if pid in pids)
                    self._audits.setdefault(key, UsageAudit()).look(
                        reported[key], max(card.core_limit, 1), min(seen, 100)
                    )
        self._audits = {key: audit for key, audit in self._audits.items() if key in reported}
        self._publish(claims)

    def _reported_use(self) -> dict[Key, float]:
        """Percent of each card since the last call, as the containers report it. New containers are left out."""
        before, self._used = self._used, {}
        now = self.lender.clock()
        found: dict[Key, float] = {}
        for name, share in self.lender.shares.items():
            seen = share.observe(now)
            for card in share.claim.cards:
                key, used = (name, card.uuid), seen[card.uuid].used if card.uuid in seen else 0
                self._used[key] = (now, used)
                at, was = before.get(key, (now, 0))
                if at < now:
                    found[key] = min(max(used - was, 0) * 100 / (now - at), 100.0)
        return found

    def _publish(self, claims: list[Claim]) -> None:
        verdicts = {key: audit.verdict() for key, audit in self._audits.items()}
        self.caught = {key: verdict for key, verdict in verdicts.items() if verdict is not None}
        names = {claim.container: claim.name for claim in claims}
        labels = {name: f"{name} ({names[name]})" if names.get(name) else name for name, _ in self.caught}
        lines = {
            (name, uuid): f"container {labels[name]} on {uuid}: {found.describe()}"
            for (name, uuid), found in self.caught.items()
        }
        self._warnings = {
            key: self._warnings.get(key, line) for key, line in lines.items()
        }  # figures change, the fact does not
        self.conditions.set("core shares", "; ".join(self._warnings[key] for key in sorted(self._warnings)))
        parts: dict[str, float] = {}
        for (name, _), verdict in self.caught.items():
            parts[name] = min(parts.get(name, 1.0), round(verdict.part, 1))
        self.lender.penalize(parts)
