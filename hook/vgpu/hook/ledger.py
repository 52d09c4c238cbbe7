"""The node's ledger: which container holds what on which card, under one lock.

Belongs here: claiming (grants and standalone requests alike), releasing, and the sum of what is committed. State is
`<run>/containers/<id>/{claim.json,limits}` and `<state>/grants/*.json`; the lock is flock(2) on `<run>/ledger.lock`,
which the kernel frees when its holder dies. Runs as root; placement itself is vgpu.hook.placement's.

A claim counts while its container's init lives; a placed grant counts until it is deleted, container or not, because
kubelet promised it to the pod. What cannot be read is reported in `notes` and set aside, never fatal to others.
"""

from __future__ import annotations

import fcntl
import os

from vgpu.config import claims, grants, limits, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.inventory import Card
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.config.request import WHOLE_CARD, Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook import allocation, placement, processes
from vgpu.hook.allocation import Allocation
from vgpu.hook.placement import Commitment, NoFit, Policy

CLAIM, LIMITS = "claim.json", "limits"


class Start:
    """A container that starts: its id, its init (pid and start time), its bundle, and who it is in Kubernetes."""

    __slots__ = ("bundle", "container", "holder", "name", "now", "pid", "start_time")

    def __init__(
        self, container: str, pid: int, start_time: int, bundle: str, holder: Holder | None, name: str, now: float
    ) -> None:
        self.container = container
        self.pid = pid
        self.start_time = start_time
        self.bundle = bundle
        self.holder = holder
        self.name = name
        self.now = now


class Redemption:
    """Grants to be claimed: resource -> grant id, and what annotations add to their amounts."""

    __slots__ = ("core_limit", "ids", "wishes")

    def __init__(self, ids: dict[str, str], core_limit: int, wishes: Wishes) -> None:
        self.ids = ids
        self.core_limit = core_limit
        self.wishes = wishes


class Ledger:
    """The ledger of one node; `notes` gathers what was found damaged. `proc` is the root of procfs."""

    __slots__ = ("_before", "cards", "notes", "policy", "proc", "run_dir", "state_dir")

    def __init__(self, settings: Settings, cards: list[Card], proc: str = "/proc") -> None:
        self.run_dir = settings.run_dir
        self.state_dir = settings.state_dir
        self.cards = cards
        self.proc = proc
        self.policy = Policy(
            settings.text("placement.policy"), settings.number("scaling.cores"), settings.number("scaling.memory")
        )
        self.notes: list[str] = []
        self._before: list[Grant] = []  # this container's grants as they were before it claimed them

    def claim(self, start: Start, wanted: Request | Redemption) -> Allocation | None:
        """Place and record what `start` wants; None when it holds its cards already (a hook listed twice).

        VgpuError with the reason when it cannot have them; nothing is recorded then.
        """
        with _Lock(self.run_dir):
            if self._holds_already(start):
                return None
            mine = self._redeemed(start, wanted) if isinstance(wanted, Redemption) else []
            made = self._placed(start, wanted, mine)
            self._before = [_copy(grant) for grant in mine]
            try:
                self._record(start, made, mine)
            except OSError as error:
                self._withdraw(start)
                raise VgpuError("ledger", expected="to record the claim", found=str(error)) from error
            return made

    def confirm(self, start: Start) -> None:
        """The container's claim stands: everything else was done."""
        claim = claims.read(self.run_dir, start.container)
        claim.ready = True
        records.write(claims.path_of(self.run_dir, start.container), claim.record())

    def withdraw(self, start: Start) -> None:
        """The start failed: no claim remains, and its grants are as they were."""
        with _Lock(self.run_dir):
            self._withdraw(start)

    def release(self, container: str) -> bool:
        """The container is gone. False, and nothing done, when it has no claim or a new life under the same id."""
        with _Lock(self.run_dir):
            try:
                claim = claims.read(self.run_dir, container)
            except FileNotFoundError:
                return False
            except VgpuError as error:
                self.notes.append(str(error))
            else:
                if processes.lives(claim.pid, claim.start_time, self.proc):
                    return False
            self._drop(container)
            return True

    def limits_file(self, container: str) -> str:
        """The host's path of a container's limits file."""
        return f"{claims.directory(self.run_dir, container)}/{LIMITS}"

    def place(self, wanted: Request | Redemption, holder: Holder | None) -> Allocation:
        """What `claim` would decide now, without recording anything."""
        start = Start("dry-run", 0, 0, "", holder, "", 0.0)
        with _Lock(self.run_dir):
            mine = self._redeemed(start, wanted) if isinstance(wanted, Redemption) else []
            return self._placed(start, wanted, mine)

    # What is there

    def claims(self) -> list[Claim]:
        """All readable claims, of living containers and dead ones; a damaged one comes from its limits file."""
        found = []
        try:
            names = sorted(os.listdir(self.run_dir + "/containers"))
        except FileNotFoundError:
            return []
        for name in names:
            if not claims.is_container_id(name):
                continue
            try:
                found.append(claims.read(self.run_dir, name))
            except FileNotFoundError:
                continue  # made or removed this moment, by a hook that has not the lock
            except VgpuError as error:
                self.notes.append(str(error))
                found += self._salvaged(name)
        return found

    def lives(self, claim: Claim) -> bool:
        """Whether the claim's container lives. A salvaged claim has no pid: it counts until somebody deletes it."""
        return claim.pid < 0 or processes.lives(claim.pid, claim.start_time, self.proc)

    def commitments(self, own: tuple[str, ...] = ()) -> dict[str, Commitment]:
        """What is promised of each card, by uuid: living claims, and placed grants but those of the ids `own`."""
        totals: dict[str, Commitment] = {}
        redeemed = set(own)
        for claim in self.claims():
            if self.lives(claim) and not set(own).intersection(claim.grants):
                redeemed.update(claim.grants)
                for card in claim.cards:
                    _add(totals, card, claim.exclusive, claim.name or claim.container)
        known, damaged = grants.read_all(self.state_dir)
        self.notes += damaged
        open_ones = [grant for grant in known if grant.cards and grant.id not in redeemed]
        for group in _by_holder([grant for grant in open_ones if not _superseded(grant, known)]):
            self._add_group(totals, group)
        return totals

    def _add_group(self, totals: dict[str, Commitment], group: list[Grant]) -> None:
        """Grants of one container that is between two lives (restarting, or the node was rebooted)."""
        try:
            request = grants.join(group, 0, Wishes())
        except VgpuError as error:
            self.notes.append(str(error))
            return
        holder = group[0].holder
        for uuid in group[0].cards:
            limit = CardLimit(uuid, request.memory, request.cores, request.core_limit)
            _add(totals, limit, request.exclusive, holder.describe() if holder else group[0].id[:8])

    def _salvaged(self, container: str) -> list[Claim]:
        """What a damaged claim still takes of its cards, from the limits file beside it."""
        path = self.limits_file(container)
        try:
            data = records.read_bounded(path, limits.SIZE)
            cards = limits.decode(data, path)[1]
        except (OSError, VgpuError) as error:
            self.notes.append(f"{path}: {error}")
            return []
        whole = any(card.memory == UNLIMITED for card in cards)
        return [Claim(container, -1, 0, cards, whole, None, [], "", 0.0)]

    # Claiming, under the lock

    def _holds_already(self, start: Start) -> bool:
        try:
            claim = claims.read(self.run_dir, start.container)
        except FileNotFoundError:
            return False
        except VgpuError as error:
            self.notes.append(str(error))
            return False
        same = (claim.pid, claim.start_time) == (start.pid, start.start_time)
        if same and claim.ready:
            return True
        if not same and self.lives(claim):
            found = f"a living container of that id, pid {claim.pid}, bundle {claim.bundle}"
            raise VgpuError(f"container {start.container}", expected="an id of its own", found=found)
        self._drop(start.container)
        return False

    def _redeemed(self, start: Start, wanted: Redemption) -> list[Grant]:
        """The grants behind the ids, each checked: it exists, is of that resource, and nobody else's."""
        assert start.holder is not None
        mine = [self._grant(resource, grant_id, start.holder) for resource, grant_id in wanted.ids.items()]
        ids = {grant.id for grant in mine}
        for claim in self.claims():
            if claim.container != start.container and ids.intersection(claim.grants) and self.lives(claim):
                found = f"container {claim.container}, which still lives"
                raise VgpuError("grants", expected="no other container of this name in the pod", found=found)
        return mine

    def _grant(self, resource: str, grant_id: str, holder: Holder) -> Grant:
        what = f"grant {grant_id[:8]} of {resource}"
        if not grants.is_id(grant_id):
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

    def _placed(self, start: Start, wanted: Request | Redemption, mine: list[Grant]) -> Allocation:
        request = wanted if isinstance(wanted, Request) else grants.join(mine, wanted.core_limit, wanted.wishes)
        own = tuple(grant.id for grant in mine)
        committed = self.commitments(own)
        before = mine[0].cards if mine and all(grant.cards == mine[0].cards for grant in mine) else []
        if before:
            request.fixed = tuple(before)
            try:
                return allocation.from_request(request, self._place(request, committed))
            except NoFit as error:
                self.notes.append(f"placed anew: {error}")  # the card is gone, or another was faster after a reboot
                request.fixed = ()
        return allocation.from_request(request, self._place(request, committed))

    def _place(self, request: Request, committed: dict[str, Commitment]) -> list[Card]:
        return placement.place(request, self.cards, committed, self.policy)

    def _record(self, start: Start, made: Allocation, mine: list[Grant]) -> None:
        for grant in mine:
            grant.holder = start.holder
            grant.cards = [card.uuid for card in made.cards]
            grants.write(self.state_dir, grant)
        directory = claims.directory(self.run_dir, start.container)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        data = limits.encode(start.container, made.limits)
        records.write_bytes(f"{directory}/{LIMITS}", data, 0o444)
        claim = Claim(
            start.container, start.pid, start.start_time, made.limits, made.exclusive, start.holder,
            [grant.id for grant in mine], start.bundle, start.now, start.name,
        )  # fmt: skip
        records.write(f"{directory}/{CLAIM}", claim.record())

    def _withdraw(self, start: Start) -> None:
        self._drop(start.container)
        for grant in self._before:
            grants.write(self.state_dir, grant)
        self._before = []

    def _drop(self, container: str) -> None:
        """Remove a container's directory: ours alone writes there, and nothing but plain files."""
        directory = claims.directory(self.run_dir, container)
        try:
            for name in os.listdir(directory):
                os.unlink(f"{directory}/{name}")
            os.rmdir(directory)
        except FileNotFoundError:
            return


class _Lock:
    """The ledger's lock. The directories are made when they are missing: the first start after boot."""

    __slots__ = ("_fd", "_path")

    def __init__(self, run_dir: str) -> None:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        self._path = run_dir + "/ledger.lock"
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _add(totals: dict[str, Commitment], card: CardLimit, exclusive: bool, holder: str) -> None:
    now = totals.get(card.uuid, Commitment())
    cores = WHOLE_CARD if exclusive else card.cores
    memory = 0 if exclusive else card.memory
    totals[card.uuid] = Commitment(
        now.cores + cores, now.memory + memory, now.exclusive or exclusive, (*now.holders, holder)
    )


def _by_holder(known: list[Grant]) -> list[list[Grant]]:
    groups: dict[Holder | None, list[Grant]] = {}
    for grant in known:
        groups.setdefault(grant.holder, []).append(grant)
    return list(groups.values())


def _superseded(grant: Grant, known: list[Grant]) -> bool:
    """Whether kubelet has handed the same device ids out again since: after an init container, or the pod's end."""
    return any(
        other.resource == grant.resource and other.created > grant.created and _share_devices(grant, other)
        for other in known
    )


def _share_devices(one: Grant, other: Grant) -> bool:
    return any(_overlap(ids, other.devices[uuid]) for uuid, ids in one.devices.items() if uuid in other.devices)


def _overlap(one: str, other: str) -> bool:
    return any(a <= d and c <= b for a, b in _ranges(one) for c, d in _ranges(other))


def _ranges(text: str) -> list[tuple[int, int]]:
    """`0-3,7` as [(0, 3), (7, 7)]; what is no number is left out."""
    found = []
    for item in text.split(","):
        low, _, high = item.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            found.append((int(low), int(high or low)))
    return found


def _copy(grant: Grant) -> Grant:
    return grants.from_record(grant.record(), grant.id)
