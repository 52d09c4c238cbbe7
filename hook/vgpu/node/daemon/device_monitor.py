"""The monitor of device cgroups: a runtime that writes its own rules again takes the cards from a running container.

Belongs here: when to check a container's device cgroup, and what to log. The claim contains the devices that the
container may use. Does not belong here: allowing them, which is the hook's own step (vgpu.hook.devices.allow). That
step runs in a worker, because it may have to call systemd. A check without a change is cheap: it reads the list of v1,
or queries the ids of the programs of v2. Runs as root.
"""

from __future__ import annotations

import os

from vgpu.config import records
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.devices import rules
from vgpu.hook.devices.allow import AllowDevices
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import bpf, cgroup
from vgpu.hook.linux.cgroup import DeviceCgroup
from vgpu.hook.request import oci_state
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.service.log import Conditions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 10.0  #: seconds between two checks
LATER = 60.0  #: seconds between a failure and the next check of that container

Key = tuple[str, int, int]
Rules = tuple[object, ...]  #: a value that differs if a cgroup's rules differ


def rules_at(place: DeviceCgroup) -> Rules:
    """The present rules of one device cgroup."""
    if place.version == 1:
        return (records.read_bounded(f"{place.directory}/devices.list"),)
    fd = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tuple(bpf.prog_query(fd)[0])
    finally:
        os.close(fd)


def opened(claim: Claim, access: str, proc: str) -> dict[str, object]:
    """Do the hook's step again. The worker's answer contains whether a device was denied, and what was done."""
    nodes = {(int(major), int(minor)): path for major, minor, path in _numbers(claim)}
    found = oci_state.read({"id": claim.container, "pid": claim.pid, "bundle": claim.bundle})
    config_rules = rules.from_config(found.config, f"{claim.bundle}/config.json")
    done = AllowDevices(claim.pid, tuple(nodes), access, config_rules, nodes).execute(proc)
    return {"changed": done.changed, "text": done.text}


def _numbers(claim: Claim) -> list[tuple[str, str, str]]:
    return [(*number.split(":", 1), path) for number, path in claim.devices.items()]  # type: ignore[misc]


class DeviceMonitor(Monitor):
    """`reopened` counts how often a container had lost devices, since the start."""

    LIMIT = 30.0  #: the call of systemd alone may take ten seconds
    TOPIC = "device cgroups"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        rules: Callable[[Claim], Rules] | None = None,
        work: Callable[[Claim, str, str], dict[str, object]] = opened,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self.rules = rules or self._rules_of
        self.work = work
        self.reopened = 0
        self._claim: Claim | None = None
        self._known: dict[Key, Rules] = {}
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
        for key, claim in living.items():
            if key in self._failed and self.clock() < self._failed[key][0] + LATER:
                continue
            try:
                changed = self.rules(claim) != self._known.get(key)
            except (VgpuError, OSError) as error:
                self._failed[key] = self.clock(), str(error)
                continue
            if changed:
                self._open(claim)
                return

    def _rules_of(self, claim: Claim) -> Rules:
        key = _key(claim)
        if key not in self._places:
            self._places[key] = cgroup.device_cgroup(claim.pid, self.proc)
        try:
            return rules_at(self._places[key])
        except OSError:
            del self._places[key]
            raise

    def _open(self, claim: Claim) -> None:
        access = self.settings.text("devices.permissions")
        self._claim = claim
        self._start(lambda: self.work(claim, access, self.proc))

    def _collect(self, worker: Worker) -> None:
        claim = self._claim
        assert claim is not None
        key = _key(claim)
        try:
            if worker.error:
                raise VgpuError(worker.error)
            self._known[key] = self.rules(claim)
        except (VgpuError, OSError) as error:
            self._failed[key] = self.clock(), str(error)
            return
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
