"""The reference scheduler `ideal`: what a limiter could do that knew everything and cost nothing but the changes.

One card runs whole kernels, one at a time. A change from one process to another takes what the card needs for it
(`timing.switch_us`; `idle_us` more where the card waits for a context without work). The card never idles
while a tenant within its cap has a kernel (*work-conserving*), with one exception: it waits for the program that ran
last if that has its next kernel before a change could be over. A tenant's cap is a token bucket of its core-limit: one
token is a nanosecond; the bucket holds IDLE ns of the rate, and what a wait for others' kernels brings is kept. Among
tenants within their caps the one that is furthest behind by virtual time (use over share) comes next, at the end of the
kernel that runs; but the one that has the card keeps it until it is ahead by a margin, so that changes cost little.

The input is a scenario (cores_scenario.py) and the output what cores_worker.py gives for it. What programs do is in
cores_programs.py. Nothing here knows libvcuda.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cores_programs import NEVER, Program, programs
from cores_scenario import MS, US, Outcome, Scenario

CHANGE = 50  #: us, where the card's timing does not say it
IDLE = 100 * MS  #: a tenant without work gathers tokens and lag for so long
MARGIN = 50  #: the margin, in changes for each tenant that has work: with n tenants, changes cost 1 percent


@dataclasses.dataclass
class Party:
    """A tenant. `level` (tokens) is that of the time `stamp`; `virtual` is use over share, in ns."""

    number: int
    share: float
    rate: float
    processes: list[list[Program]]
    level: float = 0
    stamp: int = 0
    virtual: float = 0
    busy: int = 0
    is_pending: bool = False
    turn: int = 0  #: the process that ran last

    def __post_init__(self) -> None:
        self.level = self.rate * IDLE

    @property
    def ready(self) -> int:
        return min(program.ready for process in self.processes for program in process)

    def gather(self, now: int, longest: float) -> None:
        """Add the tokens since the last time. `longest`: what the others' kernels may take while this tenant waits."""
        if now > self.stamp:
            most = max(self.level, self.rate * (IDLE + (longest if self.is_pending else 0)))
            self.level = min(self.level + self.rate * (now - self.stamp), most)
            self.stamp = now

    def pick(self, now: int) -> tuple[int, Program]:
        """The process that ran last, as long as it has kernels; then the others in turn."""
        for step in range(len(self.processes)):
            number = (self.turn + step) % len(self.processes)
            pending = [program for program in self.processes[number] if program.ready <= now]
            if pending:
                return number, min(pending, key=lambda program: program.done)
        raise AssertionError("no kernel")


@dataclasses.dataclass(frozen=True)
class Run:
    """Kernels of one program, one after the other."""

    tenant: int
    begin: int
    end: int


class Card:
    """The state of one simulation."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0
        self.change = int(scenario.timing.get("switch_us", CHANGE) * US)
        self.idle = int(scenario.timing.get("idle_us", 0) * US)
        self.parties: list[Party] = []
        for number, processes in enumerate(programs(scenario)):
            tenant = scenario.tenants[number]
            limit = max(tenant.cores, tenant.core_limit)
            self.parties.append(Party(number, max(tenant.cores, 1) / 100, max(limit, 1) / 100, processes))
        self.changes = sorted(scenario.changes)
        self.virtual = 0.0  #: of the tenant that is furthest behind; never decreases
        self.last: tuple[int, int] | None = None  #: tenant and process that ran last
        self.longest = [0] * len(self.parties)
        self.looks = list(scenario.looks)
        self.seen: list[list[int]] = []

    def others_longest(self, party: Party) -> float:
        return sum(self.longest) - self.longest[party.number]

    def refresh(self) -> None:
        """Bring tokens and virtual times up to now."""
        while self.changes and self.changes[0][0] <= self.now:
            _, number, cores, limit = self.changes.pop(0)
            self.parties[number].gather(self.now, self.others_longest(self.parties[number]))
            self.parties[number].share, self.parties[number].rate = cores / 100, max(cores, limit) / 100
        credit = IDLE + self.margin()
        for party in self.parties:
            ready = party.ready
            if ready <= self.now and not party.is_pending:
                party.gather(ready, 0)
                party.is_pending = True
                party.virtual = max(party.virtual, self.virtual - credit)
            party.gather(self.now, self.others_longest(party))
            party.is_pending = ready <= self.now
        pending = [party.virtual for party in self.parties if party.is_pending]
        self.virtual = max(self.virtual, min(pending, default=0))

    def margin(self, waits: int = 0) -> float:
        """`waits`: tenants that are about to have work."""
        return MARGIN * self.change * max(sum(party.is_pending for party in self.parties) + waits, 1)

    def choose(self) -> Party | None:
        able = [party for party in self.parties if party.is_pending and party.level > 0]
        if not able:
            return None
        first = min(able, key=lambda party: (party.virtual, party.number))
        current = next((party for party in able if self.last and party.number == self.last[0]), first)
        return first if current.virtual > first.virtual + self.margin() else current

    def held_until(self) -> int:
        """When the process that ran last has its next kernel, if that is worth waiting for; else 0."""
        if self.last is None or self.parties[self.last[0]].is_pending:
            return 0
        party = self.parties[self.last[0]]
        ready = min(program.ready for program in party.processes[self.last[1]])
        others = [other.virtual for other in self.parties if other.is_pending and other.level > 0]
        is_ahead = party.virtual > min(others, default=NEVER) + self.margin(1)
        return 0 if ready > self.now + self.change + self.idle or party.level <= 0 or is_ahead else ready

    def next_event(self) -> int:
        """When something may change the choice, besides the end of a kernel."""
        times = [program.ready for party in self.parties for process in party.processes for program in process]
        times += [change[0] for change in self.changes[:1]]
        for party in self.parties:
            if party.is_pending and party.level <= 0:
                times.append(self.now + int(-party.level / party.rate) + 1)
        return min((time for time in times if time > self.now), default=NEVER)

    def count(self, party: Party, program: Program, begin: int) -> int:
        """How many kernels run until something may change; at least one."""
        if not program.is_even:
            return 1
        time = min(self.next_event(), self.scenario.window[1] + 1) - begin
        counts = [program.left, time // program.duration]
        if party.rate < 1:
            counts.append(int(party.level / (program.duration * (1 - party.rate))))
        others = [
            other.virtual for other in self.parties if other is not party and other.is_pending and other.level > 0
        ]
        if others:
            counts.append(int((min(others) + self.margin() - party.virtual) * party.share / program.duration))
        return max(min(counts), 1)

    def look(self, party: Party, begin: int, end: int) -> None:
        """Note the readings that fall before the end of this run."""
        while self.looks and self.looks[0] < end:
            busy = [each.busy for each in self.parties]
            busy[party.number] += max(self.looks.pop(0) - begin, 0)
            self.seen.append(busy)

    def cost(self, next_one: tuple[int, int]) -> int:
        """Of a change to that tenant and process."""
        if self.last in (None, next_one):
            return 0
        tenant, process = self.last
        is_idle = all(program.ready > self.now for program in self.parties[tenant].processes[process])
        return self.change + (self.idle if is_idle else 0)

    def step(self) -> Run | None:
        """Run kernels, or wait."""
        self.refresh()
        held = self.held_until()
        if held:
            self.now = held
            self.refresh()
        party = self.parties[self.last[0]] if held and self.last else self.choose()
        if party is None:
            until = min(self.next_event(), self.scenario.window[1] + 1)
            self.look(self.parties[0], until, until)
            self.now = until
            return None
        process, program = party.pick(self.now)
        begin = self.now + self.cost((party.number, process))
        count = self.count(party, program, begin)
        end = begin + count * program.duration
        self.look(party, begin, end)
        self.longest[party.number] = max(self.longest[party.number], program.duration)
        party.busy += end - begin
        party.level -= end - begin
        party.virtual += (end - begin) / party.share
        party.turn, self.last, self.now = process, (party.number, process), end
        program.ran(count, end)
        return Run(party.number, begin, end)


def runs(scenario: Scenario) -> tuple[Card, list[Run]]:
    """Simulate a scenario to its end; the runs in their order."""
    card = Card(scenario)
    found: list[Run] = []
    while card.now <= scenario.window[1]:
        run = card.step()
        if run:
            found.append(run)
    return card, found


def outcome(scenario: Scenario) -> Outcome:
    card, _ = runs(scenario)
    warm, end = scenario.window
    loads = [[_report(process, warm, end) for process in party.processes] for party in card.parties]
    return Outcome(list(scenario.looks), card.seen, loads, 0, 0)


def _report(process: Sequence[Program], warm: int, end: int) -> dict[str, object]:
    reports = [program.report(warm, end) for program in process]
    if len(reports) == 1:
        return reports[0]
    return {"rounds": sum(report["rounds"] for report in reports)}
