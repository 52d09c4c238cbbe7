"""The ledger on real directories and a made-up /proc: claims, grants, restarts and deaths, damage, races."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ledger_node import GIB, POD, Node, redeem, share, uuid_of

from vgpu.config import claims, core_schedule, limits, paths, records
from vgpu.config.dialects.placements import Choice, Chosen
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder
from vgpu.config.inventory import Card, Device
from vgpu.config.limits import UNLIMITED
from vgpu.config.request import Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.ledger import presence
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.placement.allocation import Allocation
from vgpu.hook.placement.placement import NoFit
from vgpu.hook.request.resolve_grants import WantedGrants

STRANGER = "aaaaaaaa-0b0e-4c53-9d3a-6f0f8f0f1a11"
MAIN = Holder(POD, "main")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def uuids(made: Allocation | None) -> list[str]:
    assert made is not None
    return [item.uuid for item in made.cards]


# Standalone claims


def test_a_claim_is_recorded_and_released(node: Node) -> None:
    start = node.start("c1", 10)
    made = node.ledger().claim(start, share(cores=30, memory=2 * GIB))
    assert uuids(made) == [uuid_of(0)]
    claim = claims.read(node.settings.run_dir, "c1")
    assert (claim.pid, claim.start_time, claim.bundle, claim.ready) == (10, 5, "/bundles/c1", False)
    assert [item.key()[:4] for item in claim.cards] == [(uuid_of(0), 2 * GIB, 30, 30)]
    name, cards, _ = limits.decode(Path(paths.limits(node.settings.run_dir, "c1")).read_bytes())
    assert (name, cards) == ("c1", claim.cards)
    assert os.stat(node.claim_file("c1").parent).st_mode & 0o777 == 0o700
    node.ledger().confirm(start)
    assert claims.read(node.settings.run_dir, "c1").ready
    assert node.commitments() == {uuid_of(0): (30, 2 * GIB, False)}
    node.kill(10)
    assert node.ledger().release("c1")
    assert not node.claim_file("c1").parent.exists()
    assert node.commitments() == {}
    assert not node.ledger().release("c1")


def test_a_hook_that_died_is_followed_by_one_that_completes_the_claim(node: Node) -> None:
    start = node.start("c1", 10)
    assert node.ledger().claim(start, share(60))
    assert uuids(node.ledger().claim(start, share(60))) == [uuid_of(0)]  # never confirmed
    assert node.commitments() == {uuid_of(0): (60, GIB, False)}


def test_a_start_reads_each_claim_once_under_the_lock(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait meanwhile, of hundreds that start at the same time."""
    for number in range(4):
        assert node.ledger().claim(node.start(f"c{number}", 10 + number), share(10))
    real, reads = claims.read, []
    monkeypatch.setattr(claims, "read", lambda run_dir, name: reads.append(name) or real(run_dir, name))
    assert node.ledger().claim(node.start("c9", 20), share(10))
    assert sorted(reads) == ["c0", "c1", "c2", "c3", "c9"]


@pytest.mark.parametrize(("pid", "started", "state"), [(10, 5, "Z"), (10, 5, "X"), (10, 6, "S"), (11, 5, "S")], ids=str)
def test_a_dead_claim_is_superseded(node: Node, pid: int, started: int, state: str) -> None:
    """A zombie is dead, and so is a process whose pid another process has."""
    assert node.ledger().claim(node.start("old", 10), share(90))
    node.kill(10)
    node.live(pid, started, state)
    made = node.ledger().claim(node.start("new", 20), share(90))
    assert uuids(made) == [uuid_of(0)]


def test_a_living_container_keeps_its_id(node: Node) -> None:
    assert node.ledger().claim(node.start("c1", 10), share())
    before = node.snapshot()
    with pytest.raises(VgpuError, match=r"container c1: .* pid 10, bundle /bundles/c1"):
        node.ledger().claim(node.start("c1", 11), share())
    assert node.snapshot() == before


# Capacity


def test_whole_cards_have_no_limits(node: Node) -> None:
    made = node.ledger().claim(node.start("c1", 10), Request(2, 100, 0))
    assert made is not None
    assert made.exclusive
    assert [item.memory for item in made.limits] == [UNLIMITED, UNLIMITED]
    assert {held[2] for held in node.commitments().values()} == {True}


def test_scaling_oversubscribes(tmp_path: Path) -> None:
    node = Node(tmp_path, cards=1, **{"scaling.cores": 2.0, "scaling.memory": 1.5})
    for number in range(3):
        assert node.ledger().claim(node.start(f"c{number}", 10 + number), share(60, 8 * GIB))
    with pytest.raises(NoFit):
        node.ledger().claim(node.start("c3", 13), share(60, 8 * GIB))


# Grants


def test_grants_are_claimed_and_bound(node: Node) -> None:
    ids = node.pair(cores=30, memory=2 * GIB)
    made = node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids, core_limit=50))
    assert made is not None
    assert [item.key()[:4] for item in made.limits] == [(uuid_of(0), 2 * GIB, 30, 50)]
    for grant_id in ids.values():
        assert node.read_grant(grant_id).holder == MAIN
        assert node.read_grant(grant_id).cards == [uuid_of(0)]
    assert sorted(claims.read(node.settings.run_dir, "c1").grants) == sorted(ids.values())
    assert node.commitments() == {uuid_of(0): (30, 2 * GIB, False)}  # claim and grants count once


@pytest.mark.parametrize("how", ["restart", "reboot", "crash"])
def test_the_same_identity_claims_again_on_the_same_card(node: Node, how: str) -> None:
    assert node.ledger().claim(node.start("filler", 9), share(70))
    ids = node.pair(cores=60)
    first = uuids(node.ledger().claim(node.start("life1", 10, MAIN), redeem(ids)))
    assert first == [uuid_of(1)]
    node.kill(9)
    node.kill(10)
    if how == "reboot":
        node.reboot()
    elif how == "restart":
        assert node.ledger().release("life1")
    # now card 0 is free, and binpack would take it
    assert uuids(node.ledger().claim(node.start("life2", 11, MAIN), redeem(ids))) == first


@pytest.mark.parametrize("holder", [Holder(STRANGER, "main"), Holder(POD, "other"), Holder(POD, "")])
@pytest.mark.parametrize("reboot", [False, True])
def test_nobody_else_claims_them(node: Node, holder: Holder, reboot: bool) -> None:
    ids = node.pair()
    assert node.ledger().claim(node.start("life1", 10, MAIN), redeem(ids))
    node.kill(10)
    if reboot:
        node.reboot()
    else:
        node.ledger().release("life1")
    with pytest.raises(VgpuError) as refused:
        node.ledger().claim(node.start("life2", 11, holder), redeem(ids))
    assert MAIN.describe() in str(refused.value)
    assert holder.describe() in str(refused.value)
    assert "life2" not in node.containers()
    assert {node.read_grant(grant_id).holder for grant_id in ids.values()} == {MAIN}


def test_two_containers_of_one_name_do_not_share_grants(node: Node) -> None:
    ids = node.pair(cores=10)
    assert node.ledger().claim(node.start("one", 10, MAIN), redeem(ids))
    with pytest.raises(VgpuError, match="container one, which still lives"):
        node.ledger().claim(node.start("two", 11, MAIN), redeem(ids))
    with pytest.raises(VgpuError, match="container one, which still lives"):
        node.ledger().claim(node.start("two", 11, MAIN), redeem({**node.pair(cores=10), "memory": ids["memory"]}))
    assert node.containers() == {"one"}


def test_unnamed_containers_of_one_pod_claim_their_own(node: Node) -> None:
    """Under kubelet Docker has no container name."""
    unnamed = Holder(POD, "")
    one, two = node.pair(cores=60), node.pair(cores=60)
    assert uuids(node.ledger().claim(node.start("one", 10, unnamed), redeem(one))) == [uuid_of(0)]
    assert uuids(node.ledger().claim(node.start("two", 11, unnamed), redeem(two))) == [uuid_of(1)]
    node.reboot()
    # before they start again their cards stay committed, though no name shows which grants belong to which
    assert node.commitments() == {uuid_of(0): (60, GIB, False), uuid_of(1): (60, GIB, False)}
    assert uuids(node.ledger().claim(node.start("two", 12, unnamed), redeem(two))) == [uuid_of(1)]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({"cores": "0" * 32}, ["grant 00000000 of cores", "none", "delete the pod"]),
        ({"cores": "xyz"}, ["32 hexadecimal digits"]),
        ({"cores": "CORES"}, ["memory beside", "cores alone"]),
        ({"memory": "MEMORY"}, ["cores beside", "memory alone"]),
        ({"cores": "MEMORY", "memory": "CORES"}, ["an amount of"]),
        ({"cores": "CORES", "memory": "CORES"}, ["amount of memory", "amount of cores"]),
        ({"gpu": "CORES"}, ["an amount of gpu"]),
        ({"cores": "CORES", "memory": "0" * 32}, ["grant 00000000 of memory", "none"]),
    ],
)
def test_grants_that_do_not_add_up(node: Node, ids: dict[str, str], words: list[str]) -> None:
    known = {name.upper(): grant_id for name, grant_id in node.pair().items()}
    before = node.snapshot()
    asked = {name: known.get(text, text) for name, text in ids.items()}
    with pytest.raises(VgpuError) as refused:
        node.ledger().claim(node.start("c1", 10, MAIN), redeem(asked))
    line = str(refused.value)
    assert "\n" not in line
    for word in words:
        assert word in line
    assert node.snapshot() == before


@pytest.mark.parametrize(
    ("cores", "memory", "words"),
    [
        (150, GIB, "150"),
        (60, 17 * GIB, uuid_of(1)),
        (300, GIB, "3 cards"),
        (3200, GIB, "32 cards"),
        (60, 1 << 50, uuid_of(0)),
    ],
)
def test_grants_over_capacity(node: Node, cores: int, memory: int, words: str) -> None:
    ids = node.pair(cores, memory)
    with pytest.raises(VgpuError) as refused:
        node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))
    assert words in str(refused.value)
    assert not any(grant_id in str(refused.value) for grant_id in ids.values())  # an id is worth something
    assert {node.read_grant(grant_id).holder for grant_id in ids.values()} == {None}


@pytest.mark.parametrize("missing", ["cores", "memory"])
def test_half_a_placed_pair_still_counts(node: Node, missing: str) -> None:
    ids = node.pair(cores=70, memory=3 * GIB)
    assert node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))
    node.reboot()
    node.grant_file(ids[missing]).unlink()
    left = (70, 0, False) if missing == "memory" else (0, 3 * GIB, False)
    assert node.commitments() == {uuid_of(0): left}


def test_cards_that_are_gone_or_taken_are_placed_anew(node: Node) -> None:
    ids = node.pair(cores=60)
    assert uuids(node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))) == [uuid_of(0)]
    node.reboot()
    node.cards = node.cards[1:]  # card 0 fell off the bus
    ledger = node.ledger()
    assert uuids(ledger.claim(node.start("c2", 11, MAIN), redeem(ids))) == [uuid_of(1)]
    assert any("placed anew" in note for note in ledger.notes)
    assert node.read_grant(ids["cores"]).cards == [uuid_of(1)]


@pytest.mark.parametrize(
    ("later", "superseded"),
    [
        ({uuid_of(0): "0-29"}, True),
        ({uuid_of(0): "29-40"}, True),
        ({uuid_of(0): "5,100"}, True),
        ({uuid_of(0): "30-59"}, False),
        ({uuid_of(1): "0-29"}, False),
        ({}, False),
        ({uuid_of(0): "²,x,-,3-x, 1"}, False),  # garbage overlaps nothing and harms no other
        ({uuid_of(0): "9" * 5000}, False),
    ],
)
def test_an_init_containers_successor(node: Node, later: dict[str, str], superseded: bool) -> None:
    """kubelet allocates an init container's device ids again. Then the older grant has no value."""
    init = node.pair(cores=30, devices={uuid_of(0): "0-29"})
    assert node.ledger().claim(node.start("init", 10, Holder(POD, "init")), redeem(init))
    app = node.pair(cores=30, devices=later)
    cores, memory, _ = node.commitments()[uuid_of(0)]
    assert (cores, memory) == (30, GIB)  # it is alive
    node.kill(10)
    assert node.ledger().release("init")
    assert node.commitments().get(uuid_of(0), (0, 0, False))[0] == (0 if superseded else 30)
    assert node.ledger().claim(node.start("app", 11, MAIN), redeem(app))


# Cards that a scheduler chose


def placed(ids: dict[str, str], *cards: int, amounts: tuple[int, int] = (0, 0), **limits: int) -> WantedGrants:
    """A redemption whose container a scheduler has put on `cards`; `amounts` are cores and MiB of each."""
    chosen = tuple(Chosen(uuid_of(index), -1, amounts[0], amounts[1] << 20) for index in cards)
    return WantedGrants(ids, 0, Wishes(), (Choice("hami.io/vgpu-devices-allocated", chosen),), dict(limits))


def test_a_chosen_card_without_room_fails_the_start_and_leaves_nothing(node: Node) -> None:
    assert node.ledger().claim(node.start("filler", 9), share(90))  # on card 0
    ids = node.pair(cores=30)
    before = node.snapshot()
    with pytest.raises(NoFit, match=r"scheduler's choice for .* card 0 .* 10 cores free"):
        node.ledger().claim(node.start("c1", 10, MAIN), placed(ids, 0))
    assert node.snapshot() == before
    node.kill(9)
    assert uuids(node.ledger().claim(node.start("c1", 11, MAIN), placed(ids, 0))) == [uuid_of(0)]  # kubelet tries again


@pytest.mark.parametrize("how", ["restart", "reboot"])
def test_a_restart_keeps_card_and_share_despite_edited_annotations(node: Node, how: str) -> None:
    ids = {"gpu": node.grant("gpu", 1, cores=50, memory=8 * GIB)}
    limits = {"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    assert node.ledger().claim(node.start("life1", 10, MAIN), placed(ids, 1, amounts=(30, 3000), **limits))
    expected = {uuid_of(1): (30, 3000 << 20, False)}
    assert node.commitments() == expected
    node.kill(10)
    if how == "reboot":
        node.reboot()
    assert node.commitments() == expected  # between two starts it keeps its share, and not the grant's half a card
    again = placed(ids, 0, amounts=(50, 8192))
    assert uuids(node.ledger().claim(node.start("life2", 11, MAIN), again)) == [uuid_of(1)]
    assert node.commitments() == expected


def test_memory_in_proportion_counts_between_two_starts(tmp_path: Path) -> None:
    node = Node(tmp_path, cards=1, **{"kubernetes.missing_memory": "proportional"})
    ids = {"cores": node.grant("cores", 25)}
    assert node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))
    node.kill(10)
    node.reboot()
    assert node.commitments() == {uuid_of(0): (25, 4 * GIB, False)}
    paths = {name: node.settings[name] for name in ("paths.state", "paths.run")}
    node.settings = Settings({**paths, "kubernetes.missing_memory": "refuse"})
    made = node.ledger().claim(node.start("c2", 11, MAIN), redeem(ids))  # its share stays the same
    assert made is not None
    assert made.limits[0].memory == 4 * GIB


def test_an_init_container_and_its_successor_on_the_cards_chosen_for_each(node: Node) -> None:
    """kubelet allocates for all containers of a pod before the first of them starts."""
    devices = {uuid_of(0): "0-89"}
    init, app = (
        {"cores": node.grant("cores", 90, devices), "memory": node.grant("memory", GIB, devices)} for _ in range(2)
    )
    assert uuids(node.ledger().claim(node.start("i", 10, Holder(POD, "init")), placed(init, 0))) == [uuid_of(0)]
    node.kill(10)
    assert node.ledger().release("i")
    assert uuids(node.ledger().claim(node.start("a", 11, MAIN), placed(app, 1))) == [uuid_of(1)]
    assert node.commitments() == {uuid_of(1): (90, GIB, False)}


@pytest.mark.parametrize("choose", [True, False])
def test_after_a_reboot_init_containers_run_again_before_their_successors(tmp_path: Path, choose: bool) -> None:
    """The successor's grants are for the same devices that the init container has meanwhile."""
    node = Node(tmp_path, cards=1)
    pairs = []
    for _ in range(3):  # two init containers, one after the other, then the container
        devices = {uuid_of(0): "0-89"}
        pairs.append({"cores": node.grant("cores", 90, devices), "memory": node.grant("memory", 9 * GIB, devices)})
    for life in range(3):
        for number, ids in enumerate(pairs):
            pid = 10 + 3 * life + number
            wanted = placed(ids, 0) if choose else redeem(ids)
            start = node.start(f"c{pid}", pid, Holder(POD, f"c{number}"))
            assert uuids(node.ledger().claim(start, wanted)) == [uuid_of(0)]
            with pytest.raises(NoFit):  # no other container has room there at any time
                node.ledger().claim(node.start("other", 99), share(20))
            node.kill(pid)
            node.ledger().release(f"c{pid}")
        node.reboot()


def test_another_pods_grants_of_the_same_devices_still_count(tmp_path: Path) -> None:
    """Device ids that kubelet has allocated to another pod are no longer the first pod's."""
    node = Node(tmp_path, cards=1)
    devices = {uuid_of(0): "0-89"}
    mine, theirs = node.pair(cores=90, devices=devices), node.pair(cores=90, devices=devices)
    assert node.ledger().claim(node.start("c1", 10, MAIN), redeem(mine))
    node.kill(10)
    node.reboot()
    assert node.ledger().claim(node.start("c2", 11, Holder(STRANGER, "main")), redeem(theirs))
    node.kill(11)
    node.reboot()
    with pytest.raises(NoFit):
        node.ledger().claim(node.start("c3", 12, MAIN), redeem(mine))


# Withdrawal


def test_withdraw_restores_everything(node: Node) -> None:
    ids = node.pair()
    assert node.ledger().claim(node.start("other", 9), share(10))
    start = node.start("c1", 10, MAIN)
    before = node.snapshot()
    ledger = node.ledger()
    assert ledger.claim(start, redeem(ids))
    assert node.snapshot() != before
    ledger.withdraw(start)
    assert node.snapshot() == before
    assert node.ledger().claim(node.start("c2", 11, Holder(STRANGER, "main")), redeem(ids))  # free again


def test_withdrawing_a_second_start_leaves_the_grant_bound(node: Node) -> None:
    ids = node.pair()
    assert node.ledger().claim(node.start("life1", 10, MAIN), redeem(ids))
    node.kill(10)
    node.ledger().release("life1")
    ledger, start = node.ledger(), node.start("life2", 11, MAIN)
    assert ledger.claim(start, redeem(ids))
    ledger.withdraw(start)
    assert node.read_grant(ids["cores"]).holder == MAIN


def test_a_grant_that_ended_meanwhile_does_not_come_back(node: Node) -> None:
    ids = node.pair()
    ledger, start = node.ledger(), node.start("c1", 10, MAIN)
    assert ledger.claim(start, redeem(ids))
    node.grant_file(ids["cores"]).unlink()
    ledger.withdraw(start)
    assert not node.grant_file(ids["cores"]).exists()
    assert node.read_grant(ids["memory"]).holder is None


def test_withdraw_leaves_a_new_container_of_the_same_id_alone(node: Node) -> None:
    """The runtime was killed while the hook still ran, and kubelet restarted the container before the hook ended."""
    ids = node.pair()
    slow, start = node.ledger(), node.start("c1", 10, MAIN)
    assert slow.claim(start, redeem(ids))
    node.kill(10)
    assert node.ledger().claim(node.start("c1", 11, MAIN), redeem(ids))
    before = node.snapshot()
    slow.withdraw(start)
    assert node.snapshot() == before
    with pytest.raises(VgpuError, match="claim of process 10"):
        slow.confirm(start)
    assert node.snapshot() == before


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), VgpuError("limits"), KeyboardInterrupt()])
def test_a_failure_while_recording_leaves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException
) -> None:
    ids = node.pair()
    start = node.start("c1", 10, MAIN)
    before = node.snapshot()
    real, calls = records.write_bytes, []

    def failing(path: str, data: bytes, *others: object) -> None:
        calls.append(path)
        if len(calls) == at + 1:
            raise error
        real(path, data, *others)

    monkeypatch.setattr(records, "write_bytes", failing)
    with pytest.raises((VgpuError, OSError, KeyboardInterrupt)) as refused:
        node.ledger().claim(start, redeem(ids))
    if isinstance(error, OSError):
        assert "No space left" in str(refused.value)
    monkeypatch.undo()
    assert len(calls) > at
    assert node.snapshot() == before


def test_a_card_without_a_real_uuid_leaves_nothing(node: Node) -> None:
    node.cards[0].uuid = node.cards[1].uuid = "GPU-x"
    ids = node.pair()
    with pytest.raises(VgpuError, match="UUID"):
        node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))
    assert node.read_grant(ids["cores"]).holder is None
    assert node.commitments() == {}


# Damage

DAMAGE = [b"", b"garbage", b"\xff\xfe\x00", b'{"version": 1', b"[]", b"{}", b'{"version": 99}', b"{" * 5000]


@pytest.mark.parametrize("data", DAMAGE)
def test_a_damaged_claim_still_takes_its_cards(node: Node, data: bytes) -> None:
    assert node.ledger().claim(node.start("hurt", 10), share(70, 3 * GIB))
    node.claim_file("hurt").write_bytes(data)
    ledger = node.ledger()
    assert uuids(ledger.claim(node.start("new", 11), share(70))) == [uuid_of(1)]
    assert any(str(node.claim_file("hurt")) in note for note in ledger.notes)
    assert node.commitments()[uuid_of(0)] == (70, 3 * GIB, False)
    assert node.ledger().release("hurt")  # its poststop clears it
    assert uuid_of(0) not in node.commitments()


def test_a_damaged_exclusive_claim_still_takes_whole_cards(node: Node) -> None:
    assert node.ledger().claim(node.start("hurt", 10), Request(2, 100, 0))
    node.claim_file("hurt").write_bytes(b"garbage")
    with pytest.raises(NoFit, match="held whole"):
        node.ledger().claim(node.start("new", 11), share(1, 1))


def test_claim_and_limits_damaged_harm_nobody_else(node: Node) -> None:
    assert node.ledger().claim(node.start("hurt", 10), share(70))
    for path in node.claim_file("hurt").parent.iterdir():
        path.write_bytes(b"garbage")
    ledger = node.ledger()
    assert ledger.claim(node.start("new", 11), share(70))
    assert len(ledger.notes) == 2


def test_a_containers_own_damaged_claim_does_not_stop_it(tmp_path: Path) -> None:
    node = Node(tmp_path, cards=1)
    assert node.ledger().claim(node.start("c1", 10), Request(1, 100, 0))
    node.claim_file("c1").write_bytes(b"garbage")
    node.kill(10)
    assert node.ledger().claim(node.start("c1", 11), Request(1, 100, 0))


def test_foreign_things_among_the_claims_are_left_alone(node: Node) -> None:
    directory = node.path / "run/containers"
    (directory / ".hidden").mkdir(parents=True)
    (directory / "empty").mkdir()
    (directory / "file").write_text("x")
    (directory / "a b").mkdir()
    ledger = node.ledger()
    assert ledger.claim(node.start("c1", 10), share())
    assert {path.name for path in directory.iterdir()} == {".hidden", "empty", "file", "a b", "c1"}


def test_claims_that_are_no_directory_are_one_line(node: Node) -> None:
    (node.path / "run").mkdir()
    (node.path / "run/containers").write_text("x")
    with pytest.raises(VgpuError, match=r"run/containers/\S+: .*Not a directory"):
        node.ledger().claim(node.start("c1", 10), share())


def left_by_a_killed_hook(node: Node) -> None:
    """What kill -9 in the middle of a claim, of a release, and of writing a grant leaves."""
    for name in (".new", ".ended"):
        directory = node.path / "run/containers" / name
        directory.mkdir(parents=True)
        (directory / "limits").write_text("x")
        (directory / ".claim.json.4711.tmp").write_text("{")
    (node.path / "state/grants/.ledger.tmp").write_text("{")
    (node.path / "run/.ledger.tmp").write_text("")


@pytest.mark.parametrize("by", ["start", "stop"])
def test_the_next_start_or_stop_removes_what_a_killed_hook_left(node: Node, by: str) -> None:
    ids = node.pair()
    node.ledger().claim(node.start("c1", 10), share())
    before = node.snapshot()
    left_by_a_killed_hook(node)
    if by == "start":
        assert node.ledger().claim(node.start("c2", 11, MAIN), redeem(ids))
        node.ledger().withdraw(node.start("c2", 11, MAIN))
    else:
        assert not node.ledger().release("c2")
    assert node.snapshot().keys() == before.keys()


def test_a_directory_without_a_claim_goes_with_its_container(node: Node) -> None:
    """A hook of an older version was killed before it wrote the claim. The runtime then calls poststop."""
    directory = node.path / "run/containers/c1"
    directory.mkdir(parents=True)
    (directory / "limits").write_text("x")
    assert node.ledger().release("c1")
    assert not directory.exists()
    directory.mkdir()
    (directory / "cards").write_text("x")
    assert node.ledger().claim(node.start("c1", 10), share())
    assert sorted(path.name for path in directory.iterdir()) == ["cards", "claim.json", "limits"]


def test_the_next_start_removes_the_claim_of_a_killed_hook_and_no_other(node: Node) -> None:
    """A claim that is not ready belongs to a hook. Without the container's init that hook was killed, or will fail."""
    for name, pid in (("killed", 10), ("starting", 11), ("ended", 12)):
        assert node.ledger().claim(node.start(name, pid), share())
    node.ledger().confirm(node.start("ended", 12))
    node.kill(10)
    node.kill(12)
    assert node.ledger().claim(node.start("c1", 13), share())
    assert sorted(path.name for path in (node.path / "run/containers").iterdir()) == ["c1", "ended", "starting"]


@pytest.mark.parametrize("data", DAMAGE)
def test_a_damaged_grant_is_refused_and_harms_nobody_else(node: Node, data: bytes) -> None:
    ids = node.pair()
    node.grant_file(ids["cores"]).write_bytes(data)
    with pytest.raises(VgpuError) as refused:
        node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))
    assert str(node.grant_file(ids["cores"])) in str(refused.value)
    assert "delete the pod" in str(refused.value)
    ledger = node.ledger()
    assert ledger.claim(node.start("c2", 11, Holder(POD, "two")), redeem(node.pair()))
    assert any(str(node.grant_file(ids["cores"])) in note for note in ledger.notes)


# Order and races


def test_a_dry_run_records_nothing_and_agrees(node: Node) -> None:
    ids = node.pair(cores=60)
    assert node.ledger().claim(node.start("c0", 9), share(60))
    before = node.snapshot()
    foreseen = uuids(node.ledger().place(redeem(ids), MAIN))
    assert node.snapshot() == before
    assert uuids(node.ledger().claim(node.start("c1", 10, MAIN), redeem(ids))) == foreseen
    # of a running container: its own commitments do not count against it
    assert uuids(node.ledger().place(redeem(ids), MAIN, "c1")) == foreseen
    assert uuids(node.ledger().place(share(100 - 1), None, "c0")) == [uuid_of(0)]


def test_the_lock_is_made_where_it_is_missing_and_is_no_link(node: Node) -> None:
    assert node.ledger().claim(node.start("c1", 10), share())
    lock = node.path / "run/ledger.lock"
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.unlink()
    lock.symlink_to(node.path / "victim")
    with pytest.raises(OSError, match=r"ledger\.lock"):
        node.ledger().claim(node.start("c2", 11), share())
    assert not (node.path / "victim").exists()


@pytest.mark.parametrize(
    ("scaling", "virtual", "expected"), [(2.0, True, True), (2.0, False, False), (1.0, True, False)]
)
def test_virtual_memory_is_for_oversubscribed_cards_only(
    tmp_path: Path, scaling: float, virtual: bool, expected: bool
) -> None:
    values: dict[str, object] = {"paths.run": str(tmp_path / "run"), "paths.state": str(tmp_path / "state")}
    settings = Settings({**values, "scaling.memory": scaling, "scaling.virtual_memory": virtual})
    device = Device("/dev/nvidia0", "nvidia0", 195, 0)
    card = Card("GPU-00000001-0000-0000-0000-000000000000", 0, 0, "0000:01:00.0", "T4", 8 << 30, device)
    made = Ledger(settings, [card]).place(Request(1, 30, 1 << 30), None)
    assert [limit.oversubscribe for limit in made.limits] == [expected]


# Core schedules


def test_containers_that_share_a_card_get_time_slices_and_the_remaining_one_gets_all(node: Node) -> None:
    def pages(*containers: str) -> dict[str, core_schedule.CoreSchedule]:
        read = {name: core_schedule.decode(node.schedule_file(name).read_bytes())[0] for name in containers}
        return {name: found[0] for name, found in read.items()}

    assert node.ledger().claim(node.start("a", 1), share(30))
    assert pages("a") == {"a": core_schedule.CoreSchedule(uuid_of(0), tenants=1, may_borrow=1)}
    assert node.ledger().claim(node.start("b", 2), share(20))
    assert node.ledger().claim(node.start("c", 3), share(50))
    wanted = core_schedule.schedule(uuid_of(0), [30, 20, 50])
    assert list(pages("a", "b", "c").values()) == wanted
    node.kill(2)
    assert node.ledger().release("b")
    assert list(pages("a", "c").values()) == core_schedule.schedule(uuid_of(0), [30, 50])
    node.kill(3)
    dead = [claim for claim in node.ledger().claims() if claim.container == "c"]
    assert node.ledger().reap(dead)
    assert pages("a") == {"a": core_schedule.CoreSchedule(uuid_of(0), tenants=1, may_borrow=1)}


def test_a_dead_claim_that_another_life_has_replaced_is_not_reaped(node: Node) -> None:
    node.ledger().claim(node.start("a", 1), share(30))
    node.kill(1)
    (seen,) = node.ledger().claims()
    node.ledger().claim(node.start("a", 2), share(30))
    node.kill(2)
    assert node.ledger().reap([seen]) == []
    assert [claim.pid for claim in node.ledger().claims()] == [2]


def test_a_whole_card_has_no_schedule_and_other_cards_are_not_touched(node: Node) -> None:
    assert node.ledger().claim(node.start("a", 1), share(30))
    before = node.schedule_file("a").read_bytes()
    assert node.ledger().claim(node.start("whole", 2), Request(1, 100, 0))
    assert not node.schedule_file("whole").exists()
    assert node.schedule_file("a").read_bytes() == before


def presence_file(node: Node, card: int = 0) -> Path:
    return Path(paths.presence(node.settings.run_dir, core_schedule.presence_name(node.cards[card].uuid)))


def test_the_presence_file_is_made_before_any_container_shares_a_card_and_stays(node: Node) -> None:
    path = presence_file(node, 1)
    assert node.ledger().claim(node.start("whole", 1), Request(1, 100, 0))
    assert not path.exists()
    ledger = node.ledger()
    assert ledger.claim(node.start("a", 2), share(30))
    inode = path.stat().st_ino
    assert ledger.notes == []
    node.kill(2)
    assert node.ledger().release("a")
    assert node.ledger().claim(node.start("b", 3), share(30))
    assert path.stat().st_ino == inode


def test_a_presence_file_that_is_removed_meanwhile_is_reported(node: Node) -> None:
    path = presence_file(node)
    assert node.ledger().claim(node.start("a", 1), share(30))
    path.unlink()
    ledger = node.ledger()
    assert ledger.claim(node.start("b", 2), share(30))
    assert ledger.notes == [f"{path} was missing: containers from before do not see the ones that start now"]


def test_a_card_keeps_the_common_presence_file_while_a_container_has_it(node: Node) -> None:
    """Containers of an earlier version have one file for all cards, and their claims do not say which."""

    def started(name: str, pid: int, card: int = 0) -> str:
        uuid = node.cards[card].uuid
        made = node.ledger().claim(node.start(name, pid), Request(1, 10, GIB, wishes=Wishes(use_uuids=(uuid,))))
        assert made
        assert made.presence == {uuid: presence.path_of(run, claims.read(run, name), uuid)}
        assert made.presence == presence.choose(run, [uuid], node.ledger().shares()), "a dry run says the same"
        assert os.path.isfile(made.presence[uuid])
        return made.presence[uuid]

    def end(name: str, pid: int) -> None:
        node.kill(pid)
        assert node.ledger().release(name)

    run = node.settings.run_dir
    common = paths.common_presence(run)
    started("before", 1)
    record = records.read(paths.claim(run, "before"))
    del record["common_presence"]
    records.write(paths.claim(run, "before"), record)
    Path(common).write_bytes(bytes(core_schedule.PRESENCE_SIZE))
    assert started("other-card", 2, card=1) == str(presence_file(node, 1))
    assert started("beside", 3) == common
    end("before", 1)
    assert started("later", 4) == common, "one that lives has it"
    end("beside", 3)
    end("later", 4)
    assert started("last", 5) == str(presence_file(node))
    assert os.path.isfile(common)


def test_without_a_presence_file_no_share_starts(node: Node) -> None:
    path = presence_file(node)
    path.mkdir(parents=True)
    with pytest.raises(VgpuError, match="expected a regular file, found d"):
        node.ledger().claim(node.start("a", 1), share(30))
    assert node.ledger().claims() == []


@pytest.mark.parametrize("damage", [b"", b"garbage", bytes(core_schedule.SIZE)])
def test_another_containers_damaged_schedules_stop_no_start(node: Node, damage: bytes) -> None:
    assert node.ledger().claim(node.start("a", 1), share(30))
    node.schedule_file("a").write_bytes(damage)
    ledger = node.ledger()
    assert ledger.claim(node.start("b", 2), share(30))
    assert len([note for note in ledger.notes if "the core schedules of container a are unchanged" in note]) == 1
    assert node.schedule_file("a").read_bytes() == damage


def test_the_share_of_a_container_without_schedules_is_reserved(node: Node) -> None:
    assert node.ledger().claim(node.start("old", 1), share(30))
    node.schedule_file("old").unlink()
    ledger = node.ledger()
    assert ledger.claim(node.start("new", 2), share(30))
    assert ledger.notes == []
    (_, page) = core_schedule.schedule(uuid_of(0), [30, 30])
    assert core_schedule.decode(node.schedule_file("new").read_bytes())[0] == [page]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0),
        ("monotonic      -86400 500000000\nboottime      5 0\n", 86_399_500_000_000),
        ("monotonic 3600 1\n", -3_600_000_000_001),
        ("", 0),
    ],
)
def test_the_clock_of_a_time_namespace(node: Node, text: str, offset: int) -> None:
    start = node.start("a", 1)
    (node.proc / "1" / "timens_offsets").write_text(text)
    ledger = node.ledger()
    assert ledger.claim(start, share(30))
    assert core_schedule.decode(node.schedule_file("a").read_bytes())[1] == offset
    for process in ("self", "2"):  # the runtime is in the same namespace: the clocks agree
        (node.proc / process).mkdir(exist_ok=True)
        (node.proc / process / "timens_offsets").write_text(text)
    assert node.ledger().claim(node.start("b", 2), share(30))
    assert core_schedule.decode(node.schedule_file("b").read_bytes())[1] == 0


def test_priority_is_recorded(node: Node) -> None:
    assert node.ledger().claim(node.start("a", 1), Request(1, 30, GIB, wishes=Wishes(priority=0)))
    assert node.ledger().claim(node.start("b", 2), share(30))
    assert [claim.priority for claim in node.ledger().claims()] == [0, 1]
