"""Which replica decides: the holder of a Lease, as client-go elects it.

Belongs here: acquiring and renewing the Lease. Another holder's lease counts as over when it has not changed for its
duration by our own clock, so clocks that are apart do no harm. A holder that has not renewed within RENEW_DEADLINE
leads no more, before anybody else can lead; its process ends then. It never leads a second time: another replica may
have led meanwhile, also one that has given the lease up again, and its decisions are unknown here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver.client import ApiError, Object
from vgpu.plugin.scheduler.write_decision import Server

LEASE, RENEW_DEADLINE, RETRY = 15.0, 10.0, 2.0  #: seconds


class Leader:
    """`namespace`/`name` is the Lease, `identity` this replica's name."""

    def __init__(
        self,
        api: Server,
        namespace: str,
        name: str,
        identity: str,
        conditions: Conditions,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.api = api
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.namespace, self.name, self.identity = namespace, name, identity
        self.conditions = conditions
        self.clock = clock
        self.now = now
        self.stopped = threading.Event()
        self._renewed = float("-inf")
        self._won = False
        self._seen: tuple[str, float] = ("", 0.0)  # the version of another's lease, and when it was first seen

    def leads(self) -> bool:
        return self.clock() - self._renewed < RENEW_DEADLINE

    def run(self, won: Callable[[], None], lost: Callable[[], None]) -> None:
        """Try until `stopped`; call `won` once and `lost` when the lease could not be renewed in time."""
        while not self.stopped.is_set() and not self.attempt():
            self.stopped.wait(RETRY)
        if self.stopped.is_set():
            return
        won()
        while not self.stopped.wait(RETRY):
            self.attempt()
            if not self.leads():
                lost()
                return

    def attempt(self) -> bool:
        """Acquire the lease, or renew it while it is held."""
        if self._won and not self.leads():
            return False
        begun = self.clock()
        try:
            held = self._write()
            self.conditions.set("lease", "")
        except ApiError as error:
            held = False
            if error.kind != "conflict":
                self.conditions.set("lease", str(error))
        if held:
            self._renewed = begun  # the write may have been done as early as this
            self._won = True
        return held

    def release(self) -> None:
        """Give the lease up, so that another replica need not wait for its end.

        The patch names the version that was read: a lease that another replica takes meanwhile stays its own.
        """
        if not self.leads():
            return
        self._renewed = float("-inf")
        try:
            found: Any = self.api.get(f"{self.path}/{self.name}")
            if (found.get("spec") or {}).get("holderIdentity") == self.identity:
                meta = {"resourceVersion": str(found.get("metadata", {}).get("resourceVersion", ""))}
                spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
                self.api.patch(f"{self.path}/{self.name}", {"metadata": meta, "spec": spec})
        except ApiError:
            return

    def _write(self) -> bool:
        try:
            found: Any = self.api.get(f"{self.path}/{self.name}")
        except ApiError as error:
            if error.kind != "missing":
                raise
            meta: Object = {"name": self.name, "namespace": self.namespace}
            self.api.post(self.path, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta,
                                      "spec": self._spec(0, acquired=True)})  # fmt: skip
            return True
        spec = found.get("spec") or {}
        version = str(found.get("metadata", {}).get("resourceVersion", ""))
        holder = spec.get("holderIdentity") or ""
        other = holder != self.identity
        if other and (self._won or (holder and not self._is_over(version, spec))):
            return False
        changes = self._spec(int(spec.get("leaseTransitions") or 0) + other, acquired=other)
        self.api.patch(f"{self.path}/{self.name}", {"metadata": {"resourceVersion": version}, "spec": changes})
        return True

    def _is_over(self, version: str, spec: Any) -> bool:
        if self._seen[0] != version:
            self._seen = (version, self.clock())
        return self.clock() - self._seen[1] > float(spec.get("leaseDurationSeconds") or LEASE)

    def _spec(self, transitions: int, acquired: bool) -> Object:
        moment = self.now()
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1e6):06d}Z"
        spec: Object = {"holderIdentity": self.identity, "leaseDurationSeconds": int(LEASE), "renewTime": text,
                        "leaseTransitions": transitions}  # fmt: skip
        return {**spec, "acquireTime": text} if acquired else spec
