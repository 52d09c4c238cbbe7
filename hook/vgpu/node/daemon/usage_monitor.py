"""The watch for containers that use more of a card than they say: NVML is asked in a child, as all that may hang.

Belongs here: asking, and whose processes the samples are of. What is judged is vgpu.node.daemon.usage_audit's; what follows
(nothing lent, less of a share) the arbiter's. Only while containers with a share live.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.inventory import Inventory, nvml_of
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import Population
from vgpu.node.daemon.lender import Lender
from vgpu.node.daemon.usage_audit import UsageAudit, Verdict
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.driver import nvml
from vgpu.node.service.log import Conditions

INTERVAL = 5.0  #: seconds between two looks, when NVML is quick
MAX_ROWS = 1024  #: per card
OLDEST = 10_000_000  #: us before the last look: samples come late

Key = tuple[str, str]
Rows = dict[str, list[tuple[int, int, int]]]


def sampled(inventory: Inventory, since: int) -> dict[str, object]:
    """What NVML says, as a child's answer: rows by card uuid, and notes."""
    notes: list[str] = []
    found = nvml.utilization(nvml_of(inventory.libraries), since, notes.append)
    return {"cards": {uuid: rows[:MAX_ROWS] for uuid, rows in found.items()}, "notes": notes}


def rows_of(answer: dict[str, object]) -> Rows:
    """The rows of a child's answer, typed again; the newest sample of each process."""
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
    """`caught` by container and card."""

    LIMIT = 60.0
    TOPIC = "use of the cards"
    TROUBLE = "what containers use is not checked"

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
        self._told: dict[Key, str] = {}

    def look(self, inventory: Inventory | None) -> None:
        """One round; nothing is asked where nobody has a share, or while there is no fresh inventory."""
        worker = self._over()
        if worker is not None:
            self._collect(worker)
        if inventory and inventory.cards and self.lender.shares and self._due():
            since = int(time.time() * 1e6) - OLDEST
            self._start(lambda: sampled(inventory, since))

    def seen(self, name: str, uuid: str) -> float | None:
        """Percent by NVML at the last look."""
        audit = self._audits.get((name, uuid))
        return audit.seen[-1] if audit and audit.seen else None

    def _collect(self, worker: Worker) -> None:
        self._not_before = self.clock() + self._rest(INTERVAL)
        self._report(worker.error)
        if not worker.error:
            self.judge(rows_of(worker.result))

    def judge(self, rows: Rows) -> None:
        """Take in what NVML has seen since the last look, and say who is caught."""
        shares = [share.claim for share in self.lender.shares.values()]
        claims = [claim for claim in shares if claim.pid > 0]
        population = ContainerProcesses(claims, self.proc)
        said = self._said()
        for claim in claims:
            pids = {pid for pid, _ in population.of(claim)}
            for card in claim.cards:
                key = (claim.container, card.uuid)
                if key in said:
                    seen = sum(percent for pid, percent, _ in rows.get(card.uuid, []) if pid in pids)
                    self._audits.setdefault(key, UsageAudit()).look(said[key], max(card.core_limit, 1), min(seen, 100))
        self._audits = {key: audit for key, audit in self._audits.items() if key in said}
        self._tell(claims)

    def _said(self) -> dict[Key, float]:
        """Percent of each card since the last look, by the containers' own word; who was not there then is left out."""
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

    def _tell(self, claims: list[Claim]) -> None:
        verdicts = {key: audit.verdict() for key, audit in self._audits.items()}
        self.caught = {key: verdict for key, verdict in verdicts.items() if verdict is not None}
        names = {claim.container: claim.name for claim in claims}
        told = {name: f"{name} ({names[name]})" if names.get(name) else name for name, _ in self.caught}
        lines = {
            (name, uuid): f"container {told[name]} on {uuid}: {found.describe()}"
            for (name, uuid), found in self.caught.items()
        }
        self._told = {
            key: self._told.get(key, line) for key, line in lines.items()
        }  # figures change, the fact does not
        self.conditions.set("core shares", "; ".join(self._told[key] for key in sorted(self._told)))
        parts: dict[str, float] = {}
        for (name, _), verdict in self.caught.items():
            parts[name] = min(parts.get(name, 1.0), round(verdict.part, 1))
        self.lender.penalize(parts)
