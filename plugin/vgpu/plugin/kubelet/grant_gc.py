"""Garbage collection of grants: deletes a grant that kubelet has not listed for a while, once its list is complete.

Belongs here: when kubelet's list counts as complete, which grants a list keeps, and how long the others wait.
docs/health.md explains the rules. In doubt a grant stays: a superfluous grant takes room until somebody notices it, but
a missing one costs a running pod its card at the next start. vgpu.plugin.kubelet.delete_grants deletes, under the
ledger's lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from vgpu.config import grants, pods
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.hook.ledger import commitments
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.kubelet import delete_grants, pod_resources
from vgpu.plugin.kubelet.checkpoint import Checkpoint
from vgpu.plugin.kubelet.pod_resources import Life, Listing, Pod

NODE_NAME = "NODE_NAME"  #: environment variable by which a DaemonSet passes the node's name


class ListingCheck:
    """Whether kubelet's lists are complete. `nodes`: names that this node may have.

    A kubelet that has just started lists nothing, or only static pods, until it has heard from the API server. Then it
    learns of all pods at once. So the first pod that is not static proves that the list is complete, and so are all
    later lists of the same run of kubelet, however short they are.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.marks = {"-" + node.lower().partition(".")[0] for node in nodes if node}
        self._life: Life | None = None

    def is_complete(self, listing: Listing) -> bool:
        if listing.life != self._life:
            self._life = None
            if any(not self._is_static(name) for _, name in listing.containers):
                self._life = listing.life
        return self._life is not None

    def _is_static(self, pod: str) -> bool:
        """kubelet appends the node's name to the name of a static pod."""
        return any(mark in pod for mark in self.marks)


class IdReuse:
    """Which of the grants `known` have device ids that a later grant has, too."""

    def __init__(self, known: list[Grant]) -> None:
        self._by_card: dict[tuple[str, str], list[Grant]] = {}
        for grant in known:
            for uuid in grant.devices:
                self._by_card.setdefault((grant.resource, uuid), []).append(grant)

    def by_another_pod(self, grant: Grant) -> bool:
        """Whether another pod has got ids of `grant` since. A pod's containers reuse its init containers' ids."""
        return any(_is_of_another_pod(other, grant) for other in self._later(grant))

    def by_any_grant(self, grant: Grant) -> bool:
        """Whether any later grant has ids of `grant`, the same pod's included."""
        return any(True for _ in self._later(grant))

    def _later(self, grant: Grant) -> Iterator[Grant]:
        others = (other for uuid in grant.devices for other in self._by_card[grant.resource, uuid])
        return (other for other in others if commitments.superseded(grant, [other]))


def _is_of_another_pod(other: Grant, grant: Grant) -> bool:
    """Whether `other` belongs to another pod than `grant`.

    It does where `grant` was never claimed: a grant of an init container of the same pod would have been claimed first.
    """
    return other.holder is not None and (grant.holder is None or other.holder.pod_uid != grant.holder.pod_uid)


def listed(grant: Grant, listing: Listing, reuse: IdReuse, pod: Pod | None, checkpoint: Checkpoint) -> bool:
    """Whether kubelet still uses `grant`. `pod`: the namespace and name of the holder's pod, where known."""
    if reuse.by_another_pod(grant):
        return False
    holders = listing.holders(grant)
    if any(pod in (None, held.pod) for held in holders):
        return True
    if holders and not reuse.by_any_grant(grant):
        return True  # no other pod can hold the ids, so the runtime's name for the pod differs from kubelet's
    return _may_be_of_an_init_container(grant, listing, pod) and checkpoint.may_name(grant.id)


def _may_be_of_an_init_container(grant: Grant, listing: Listing, pod: Pod | None) -> bool:
    """Whether `grant` may belong to an init container. kubelet lists those neither before nor after they run."""
    if grant.holder is None or pod is None:
        return True
    names = listing.containers.get(pod)
    return names is not None and grant.holder.container not in names


class GrantGc:
    """One thread calls `round` every few seconds. A round may wait for kubelet and for the ledger's lock."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        fetch: Callable[[Settings], Listing] = pod_resources.fetch,
        clock: Callable[[], float] = time.monotonic,
        proc: str = "/proc",
    ) -> None:
        self.settings = settings
        self.log = log
        self.conditions = Conditions(log)
        self.fetch = fetch
        self.clock = clock
        self.proc = proc
        self.grace = settings.number("plugin.grant_grace")
        self._listing_check = ListingCheck([settings.node, os.uname().nodename, os.environ.get(NODE_NAME, "")])
        self._checkpoint = Checkpoint(settings.text("plugin.socket_dir"))
        self._heard: tuple[Life, bool] | None = None
        self._unlisted: dict[str, float] = {}  # grant id -> the time since which kubelet has not listed it

    def round(self) -> list[str]:
        """The ids of the deleted grants. A failure is logged, and no grant is deleted then."""
        try:
            ended = self._round()
        except (VgpuError, OSError) as error:
            self._unlisted = {}
            self.conditions.set("grants", f"no grant ends for now: {error}")
            return []
        self.conditions.set("grants", "")
        for grant in ended:
            self.log.info(
                f"grant ended: kubelet has not listed it for {self.grace:.0f} s", grant=grant.id[:8],
                resource=grant.resource, pod=grant.name or (grant.holder and grant.holder.describe()),
            )  # fmt: skip
        return [grant.id for grant in ended]

    def _round(self) -> list[Grant]:
        known, damaged = grants.read_all(self.settings.state_dir)
        self.conditions.set("damaged grants", "; ".join(damaged))
        known = [grant for grant in known if grant.devices]  # the others were made by hand and are not kubelet's
        listing = self.fetch(self.settings)
        whole = self._is_whole(listing)
        reuse = IdReuse(known)
        unlisted = [
            grant
            for grant in known
            if not listed(grant, listing, reuse, self._pod_of(grant), self._checkpoint)
            and (whole or not self._checkpoint.may_name(grant.id))
        ]
        living = delete_grants.living(self.settings, self.proc) if unlisted else set()
        now = self.clock()
        since = self._unlisted
        self._unlisted = {grant.id: since.get(grant.id, now) for grant in unlisted if grant.id not in living}
        ripe = [grant for grant in unlisted if now - self._unlisted.get(grant.id, now) >= self.grace]
        return delete_grants.delete(self.settings, ripe, self.proc) if ripe else []

    def _is_whole(self, listing: Listing) -> bool:
        """Whether the list has all pods. If not, only grants that kubelet's checkpoint does not contain are deleted.

        kubelet drops a pod from the checkpoint when the pod is gone, and only after it has heard from all its sources.
        """
        whole = self._listing_check.is_complete(listing)
        if (listing.life, whole) != self._heard:
            self._unlisted = {}
        self._heard = listing.life, whole
        return whole

    def _pod_of(self, grant: Grant) -> Pod | None:
        """Namespace and name of the holder's pod: from the hook's record, or from the API server's."""
        if grant.holder is None:
            return None
        parts = grant.name.split("/")
        if len(parts) == 3:
            return parts[0], parts[1]
        try:
            pod = pods.read(self.settings.run_dir, grant.holder.pod_uid)
        except (FileNotFoundError, VgpuError):
            return None
        return pod.namespace, pod.name
