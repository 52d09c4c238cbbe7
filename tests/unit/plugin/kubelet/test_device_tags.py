"""Cards with the same checksum: each keeps its tag while cards come, go or change places."""

from __future__ import annotations

import itertools
import random
import zlib
from pathlib import Path

import pytest
from plugin_inputs import make_cards, make_settings

from vgpu.config import paths
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet import device_tags, pod_resources
from vgpu.plugin.kubelet.proto import podresources_pb2


def colliding() -> list[str]:
    """Two uuids of the form that cards have, with one CRC-32.

    CRC-32 is linear over GF(2) for texts of one length, and letters of both cases differ in one bit: of 33 such bits
    some always cancel out. Real uuids are lower-case hexadecimal, so this is a card that no factory makes.
    """
    base = bytearray(b"GPU-aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaaaa")
    places = [at for at, byte in enumerate(base) if byte == ord("a")][:33]
    plain, rows = zlib.crc32(base), []
    for at in places:
        changed = bytearray(base)
        changed[at] ^= 0x20
        rows.append((zlib.crc32(changed) ^ plain, 1 << at))
    used = _dependent(rows)
    other = bytearray(base)
    for at in places:
        other[at] ^= 0x20 * (used >> at & 1)
    return [base.decode(), other.decode()]


def _dependent(rows: list[tuple[int, int]]) -> int:
    """Which of the rows cancel out, as a mask of their second halves."""
    basis: dict[int, tuple[int, int]] = {}
    for row, which in rows:
        value, mask = row, which
        while value and value.bit_length() in basis:
            known = basis[value.bit_length()]
            value, mask = value ^ known[0], mask ^ known[1]
        if not value:
            return mask
        basis[value.bit_length()] = (value, mask)
    raise AssertionError("no such rows")


TWINS = colliding()


def kept(state: Path, *uuids: str, known: dict[str, str] | None = None) -> dict[str, str]:
    tags, problem = device_tags.keep(str(state), uuids, known or {})
    assert problem == ""
    return {uuid: tags[uuid] for uuid in uuids}


def test_the_made_up_cards_collide() -> None:
    assert len(set(TWINS)) == 2
    assert len({kubelet_resources.tag_of(uuid) for uuid in TWINS}) == 1


def test_a_card_that_was_seen_keeps_its_tag_over_every_history(tmp_path: Path) -> None:
    """Each round is a start of the plugin with other cards in another order."""
    chance = random.Random(5)
    cards = [*TWINS, "GPU-00", "GPU-01"]
    for history in range(20):
        seen: dict[str, str] = {}
        for _ in range(6):
            present = chance.sample(cards, chance.randint(1, len(cards)))
            tags = kept(tmp_path / str(history), *present)
            assert all(seen.get(uuid, tag) == tag for uuid, tag in tags.items())
            seen.update(tags)
        assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("order", list(itertools.permutations(TWINS)))
def test_whoever_came_first_has_the_checksum(tmp_path: Path, order: tuple[str, str]) -> None:
    first = kept(tmp_path, order[0])
    both = kept(tmp_path, *order)
    assert both == {**first, order[1]: f"{int(first[order[0]], 16) + 1:08x}"}
    assert kept(tmp_path, order[1]) == {order[1]: both[order[1]]}


def test_ids_of_both_are_distinguished(tmp_path: Path) -> None:
    """Allocate and garbage collection distinguish them: a card's ids in kubelet's list keep no other card's grant."""
    settings = make_settings(tmp_path)
    cards = make_cards(2)
    for card, uuid in zip(cards, TWINS):
        card.uuid = uuid
    kept(Path(settings.state_dir), TWINS[1])  # alone, before the other came
    [cores, _] = kubelet_resources.advertised(settings, cards, kept(Path(settings.state_dir), *TWINS))
    ids = {slot.card.uuid: slot.ids()[0] for slot in cores.slots}
    assert ids[TWINS[1]] == f"{kubelet_resources.tag_of(TWINS[1])}-0"
    places = {uuid: cores.place_of(ids[uuid]) for uuid in TWINS}
    assert [place and place[0].card.uuid for place in places.values()] == TWINS
    answer = podresources_pb2.ListPodResourcesResponse()
    container = answer.pod_resources.add(namespace="n", name="p").containers.add(name="c")
    container.devices.add(resource_name="tencent.com/vcuda-core", device_ids=[ids[TWINS[0]]])
    listing = pod_resources.listing((0, 0, 0), answer, settings)
    held = [bool(listing.holders(Grant("a" * 32, "cores", 1, 1.0, devices={uuid: "0"}))) for uuid in TWINS]
    assert held == [True, False]


@pytest.mark.parametrize("content", ["{", '{"version":2,"tags":{}}', '{"version":1,"tags":{"a":"x"}}',
                                     '{"version":1,"tags":{"a":"00000000","b":"00000000"}}'])  # fmt: skip
def test_a_damaged_record_is_reported_and_made_anew(tmp_path: Path, content: str) -> None:
    before = kept(tmp_path, *TWINS)
    path = Path(paths.device_tags(str(tmp_path)))
    path.write_text(content)
    with pytest.raises(VgpuError):
        device_tags.read(str(tmp_path))
    tags, problem = device_tags.keep(str(tmp_path), TWINS, {})
    assert problem.startswith(f"{path}: ")
    assert tags == before == device_tags.read(str(tmp_path))


def test_a_full_disk_stops_no_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    tags, problem = device_tags.keep(str(tmp_path / "state"), TWINS[1:], {})
    assert "expected" in problem
    assert device_tags.keep(str(tmp_path / "state"), TWINS, tags)[0][TWINS[1]] == tags[TWINS[1]]


def test_nothing_is_written_while_nothing_is_new(tmp_path: Path) -> None:
    kept(tmp_path, *TWINS)
    before = Path(paths.device_tags(str(tmp_path))).stat().st_mtime_ns
    kept(tmp_path, TWINS[0])
    assert Path(paths.device_tags(str(tmp_path))).stat().st_mtime_ns == before
