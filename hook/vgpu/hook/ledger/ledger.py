"""The node's ledger: which container holds what on which card, under one lock.

Belongs here: claiming (grants and standalone requests alike), and the sum of what is committed. State is
`<run>/containers/<id>/{claim.json,limits,cards}`, `<run>/presence*` and `<state>/grants/*.json`. Runs as root. Not
here: reading claims and releasing them (living_claims), the lock (lock), the choice of cards (vgpu.hook.placement), the
containers' time on a card (core_schedules).

A claim counts while its container's init lives. A placed grant counts with or without a container, because kubelet
promised it to the pod, until it is deleted or its pod is known to be gone (commitments). An unreadable record becomes a
line in `notes`, and never stops another container.
"""

from __future__ import annotations

import os
import time

from vgpu.config import claims, foreign, grants, health, limits, paths, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.foreign import User
from vgpu.config.grants import Grant, Holder
from vgpu.config.inventory import Card
from vgpu.config.limits import CardLimit
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.ledger import container_directory, core_schedules, presence
from vgpu.hook.ledger.living_claims import LivingClaims
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.ledger.totals import Totals
from vgpu.hook.linux import procfs
from vgpu.hook.placement import placement
from vgpu.hook.placement.allocation import Allocation, from_request
from vgpu.hook.placement.placement import Commitment, NoFit, Policy
from vgpu.hook.request import identity
from vgpu.hook.request.resolve_grants import ResolvedGrants, WantedGrants, resolve, terms_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # not at run time: it costs the hook's process time
    from collections.abc import Callable, Collection

    from vgpu.hook.ledger.pod_cgroups import PodCgroups
    from vgpu.hook.request.prepared_claims import WantedResults

    Wanted = Request | WantedGrants | WantedResults

#: Seconds that a start which kubelet has admitted waits for room. A pod that ends holds its card for about 4 s after
#: its last process; kubelet's first back-off after a refusal is 10 s.
PATIENCE = 6.0
RETRY = 0.2  #: seconds between two attempts of such a start
PAUSE = 0.01  #: between two looks whether a pod without a process has ended

Pods = dict[str, list[Grant]]  #: the grants of pods, by uid
Known = list[tuple[Claim, bool]]  #: all claims, and whether the container lives


class Start:
    """A container that starts: its id, its init (pid and start time), its bundle, and its identity in Kubernetes.

    `cgroup` is the init's own, from cgroup.own_of.
    """

    __slots__ = ("bundle", "cgroup", "container", "holder", "name", "now", "pid", "start_time")

    def __init__(
        self,
        container: str,
        pid: int,
        start_time: int,
        bundle: str,
        holder: Holder | None,
        name: str,
        now: float,
        cgroup: str = "",
    ) -> None:
        self.container = container
        self.pid = pid
        self.start_time = start_time
        self.bundle = bundle
        self.holder = holder
        self.name = name
        self.now = now
        self.cgroup = cgroup


class Attempt:
    """One attempt to claim, as far as somebody needs it later.

    `before`: the container's grants before it claimed them. `abandoned`: claims of hooks that were killed, whose
    containers are dead. `newest`: the time of the node's newest grant. Of a refused attempt, `ending`: files and
    directories, and when one of them goes, there may be room; `may_get_room`: kubelet has admitted the start, and the
    cards would have room without others; `patience`: seconds to wait for that. `partner` is the claim of a container
    with the same budget.
    """

    __slots__ = ("abandoned", "before", "ending", "may_get_room", "newest", "partner", "patience")

    def __init__(self) -> None:
        self.before: list[Grant] = []
        self.abandoned: list[str] = []
        self.newest = 0.0
        self.ending: list[str] = []
        self.may_get_room = False
        self.partner: Claim | None = None
        self.patience = PATIENCE


class Ledger(LivingClaims):
    """The ledger of one node. `clock` and `sleep` are for a start that waits."""

    __slots__ = (
        "_attempt",
        "_clock",
        "_foreign",
        "_ill",
        "_sleep",
        "cards",
        "policy",
        "terms",
        "virtual_memory",
    )

    def __init__(
        self,
        settings: Settings,
        cards: list[Card],
        proc: str = "/proc",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(settings, proc)
        self.cards = cards
        self.policy = Policy(
            settings.text("placement.policy"), settings.number("scaling.cores"), settings.number("scaling.memory")
        )
        self.terms = terms_of(settings, self.policy)
        self.virtual_memory = settings.flag("scaling.virtual_memory") and settings.number("scaling.memory") > 1
        self._foreign: dict[str, list[User]] | None = None
        self._ill: dict[str, str] | None = None
        self._attempt = Attempt()
        self._clock = clock
        self._sleep = sleep

    def claim(self, start: Start, wanted: Wanted) -> Allocation | None:
        """Place and record the request of `start`; None when it holds its cards already (a hook listed twice).

        VgpuError with the reason when it cannot have the cards; nothing is recorded then. kubelet admits a start when
        all cards together have room, and before an ending pod's last process is gone. Such a start waits up to PATIENCE
        for room, without the lock: with restartPolicy Never a refusal would fail its pod for good, and else kubelet
        would wait for longer.
        """
        end = None
        while True:
            with Lock(self.run_dir):
                try:
                    return self._claim(start, wanted)
                except NoFit:
                    if not self._attempt.may_get_room or (end is not None and self._clock() >= end):
                        raise
            end = self._clock() + self._attempt.patience if end is None else end
            retry = min(self._clock() + RETRY, end)
            while self._clock() < retry and all(map(os.path.exists, self._attempt.ending)):
                self._sleep(PAUSE)

    def _claim(self, start: Start, wanted: Wanted) -> Allocation | None:
        attempt = self._attempt = Attempt()
        container_directory.clear(self.run_dir, self.state_dir)
        if self._holds_already(start):
            return None
        known = self._known()  # once: others wait for the lock, and there may be hundreds
        if isinstance(wanted, (Request, WantedGrants)):
            attempt.before = self._wanted_grants(start, wanted, known) if isinstance(wanted, WantedGrants) else []
            resolved = self._resolved(wanted, attempt.before)
            allocation, mine, results = self._placed(start, resolved, known), resolved.grants, []
        else:
            allocation, mine, results = self._placed_results(start, wanted, known), [], wanted.ids
        try:
            self._record(start, allocation, mine, wanted.wishes.priority, _shares(known), results)
        except BaseException:
            self._withdraw(start)
            raise
        for container in dict.fromkeys(attempt.abandoned):
            self._end(container)
        return allocation

    def confirm(
        self, start: Start, devices: dict[str, str] | None = None, uncovered: tuple[str, ...] = (), limiter: int = 0
    ) -> None:
        """Mark the claim as ready, after all other steps. `devices` were opened in the container's device cgroup; the
        other two are the claim's.
        """
        claim = claims.read(self.run_dir, start.container)
        if (claim.pid, claim.start_time) != (start.pid, start.start_time):
            found = f"that of process {claim.pid}"
            raise VgpuError(f"container {start.container}", expected=f"the claim of process {start.pid}", found=found)
        claim.ready = True
        claim.devices = devices or {}
        claim.uncovered, claim.limiter = list(uncovered), limiter
        records.write(paths.claim(self.run_dir, start.container), claim.record())

    def withdraw(self, start: Start) -> None:
        """Remove the claim of a start that failed, and restore its grants."""
        with Lock(self.run_dir):
            self._withdraw(start)

    def place(self, wanted: Wanted, holder: Holder | None, container: str = "") -> Allocation:
        """The allocation that `claim` would make now. Cards that `container` already holds count as free."""
        start = Start(container, 0, 0, "", holder, "", 0.0)
        with Lock(self.run_dir):
            known = self._known()
            if isinstance(wanted, (Request, WantedGrants)):
                mine = self._wanted_grants(start, wanted, known) if isinstance(wanted, WantedGrants) else []
                allocation = self._placed(start, self._resolved(wanted, mine), known)
            else:
                allocation = self._placed_results(start, wanted, known)
            self._choose_presence(allocation, _shares(known))
            return allocation

    # Reading

    def _known(self) -> Known:
        return [(claim, self.lives(claim)) for claim in self.claims()]

    def commitments(self, own: tuple[str, ...] = (), container: str = "") -> dict[str, Commitment]:
        """The commitment of each card, by uuid: living claims, and placed grants of pods that are not known to be gone.

        The grants with the ids `own` and the claim of `container` are left out, because the caller decides about them.
        """
        return self._committed(self._known(), own, container, None)[0].cards

    def _committed(
        self, known: Known, own: tuple[str, ...], container: str, holder: Holder | None, without: Collection[str] = ()
    ) -> tuple[Totals, Pods]:
        """The commitments, and the pods among them that may just be ending. Those with the uids `without` are gone."""
        totals = Totals()
        claimed: set[str] = set()
        for claim, lives in self._add_prepared(totals, known, own):
            if claim.container == container or set(own).intersection(claim.grants):
                continue
            if lives:
                claimed.update(claim.grants)
                totals.add_claim(claim)
            elif not claim.ready:
                self._attempt.abandoned.append(claim.container)
        all_grants, damaged = grants.read_all(self.state_dir)
        self._attempt.newest = max((grant.created for grant in all_grants), default=0.0)
        for note in damaged:
            self._note(note)
        leaving: Pods = {}
        if any(grant.cards and grant.id not in claimed and grant.id not in own for grant in all_grants):
            from vgpu.hook.ledger.commitments import OpenGrants  # noqa: PLC0415

            open_ones = OpenGrants(all_grants, claimed, own, holder, self._pod_cgroups(), without)
            leaving = open_ones.leaving
            for note in open_ones.add_to(totals):
                self._note(note)
        for uuid, users in self.foreign().items():
            for user in users:
                totals.add((CardLimit(uuid, 0, 0, 0), False), user.describe())
        self._add_numbers(totals, known)
        return totals, leaving

    def _add_numbers(self, totals: Totals, known: Known) -> None:
        """Nobody gets a MIG instance whose node a container has from an instance that had the same number."""
        for card in self.cards:
            number = next((f"{one.major}:{one.minor}" for one in reversed(card.capabilities.values())), "")
            had = [claim for claim, lives in known if lives and number in claim.devices]
            others = [claim for claim in had if card.uuid not in [limit.uuid for limit in claim.cards]]
            if others:
                name = f"{others[0].name or others[0].container}, whose destroyed instance had its number"
                totals.add((CardLimit(card.uuid), True), name)

    def _add_prepared(self, totals: Totals, known: Known, own: tuple[str, ...]) -> Known:
        """Add what prepared resource claims have. Returns the claims of containers that count by themselves."""
        if not any(claim.prepared for claim, _ in known) and not os.path.isdir(paths.prepared_claims(self.state_dir)):
            return known
        from vgpu.hook.ledger import prepared_budgets  # noqa: PLC0415

        for note in prepared_budgets.add_to(totals, self.state_dir, known, own):
            self._note(note)
        return [(claim, lives) for claim, lives in known if not (claim.prepared and lives)]

    def _pod_cgroups(self) -> PodCgroups:
        from vgpu.hook.ledger.pod_cgroups import PodCgroups  # noqa: PLC0415

        return PodCgroups(self.boot_id, self.proc)

    def foreign(self) -> dict[str, list[User]]:
        """The living processes that compute on a card without a claim on it, by card uuid, as vgpud last recorded them.

        They take nothing from the shares of a card, but nobody gets such a card as a whole.
        """
        if self._foreign is None:
            try:
                seen = foreign.read(self.run_dir, self.boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
            except VgpuError as error:
                self.notes.append(str(error))
                seen = {}
            self._foreign = {uuid: [user for user in users if self._computes(user)] for uuid, users in seen.items()}
        return self._foreign

    def ill(self) -> dict[str, str]:
        """The cards that no new container gets, by uuid, and why, as vgpud has recorded it."""
        if self._ill is None:
            try:
                self._ill = health.ill(self.run_dir, self.boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
            except VgpuError as error:
                self.notes.append(str(error))
                self._ill = {}
        return self._ill

    def describe(self, allocation: Allocation) -> list[str]:
        """For the log: the cards, and the foreign processes that compute on them."""
        cards = ", ".join(card.label() for card in allocation.cards)
        foreign_users = self.foreign()
        others = [(card, user) for card in allocation.cards for user in foreign_users.get(card.uuid, [])]
        described = [f"{card.label()}: {user.describe()} is there too" for card, user in others]
        return [f"{'whole' if allocation.exclusive else 'share of'} {cards}", *described]

    def _computes(self, user: User) -> bool:
        return user.kind == foreign.COMPUTE and procfs.lives(user.pid, user.start_time, self.proc)

    # Claiming, under the lock

    def _holds_already(self, start: Start) -> bool:
        try:
            claim = claims.read(self.run_dir, start.container)
        except (FileNotFoundError, VgpuError) as error:  # the id starts again, so its last life is over
            if isinstance(error, VgpuError):
                self.notes.append(str(error))
            container_directory.remove(self.run_dir, start.container)
            return False
        same = (claim.pid, claim.start_time) == (start.pid, start.start_time)
        if same and claim.ready:
            return True
        if not same and self.lives(claim):
            found = f"a living container of that id, pid {claim.pid}, bundle {claim.bundle}"
            raise VgpuError(f"container {start.container}", expected="an id of its own", found=found)
        container_directory.remove(self.run_dir, start.container)
        return False

    def _wanted_grants(self, start: Start, wanted: WantedGrants, known: Known) -> list[Grant]:
        """The grants with the wanted ids. Each exists, is of its resource, and belongs to no other container."""
        assert start.holder is not None
        mine = [self._grant(resource, grant_id, start.holder) for resource, grant_id in wanted.ids.items()]
        ids = {grant.id for grant in mine}
        for claim, lives in known:
            if claim.container != start.container and ids.intersection(claim.grants) and lives:
                found = f"container {claim.container}, which still lives"
                raise VgpuError("grants", expected="no other container of this name in the pod", found=found)
        return mine

    def _grant(self, resource: str, grant_id: str, holder: Holder) -> Grant:
        what = f"grant {grant_id[:8]} of {resource}"
        if not paths.is_grant_id(grant_id):
            raise VgpuError(f"grant of {resource}", expected="an id of 32 hexadecimal digits", found=grant_id)
        try:
            grant = grants.read(self.state_dir, grant_id)
        except FileNotFoundError:
            do = "delete the pod: its grant is unknown here or has ended"
            raise VgpuError(what, expected="a grant of this node", found="none", do=do) from None
        if grant.resource != resource:
            raise VgpuError(what, expected=f"an amount of {resource}", found=f"an amount of {grant.resource}")
        if grant.holder is not None and grant.holder != holder:
            found = f"one of {grant.holder.describe()}"
            raise VgpuError(what, expected=f"a grant of {holder.describe()}", found=found)
        return grant

    def _resolved(self, wanted: Request | WantedGrants, mine: list[Grant]) -> ResolvedGrants:
        if isinstance(wanted, Request):
            return ResolvedGrants(wanted, [])
        resolved = resolve(mine, wanted, self.cards, self.terms)
        if wanted.core_limit:
            from vgpu.hook.request import ignored_annotations  # noqa: PLC0415

            for note in ignored_annotations.core_limit(wanted.core_limit, resolved.request):
                self._note(note)
        return resolved

    def _placed(self, start: Start, resolved: ResolvedGrants, known: Known) -> Allocation:
        request, mine = resolved.request, resolved.grants
        own = tuple(grant.id for grant in mine)
        totals, leaving = self._committed(known, own, start.container, start.holder)
        before = mine[0].cards if mine and all(grant.cards == mine[0].cards for grant in mine) else []
        self._refuse_gone(before or (request.preferred if mine else ()))
        if before:
            try:
                return self._allocated(request.fixed_on(tuple(before)), totals)
            except NoFit as error:
                self._note(f"placed anew: {error}")  # the card is gone, or another container took it after a reboot
        try:
            return self._allocated(request, totals, bool(mine))
        except NoFit:
            self._attempt.may_get_room = bool(mine) and self._has_room(request, Totals())
            if leaving:
                totals, _ = self._committed(known, own, start.container, start.holder, leaving)
                self._attempt.ending = self._what_ends(request, totals, leaving)
            raise

    def _refuse_gone(self, uuids: Collection[str]) -> None:
        """NoFit for a MIG instance that is gone: another one has another size. A card that is gone has its likes."""
        for uuid in set(filter(limits.is_instance, uuids)).difference(card.uuid for card in self.cards):
            do = "delete the pod, so that kubelet allocates anew"
            raise NoFit(f"MIG instance {uuid}", expected="it on this node", found="none: it was destroyed", do=do)

    def _placed_results(self, start: Start, wanted: WantedResults, known: Known) -> Allocation:
        """The allocation of results of prepared claims, on the cards that the scheduler chose."""
        from vgpu.hook.ledger import prepared_budgets  # noqa: PLC0415

        try:
            partner = prepared_budgets.partner_of(start.container, wanted, known, self.state_dir)
        except NoFit:
            self._attempt.may_get_room, self._attempt.patience = True, prepared_budgets.PATIENCE
            raise
        totals, _ = self._committed(known, tuple(wanted.ids), start.container, start.holder)
        requests = wanted.requests()
        try:
            placed = [self._allocated(request, totals) for request in requests]
        except NoFit:
            self._attempt.may_get_room = all(self._has_room(request, Totals()) for request in requests)
            raise
        limits = [limit for one in placed for limit in one.limits]
        exclusive = all(one.exclusive for one in placed)
        allocation = Allocation([card for one in placed for card in one.cards], limits, exclusive)
        allocation.region = (partner.pid, partner.start_time) if partner and not exclusive else None
        self._attempt.partner = partner
        return allocation

    def _has_room(self, request: Request, totals: Totals) -> bool:
        try:
            self._allocated(request, totals)
        except NoFit:
            return False
        return True

    def _what_ends(self, request: Request, totals: Totals, leaving: Pods) -> list[str]:
        """The records and cgroups of pods without a process, if the request has room beside `totals`, which are those
        without these pods; else []."""
        if not self._has_room(request, totals):
            return []
        cgroups = self._pod_cgroups()
        found = []
        for pod in leaving.values():
            found += cgroups.directories(pod)
            found += [paths.grant(self.state_dir, grant.id) for grant in pod]
        return found

    def _allocated(self, request: Request, totals: Totals, by_kubelet: bool = False) -> Allocation:
        cards = placement.place(request, self.cards, totals.cards, self.policy, by_kubelet, self.ill())
        return from_request(request, cards, self.virtual_memory)

    def _record(
        self,
        start: Start,
        allocation: Allocation,
        mine: list[Grant],
        priority: int,
        others: list[Claim],
        results: list[str],
    ) -> None:
        uuids = [card.uuid for card in allocation.cards]
        for grant in mine:
            claimed = grants.changed(
                grant, holder=start.holder, name=start.name, cards=uuids, newest=self._attempt.newest,
                pod_cgroup=identity.pod_cgroup_record(start.cgroup), boot_id=self.boot_id,
            )  # fmt: skip
            self._write_grant(claimed)
        directory = container_directory.prepare(self.run_dir)
        partner = self._attempt.partner
        if partner:
            os.link(paths.limits(self.run_dir, partner.container), f"{directory}/{paths.LIMITS}")
        else:
            records.write_bytes(f"{directory}/{paths.LIMITS}", limits.encode(start.container, allocation.limits), 0o444)
        claim = Claim(
            start.container, start.pid, start.start_time, allocation.limits, allocation.exclusive, start.holder,
            [grant.id for grant in mine], start.bundle, start.now, start.name, cgroup=start.cgroup,
            boot_id=self.boot_id, priority=priority,
        )  # fmt: skip
        claim.prepared = results
        if not allocation.exclusive:
            self._share_time(claim, directory, allocation, others)
        records.write(f"{directory}/{paths.CLAIM}", claim.record())
        container_directory.publish(self.run_dir, start.container)
        if not allocation.exclusive and not partner:
            shares = sorted([*others, claim], key=lambda share: share.container)
            self.reschedule((card.uuid for card in allocation.limits), shares)

    def _write_grant(self, grant: Grant) -> None:
        grants.write(self.state_dir, grant, paths.ledger_temporary(paths.grants(self.state_dir)))

    def _choose_presence(self, allocation: Allocation, others: list[Claim]) -> None:
        if not allocation.exclusive:
            allocation.presence = presence.choose(self.run_dir, (card.uuid for card in allocation.cards), others)

    def _share_time(self, claim: Claim, directory: str, allocation: Allocation, others: list[Claim]) -> None:
        """Give a container that starts with a share its cards' presence files and its core schedules."""
        self._choose_presence(allocation, others)
        shared = {card.uuid for other in others for card in other.cards}
        for uuid, path in allocation.presence.items():
            wrong = presence.ensure(self.run_dir, path)
            if wrong and uuid in shared:
                self._note(f"{path} {wrong}")
        common = paths.common_presence(self.run_dir)
        claim.common_presence = [uuid for uuid, path in allocation.presence.items() if path == common]
        if self._attempt.partner:
            source = paths.core_schedules(self.run_dir, self._attempt.partner.container)
            os.link(source, f"{directory}/{paths.CORE_SCHEDULES}")
            return
        core_schedules.create(directory, claim, others, core_schedules.clock_offset(claim.pid, self.proc))

    def _withdraw(self, start: Start) -> None:
        if self._is_anothers(start):
            return
        for grant in self._attempt.before:
            try:
                if os.path.exists(paths.grant(self.state_dir, grant.id)):  # a deleted grant does not come back
                    self._write_grant(grant)
            except OSError as error:
                self.notes.append(f"grant {grant.id[:8]}: {error}")  # the grant stays with this container
        self._attempt = Attempt()
        container_directory.clear(self.run_dir, self.state_dir)
        self._end(start.container)

    def _is_anothers(self, start: Start) -> bool:
        """Whether a new life of the container's id has claimed since; then `start` was killed meanwhile."""
        try:
            claim = claims.read(self.run_dir, start.container)
        except (FileNotFoundError, VgpuError):
            return False
        return (claim.pid, claim.start_time) != (start.pid, start.start_time)


def _shares(known: Known) -> list[Claim]:
    return claims.one_of_each_budget([claim for claim, lives in known if lives and not claim.exclusive])
