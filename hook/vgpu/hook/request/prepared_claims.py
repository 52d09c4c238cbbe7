"""A container's request from prepared resource claims: what the CDI devices on it name, if its pod may have it.

Belongs here: which results a container names, whether its pod is one of those for which the claims are reserved, and
what the results are of each card together. A tenant can name a CDI device, but writes neither the arguments of a hook
nor the cgroup's path. So the pod's uid comes from that path alone. Not here: placing and counting (vgpu.hook.ledger).
"""

from __future__ import annotations

import time

from vgpu.config import prepared
from vgpu.config.errors import VgpuError
from vgpu.config.prepared import PreparedClaim
from vgpu.config.request import LOW_PRIORITY, WHOLE_CARD, Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.hook.request.identity import Identity, pod_uid_of

TIMEOUT = 10.0  #: seconds; the driver may be about to learn that a further pod may use the claim
PAUSE = 0.05


class WantedResults:
    """Results of prepared claims. `ids` are sorted: containers with the same ones have one budget, with the highest of
    their priorities."""

    __slots__ = ("claims", "ids", "results", "wishes")

    def __init__(self, claims: list[PreparedClaim], ids: list[str]) -> None:
        self.claims = claims
        self.ids = sorted(set(ids))
        self.results = [
            result for claim in claims for result in claim.results
            if prepared.result_id(claim.uid, result.number) in self.ids
        ]  # fmt: skip
        self.wishes = Wishes(priority=min((result.priority for result in self.results), default=LOW_PRIORITY))

    def requests(self) -> list[Request]:
        """One request for each card, with what all results have of it; core limits add up as the cores do. Only whole
        cards alone have no limits: where the container has a share besides, a whole card is a share of all of it."""
        whole = all(result.whole for result in self.results)
        amounts: dict[str, tuple[int, int, int]] = {}
        for result in self.results:
            cores, limit, memory = amounts.get(result.card, (0, 0, 0))
            limit += max(result.core_limit, result.cores)
            amounts[result.card] = (
                min(cores + result.cores, WHOLE_CARD), min(limit, WHOLE_CARD), memory + result.memory,
            )  # fmt: skip
        return [
            Request(1, cores, 0 if whole else memory, limit, fixed=(card,), limited=not whole)
            for card, (cores, limit, memory) in amounts.items()
        ]


class Prepared:
    """A container of Kubernetes whose CDI devices name results of prepared claims."""

    __slots__ = ("identity", "ids", "pod_uid")

    def __init__(self, identity: Identity, ids: list[str], cgroups: list[str], granted: bool) -> None:
        uids = [uid for path in cgroups if (uid := pod_uid_of(path))]
        if not uids or identity.sandbox or granted:
            found = "a grant besides" if granted else "a sandbox" if identity.sandbox else "a container of no pod"
            raise VgpuError(f"claim {ids[0]}", expected="a container of a pod, without grants", found=found)
        self.identity = identity
        self.ids = ids
        self.pod_uid = uids[0]

    def request(self, settings: Settings) -> tuple[WantedResults, list[str]]:
        """The results, as soon as the records of their claims have the pod; VgpuError after TIMEOUT seconds."""
        end = time.monotonic() + TIMEOUT
        boot_id = staleness.boot_id()
        while True:
            try:
                return read(settings.state_dir, self.ids, self.pod_uid, boot_id), []
            except VgpuError:
                if time.monotonic() > end:
                    raise
            time.sleep(PAUSE)


def read(state_dir: str, ids: list[str], pod_uid: str, boot_id: str) -> WantedResults:
    """The results `ids` for the pod; VgpuError where a claim is not prepared in this boot, or not for this pod."""
    uids = dict.fromkeys(prepared.split_id(one)[0] for one in ids)
    claims = [_claim(state_dir, uid, pod_uid, boot_id) for uid in uids]
    known = {one for claim in claims for one in claim.ids()}
    for one in ids:
        if one not in known:
            raise VgpuError(f"claim {one}", expected="a result of the claim", found="none")
    return WantedResults(claims, ids)


def _claim(state_dir: str, uid: str, pod_uid: str, boot_id: str) -> PreparedClaim:
    try:
        claim = prepared.read(state_dir, uid)
    except FileNotFoundError:
        raise VgpuError(f"claim {uid}", expected="a prepared claim", found="none", do=_DO) from None
    if claim.boot_id != boot_id:
        raise VgpuError(claim.label(), expected="a preparation in this boot", found="one of an earlier boot", do=_DO)
    if pod_uid not in claim.pods:
        raise VgpuError(claim.label(), expected=f"a reservation for the pod {pod_uid}", found="none",
                        do="name the claim in the pod's spec, not its CDI device")  # fmt: skip
    return claim


_DO = "look at the log of vgpu-device-plugin; kubelet prepares claims before it starts a pod"
