"""A model of the time slices between containers on several cards (libvcuda/src/compute/container_slice.c, presence.c).

Each container has a set of cards and one process. It holds locks on its byte of each card while it is at work, and on
its place in the queue of each card while it waits. Steps are named after the functions that take them. Time is not in
the model: a step may take any time, but a fair one comes at last. docs/decisions/time-slices-checked.md has what is
left out.

A container is in one of these modes:
    idle        its program has nothing for the card
    asks        its program has launched, and it has no place yet
    waits       it is in the queue
    holds       it has found the cards free, and takes its locks one by one; then it looks whether others did the same
    again       others did, and it is the first of them: it looks once more
    runs        at work, and a kernel is under way
    rests       at work, and nothing is under way
    ends        at work, a kernel is under way, and another container is to run first: no launch may begin
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from explore import Step

IDLE, ASKS, WAITS, HOLDS, AGAIN, RUNS, RESTS, ENDS = range(8)
AT_WORK = (RUNS, RESTS, ENDS)
MOST_COUNTED = 5

Cards = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Rules:
    """What the code does; each mutant of the check takes one of them away."""

    ends_early: bool = True  #: a slice ends at a kernel's end for a place that is earlier by a margin
    looks_at_all_cards: bool = True  #: for that, it looks at the queues of all of its cards
    writes_all_cards: bool = True  #: a container's place is written on all of its cards
    has_one_place: bool = True  #: the same place on all of its cards
    keeps_place: bool = True  #: while a container waits, its place stays, and grows older than any new one
    has_bounded_places: bool = True  #: a new place is not earlier than one that is old
    looks_after_holding: bool = True  #: a container looks whether others have taken their locks meanwhile
    gives_way: bool = True  #: then it drops its locks; else it waits with them
    passes_over: bool = False  #: a place whose owner is blocked on another card is ignored until the owner moves it


class State(NamedTuple):
    modes: tuple[int, ...]
    held: tuple[int, ...]  #: by container: on how many of its cards it holds its lock
    lines: tuple[Cards, ...]  #: containers in the order of their places; with one place there is one line for all cards
    old: tuple[int, ...]  #: by line: how many of its first places are older than any new place can be
    ignores: tuple[Cards, ...]  #: by container: whose places it ignores
    overtaken: int  #: slices that others have begun on the watched container's cards since its place was old


Named = tuple[str, State]  #: a step's name, and the state after it


@dataclasses.dataclass(frozen=True)
class Model:
    cards: tuple[Cards, ...]  #: by container
    rules: Rules = Rules()
    watched: int = 0

    def first(self) -> State:
        count = len(self.cards)
        lines = 1 if self.rules.has_one_place else 2
        return State((IDLE,) * count, (0,) * count, ((),) * lines, (0,) * lines, ((),) * count, 0)

    # ---- what a container sees ----

    def holders(self, state: State, who: int) -> list[int]:
        """The other containers that hold their lock on one of its cards."""
        return [
            other
            for other, cards in enumerate(self.cards)
            if other != who and set(cards[: state.held[other]]) & set(self.cards[who])
        ]

    def line_of(self, card: int) -> int:
        return 0 if self.rules.has_one_place else card

    def before(self, state: State, who: int, seen: Cards, is_old: bool) -> bool:
        """Whether on one of these cards another container's place is earlier than its own; `is_old`: it surely is."""
        for card in seen:
            line = state.lines[self.line_of(card)]
            for other in line[: state.old[self.line_of(card)]] if is_old else line:
                if other == who:
                    break
                written = self.cards[other] if self.rules.writes_all_cards else self.cards[other][:1]
                if card in written and other not in state.ignores[who]:
                    return True
        return False

    # ---- steps: a process's own, the end of a kernel, and the passing of time have actors of their own ----

    def follow(self, state: State) -> Iterator[Step]:
        for who in range(len(self.cards)):
            process = f"process {who}"
            for name, after in self.of_process(state, who):
                yield Step(f"{name}({who})", after, "" if state.modes[who] == IDLE else process)
            if state.modes[who] == RUNS:
                yield Step(f"complete_ended({who})", _mode(state, who, RESTS), f"card of {who}")
            elif state.modes[who] == ENDS:
                yield Step(f"complete_ended({who})", self.left(state, who, ASKS), f"card of {who}")
            if any(who in each for each in state.ignores):
                seen = tuple(tuple(one for one in each if one != who) for each in state.ignores)
                yield Step(f"move({who})", state._replace(ignores=seen), f"place of {who}")
        if self.rules.keeps_place:
            yield from self.growing_older(state)

    def growing_older(self, state: State) -> Iterator[Step]:
        """A place, and those before it, become older than any new place can be."""
        for number, line in enumerate(state.lines):
            for at in range(state.old[number], len(line)):
                yield Step(
                    f"time_passes({line[at]})", state._replace(old=_with(state.old, number, at + 1)), f"time {line[at]}"
                )

    def of_process(self, state: State, who: int) -> Iterator[Named]:
        mode = state.modes[who]
        if mode == IDLE:
            yield "container_slice_may_run", _mode(state, who, ASKS)
        elif mode in (ASKS, WAITS):
            yield from self.try_begin(state, who)
        elif mode == HOLDS:
            yield from self.presence_hold(state, who)
        elif mode == AGAIN:
            yield from self.look_again(state, who)
        elif mode in (RUNS, RESTS):
            yield from self.request(state, who)
        if mode == RESTS:
            yield "end_slice", self.left(state, who, IDLE)

    def try_begin(self, state: State, who: int) -> Iterator[Named]:
        holders = self.holders(state, who)
        if not holders and not self.before(state, who, self.cards[who], is_old=False):
            yield "try_begin", _mode(state, who, HOLDS)
        elif state.modes[who] == ASKS:
            yield from self.join_queue(state, who)
        elif not self.rules.keeps_place:
            yield from self.join_queue(self.unqueued(state, who), who)
        if self.rules.passes_over and state.modes[who] == WAITS and not holders:
            yield from self.presence_ignore(state, who)

    def presence_ignore(self, state: State, who: int) -> Iterator[Named]:
        """Others before it that are blocked on another card, for longer than this one waits for them."""
        for other in set(range(len(self.cards))) - {who, *state.ignores[who]}:
            if state.modes[other] == WAITS and self.holders(state, other):
                ignores = tuple(sorted((*state.ignores[who], other)))
                yield f"presence_ignore:{other}", state._replace(ignores=_with(state.ignores, who, ignores))

    def join_queue(self, state: State, who: int) -> Iterator[Named]:
        """Take any place that is not earlier than an old one."""
        numbers = sorted({self.line_of(card) for card in self.cards[who]})
        firsts = [state.old[number] if self.rules.has_bounded_places else 0 for number in numbers]
        ranges = [range(first, len(state.lines[number]) + 1) for first, number in zip(firsts, numbers)]
        for places in itertools.product(*ranges):
            after = _mode(state, who, WAITS)
            for number, place in zip(numbers, places):
                line = after.lines[number]
                after = after._replace(
                    lines=_with(after.lines, number, (*line[:place], who, *line[place:])),
                    old=_with(after.old, number, min(after.old[number], place)),
                )
            yield f"join_queue:{','.join(map(str, places))}", after

    def presence_hold(self, state: State, who: int) -> Iterator[Named]:
        if state.held[who] < len(self.cards[who]):
            yield "presence_hold", state._replace(held=_with(state.held, who, state.held[who] + 1))
            return
        holders = self.holders(state, who)
        if not holders or not self.rules.looks_after_holding:
            yield "gives_way", self.begun(state, who)
        elif who < min(holders):
            yield "presence_is_before_others", _mode(state, who, AGAIN)
        else:
            yield from self.give_way(state, who)

    def look_again(self, state: State, who: int) -> Iterator[Named]:
        if self.holders(state, who):
            yield from self.give_way(state, who)
        else:
            yield "gives_way", self.begun(state, who)

    def give_way(self, state: State, who: int) -> Iterator[Named]:
        if not self.rules.gives_way:
            return
        after = state._replace(held=_with(state.held, who, 0))
        if any(who in line for line in state.lines):
            yield "gives_way", _mode(after, who, WAITS)
        else:
            yield from self.join_queue(after, who)

    def request(self, state: State, who: int) -> Iterator[Named]:
        """A further launch. A place that is old is earlier than that of one at work by more than the margin."""
        seen = self.cards[who] if self.rules.looks_at_all_cards else self.cards[who][:1]
        if self.rules.ends_early and self.before(state, who, seen, is_old=False):
            is_resting = state.modes[who] == RESTS
            yield "leave_card", self.left(state, who, ASKS) if is_resting else _mode(state, who, ENDS)
        if not (self.rules.ends_early and self.before(state, who, seen, is_old=True)):
            yield "request", _mode(state, who, RUNS)

    # ---- states that follow ----

    def unqueued(self, state: State, who: int) -> State:
        old = tuple(count - (who in line[:count]) for line, count in zip(state.lines, state.old))
        lines = tuple(tuple(one for one in line if one != who) for line in state.lines)
        ignores = tuple(tuple(one for one in each if one != who) for each in state.ignores)
        return state._replace(lines=lines, old=old, ignores=ignores)

    def begun(self, state: State, who: int) -> State:
        overtaken = state.overtaken
        if who == self.watched:
            overtaken = 0
        elif set(self.cards[who]) & set(self.cards[self.watched]) and self.is_old(state, self.watched):
            overtaken = min(overtaken + 1, MOST_COUNTED)
        return _mode(self.unqueued(state, who), who, RUNS)._replace(overtaken=overtaken)

    def left(self, state: State, who: int, mode: int) -> State:
        after = state._replace(held=_with(state.held, who, 0), ignores=_with(state.ignores, who, ()))
        return _mode(after, who, mode)

    # ---- what is to hold ----

    def is_old(self, state: State, who: int) -> bool:
        return any(who in line[:count] for line, count in zip(state.lines, state.old))

    def mixes(self, state: State) -> bool:
        """Whether two containers are at work on one card."""
        working = [self.cards[who] for who, mode in enumerate(state.modes) if mode in AT_WORK]
        return any(set(one) & set(other) for one, other in itertools.combinations(working, 2))

    def waits(self, state: State) -> bool:
        """Whether the watched container wants its cards and has not got them."""
        return state.modes[self.watched] not in (IDLE, *AT_WORK)


def _with(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _mode(state: State, who: int, mode: int) -> State:
    return state._replace(modes=_with(state.modes, who, mode))
