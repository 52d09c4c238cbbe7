"""Oversubscribed cards: where the node allows it, memory beyond the card's is managed memory, up to the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits, usage

if TYPE_CHECKING:
    from vcuda_boxes import Box, Client, SimBox

OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801
MIB = 1 << 20
GIB = 1 << 30
CARD = 64 * MIB
LIMIT = 256 * MIB
ON_CARD = "{i:1,i:1,i:1,i:0,q:0,q:0}"


def crowd(box: Box, oversubscribe: bool = True) -> None:
    """Set a limit above the card's memory."""
    box.environment["AWKWARD_CARD"] = str(CARD)
    card = limits.CardLimit(box.uuid, LIMIT, oversubscribe=oversubscribe)
    (box.path / "limits").write_bytes(limits.encode("box", [card]))


def managed(box: Box) -> int:
    """The bytes of managed memory in the usage region."""
    data = (box.path / "usage/usage").read_bytes()
    slots = data[usage.CHARGES_OFFSET - usage.SLOTS * usage.SLOT.size : usage.CHARGES_OFFSET]
    return sum(int(slot[3]) for slot in usage.SLOT.iter_unpack(slots))


def test_without_leave_the_card_is_the_end(awkward: Box) -> None:
    crowd(awkward, oversubscribe=False)
    client = awkward.opened()
    assert client.alloc(CARD + 1)[0] == OUT_OF_MEMORY
    assert awkward.usage() == (1, 0, 0)


def test_virtual_memory_is_not_shared_between_processes(awkward: Box) -> None:
    crowd(awkward)
    client = awkward.caller()
    assert client.numbers("cuMemGetInfo_v2 & &") == (0, LIMIT, LIMIT)  # the limit that the program has
    pointer = client.made(f"cuMemAlloc_v2 & {LIMIT}")
    assert client.ask(f"export {pointer}")[0] == str(NOT_SUPPORTED)
    assert "cannot be shared between processes" in awkward.log


def test_what_cannot_be_virtual_is_refused_and_says_so(sim_box: Callable[..., SimBox]) -> None:
    neighbour, box = sim_box("t4x1"), sim_box("t4x1")
    neighbour.opened().alloc(10 * GIB)
    card = limits.CardLimit(box.uuid, 12 * GIB, oversubscribe=True)
    (box.path / "limits").write_bytes(limits.encode("box", [card]))
    client = box.caller()
    for call, what in (
        (f"cuMemCreate & {11 * GIB} {ON_CARD} 0", "memory of cuMemCreate"),
        ("cuArray3DCreate_v2 & {Q:16384,Q:16384,Q:2,i:32,i:4,i:0}", "arrays"),
    ):
        assert client.numbers(call)[0] == OUT_OF_MEMORY
        assert client.numbers(call)[0] == OUT_OF_MEMORY
        assert f"managed memory cannot replace {what}" in box.log
    assert len(box.log.splitlines()) == 2


# Memory of pools


@pytest.fixture
def full(sim_box: Callable[..., SimBox]) -> tuple[SimBox, Client]:
    """A card that a neighbour has filled up to half a GiB, and a program whose limit is more than that."""
    neighbour, box = sim_box("t4x1"), sim_box("t4x1")
    filler = neighbour.opened()
    filler.alloc(int(box.cards()[0]["capacity"]) - GIB // 2)
    card = limits.CardLimit(box.uuid, 4 * GIB, oversubscribe=True)
    (box.path / "limits").write_bytes(limits.encode("box", [card]))
    return box, box.caller()


def test_room_that_only_a_stream_has_still_to_free_is_waited_for(full: tuple[SimBox, Client]) -> None:
    _, client = full
    stream = client.made("cuStreamCreate & 1")
    for _ in range(4):
        pointer = client.made(f"cuMemAllocAsync & {3 * GIB} {stream}")
        client.does(f"cuMemsetD8Async {pointer} 7 {MIB} {stream}")
        client.does(f"cuMemFreeAsync {pointer} {stream}")


def test_it_goes_with_its_context(full: tuple[SimBox, Client]) -> None:
    box, client = full
    stream = client.made("cuStreamCreate & 1")
    client.made(f"cuMemAllocAsync & {GIB} 0")
    freed = client.made(f"cuMemAllocAsync & {GIB} {stream}")
    client.does(f"cuMemFreeAsync {freed} {stream}")
    client.does("cuDevicePrimaryCtxReset_v2 0")
    assert (managed(box), box.usage()[2]) == (0, 0)


def test_within_a_capture_there_is_no_managed_fallback(full: tuple[SimBox, Client]) -> None:
    box, client = full
    stream = client.made("cuStreamCreate & 1")
    client.does(f"cuStreamBeginCapture_v2 {stream} 0")
    client.numbers(f"cuMemAllocAsync & {GIB} {stream}")
    assert managed(box) == 0
    assert client.numbers(f"cuStreamEndCapture {stream} &")[0] in (0, 901)
