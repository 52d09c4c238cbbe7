"""An explicit-state check: all states that a model can reach, and whether something that was asked for always comes.

A model gives its first state, and for a state the steps that can follow. A step has a name, the next state, and the
actor that takes it. An actor that always has a possible step takes one at last (weak fairness); a step without an actor
may never be taken. Nothing here knows what a model is about.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

State = Hashable


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    after: Any
    actor: str = ""  #: empty: nobody has to take it


@dataclasses.dataclass
class Graph:
    """All states that can be reached, by number; the first one is 0."""

    states: list[Any]
    steps: list[list[tuple[str, int]]]  #: by state: actor, next state
    parents: list[tuple[int, str]]  #: by state: from where it was reached first, and by what

    def way_to(self, number: int) -> list[str]:
        """The names of the steps of a shortest way from the first state."""
        names: list[str] = []
        while number:
            number, name = self.parents[number]
            names.append(name)
        return names[::-1]


def reach(first: Any, follow: Callable[[Any], Iterator[Step]]) -> Graph:
    """Find all states, in breadth."""
    numbers = {first: 0}
    graph = Graph([first], [], [(0, "")])
    queue = deque([first])
    while queue:
        steps = []
        state = queue.popleft()
        for step in follow(state):
            if step.after not in numbers:
                numbers[step.after] = len(graph.states)
                graph.states.append(step.after)
                graph.parents.append((numbers[state], step.name))
                queue.append(step.after)
            steps.append((step.actor, numbers[step.after]))
        graph.steps.append(steps)
    return graph


def find(graph: Graph, is_wrong: Callable[[Any], bool]) -> list[str] | None:
    """The shortest way to a wrong state. None: there is none."""
    return next((graph.way_to(number) for number, state in enumerate(graph.states) if is_wrong(state)), None)


def find_endless(graph: Graph, waits: Callable[[Any], bool]) -> list[str] | None:
    """A way to states in which `waits` can hold for ever, although each actor takes its steps. None: there is none."""
    inside = [waits(state) for state in graph.states]
    for component in _components(graph, inside):
        if _can_stay(graph, component):
            return graph.way_to(min(component))
    return None


def _can_stay(graph: Graph, component: list[int]) -> bool:
    """Whether each actor takes a step within the component, or has no step in some state of it."""
    members = set(component)
    always = set.intersection(*({actor for actor, _ in graph.steps[number]} for number in component)) - {""}
    taken = {actor for number in component for actor, after in graph.steps[number] if after in members}
    return always <= taken


def _components(graph: Graph, inside: list[bool]) -> Iterator[list[int]]:
    """The strongly connected components of the states inside (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(graph.states)):
        if not inside[root] or root in index:
            continue
        calls = [(root, iter(graph.steps[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while calls:
            number, steps = calls[-1]
            for _, after in steps:
                if not inside[after]:
                    continue
                if after not in index:
                    index[after] = low[after] = len(index)
                    stack.append(after)
                    on_stack.add(after)
                    calls.append((after, iter(graph.steps[after])))
                    break
                if after in on_stack:
                    low[number] = min(low[number], index[after])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[number])
                if low[number] == index[number]:
                    component = []
                    while not component or component[-1] != number:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    yield component
