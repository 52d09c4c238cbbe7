"""Garbage collection of grants: deletes a grant as soon as its pod is known to be over, and no sooner.

Belongs here: what proves that a pod is over, which grants kubelet still uses, and how long a grant in doubt waits.
docs/kubernetes.md explains the rules. In doubt a grant stays: a superfluous grant takes room until somebody notices
it, but a missing one costs a running pod its card at the next start. vgpu.plugin.kubelet.delete_grants deletes, under
the ledger's lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from vgpu.config import grants, pods
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.settings import Settings
from vgpu.hook.ledger import pod_cgroups
from vgpu.hook.ledger.commitments import LaterGrants
from vgpu.hook.ledger.pod_cgroups import PodCgroups
from vgpu.hook.linux import staleness
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.kubelet import delete_grants, pod_resources
from vgpu.plugin.kubelet.checkpoint import Checkpoint
from vgpu.plugin.kubelet.pod_resources import Held, Life, Listing, Pod
from vgpu.plugin.kubelet.unclaimed import Unclaimed

NODE_NAME = "NODE_NAME"  #: environment variable by which a DaemonSet passes the node's name
PAUSE = 10.0  #: seconds between two rounds while nothing happens
SHORT_PAUSE = 1.0  #: seconds between two rounds while the grant of a pod that is over cannot go yet
SHORTEST_PAUSE = 0.2  #: seconds after a round, so that several changes at once make one more round
REST = 4  #: times the length of a round, to pause after it: rounds take a fifth of a core at most


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
        later = LaterGrants(known)
        self._later = {grant.id: later.of(grant) for grant in known}

    def by_another_pod(self, grant: Grant) -> bool:
        """Whether another pod has got ids of `grant` since. A pod's containers reuse its init containers' ids."""
        return any(_is_of_another_pod(other, grant) for other in self._later[grant.id])

    def by_any_grant(self, grant: Grant) -> bool:
        """Whether any later grant has ids of `grant`, the same pod's included."""
        return bool(self._later[grant.id])

    def by_a_stranger(self, grant: Grant) -> bool:
        """Whether a later grant has ids of `grant` that is not known to be the same pod's."""
        return any(other.holder is None or _is_of_another_pod(other, grant) for other in self._later[grant.id])


def _is_of_another_pod(other: Grant, grant: Grant) -> bool:
    """Whether `other` belongs to another pod than `grant`.

    It does where `grant` was never claimed: a grant of an init container of the same pod would have been claimed first.
    """
    return other.holder is not None and (grant.holder is None or other.holder.pod_uid != grant.holder.pod_uid)


@dataclass(frozen=True)
class Ending:
    """Why a grant may go. A grant that is not `sure` waits for plugin.grant_grace."""

    why: str
    sure: bool = True


@dataclass(frozen=True)
class View:
    """What is known of the pods at one look.

    `gone`: uids of pods that are over according to the API server. `listing` is kubelet's list, None without an answer.
    It is `complete` when it has all pods, and `settled` when lists of this run of kubelet have been so for a while.
    """

    gone: Set[str]
    reuse: IdReuse
    replaced: Set[str]  #: uids of pods of which another pod has got device ids since
    checkpoint: Checkpoint
    pods: dict[str, list[Grant]]  #: pod uid -> its claimed grants
    cgroups: PodCgroups
    listing: Listing | None = None
    complete: bool = False
    settled: bool = False

    def ending(self, grant: Grant, pod: Pod | None) -> Ending | None:
        """Why `grant` may go; None while its pod may use it. `pod`: namespace and name of the holder's pod, if known.

        A claimed grant has been in kubelet's checkpoint, because kubelet writes it between Allocate and the container's
        start. So kubelet has dropped a claimed grant that is not there any more.
        """
        uid = grant.holder.pod_uid if grant.holder else ""
        holders = self.listing.holders(grant) if self.listing else []
        held = self._is_held(grant, holders, pod)
        why = self._why_over(uid, held)
        if why:
            return Ending(why)
        if self.listing is None:
            return None
        named = self.checkpoint.may_name(grant.id)
        if uid and not named and (not held or self.reuse.by_a_stranger(grant)):
            return Ending("kubelet's checkpoint does not name it any more")
        if held or (named and (not self.complete or self._may_be_of_an_init_container(grant, self.listing, pod))):
            return None
        return Ending("kubelet does not list it", sure=bool(uid) and self.settled)

    def _why_over(self, uid: str, held: bool) -> str:
        """Why the pod `uid` is over whatever the checkpoint names, and whether or not kubelet answers; else "".

        `held`: kubelet lists the grant. Then it may not have heard yet that the pod is gone, and start a container.
        """
        if uid in self.replaced:
            return "another pod has got device ids of its pod"
        if not uid or held:
            return ""
        if uid in self.gone:
            return "its pod is gone from the API server, or has ended there"
        if self.cgroups.state(self.pods[uid]) == pod_cgroups.GONE:
            return "kubelet has removed its pod's cgroup"
        return ""

    def lags(self, grant: Grant) -> bool:
        """Whether kubelet may list `grant` only because it has not heard yet that its pod is gone."""
        return grant.holder is not None and grant.holder.pod_uid in self.gone

    def _is_held(self, grant: Grant, holders: list[Held], pod: Pod | None) -> bool:
        """Whether kubelet lists ids of `grant` as its pod's, by the pod's name where that is known."""
        if self.reuse.by_another_pod(grant):
            return False
        if any(pod in (None, held.pod) for held in holders):
            return True
        # if no other pod can hold the ids, the runtime's name for the pod differs from kubelet's
        return bool(holders) and not self.reuse.by_any_grant(grant)

    def _may_be_of_an_init_container(self, grant: Grant, listing: Listing, pod: Pod | None) -> bool:
        """Whether `grant` may belong to an init container. kubelet lists those neither before nor after they run."""
        if self.reuse.by_another_pod(grant):
            return False
        if grant.holder is None or pod is None:
            return True
        names = listing.containers.get(pod)
        return names is not None and grant.holder.container not in names


def nobody() -> Set[str]:
    """No pod is known to be gone: there is no access to the API server."""
    return frozenset()


class GrantGc:
    """One thread runs `run`. A round may wait for kubelet and for the ledger's lock.

    `gone` returns the uids of the pods that are over according to the API server.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        gone: Callable[[], Set[str]] = nobody,
        fetch: Callable[[Settings], Listing] = pod_resources.fetch,
        clock: Callable[[], float] = time.monotonic,
        proc: str = "/proc",
    ) -> None:
        self.settings = settings
        self.log = log
        self.conditions = Conditions(log)
        self.gone = gone
        self.fetch = fetch
        self.clock = clock
        self.proc = proc
        self.grace = settings.number("plugin.grant_grace")
        self.pause = PAUSE  #: seconds until the next round
        self._listing_check = ListingCheck([settings.node, os.uname().nodename, os.environ.get(NODE_NAME, "")])
        self._checkpoint = Checkpoint(settings.text("plugin.socket_dir"))
        self._seen = self._checkpoint.file()
        self._woken = threading.Event()
        self._heard: tuple[Life, bool] | None = None
        self._complete_since = 0.0
        self._unclaimed = Unclaimed()
        self._unlisted: dict[str, float] = {}  # grant id -> the time since which kubelet has not listed it

    def run(self, stopped: threading.Event) -> None:
        """Rounds until `stopped`: PAUSE apart, and soon after `wake`."""
        while not stopped.is_set():
            self._woken.wait(self.pause)
            self._woken.clear()
            if stopped.is_set():
                return
            begun = self.clock()
            self.round()
            stopped.wait(max(SHORTEST_PAUSE, REST * (self.clock() - begun)))

    def wake(self) -> None:
        """Begin a round now: a pod is over, or kubelet has allocated. Any thread may call this."""
        self._woken.set()

    def look_at_checkpoint(self) -> None:
        """Begin a round if kubelet has written its checkpoint anew. One thread calls this, whenever it has a reason."""
        found = self._checkpoint.file()
        if found != self._seen:
            self._seen = found
            self.wake()

    def round(self) -> list[str]:
        """The ids of the deleted grants. A failure is logged; then only what needs no answer of kubelet is deleted."""
        try:
            ended = self._round()
        except (VgpuError, OSError) as error:
            self._fail(error)
            return []
        for grant, why in ended:
            self.log.info(
                f"grant ended: {why}", grant=grant.id[:8],
                resource=grant.resource, pod=grant.name or (grant.holder and grant.holder.describe()),
            )  # fmt: skip
        return [grant.id for grant, _ in ended]

    def _round(self) -> list[tuple[Grant, str]]:
        gone = self.gone()
        known, damaged = grants.read_all(self.settings.state_dir)
        self.conditions.set("damaged grants", "; ".join(damaged))
        known = [grant for grant in known if grant.devices]  # the others were made by hand and are not kubelet's
        view = self._view(gone, known)
        endings = {grant.id: view.ending(grant, self._pod_of(grant)) for grant in known}
        living = delete_grants.living(self.settings, self.proc) if any(endings.values()) else set()
        ripe = self._ripe(known, endings, living)
        deleted = delete_grants.delete(self.settings, [grant for grant, _ in ripe], self.proc) if ripe else []
        left = {grant.id for grant in known} - {grant.id for grant in deleted}
        waits = any(grant.id in left and self._is_over(endings[grant.id], view, grant) for grant in known)
        self.pause = SHORT_PAUSE if waits else PAUSE
        if view.listing is not None:
            self.conditions.set("grants", "")
            left_ones = [grant for grant in known if grant.id in left and not view.reuse.by_any_grant(grant)]
            self.conditions.set("unclaimed", self._unclaimed.look(left_ones, view.listing, self.clock()))
        whys = {grant.id: why for grant, why in ripe}
        return [(grant, whys[grant.id]) for grant in deleted]

    def _view(self, gone: Set[str], known: list[Grant]) -> View:
        """What is known now. kubelet's list is None, and that is logged, when kubelet does not answer."""
        reuse = IdReuse(known)
        by_pod: dict[str, list[Grant]] = {}
        for grant in known:
            if grant.holder:
                by_pod.setdefault(grant.holder.pod_uid, []).append(grant)
        cgroups = PodCgroups(staleness.boot_id(self.proc), self.proc)
        replaced = {grant.holder.pod_uid for grant in known if grant.holder and reuse.by_another_pod(grant)}
        try:
            listing = self.fetch(self.settings)
        except (VgpuError, OSError) as error:
            self._fail(error)
            return View(gone, reuse, replaced, self._checkpoint, by_pod, cgroups)
        complete = self._is_complete(listing)
        settled = complete and self.clock() - self._complete_since >= self.grace
        return View(gone, reuse, replaced, self._checkpoint, by_pod, cgroups, listing, complete, settled)

    def _fail(self, error: Exception) -> None:
        self._unlisted = {}
        self.conditions.set("grants", f"no grant ends for now, unless its pod is known to be gone: {error}")

    def _is_complete(self, listing: Listing) -> bool:
        """Whether the list has all pods. If not, only grants that kubelet's checkpoint does not contain are deleted.

        kubelet drops a pod from the checkpoint when the pod is gone, and only after it has heard from all its sources.
        """
        complete = self._listing_check.is_complete(listing)
        if (listing.life, complete) != self._heard:
            self._unlisted = {}
            self._complete_since = self.clock()
        self._heard = listing.life, complete
        return complete

    def _ripe(self, known: list[Grant], endings: dict[str, Ending | None], living: Set[str]) -> list[tuple[Grant, str]]:
        """The grants to delete now, and why: those that end for sure, and those in doubt for the grace."""
        now, since = self.clock(), self._unlisted
        self._unlisted = {
            grant_id: since.get(grant_id, now)
            for grant_id, ending in endings.items()
            if ending and not ending.sure and grant_id not in living
        }
        ripe = []
        for grant in known:
            ending = endings[grant.id]
            if ending is None or grant.id in living:
                continue
            if ending.sure:
                ripe.append((grant, ending.why))
            elif now - self._unlisted[grant.id] >= self.grace:
                ripe.append((grant, f"{ending.why}, for {self.grace:.0f} s"))
        return ripe

    def _is_over(self, ending: Ending | None, view: View, grant: Grant) -> bool:
        """Whether the pod of `grant` is over, so that the grant goes as soon as no container has it."""
        return ending.sure if ending else view.lags(grant)

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
