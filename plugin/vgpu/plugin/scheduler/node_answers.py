"""The answers of all nodes for a pod, kept from one request to the next.

Belongs here: for each demand, what every node answered, and which nodes have changed since. Nodes that differ only in
names and uuids are one class: `decide` runs once for them. Whole cards depend only on which cards are free, so their
classes are few. An answer is always the one that `decide` would give on that node now. The caller holds the guard.
"""

from __future__ import annotations

from collections import OrderedDict

from vgpu.config.errors import VgpuError
from vgpu.config.request import WHOLE_CARD
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.decide import Decision, State, brief, decide, short
from vgpu.plugin.scheduler.demand import Demand
from vgpu.plugin.scheduler.node_cards import FREE, NodeCards
from vgpu.plugin.scheduler.rank import Rank, rank

MAX_DEMANDS = 64
MAX_CLASSES = 20_000
UNKNOWN = "the scheduler extender knows no node of this name"


class Answer:
    """`decision` with its `rank`, or the `reason` why there is none, and the same without amounts (`brief`)."""

    __slots__ = ("brief", "decision", "rank", "reason")

    def __init__(self, decision: Decision | None = None, rank: Rank = (), reason: str = "", brief: str = "") -> None:
        self.decision = decision
        self.rank = rank
        self.reason = reason
        self.brief = brief or reason


class _Asked:
    """All answers to one demand; current up to `revision`."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.revision = 0
        self.of: dict[str, Answer] = {}
        self.classes: dict[object, Answer] = {}
        wishes = demand.to_wishes()
        self.by_uuid = bool(wishes.use_uuids or wishes.nouse_uuids)
        self.whole = len(demand.parts) == 1 and demand.parts[0].cores >= WHOLE_CARD
        self.policy = demand.node_policy

    def answer(self, node: NodeCards, held: State, policy: str) -> Answer:
        key = (node.shape, tuple([(one == FREE, one.whole) for one in held]) if self.whole else held,
               tuple([card.uuid for card in node.all_cards]) if self.by_uuid else node.problem)  # fmt: skip
        found = self.classes.get(key)
        if found is None:
            if len(self.classes) >= MAX_CLASSES:
                self.classes.clear()
            found = self.classes[key] = self._decided(node, held, policy)
        if self.whole and found.decision is not None:
            return Answer(found.decision, rank(node, held, found.decision, self.policy or policy))
        return found

    def _decided(self, node: NodeCards, held: State, policy: str) -> Answer:
        try:
            decision = decide(self.demand, node, held)
        except VgpuError as error:
            return Answer(reason=short(error), brief=brief(error))
        return Answer(decision, rank(node, held, decision, self.policy or policy))


class Answers:
    """`policy`: how nodes are chosen for pods that wish nothing, binpack or spread."""

    def __init__(self, cluster: Cluster, policy: str = "binpack") -> None:
        self.cluster = cluster
        self.policy = policy
        self._asked: OrderedDict[Demand, _Asked] = OrderedDict()

    def to(self, demand: Demand, names: list[str]) -> dict[str, Answer]:
        """What each of these nodes answers."""
        asked = self._current(demand)
        known, found = asked.of, {}
        for name in names:
            answer = known.get(name)
            if answer is None:
                answer = known[name] = self._ask(asked, name)
            found[name] = answer
        return found

    def _current(self, demand: Demand) -> _Asked:
        asked = self._asked.get(demand)
        if asked is None:
            asked = self._asked[demand] = _Asked(demand)
            if len(self._asked) > MAX_DEMANDS:
                self._asked.popitem(last=False)
        self._asked.move_to_end(demand)
        for name in self.cluster.since(asked.revision):
            asked.of.pop(name, None)
        asked.revision = self.cluster.revision
        return asked

    def _ask(self, asked: _Asked, name: str) -> Answer:
        node = self.cluster.cards(name)
        return asked.answer(node, self.cluster.held(name), self.policy) if node else Answer(reason=UNKNOWN)
