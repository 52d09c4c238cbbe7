"""The monitor of device cgroups: a runtime that writes its own rules again takes the cards from a running container.

Belongs here: when to check a container's device cgroup, and what to log. The claim contains the devices that the
container may use. Does not belong here: allowing them, which is the hook's own step (vgpu.hook.devices.allow). That
step runs in a worker, because it may have to call systemd. A check without a change is cheap: a reader reads the list
of v1, or queries the ids of the programs of v2; not vgpud itself, because a container can block whoever opens files of
its cgroup. A list of v1 that permits everything (`a *:* rwm`, a privileged container's) does not show denials, so a
worker asks the kernel instead. Runs as root.
"""

from __future__ import annotations

import os

from vgpu.config import records
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.devices import access_check, rules
from vgpu.hook.devices.allow import AllowDevices
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import bpf, cgroup
from vgpu.hook.linux.cgroup import DeviceCgroup
from vgpu.hook.request import oci_state
from vgpu.node.daemon.usage_regions import CallsReaders
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.service.log import Conditions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

INTERVAL = 10.0  #: seconds between two checks
LATER = 60.0  #: seconds between a failure and the next check of that container

Key = tuple[str, int, int]
Rules = tuple[object, ...]  #: a value that differs if a cgroup's rules differ


def rules_at(place: DeviceCgroup) -> Rules:
    """The present rules of one device cgroup."""
    if place.version == 1:
        return (records.read_bounded(f"{place.directory}/devices.list").decode("latin-1"),)
    fd = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tuple(bpf.prog_query(fd)[0])
    finally:
        os.close(fd)


def hide_denials(rules: Rules) -> bool:
    """Whether these are a list of v1 that permits everything but what the kernel does not list."""
    return any(isinstance(item, str) and item.startswith("a ") for item in rules)


def opened(claim: Claim, access: str, proc: str) -> dict[str, object]:
    """Do the hook's step again. The worker's answer contains whether the kernel denied a device, and what was done.

    The step may write rules although every device is open: into a list that hides its denials, and over a program that
    it does not recognise. Only the kernel's own answer shows that another program had closed a device.
    """
    nodes = {(int(major), int(minor)): path for major, minor, path in _numbers(claim)}
    place = cgroup.device_cgroup(claim.pid, proc)
    closed = _closed(place, nodes, access)
    if not closed and place.version == 1 and hide_denials(rules_at(place)):
        return {"changed": False, "text": ""}
    found = oci_state.read({"id": claim.container, "pid": claim.pid, "bundle": claim.bundle})
    config_rules = rules.from_config(found.config, f"{claim.bundle}/config.json")
    done = AllowDevices(claim.pid, tuple(nodes), access, config_rules, nodes).execute(proc)
    return {"changed": done.changed and closed is not False, "text": done.text}


def _closed(place: DeviceCgroup, nodes: dict[tuple[int, int], str], access: str) -> bool | None:
    """Whether the kernel denies one of the devices in this cgroup; None when that cannot be found out."""
    fd = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if access_check.refused(fd, place.directory, nodes, access):
            return True
    except VgpuError:  # cgroup v2: no process may enter a cgroup that gives controllers to others below it
        return None
    finally:
        os.close(fd)
    return False if all(map(os.path.exists, nodes.values())) else None


def _numbers(claim: Claim) -> list[tuple[str, str, str]]:
    return [(*number.split(":", 1), path) for number, path in claim.devices.items()]  # type: ignore[misc]


class DeviceMonitor(Monitor):
    """`reopened` counts how often a container had lost devices, since the start.

    `readers` calls `rules`, which is by default a look at the container's cgroup.
    """

    LIMIT = 30.0  #: the call of systemd alone may take ten seconds
    TOPIC = "device cgroups"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        readers: CallsReaders,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        rules: Callable[[Claim], Rules] | None = None,
        work: Callable[[Claim, str, str], dict[str, object]] = opened,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self.readers = readers
        self.rules = rules or self._rules_of
        self.work = work
        self.reopened = 0
        self._claim: Claim | None = None
        self._known: dict[Key, Rules] = {}
        self._asked: dict[Key, float] = {}  # when the kernel was last asked about a list that hides its denials
        self._places: dict[Key, DeviceCgroup] = {}  # kept, because finding one means reading all mounts
        self._failed: dict[Key, tuple[float, str]] = {}  # (time, reason)

    def look(self) -> None:
        """Do one round. At most one container is repaired at a time."""
        worker = self._finished()
        if worker is not None:
            self._collect(worker)
        elif self.worker is not None:
            return
        if self._due():
            self._check()
            if self.worker is None:
                self._not_before = self.clock() + INTERVAL
        failures = (f"{key[0]}: {why}" for key, (_, why) in self._failed.items())
        self.conditions.set(self.TOPIC, "; ".join(failures))

    def _check(self) -> None:
        """Check the containers until the rules of one have changed."""
        ledger = Ledger(self.settings, [], self.proc)
        living = {_key(claim): claim for claim in ledger.claims() if _has_devices(claim) and ledger.lives(claim)}
        self._known = {key: rules for key, rules in self._known.items() if key in living}
        self._places = {key: place for key, place in self._places.items() if key in living}
        self._failed = {key: failed for key, failed in self._failed.items() if key in living}
        self._asked = {key: asked for key, asked in self._asked.items() if key in living}
        due = {
            key: claim
            for key, claim in living.items()
            if key not in self._failed or self.clock() >= self._failed[key][0] + LATER
        }
        present = self._read_rules(due.values())
        hidden: list[Claim] = []
        for key, claim in due.items():
            if key not in present:
                continue
            if present[key] != self._known.get(key):
                self._open(claim)
                return
            if hide_denials(present[key]) and self.clock() >= self._asked.get(key, 0.0) + INTERVAL:
                hidden.append(claim)
        if hidden:
            self._open(min(hidden, key=lambda claim: self._asked.get(_key(claim), 0.0)))

    def _read_rules(self, claims: Iterable[Claim]) -> dict[Key, Rules]:
        """The present rules of containers. Those whose rules cannot be read have failed.

        A container that blocks its readers is left out: it is reported elsewhere.
        """
        placed = [claim for claim in claims if self._has_place(claim)]
        answers = self.readers.call(placed, self._rules_or_error)
        found: dict[Key, Rules] = {}
        for claim in placed:
            answer = answers.get(claim.container)
            if isinstance(answer, list):
                found[_key(claim)] = tuple(answer)
            elif isinstance(answer, str):
                self._failed[_key(claim)] = self.clock(), answer
                self._places.pop(_key(claim), None)
        return found

    def _has_place(self, claim: Claim) -> bool:
        """Find the container's device cgroup, if it is not known. That opens files of procfs only."""
        key = _key(claim)
        if key not in self._places and self.rules == self._rules_of:
            try:
                self._places[key] = cgroup.device_cgroup(claim.pid, self.proc)
            except VgpuError as error:
                self._failed[key] = self.clock(), str(error)
                return False
        return True

    def _rules_or_error(self, claim: Claim) -> object:
        """A reader's answer: the rules, or the reason why there are none."""
        try:
            return list(self.rules(claim))
        except (VgpuError, OSError) as error:
            return str(error)

    def _rules_of(self, claim: Claim) -> Rules:
        return rules_at(self._places[_key(claim)])

    def _open(self, claim: Claim) -> None:
        access = self.settings.text("devices.permissions")
        self._claim = claim
        self._start(lambda: self.work(claim, access, self.proc))

    def _collect(self, worker: Worker) -> None:
        claim = self._claim
        assert claim is not None
        key = _key(claim)
        if worker.error:
            self._failed[key] = self.clock(), worker.error
            return
        present = self._read_rules([claim])
        if key not in present:
            return
        self._known[key] = present[key]
        self._asked[key] = self.clock()
        self._failed.pop(key, None)
        if worker.result.get("changed"):
            self.reopened += 1
            self.conditions.log.info(
                f"devices allowed again that another program had denied: {worker.result.get('text')}",
                container=claim.container, pod=claim.name, pid=claim.pid,
            )  # fmt: skip


def _key(claim: Claim) -> Key:
    return claim.container, claim.pid, claim.start_time


def _has_devices(claim: Claim) -> bool:
    """Whether the container has a device cgroup to check.

    A container in its runtime's own cgroup has none: allowing devices there would allow them to a service of the host.
    """
    return claim.ready and claim.pid > 0 and bool(claim.devices) and bool(claim.cgroup)
