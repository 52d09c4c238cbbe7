"""Foreign processes on cards: the record, when it counts, and its effect on the ledger."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cards import card, uuid_of

from vgpu.config import foreign, paths, records
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.foreign import COMPUTE, GRAPHICS, User
from vgpu.config.limits import CardLimit
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import procfs, staleness
from vgpu.hook.placement.placement import NoFit
from vgpu.node.daemon import foreign_processes

UUIDS = [uuid_of(at) for at in range(2)]
CARDS = [card(at) for at in range(2)]


def user(kind: str = COMPUTE, started: int = 0) -> User:
    return User(os.getpid(), started or procfs.start_time(os.getpid()), "python", kind, 5 << 20)


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    (tmp_path / "run").mkdir()
    return str(tmp_path / "run")


def write(run_dir: str, found: User, age: float = 0.0, boot: str = "") -> None:
    written = since_boot() - age
    record = foreign.record({UUIDS[0]: [found]}, boot or staleness.boot_id(), written, 60.0)
    records.write(paths.foreign(run_dir), record)


def ledger(run_dir: str) -> Ledger:
    return Ledger(Settings({"paths.run": run_dir, "paths.state": run_dir}), CARDS)


def test_a_whole_card_is_one_without_strangers(run_dir: str) -> None:
    write(run_dir, user())
    assert [card.uuid for card in ledger(run_dir).place(Request(1, 100, 0), None).cards] == UUIDS[1:]
    with pytest.raises(NoFit, match=rf"process {os.getpid()} \(python\) of no container"):
        ledger(run_dir).place(Request(2, 100, 0), None)


def test_shares_may_have_foreign_neighbours(run_dir: str) -> None:
    write(run_dir, user())
    share = Request(1, 30, 1 << 30, fixed=(UUIDS[0],))
    assert [card.uuid for card in ledger(run_dir).place(share, None).cards] == UUIDS[:1]
    assert [found.pid for found in ledger(run_dir).foreign()[UUIDS[0]]] == [os.getpid()]


@pytest.mark.parametrize(
    ("found", "age", "boot"),
    [
        (user(), 61.0, ""),
        (user(), -5.0, ""),
        (user(), 0.0, "another"),
        (user(started=1), 0.0, ""),
        (user(GRAPHICS), 0.0, ""),
    ],
    ids=["nobody looked lately", "from the future", "another boot", "it has ended", "a desktop"],
)
def test_what_keeps_nobody_out(run_dir: str, found: User, age: float, boot: str) -> None:
    write(run_dir, found, age, boot)
    assert len(ledger(run_dir).place(Request(2, 100, 0), None).cards) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"version": 99}', b"\xff", b'{"version":1,"written":"x"}', b"x" * (2 << 20)]
)
def test_a_damaged_file_is_noted_and_counts_nothing(run_dir: str, damage: bytes) -> None:
    Path(paths.foreign(run_dir)).write_bytes(damage)
    found = ledger(run_dir)
    assert len(found.place(Request(2, 100, 0), None).cards) == 2
    assert any("foreign.json" in note for note in found.notes)


def test_reading_checks_its_fields(run_dir: str) -> None:
    write(run_dir, user("both"))
    with pytest.raises(VgpuError, match="compute or graphics"):
        foreign.read(run_dir, staleness.boot_id(), since_boot())


def test_a_process_belongs_to_its_containers_cards_only(run_dir: str) -> None:
    """The test's process is the container. It has a claim on card 0, and NVML sees it on both cards."""
    pid, started = os.getpid(), procfs.start_time(os.getpid())
    card = CardLimit(UUIDS[0], 1 << 30, 20, 20)
    os.makedirs(paths.container(run_dir, "c"))
    records.write(paths.claim(run_dir, "c"), Claim("c", pid, started, [card], False, None, [], "/b", 1.0).record())
    rows = {UUIDS[0]: [(pid, True, 1)], UUIDS[1]: [(pid, True, 2), (os.getppid(), False, 3), (1 << 22, True, 4)]}
    found = foreign_processes.judge(rows, ledger(run_dir))
    assert {uuid: [(item.pid, item.kind, item.container) for item in users] for uuid, users in found.items()} == {
        UUIDS[1]: [(pid, COMPUTE, "c"), (os.getppid(), GRAPHICS, "")]
    }
    assert "of container c, which does not hold the card" in found[UUIDS[1]][0].describe()


def test_a_childs_answer_keeps_its_types() -> None:
    answer = records.decode_object(records.encode({"cards": {"GPU-1": [(5, True, 7)]}, "notes": []}).encode(), "x")
    assert foreign_processes.rows_of(answer) == {"GPU-1": [(5, True, 7)]}
