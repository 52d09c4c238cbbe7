"""The cards of all containers of a pod on one node, or the reason why they have none.

Belongs here: a pod's demand, a node and what its cards owe -> a Decision, as a pure function over `place()`, which
judges every single container. Containers that run together (sidecars and apps) get their sum, an init container only
what it needs while it runs, beside the sidecars before it.

The containers are placed one by one, the largest first. Where that finds no place for one of them, the other sets of
cards are tried, up to MAX_TRIES calls of place() on a node; sets that only swap equal cards are tried once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from vgpu.config.errors import VgpuError
from vgpu.config.request import WHOLE_CARD, Request, Wishes
from vgpu.hook.placement.placement import Commitment, NoFit, place
from vgpu.plugin.scheduler.demand import INIT, MIB, SIDECAR, Demand, Part
from vgpu.plugin.scheduler.node_cards import FREE, Held, NodeCards

MAX_TRIES = 4000
MAX_REASONS = 6  #: different reasons of a node's cards in a short refusal
LARGEST_SHARE = WHOLE_CARD - 1

State = tuple[Held, ...]  #: what each card of a node owes, in the order of its cards
Picks = tuple[int, ...]  #: places in that order


class TooManyTries(NoFit):
    """No place was found within MAX_TRIES."""


@dataclass(frozen=True)
class Decision:
    """Container -> places of its cards on the node; `used` is what the whole pod takes of each card at its peak."""

    cards: dict[str, Picks]
    used: State


def decide(demand: Demand, node: NodeCards, held: State, accepts: Callable[[Decision], bool] | None = None) -> Decision:
    """The pod's cards on `node`, whose cards owe `held`; NoFit with the reason.

    With `accepts`, the first decision that it accepts; it may look at the models of the cards.
    """
    if not node.cards:
        raise NoFit(node.problem)
    if accepts is None and len(demand.parts) == 1 and demand.parts[0].kind != INIT:
        return _alone(demand, node, held)
    return _Search(demand, node, held, accepts).run()


def _alone(demand: Demand, node: NodeCards, held: State) -> Decision:
    """The decision for a pod with one container: place()'s, without more ado."""
    part = demand.parts[0]
    request = requests_of(demand, node)[part.name]
    owed = {card.uuid: Commitment(*one) for card, one in zip(node.cards, held) if one is not FREE and one != FREE}
    used = [FREE] * len(held)
    picks = []
    for card in place(request, node.all_cards, owed, node.policy, ill=node.unhealthy):
        at = node.place_of[card.uuid]
        picks.append(at)
        used[at] = amount(request, card.uuid)
    return Decision({part.name: tuple(picks)}, tuple(used))


def requests_of(demand: Demand, node: NodeCards) -> dict[str, Request]:
    """The requests that the node's own hook would make of the pod's containers, by their names."""
    if any(part.split for part in demand.parts):
        wishes = demand.to_wishes()
        return {part.name: request_of(part, node, wishes) for part in demand.parts}
    return _requests_of_any_node(demand)


@lru_cache(maxsize=256)
def _requests_of_any_node(demand: Demand) -> dict[str, Request]:
    wishes = demand.to_wishes()
    return {part.name: _plain_request(part, wishes) for part in demand.parts}


def _plain_request(part: Part, wishes: Wishes) -> Request:
    return Request(part.gpus, part.cores, part.memory, wishes=wishes, total=part.total)


def request_of(part: Part, node: NodeCards, wishes: Wishes) -> Request:
    """The request that the node's own hook would make of this container."""
    if not part.split:
        return _plain_request(part, wishes)
    cores, memories = part.cores, {}
    if node.split == 1:
        cores = cores or WHOLE_CARD
    cores = cores or min(max(node.policy.cores() // node.split, 1), LARGEST_SHARE)
    for card in node.cards:
        percent_of = node.policy.memory(card)
        if part.memory:
            memories[card.uuid] = part.memory
        elif part.percent:
            memories[card.uuid] = min(percent_of * part.percent // 100, card.memory) // MIB * MIB
        else:
            size = card.memory if node.split == 1 else min(percent_of // node.split, card.memory)
            memories[card.uuid] = max(size // MIB * MIB, MIB)
    sizes = set(memories.values())
    if cores >= WHOLE_CARD:
        return Request(part.gpus, WHOLE_CARD, part.memory or (min(sizes) if part.percent else 0), wishes=wishes)
    return Request(part.gpus, cores, max(sizes), wishes=wishes, memories=memories if len(sizes) > 1 else {})


class _Search:
    """One pod on one node."""

    def __init__(
        self, demand: Demand, node: NodeCards, held: State, accepts: Callable[[Decision], bool] | None = None
    ) -> None:
        self.accepts = accepts or (lambda decision: True)
        self.several = len(demand.parts) > 1 or accepts is not None
        self.demand = demand
        self.node = node
        self.base = held
        self.requests = requests_of(demand, node)
        self.running = sorted((part for part in demand.parts if part.kind != INIT), key=self._size, reverse=True)
        self.tries = 0
        kinds = {part.kind for part in demand.parts}
        self.beside_inits = [part.name for part in demand.parts if part.kind == SIDECAR and INIT in kinds]

    def _size(self, part: Part) -> tuple[int, int, int, int]:
        request = self.requests[part.name]
        return request.exclusive, request.gpus, request.cores, request.memory

    def run(self) -> Decision:
        try:
            chosen, state = {}, self.base
            for part in self.running:
                chosen[part.name] = self._place(part, state)
                state = self._taken(state, chosen[part.name], part)
            return self._accepted(chosen)
        except NoFit as error:
            found = self._search(0, {}, self.base) if self.several else None
            if found is None:
                raise error from None
            return found

    def _search(self, at: int, chosen: dict[str, Picks], state: State) -> Decision | None:
        """The first decision of all sets for the containers from `at` on."""
        if at == len(self.running):
            try:
                return self._accepted(chosen)
            except TooManyTries:
                raise
            except NoFit:
                return None
        part = self.running[at]
        for picks in self._candidates(part, state, chosen):
            found = self._search(at + 1, {**chosen, part.name: picks}, self._taken(state, picks, part))
            if found is not None:
                return found
        return None

    def _candidates(self, part: Part, state: State, chosen: dict[str, Picks]) -> Iterator[Picks]:
        """The sets of cards that the container may have by place(), one of each kind."""
        request, seen = self.requests[part.name], set()
        usable = [at for at in range(len(state)) if self._fits(part, state, (at,), 1)]
        for picks in combinations(usable, request.gpus):
            kind = tuple(sorted(self._kind(at, state[at], request, chosen) for at in picks))
            if kind not in seen:
                seen.add(kind)
                if request.gpus == 1 or (self._are_near(picks, request) and self._fits(part, state, picks, len(picks))):
                    yield picks

    def _are_near(self, picks: Picks, request: Request) -> bool:
        """False where place() on all cards of the node would not take these: a card without a NUMA node is near none
        if another card has one. place() on these cards alone does not see that.
        """
        if request.gpus == 1 or not request.wishes.numa:
            return True
        return all(self.node.cards[at].numa >= 0 for at in picks) or all(card.numa < 0 for card in self.node.all_cards)

    def _kind(self, at: int, held: Held, request: Request, chosen: dict[str, Picks]) -> tuple[object, ...]:
        """Equal for cards that are as good as each other for all containers of the pod.

        An init container runs beside the sidecars before it and not beside the others.
        """
        card, wishes = self.node.cards[at], request.wishes
        beside = tuple(name for name in self.beside_inits if at in chosen.get(name, ()))
        named = card.uuid if wishes.use_uuids or wishes.nouse_uuids else ""
        return held, card.memory, card.name, card.numa if wishes.numa else 0, named, beside

    def _fits(self, part: Part, state: State, picks: Picks, gpus: int) -> bool:
        """Whether place() takes `picks`, or a single card of them, when the node has no other cards."""
        request = self.requests[part.name]
        if gpus != request.gpus:
            total = 0
            request = Request(gpus, request.cores, request.memory, wishes=request.wishes, total=total,
                              memories=request.memories)  # fmt: skip
        cards = [self.node.cards[at] for at in picks]
        self._count()
        try:
            place(request, cards, {card.uuid: state[at].commitment() for at, card in zip(picks, cards)},
                  self.node.policy)  # fmt: skip
        except NoFit:
            return False
        return True

    def _accepted(self, chosen: dict[str, Picks]) -> Decision:
        found = self._with_inits(chosen)
        if not self.accepts(found):
            raise NoFit("the cards that fit are not accepted")
        return found

    def _with_inits(self, chosen: dict[str, Picks]) -> Decision:
        """The decision, with the init containers beside the sidecars before them, on the pod's own cards if it can."""
        cards, started, used = dict(chosen), self.base, (FREE,) * len(self.base)
        for part in self.demand.parts:
            if part.kind == SIDECAR:
                started = self._taken(started, chosen[part.name], part)
            elif part.kind == INIT:
                own = tuple(sorted({at for picks in chosen.values() for at in picks}))
                cards[part.name] = self._place(part, started, own)
                used = self._peak(used, self._taken(started, cards[part.name], part))
        state = self.base
        for part in self.running:
            state = self._taken(state, chosen[part.name], part)
        return Decision(cards, self._peak(used, state))

    def _peak(self, used: State, state: State) -> State:
        """The larger of `used` and what `state` has above the base."""
        grown = [
            Held(now.cores - before.cores, now.memory - before.memory, now.whole and not before.whole)
            for now, before in zip(state, self.base)
        ]
        return tuple([one.at_least(other) for one, other in zip(used, grown)])

    def _place(self, part: Part, state: State, own: Picks = ()) -> Picks:
        """place() on all cards; with `own`, on these cards alone if they do."""
        request = self.requests[part.name]
        near = len(own) >= request.gpus and self._are_near(own, request)
        for places in ([own] if near else []) + [tuple(range(len(state)))]:
            cards = [self.node.cards[at] for at in places] if places is own else self.node.all_cards
            commitments = {self.node.cards[at].uuid: state[at].commitment() for at in places if state[at] != FREE}
            self._count()
            try:
                found = place(request, cards, commitments, self.node.policy, ill=self.node.unhealthy)
                return tuple([self.node.place_of[card.uuid] for card in found])
            except NoFit as error:
                refusal = error
        several = len(self.demand.parts) > 1
        refused = NoFit(f"container {part.name}: {refusal}" if several else str(refusal))
        refused.reasons = refusal.reasons
        raise refused from None

    def _taken(self, state: State, picks: Picks, part: Part) -> State:
        request, after = self.requests[part.name], list(state)
        for at in picks:
            after[at] = after[at].plus(amount(request, self.node.cards[at].uuid))
        return tuple(after)

    def _count(self) -> None:
        self.tries += 1
        if self.tries > MAX_TRIES:
            raise TooManyTries(f"no place found for {len(self.running)} containers in {MAX_TRIES} tries")


def amount(request: Request, uuid: str) -> Held:
    """What a container with `request` takes of the card `uuid`."""
    return Held(WHOLE_CARD, 0, True) if request.exclusive else Held(request.cores, request.memory_of(uuid))


def short(error: VgpuError) -> str:
    """A refusal with the number of cards for each reason instead of the cards, so that nodes in one state say the same.

    kube-scheduler counts equal refusals together.
    """
    return _counted(error, lambda reason, number: f"{reason} ({number} card{'s' * (number != 1)})")


def brief(error: VgpuError) -> str:
    """The same without numbers of cards and free amounts, for clusters with many refusals that differ in them alone."""
    return _counted(error, lambda reason, _: "too little free" if " free of " in reason else reason)


def _counted(error: VgpuError, told: Callable[[str, int], str]) -> str:
    head = str(error).partition(": card ")[0]
    counted = Counter(error.reasons if isinstance(error, NoFit) else ())
    ordered = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
    lines = list(dict.fromkeys(told(*one) for one in ordered))
    more = ["other reasons"] if len(lines) > MAX_REASONS else []
    return f"{head}: {'; '.join([*lines[:MAX_REASONS], *more])}" if lines else head
