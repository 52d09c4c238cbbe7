"""NodePrepareResources and NodeUnprepareResources: from kubelet's call to records, CDI files and the answer.

Belongs here: what is tried again within a call, and the order of calls for one claim. kubelet may prepare a claim
twice at once, for two pods. After one error it repeats all claims of a pod, but 60 to 90 s later. So whatever may be
over soon is tried again here, for up to PATIENCE seconds. Unprepare needs neither the API server nor an NVIDIA driver:
pods end only after it. Not here: the sockets (server). Calls come from several threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote

from vgpu.config.errors import VgpuError, shown
from vgpu.config.prepared import DRIVER, PreparedClaim
from vgpu.node.service import claim_allocation
from vgpu.node.service.claim_configuration import Final
from vgpu.node.service.claim_devices import Device
from vgpu.node.service.log import Log
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.dra.prepared_claims import PreparedClaims

PATIENCE = 40.0  #: seconds; kubelet's calls time out after 45 s
PAUSE, LONGEST_PAUSE = 0.2, 2.0  #: seconds between two attempts for one claim, doubling


class Wanted(NamedTuple):
    """A claim as kubelet names it."""

    namespace: str
    name: str
    uid: str


class InProgress:
    """What the calls in progress for one claim share. `unprepared` counts the Unprepares among them: a Prepare that
    began before one of them does nothing. The lock is held while the claim's record is looked at and changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.unprepared = 0
        self.number = 0


def _never() -> bool:
    return False


class Driver:
    """`api` returns the client of the API server, None while there is none. `devices` are the node's, by name."""

    def __init__(
        self,
        pool: str,
        claims: PreparedClaims,
        api: Callable[[], Api | None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.pool = pool
        self.claims = claims
        self.api = api
        self.log = log
        self.clock = clock
        self.sleep = sleep
        self.devices: dict[str, Device] = {}
        self._guard = threading.Lock()
        self._calls: dict[str, InProgress] = {}  # by claim uid, while there are any

    def prepare(self, wanted: list[Wanted], over: Callable[[], bool] = _never) -> dict[str, PreparedClaim | str]:
        """Claim uid -> the prepared claim, or why not. `over`: whether kubelet no longer waits for the answer."""
        with contextlib.ExitStack() as stack:
            calls = {one.uid: stack.enter_context(self._calling(one.uid)) for one in wanted}
            answers = self._attempts(wanted, {uid: (one, one.unprepared) for uid, one in calls.items()}, over)
        for one in wanted:
            answer = answers[one.uid]
            if isinstance(answer, str):
                self.log.warning(f"not prepared: {answer}", claim=f"{one.namespace}/{one.name}", uid=one.uid)
            else:
                amounts = [
                    f"{result.device}: {result.cores} cores, {result.memory >> 20} MiB" for result in answer.results
                ]
                self.log.info("prepared", claim=answer.label(), uid=one.uid, devices="; ".join(amounts))
        return answers

    def unprepare(self, wanted: list[Wanted]) -> dict[str, str]:
        """Claim uid -> "" or why not. A claim that is not prepared needs nothing."""
        answers = {}
        for one in wanted:
            with self._calling(one.uid) as calls, calls.lock:
                calls.unprepared += 1
                try:
                    self.claims.remove(one.uid)
                except (VgpuError, OSError) as error:
                    answers[one.uid] = str(error)
                    self.log.warning(f"not unprepared: {error}", claim=f"{one.namespace}/{one.name}", uid=one.uid)
                    continue
            answers[one.uid] = ""
            self.log.info("unprepared", claim=f"{one.namespace}/{one.name}", uid=one.uid)
        return answers

    def refresh(self, namespace: str, names: set[str]) -> None:
        """Read the prepared claims among these again: kubelet does not say for which further pods they are reserved.

        OSError or ApiError when that is to be tried again.
        """
        for claim in self.claims.all()[0]:
            if claim.namespace == namespace and claim.name in names and claim.boot_id == self.claims.boot_id:
                self._read_again(claim)

    def forget(self) -> None:
        """Remove records of earlier boots whose claims are gone: kubelet unprepares what its own record has, and that
        may be lost."""
        api = self.api()
        for claim in self.claims.all()[0] if api else []:
            assert api is not None
            if claim.boot_id == self.claims.boot_id:
                continue
            try:
                found = api.get(_path(claim.namespace, claim.name))
            except ApiError as error:
                if error.kind != "missing":
                    continue
                found = {}
            if _uid_of(found) != claim.uid or not _is_allocated(found):
                self.unprepare([Wanted(claim.namespace, claim.name, claim.uid)])

    def _attempts(
        self, wanted: list[Wanted], calls: dict[str, tuple[InProgress, int]], over: Callable[[], bool]
    ) -> dict[str, PreparedClaim | str]:
        """The answers. `calls`: by claim uid, with the count of Unprepares at the beginning."""
        end = self.clock() + PATIENCE
        answers: dict[str, PreparedClaim | str] = {}
        pause, left = PAUSE, list(wanted)
        while True:
            left = [one for one in left if not self._attempt(one, *calls[one.uid], answers, over)]
            if not left or over() or self.clock() + pause > end:
                return answers
            self.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _attempt(
        self,
        one: Wanted,
        calls: InProgress,
        began: int,
        answers: dict[str, PreparedClaim | str],
        over: Callable[[], bool],
    ) -> bool:
        """Whether the answer is final; it is in `answers` in any case."""
        try:
            api = self.api()
            if api is None:
                raise VgpuError("API server", expected="access to it", found="none")
            with calls.lock:
                found = api.get(_path(one.namespace, one.name))
                claim = claim_allocation.prepared(found, one.uid, self.claims.boot_id, self.pool, self.devices)
                if over() or calls.unprepared != began:
                    raise Final(claim.label(), expected="kubelet to wait for the answer", found="that it does not")
                self.claims.write(claim)
            answers[one.uid] = claim
        except (VgpuError, ApiError, OSError) as error:
            answers[one.uid] = str(error)
            return isinstance(error, Final) or (isinstance(error, ApiError) and error.kind == "missing")
        return True

    def _read_again(self, claim: PreparedClaim) -> None:
        api = self.api()
        if api is None:
            raise ApiError("unreachable", "no access to the API server")
        with self._calling(claim.uid) as calls, calls.lock:
            known = self.claims.read(claim.uid)
            try:
                found = claim_allocation.reserved_for(api.get(_path(claim.namespace, claim.name)), claim.uid)
            except ApiError as error:
                if error.kind != "missing":
                    raise
                found = []
            if known is not None and known.pods != found:
                known.pods = found
                self.claims.write(known)

    @contextlib.contextmanager
    def _calling(self, uid: str) -> Iterator[InProgress]:
        with self._guard:
            calls = self._calls.setdefault(uid, InProgress())
            calls.number += 1
        try:
            yield calls
        finally:
            with self._guard:
                calls.number -= 1
                if not calls.number:
                    del self._calls[uid]


def _path(namespace: str, name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


def _uid_of(claim: Object) -> str:
    metadata = claim.get("metadata")
    return shown(str(metadata.get("uid"))) if isinstance(metadata, dict) else ""


def _is_allocated(claim: Object) -> bool:
    return DRIVER in str(claim.get("status"))
