"""The ledger against a simple model: claims, changed shares, restarts, init containers, stops, kill -9 in the middle of
a claim, grants that come and go, reboots. A pod's container always gets what its grants promise when it starts again.

After every step the ledger's commitments equal the model's. A killed claim may have got as far as its record or not;
the model then asks once which of the two it was, and holds the ledger to the answer from then on.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis
import ledger_node
import pytest
from cards import instance
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_node import GIB, redeem, share, uuid_of

from vgpu.config import paths
from vgpu.config.grants import Holder
from vgpu.config.limits import CardLimit
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Start
from vgpu.hook.placement.placement import NoFit
from vgpu.hook.request.resolve_grants import WantedGrants
from vgpu.node.ctl import set as set_limits

INSTANCES = 2
Amounts = tuple[int, int]  #: cores and bytes of memory


class Container:
    """What the model knows of one start: its card and amounts while it counts.

    `follower` are the grants and amounts of the container that starts after this init container, `init` is the init
    container before this one. `before` is the card of its last life, or "".
    """

    def __init__(self, start: Start, amounts: Amounts, ids: dict[str, str] | None) -> None:
        self.start = start
        self.amounts = amounts
        self.promised = amounts if ids else (0, 0)
        self.ids = ids
        self.card = self.before = ""
        self.alive = True
        self.follower: tuple[dict[str, str], Amounts] | None = None
        self.init: Container | None = None

    def counted(self) -> Amounts:
        """Of its card: the larger of grant and claim, and of the init container that may run there again."""
        again = self.init.promised if self.init and self.init.card == self.card else (0, 0)
        cores, memory = map(max, zip(self.amounts, self.promised, again))
        return cores, memory


class LedgerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="vgpu-model-")
        self.node = ledger_node.Node(Path(self.folder.name), 1)
        self.made_instances = 0
        self.places: dict[str, int] = {}  # of all instances that there ever were: where in the card
        for place in range(INSTANCES):
            self.make_instance(place)
        self.containers: list[Container] = []
        self.pairs: list[tuple[dict[str, str], Amounts]] = []  # grants that no container has claimed
        self.number = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        assert self.node.commitments() == {}

    def make_instance(self, place: int) -> None:
        """Destroy the instance there, if there is one, and make another, which has the same numbers."""
        self.made_instances += 1
        new = instance(100 + self.made_instances, gi=1 + place)
        self.places[new.uuid] = place
        self.node.cards = [card for card in self.node.cards if self.places.get(card.uuid) != place] + [new]

    def present(self, uuid: str) -> bool:
        return any(card.uuid == uuid for card in self.node.cards)

    # What the model expects

    def expected(self) -> dict[str, tuple[int, int, bool]]:
        found: dict[str, tuple[int, int, bool]] = {}
        for container in self.containers:
            if container.alive and container.card:
                cores, memory, _ = found.get(container.card, (0, 0, False))
                counted = container.counted()
                found[container.card] = (cores + counted[0], memory + counted[1], False)
        blocked = {self.places[uuid] for uuid in found if uuid in self.places and not self.present(uuid)}
        for card in self.node.cards:
            if self.places.get(card.uuid) in blocked:
                assert card.uuid not in found, "a container has the nodes of another's instance"
                found[card.uuid] = (100, 0, True)
        return found

    @invariant()
    def the_ledger_equals_the_model(self) -> None:
        held = {uuid: item for uuid, item in self.node.commitments().items() if item != (0, 0, False)}
        assert held == self.expected()
        assert all(cores <= 100 for cores, _, _ in held.values())

    @invariant()
    def nothing_but_claims_lies_below_run(self) -> None:
        known = {container.start.container for container in self.containers}
        assert {name for name in self.directories() - known if not name.startswith(".")} == set()

    def directories(self) -> set[str]:
        """The claims' directories, and those (.<name>) that a killed hook left until the next start or stop."""
        folder = Path(self.node.settings.run_dir, "containers")
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    # Steps

    def made(self, amounts: Amounts, ids: dict[str, str] | None, holder: Holder | None = None) -> Container:
        self.number += 1
        holder = holder or (Holder(f"pod-{self.number}", "main") if ids else None)
        container = Container(self.node.start(f"c{self.number}", 100 + self.number, holder), amounts, ids)
        self.containers.append(container)
        return container

    def wanted(self, container: Container) -> Request | WantedGrants:
        return redeem(container.ids) if container.ids else share(*container.amounts)

    def claimed(self, container: Container) -> None:
        ledger = self.node.ledger()
        try:
            allocation = ledger.claim(container.start, self.wanted(container))
        except NoFit as error:
            held = self.expected()
            if container.before and not self.present(container.before):
                assert container.before in str(error)
            else:
                assert not any(self.fits(held, card.uuid, container.amounts) for card in self.node.cards)
            container.alive = False
            self.node.kill(container.start.pid)
            return
        assert allocation is not None
        (card,) = allocation.cards
        ledger.confirm(container.start, {f"{node.major}:{node.minor}": node.path for node in card.nodes})
        container.card = card.uuid
        assert not [name for name in self.directories() if name.startswith(".")]

    def fits(self, expected: dict[str, tuple[int, int, bool]], uuid: str, amounts: Amounts) -> bool:
        size = next(card.memory for card in self.node.cards if card.uuid == uuid)
        cores, memory, _ = expected.get(uuid, (0, 0, False))
        return cores + amounts[0] <= 100 and memory + amounts[1] <= size

    amounts = st.tuples(st.sampled_from([1, 10, 30, 60, 99]), st.sampled_from([GIB, 4 * GIB, 12 * GIB]))

    @rule(amounts=amounts)
    def start_standalone(self, amounts: Amounts) -> None:
        self.claimed(self.made(amounts, None))

    @rule(amounts=amounts)
    def grant(self, amounts: Amounts) -> None:
        self.pairs.append((self.node.pair(*amounts), amounts))

    @precondition(lambda self: self.pairs)
    @rule(at=st.integers(0, 99))
    def start_pod(self, at: int) -> None:
        ids, amounts = self.pairs.pop(at % len(self.pairs))
        self.claimed(self.made(amounts, ids))

    @rule(amounts=amounts, of_follower=amounts)
    def start_init_container(self, amounts: Amounts, of_follower: Amounts) -> None:
        """kubelet gives the device ids of an init container to the container after it."""
        ids = {uuid_of(0): f"{1000 * (self.number + 1)}-{1000 * (self.number + 1) + 9}"}
        init, follower = self.node.pair(*amounts, ids), self.node.pair(*of_follower, ids)
        container = self.made(amounts, init)
        container.follower = (follower, of_follower)
        self.claimed(container)
        if not container.card:
            self.delete(init)
            self.delete(follower)

    @precondition(lambda self: any(container.follower for container in self.placed()))
    @rule(at=st.integers(0, 99), poststop=st.booleans())
    def end_init_container(self, at: int, poststop: bool) -> None:
        inits = [container for container in self.placed() if container.follower]
        self.followed(inits[at % len(inits)], poststop)

    def followed(self, init: Container, poststop: bool) -> None:
        """The init container ends, and the container after it starts. Neither is in the way of the other."""
        assert init.follower and init.start.holder
        self.died(init, poststop)
        ids, amounts = init.follower
        container = self.made(amounts, ids, Holder(init.start.holder.pod_uid, "follower"))
        self.claimed(container)
        container.init = init
        if not container.card:
            self.delete_pod(container)

    def died(self, container: Container, poststop: bool) -> None:
        container.alive = False
        self.node.kill(container.start.pid)
        if poststop:
            self.node.ledger().release(container.start.container)
            self.containers.remove(container)

    @precondition(lambda self: self.pairs)
    @rule(at=st.integers(0, 99))
    def grant_goes(self, at: int) -> None:
        self.delete(self.pairs.pop(at % len(self.pairs))[0])

    def delete(self, ids: dict[str, str]) -> None:
        for grant_id in ids.values():
            os.unlink(paths.grant(self.node.settings.state_dir, grant_id))

    def delete_pod(self, container: Container) -> None:
        for ids in (container.ids, container.follower and container.follower[0], container.init and container.init.ids):
            self.delete(ids or {})

    def living(self) -> list[Container]:
        return [container for container in self.containers if container.alive]

    def ended(self, container: Container) -> None:
        """The init is gone, and kubelet has deleted the pod."""
        self.died(container, False)
        self.delete_pod(container)

    @precondition(lambda self: self.living())
    @rule(at=st.integers(0, 99), poststop=st.booleans())
    def stop(self, at: int, poststop: bool) -> None:
        container = self.living()[at % len(self.living())]
        self.ended(container)
        if poststop:
            self.node.ledger().release(container.start.container)
            self.containers.remove(container)

    @precondition(lambda self: self.living())
    @rule(at=st.integers(0, 99))
    def poststop_of_a_living_one(self, at: int) -> None:
        assert not self.node.ledger().release(self.living()[at % len(self.living())].start.container)

    @precondition(lambda self: self.living())
    @rule(at=st.integers(0, 99))
    def start_again(self, at: int) -> None:
        """A hook that is listed twice."""
        container = self.living()[at % len(self.living())]
        if container.card:
            assert self.node.ledger().claim(container.start, self.wanted(container)) is None

    def placed(self) -> list[Container]:
        return [container for container in self.living() if container.card]

    @rule(place=st.integers(0, INSTANCES - 1))
    def change_layout(self, place: int) -> None:
        """What ran keeps its claim until it ends; until then nobody gets the instance that has the same numbers."""
        self.make_instance(place)

    def on_cards(self) -> list[Container]:
        return [container for container in self.placed() if self.present(container.card)]

    @precondition(lambda self: self.on_cards())
    @rule(at=st.integers(0, 99), amounts=amounts, release=st.booleans())
    def change(self, at: int, amounts: Amounts, release: bool) -> None:
        """vgpuctl set."""
        container = self.on_cards()[at % len(self.on_cards())]
        ledger = self.node.ledger()
        (claim,) = (claim for claim in ledger.claims() if claim.container == container.start.container)
        card, container.card = container.card, ""
        room = self.fits(self.expected(), card, amounts)
        container.card = card
        less = amounts[0] <= container.amounts[0] and amounts[1] <= container.amounts[1]
        wanted = [CardLimit(card, amounts[1], amounts[0], amounts[0])]
        try:
            set_limits.change(ledger, claim, wanted, release and container.ids is not None)
        except NoFit:
            assert not room
            return
        assert room or less
        container.amounts = amounts
        if release and container.ids:
            container.promised = min(container.promised[0], amounts[0]), min(container.promised[1], amounts[1])

    @precondition(lambda self: any(container.ids for container in self.placed()))
    @rule(at=st.integers(0, 99), poststop=st.booleans())
    def restart(self, at: int, poststop: bool) -> None:
        """The container of a pod ends, and kubelet starts it again."""
        pods = [container for container in self.placed() if container.ids]
        container = pods[at % len(pods)]
        self.died(container, poststop)
        self.again(container)

    def again(self, container: Container) -> None:
        again = self.made(container.promised, container.ids, container.start.holder)
        again.follower, again.init, again.before = container.follower, container.init, container.card
        self.claimed(again)
        if self.present(container.card):
            assert again.card == container.card
        else:
            assert not again.card, "another instance has another size"
            self.delete_pod(again)

    @precondition(lambda self: self.living())
    @rule(at=st.integers(0, 99))
    def withdraw(self, at: int) -> None:
        container = self.living()[at % len(self.living())]
        if not container.ids:
            self.node.ledger().withdraw(container.start)
            container.card = ""

    @rule(amounts=amounts, step=st.integers(0, 40))
    def killed_in_the_middle(self, amounts: Amounts, step: int) -> None:
        """kill -9 before the given step of a claim that writes; the runtime ends the container."""
        container = self.made(amounts, None)
        child = os.fork()
        if child == 0:
            die_before(step)
            try:
                self.node.ledger().claim(container.start, self.wanted(container))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.ended(container)

    @rule()
    def reap(self) -> None:
        ledger = self.node.ledger()
        dead = [claim for claim in ledger.claims() if not ledger.lives(claim)]
        ledger.reap(dead)
        assert [claim for claim in ledger.claims() if not ledger.lives(claim)] == []

    @rule(keeps=st.booleans())
    def reboot(self, keeps: bool) -> None:
        """The run directory is a tmpfs. kubelet starts its pods again, or they were deleted meanwhile.

        An init container runs again before the one after it. It has its place where both are on one card. The MIG
        instances are gone, and others are made.
        """
        pods = [container for container in self.living() if container.ids]
        self.node.reboot()
        self.containers.clear()
        for place in range(INSTANCES):
            self.make_instance(place)
        for container in pods:
            init = container.init
            if not keeps or not container.card or (init and init.card != container.card):
                self.delete_pod(container)
                continue
            if init and self.present(init.card):
                self.again(init)
                self.died(self.containers[-1], False)
            self.again(container)


def die_before(step: int) -> None:
    """In a child: _exit, as by kill -9, before the given one of the calls that change files."""
    left = [step]

    def dying(call):  # type: ignore[no-untyped-def]
        def run(*arguments, **keywords):  # type: ignore[no-untyped-def]
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return call(*arguments, **keywords)

        return run

    for name in ("write", "rename", "mkdir", "makedirs", "unlink", "rmdir", "fsync", "pwrite", "ftruncate", "fchmod"):
        setattr(os, name, dying(getattr(os, name)))


def settings(steps: int, examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples, stateful_step_count=steps, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip


def test_the_ledger_equals_a_model(pytestconfig: pytest.Config) -> None:
    steps, examples = (60, 2000) if pytestconfig.getoption("--long") else (30, 25)
    hypothesis.stateful.run_state_machine_as_test(LedgerAgainstModel, settings=settings(steps, examples))
