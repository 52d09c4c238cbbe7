"""The monitor of containers that hold more of a card's memory than their limit: NVML's figure against the claim.

Belongs here: calling NVML in a worker, summing its figures by container, and the consequence that `limits.enforcement`
names. Does not belong here: the limit itself, which libvcuda enforces in the container (docs/memory-limit.md). A
container is found here only when it goes past libvcuda, with a driver library of its own for example.

Pids are used again, and NVML's list is older than the look at /proc. Therefore a process counts only with what two
lists in a row name for its pid and start time, in a container of the same claim, and the lesser sum of both decides.
A process that came between the two lists counts from the next one on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from vgpu.config import claims, paths, records
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.incidents import OVER_LIMIT, STOPPED
from vgpu.config.inventory import Inventory
from vgpu.config.limits import UNLIMITED
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.linux import procfs
from vgpu.node.daemon.foreign_processes import Listed, listed, rows_of
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.service.log import Conditions

INTERVAL = 2.0  #: seconds between two calls, if NVML is quick
APART = 1.0  #: seconds that two looks are apart at least
TOLERANCE = 64 << 20  #: bytes above the limit that are no violation: the driver's own, which NVML counts a little later
TOLERANCE_PARTS = 100  #: and this part of the limit
OWN_PIDS = 520  #: the first driver that always lists the pids of the asker's own namespace (docs/memory-limit.md)
LARGEST_CONTEXT = 1 << 30  #: bytes of a context that nobody has measured, as in libvcuda's marks
MOST_STOPPED = 3  #: containers that are stopped in STOPPED_WITHIN seconds; after that, vgpud only reports
STOPPED_WITHIN = 600.0
REPORT, KILL = "report", "kill"  #: the values of limits.enforcement

Process = tuple[int, int]  #: pid, start time
Key = tuple[str, str]  #: container, uuid


def allowed(limit: int) -> int:
    """Bytes that NVML may name for a container of this limit."""
    return limit + max(TOLERANCE, limit // TOLERANCE_PARTS)


def contexts_beyond(inventory: Inventory) -> dict[str, int]:
    """Bytes that one process may hold of a card beyond its container's limit, by card uuid; {} with most drivers.

    Drivers before OWN_PIDS may list the host's pids in a container, so a program may have filled its limit before vgpud
    has written what its context takes. The sizes that vgpud has seen do not count here: a tenant can make them wrong.
    """
    branch = inventory.driver_version.partition(".")[0]
    if branch.isdigit() and int(branch) >= OWN_PIDS:
        return {}
    return {card.uuid: LARGEST_CONTEXT for card in inventory.cards}


class Look:
    """What one list of NVML named: bytes by process, of each container on each card. `identity` tells claims apart."""

    def __init__(self, at: float, identities: dict[str, tuple[object, ...]]) -> None:
        self.at = at
        self.identities = identities
        self.bytes: dict[Key, dict[Process, int]] = {}


class Violation:
    """A container that holds more than its limit: the bytes that NVML named for it, and what vgpud did."""

    def __init__(self, claim: Claim, uuid: str, limit: int, used: int) -> None:
        self.claim = claim
        self.uuid = uuid
        self.limit = limit
        self.used = used

    def describe(self) -> str:
        name = f" ({self.claim.name})" if self.claim.name else ""
        return (
            f"container {self.claim.container}{name} on {self.uuid}: its limit is {self.limit} bytes of memory, but "
            f"NVML names {self.used} for its processes: it goes past libvcuda"
        )


class MemoryWatch(Monitor):
    """`violations` are the containers found at the last look; `found` and `stopped` count since vgpud's start.

    `incidents` gets each of them, too.
    """

    LIMIT = 60.0
    TOPIC = "memory of the cards"
    TROUBLE = "the memory limits are not checked from outside"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        stop: Callable[[Claim, str], None] | None = None,
        incidents: Incidents | None = None,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self.incidents = incidents or Incidents()
        self.violations: dict[Key, Violation] = {}
        self.found = 0
        self.stopped = 0
        self._stop = stop or stop_container
        self._last = Look(0.0, {})
        self._lines: dict[Key, str] = {}
        self._highest: dict[Key, int] = {}
        self._looked = False
        self._contexts: dict[str, int] = {}  # bytes that a process may hold beyond the limit, by card uuid
        self._stops: list[float] = []
        self._stopped: set[tuple[object, ...]] = set()

    def look(self, inventory: Inventory | None) -> None:
        """Do one round. Without a living container that has a limit, or a fresh inventory, NVML is not called."""
        worker = self._finished()
        if worker is not None:
            self._collect(worker)
        if inventory and inventory.cards and self._due():
            self._contexts = contexts_beyond(inventory)
            if not any(_limits(claim) for claim in self._living()):
                self._not_before = self.clock() + INTERVAL
                self.judge({}, [])
                return
            self._start(lambda: listed(inventory))

    def measured(self, container: str, uuid: str) -> int | None:
        """Bytes that NVML named last for the container's processes on the card; None if nobody has looked."""
        found = self._last.bytes.get((container, uuid))
        return None if found is None else sum(found.values())

    def figures(self) -> dict[str, object]:
        """For the answer to `health`."""
        return {
            "found": self.found,
            "stopped": self.stopped,
            "present": [
                {"container": one.claim.container, "card": one.uuid, "limit": one.limit, "used": one.used}
                for one in self.violations.values()
            ],
        }

    def _collect(self, worker: Worker) -> None:
        self._not_before = self.clock() + self._pause_after(INTERVAL)
        self._report(worker.error)
        if not worker.error:
            self.judge(rows_of(worker.result), self._living())

    def judge(self, rows: Listed, living: list[Claim]) -> None:
        """Compare NVML's rows with those of the last call, and do what `limits.enforcement` names."""
        before, self._last = self._last, self._counted(rows, living)
        self._allow(before, living)
        found = {}
        for claim in living:
            for uuid, limit in _limits(claim).items():
                key = (claim.container, uuid)
                used = self._held(before, key)
                contexts = len(self._last.bytes[key]) * self._contexts.get(uuid, 0)
                if used > allowed(self._highest[key]) + contexts:
                    found[claim.container, uuid] = Violation(claim, uuid, limit, used)
        self.found += len(found.keys() - self.violations.keys())
        self.violations = found
        self._lines = {key: self._lines.get(key, one.describe()) for key, one in found.items()}
        self.conditions.set("memory limits", "; ".join(self._lines[key] for key in sorted(self._lines)))
        kills = self.settings.text("limits.enforcement") == KILL
        self.conditions.set("enforcement", "; ".join(self._enforce(living)) if kills else "")
        for one in found.values():
            if _identity(one.claim) not in self._stopped:
                self.incidents.note(OVER_LIMIT, one.claim, one.uuid, one.used)

    def _counted(self, rows: Listed, living: list[Claim]) -> Look:
        """The figures of the list by container and process."""
        look = Look(self.clock(), {claim.container: _identity(claim) for claim in living})
        pids = {pid for users in rows.values() for pid, _, _ in users}
        processes = ContainerProcesses(living, self.proc, pids)
        for claim in living:
            own = dict(processes.of_budget(claim))
            for uuid in _limits(claim):
                look.bytes[claim.container, uuid] = {
                    (pid, own[pid]): memory for pid, _, memory in rows.get(uuid, []) if pid in own
                }
        return look

    def _held(self, before: Look, key: Key) -> int:
        """Bytes that two looks name for the container's processes; 0 if the two cannot be compared."""
        now, container = self._last, key[0]
        if now.at - before.at < APART:
            return 0
        if before.identities.get(container) != now.identities[container]:
            return 0
        earlier, later = before.bytes.get(key, {}), now.bytes[key]
        both = earlier.keys() & later.keys()
        return min(sum(earlier[one] for one in both), sum(later[one] for one in both))

    def _allow(self, before: Look, living: list[Claim]) -> None:
        """Set what each container may hold: its limit, or what it held when that was lowered, until it has freed it.

        The claim has the limit of before. In a claim of an earlier version that is not recorded: what such a container
        holds at vgpud's first look is allowed.
        """
        highest = {}
        for claim in living:
            for uuid, limit in _limits(claim).items():
                key = (claim.container, uuid)
                held = sum(self._last.bytes[key].values())
                if claim.lowered is None:
                    known = self._highest.get(key, limit if self._looked else held)
                    highest[key] = max(limit, known if held > allowed(limit) else limit)
                    continue
                highest[key] = max(limit, claim.lowered.get(uuid, 0))
                earlier = before.bytes.get(key)
                if uuid in claim.lowered and earlier is not None and max(sum(earlier.values()), held) <= allowed(limit):
                    highest[key] = limit
                    self._record_freed(claim, uuid, limit)
        self._highest = highest
        self._looked = True

    def _record_freed(self, claim: Claim, uuid: str, limit: int) -> None:
        """Take out of the claim that the limit was lowered. If a hook or vgpuctl is at work, the next look does it."""
        try:
            with Lock(self.settings.run_dir, wait=False):
                found = claims.read(self.settings.run_dir, claim.container)
                if found.lowered and _identity(found) == _identity(claim) and _limits(found).get(uuid) == limit:
                    del found.lowered[uuid]
                    records.write(paths.claim(self.settings.run_dir, claim.container), found.record())
        except (OSError, VgpuError):
            return  # the container has ended, or the disk is full: what is allowed too much goes at the next look

    # What becomes of the container

    def _enforce(self, living: list[Claim]) -> list[str]:
        """Stop the containers of the violations. Returns a line for each that runs on."""
        spared = []
        for claim in {one.claim.container: one.claim for one in self.violations.values()}.values():
            now = self.clock()
            self._stops = [at for at in self._stops if now - at < STOPPED_WITHIN]
            reason = self._why_not(claim, living)
            if reason:
                spared.append(f"container {claim.container} is not stopped: {reason}")
                continue
            self._stops.append(now)
            self._stopped.add(_identity(claim))
            self.conditions.log.warning(
                "stopping a container that goes past its memory limit (limits.enforcement: kill)",
                container=claim.container, name=claim.name, pid=claim.pid,
            )  # fmt: skip
            self._stop(claim, self.proc)
            self.stopped += 1
            for one in self.violations.values():
                if one.claim is claim:
                    self.incidents.note(STOPPED, claim, one.uuid, one.used)
        return spared

    def _why_not(self, claim: Claim, living: list[Claim]) -> str:
        """Why the container is not stopped; "" if it is to be."""
        if _identity(claim) in self._stopped:
            return "its init has not ended since it was killed"
        if not claim.cgroup:
            return "its claim records no cgroup of its own, so its processes are known by their ancestors only"
        if any(other.cgroup == claim.cgroup for other in living if other is not claim):
            return "it shares its cgroup with another container"
        if len(self._stops) >= MOST_STOPPED:
            return f"{MOST_STOPPED} containers were stopped in the last {STOPPED_WITHIN / 60:.0f} minutes"
        return ""


def stop_container(claim: Claim, proc: str = "/proc") -> None:
    """Kill the container's init, and with it all of its PID namespace. Nothing happens if it has ended."""
    try:
        fd = os.pidfd_open(claim.pid)
    except ProcessLookupError:
        return
    try:
        if procfs.lives(claim.pid, claim.start_time, proc):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _limits(claim: Claim) -> dict[str, int]:
    """Bytes of each card whose memory is limited, by uuid."""
    if claim.exclusive:
        return {}
    return {card.uuid: card.memory for card in claim.cards if card.memory != UNLIMITED}


def _identity(claim: Claim) -> tuple[object, ...]:
    return claim.boot_id, claim.pid, claim.start_time, claim.cgroup
