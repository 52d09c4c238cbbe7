"""The end of grants: when kubelet has not listed one any more for a while, and can be believed.

Belongs here: when to believe kubelet, which grants an answer of it keeps, and how long the others wait. In doubt a
grant stays: one too many takes room until it is noticed, one too few costs a running pod its card at its next start.
The removal itself is vgpu.plugin.kubelet.delete_grants's, under the ledger's lock. docs/health.md has the rules in prose.
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

NODE_NAME = "NODE_NAME"  #: environment: the node's name, as a DaemonSet passes it on


class Belief:
    """Whether kubelet's answers can be believed. `nodes`: names that this node may have.

    A kubelet that has just started lists nothing, or the static pods alone, until it has heard of the API server; and
    what it hears is all pods at once. So the first pod that is not static vouches for the list, and for all further
    lists of the same life of kubelet, however short they are.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.marks = {"-" + node.lower().partition(".")[0] for node in nodes if node}
        self._life: Life | None = None

    def believes(self, listing: Listing) -> bool:
        if listing.life != self._life:
            self._life = None
            if any(not self._is_static(name) for _, name in listing.containers):
                self._life = listing.life
        return self._life is not None

    def _is_static(self, pod: str) -> bool:
        """kubelet appends the node's name to that of a static pod."""
        return any(mark in pod for mark in self.marks)


class Rivals:
    """Which of `known` have the same device ids as another one."""

    def __init__(self, known: list[Grant]) -> None:
        self._by_card: dict[tuple[str, str], list[Grant]] = {}
        for grant in known:
            for uuid in grant.devices:
                self._by_card.setdefault((grant.resource, uuid), []).append(grant)

    def took_over(self, grant: Grant) -> bool:
        """Whether another pod has got ids of `grant` since. In a pod, containers get those of its init containers."""
        return any(_is_of_another_pod(other, grant) for other in self._later(grant))

    def handed_out_again(self, grant: Grant) -> bool:
        """Whether anybody has, the same pod included."""
        return any(True for _ in self._later(grant))

    def _later(self, grant: Grant) -> Iterator[Grant]:
        others = (other for uuid in grant.devices for other in self._by_card[grant.resource, uuid])
        return (other for other in others if commitments.superseded(grant, [other]))


def _is_of_another_pod(other: Grant, grant: Grant) -> bool:
    """Of one that was never claimed, too: an init container's turn would have come before."""
    return other.holder is not None and (grant.holder is None or other.holder.pod_uid != grant.holder.pod_uid)


def listed(grant: Grant, listing: Listing, rivals: Rivals, pod: Pod | None, checkpoint: Checkpoint) -> bool:
    """Whether kubelet still has `grant` in use. `pod` is the holder's name where it is known."""
    if rivals.took_over(grant):
        return False
    holders = listing.holders(grant)
    if any(pod in (None, held.pod) for held in holders):
        return True
    if holders and not rivals.handed_out_again(grant):
        return True  # whose else could they be? The runtime's name for the pod is not kubelet's
    return _may_be_of_an_init_container(grant, listing, pod) and checkpoint.may_name(grant.id)


def _may_be_of_an_init_container(grant: Grant, listing: Listing, pod: Pod | None) -> bool:
    """kubelet does not list those, whether they have run or wait for their image."""
    if grant.holder is None or pod is None:
        return True
    names = listing.containers.get(pod)
    return names is not None and grant.holder.container not in names


class Expiry:
    """`round` is to be called every few seconds, from one thread; it waits for kubelet, and for the ledger's lock."""

    def __init__(
        self,
        settings: Settings,
        journal: Log,
        ask: Callable[[Settings], Listing] = pod_resources.ask,
        clock: Callable[[], float] = time.monotonic,
        proc: str = "/proc",
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.conditions = Conditions(journal)
        self.ask = ask
        self.clock = clock
        self.proc = proc
        self.grace = settings.number("plugin.grant_grace")
        self._belief = Belief([settings.node, os.uname().nodename, os.environ.get(NODE_NAME, "")])
        self._checkpoint = Checkpoint(settings.text("plugin.socket_dir"))
        self._heard: tuple[Life, bool] | None = None
        self._unlisted: dict[str, float] = {}  # grant -> since when, without interruption

    def round(self) -> list[str]:
        """The ids of the grants that have ended. Whatever goes wrong is told in the log, and ends nothing."""
        try:
            ended = self._round()
        except (VgpuError, OSError) as error:
            self._unlisted = {}
            self.conditions.set("grants", f"no grant ends for now: {error}")
            return []
        self.conditions.set("grants", "")
        for grant in ended:
            self.journal.info(
                f"grant ended: kubelet has not listed it for {self.grace:.0f} s", grant=grant.id[:8],
                resource=grant.resource, pod=grant.name or (grant.holder and grant.holder.describe()),
            )  # fmt: skip
        return [grant.id for grant in ended]

    def _round(self) -> list[Grant]:
        known, damaged = grants.read_all(self.settings.state_dir)
        self.conditions.set("damaged grants", "; ".join(damaged))
        known = [grant for grant in known if grant.devices]  # one without was made by hand, and is not kubelet's
        listing = self.ask(self.settings)
        whole = self._is_whole(listing)
        rivals = Rivals(known)
        unlisted = [
            grant
            for grant in known
            if not listed(grant, listing, rivals, self._pod_of(grant), self._checkpoint)
            and (whole or not self._checkpoint.may_name(grant.id))
        ]
        living = delete_grants.living(self.settings, self.proc) if unlisted else set()
        now = self.clock()
        since = self._unlisted
        self._unlisted = {grant.id: since.get(grant.id, now) for grant in unlisted if grant.id not in living}
        ripe = [grant for grant in unlisted if now - self._unlisted.get(grant.id, now) >= self.grace]
        return delete_grants.end(self.settings, ripe, self.proc) if ripe else []

    def _is_whole(self, listing: Listing) -> bool:
        """Whether the list has all pods. Otherwise only those grants end that kubelet's checkpoint has dropped, too.

        kubelet drops a pod there when it is gone, and not before it has heard of all its sources.
        """
        whole = self._belief.believes(listing)
        if (listing.life, whole) != self._heard:
            self._unlisted = {}
        self._heard = listing.life, whole
        return whole

    def _pod_of(self, grant: Grant) -> Pod | None:
        """The name of the holder's pod: as the hook was told, or as the API server says."""
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
