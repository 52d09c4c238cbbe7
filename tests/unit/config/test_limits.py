"""The limits file: the layout of the C header, and changes of a live file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from vgpu.config import limits
from vgpu.config.errors import VgpuError
from vgpu.config.limits import UNLIMITED, CardLimit

UUIDS = [f"GPU-{index:08x}-1111-2222-3333-444455556666" for index in range(limits.MAX_CARDS + 1)]


@pytest.mark.parametrize("count", [0, 1, 2, limits.MAX_CARDS])
def test_round_trip(count: int) -> None:
    cards = [CardLimit(uuid, (index + 1) << 30, index, 100 - index) for index, uuid in enumerate(UUIDS[:count])]
    data = limits.encode("c" * 60, cards, 8)
    assert len(data) == limits.SIZE
    assert limits.decode(data) == ("c" * 39, cards, 8)


def test_bytes_where_the_header_has_them() -> None:
    data = limits.encode("name", [CardLimit(UUIDS[0]), CardLimit(UUIDS[1], 0x1122334455667788, 25, 50)])
    assert data[:4] == b"VGPU"
    assert data[24:29] == b"name\0"
    second = data[64 + 64 : 64 + 128]
    assert second[:16] == bytes.fromhex("00000001111122223333444455556666")
    assert second[16:32] == bytes.fromhex("88776655443322111900000032000000")
    assert second[32:] == bytes(32)
    assert data[64 + 128 :] == bytes(30 * 64)


def test_uuid_both_ways() -> None:
    assert limits.uuid_text(limits.uuid_bytes(UUIDS[7])) == UUIDS[7]
    assert limits.uuid_bytes(UUIDS[7].upper().replace("GPU", "MIG")) == limits.uuid_bytes(UUIDS[7])


@pytest.mark.parametrize(
    "uuid", ["", "GPU-", "GPU-12", UUIDS[0] + "0", UUIDS[0][:-1], "GPU-" + "zz" * 16, "GPU-" + "1 " * 16, "ä" * 36]
)
def test_encode_refuses_a_uuid_that_is_none(uuid: str) -> None:
    with pytest.raises(VgpuError, match="card UUID: expected GPU-xxxx"):
        limits.encode("c", [CardLimit(uuid)])


@pytest.mark.parametrize(
    ("memory", "cores", "core_limit"),
    [(-1, 10, 10), (UNLIMITED + 1, 10, 10), (1, -1, 10), (1, 150, 150), (1, 50, 40), (1, 50, 101), (1, 0, 1 << 40)],
)
def test_encode_refuses_limits_that_are_none(memory: int, cores: int, core_limit: int) -> None:
    with pytest.raises(VgpuError, match="expected memory in 64 bits, cores <= core_limit <= 100"):
        limits.encode("c", [CardLimit(UUIDS[0], memory, cores, core_limit)])


def test_encode_refuses_too_many_cards() -> None:
    with pytest.raises(VgpuError, match="limits: expected at most 32 cards, found 33"):
        limits.encode("c", [CardLimit(uuid) for uuid in UUIDS])


SOUND = limits.encode("c", [CardLimit(UUIDS[0])])
DAMAGED = [
    b"", SOUND[:-1], SOUND + b"\0", bytes(limits.SIZE), b"X" + SOUND[1:], SOUND[:4] + b"\2" + SOUND[5:],
    SOUND[:16] + b"\xff\xff\xff\xff" + SOUND[20:],
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_decode_refuses_what_is_no_limits_file(data: bytes) -> None:
    with pytest.raises(VgpuError, match=r"^f: expected "):
        limits.decode(data, "f")


def test_update_changes_a_live_file_in_place(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(limits.encode("c", [CardLimit(UUIDS[0], 5, 10, 10)]))
    inode = path.stat().st_ino
    limits.update(str(path), "c", [CardLimit(UUIDS[0], 7, 20, 30)])
    assert limits.decode(path.read_bytes()) == ("c", [CardLimit(UUIDS[0], 7, 20, 30)], 4)
    assert path.stat().st_ino == inode


def test_the_hosts_figures_come_and_go_and_outlive_other_changes(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    cards = [CardLimit(limits.uuid_text(bytes([number]) * 16), 1 << 30) for number in range(3)]
    path.write_bytes(limits.encode("c", cards))
    assert set(limits.overheads(path.read_bytes()).values()) == {(0, 0)}
    limits.set_overheads(str(path), {cards[1].uuid: (5, 77), "GPU-no-such-card": (9, 9)})
    changed = [cards[0], CardLimit(cards[1].uuid, 1 << 29)]
    limits.update(str(path), "c", changed)
    assert limits.overheads(path.read_bytes()) == {cards[0].uuid: (0, 0), cards[1].uuid: (5, 77)}
    name, found, sequence = limits.decode(path.read_bytes())
    assert (name, found, sequence % 2) == ("c", changed, 0)
    assert path.read_bytes()[64 + 64 + 40 :][:16] == struct.pack("=QQ", 5, 77)
    limits.set_overheads(str(path), {cards[1].uuid: (0, 0)})
    assert path.read_bytes()[16:] == limits.encode("c", changed)[16:]


def test_the_uuid_of_a_mig_instance_comes_back(tmp_path: Path) -> None:
    """Regions and core schedules have the 16 bytes alone; of a whole card with the same bytes nobody has heard."""
    path = tmp_path / "limits"
    cards = [CardLimit(UUIDS[0].replace("GPU", "MIG"), 5, 10, 10, True), CardLimit(UUIDS[1], 5, 10, 10)]
    path.write_bytes(limits.encode("c", cards))
    assert limits.decode(path.read_bytes())[1] == cards
    limits.set_overheads(str(path), {cards[0].uuid: (5, 77)})
    assert limits.in_force(path.read_bytes(), 7) == [(cards[0], 5), (cards[1], 0)]
    told = [{UUIDS[0]: [1], UUIDS[1]: [2]}, True, {"held": {UUIDS[0]: 3}}]
    own = [{cards[0].uuid: [1], UUIDS[1]: [2]}, True, {"held": {cards[0].uuid: 3}}]
    assert limits.with_own_uuids(told, cards) == own
    assert limits.with_own_uuids(told, cards[1:]) == told


def test_update_after_a_writer_that_died_half_way_ends_even(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(limits.encode("c", [CardLimit(UUIDS[0])], sequence=7))
    limits.update(str(path), "c", [CardLimit(UUIDS[0], 7, 20, 30)])
    assert limits.decode(path.read_bytes())[2] == 8


@pytest.mark.parametrize("cards", [[CardLimit("GPU-no")], [CardLimit(UUIDS[0], -1)]])
def test_refused_update_leaves_the_file_as_it_was(tmp_path: Path, cards: list[CardLimit]) -> None:
    path = tmp_path / "limits"
    path.write_bytes(SOUND)
    with pytest.raises(VgpuError):
        limits.update(str(path), "c", cards)
    assert path.read_bytes() == SOUND


def test_update_touches_no_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"x" * limits.SIZE)
    with pytest.raises(VgpuError, match="expected a limits file of version 1"):
        limits.update(str(path), "c", [])
    assert path.read_bytes() == b"x" * limits.SIZE
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        limits.update(str(tmp_path / "link"), "c", [])
