"""Memory that processes share lives until the last of them lets it go, and stays charged to the container so long."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable

import pytest
from checkout import CHECKOUT

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 512 * MIB
HALF = LIMIT // 2
ON_CARD = "{i:1,i:1,i:1,i:0,q:0,q:0}"
FILE_DESCRIPTOR = 1
BEDS = CHECKOUT / "tests/beds"
EPOLL_CTL = {"x86_64": 233, "aarch64": 21}  #: the call's number


@pytest.fixture
def box(t4: SimBox) -> SimBox:
    t4.limit(LIMIT)
    return t4


def exported(client: Client, handle: int) -> int:
    return client.made(f"cuMemExportToShareableHandle & {handle} {FILE_DESCRIPTOR} 0") & 0xFFFFFFFF


def close(client: Client, file: int) -> None:
    client.ask(f"python os.close({file})")


def held_within(box: SimBox) -> int:
    """Bytes on the card, which the container must be charged for."""
    return int(box.cards()[0]["used"]) - box.context * len(box.cards()[0]["processes"])


# ---- memory of cuMemCreate ----


def test_a_descriptor_that_cannot_be_watched_keeps_the_charge(box: SimBox) -> None:
    """A seccomp profile refuses epoll_ctl. Nobody knows then when the descriptor is closed, so the charge stays."""
    client = box.caller()
    client.ask(f"python __import__('sys').path.append('{BEDS}')")
    client.ask(f"python __import__('without_calls').install([{EPOLL_CTL[os.uname().machine]}])")
    handle = client.made(f"cuMemCreate & {HALF} {ON_CARD} 0")
    file = exported(client, handle)
    client.does(f"cuMemRelease {handle}")
    assert (client.left(), held_within(box)) == (HALF, HALF)
    close(client, file)
    assert client.left() == HALF


def test_an_import_after_the_exporters_end_counts_once_with_an_earlier_one(box: SimBox) -> None:
    exporter, first, second = box.caller(), box.caller(), box.caller()
    handle = exporter.made(f"cuMemCreate & {HALF} {ON_CARD} 0")
    file = exported(exporter, handle)
    for importer in (first, second):
        passed = exporter.pass_file(importer, file)
        if importer is second:
            exporter.kill()
        importer.made(f"cuMemImportFromShareableHandle & {passed} {FILE_DESCRIPTOR}")
    assert (first.left(), held_within(box)) == (HALF, HALF)


def test_external_memory_that_nobody_is_charged_for_is_charged(sim_box: Callable[..., SimBox]) -> None:
    first, second = sim_box("t4x1"), sim_box("t4x1")
    second.limit(LIMIT)
    exporter, importer = first.caller(), second.caller()
    handle = exporter.made(f"cuMemCreate & {HALF} {ON_CARD} 0")
    passed = exporter.pass_file(importer, exported(exporter, handle))
    memory = importer.made(f"cuImportExternalMemory & {{i:1,i:0,i:{passed},i:0,q:0,q:{HALF},q:0}}")
    assert importer.left() == HALF
    importer.does(f"cuDestroyExternalMemory {memory}")
    assert importer.left() == LIMIT


# ---- memory by its address ----


def test_memory_of_another_container_is_charged(sim_box: Callable[..., SimBox]) -> None:
    first, second = sim_box("t4x1"), sim_box("t4x1")
    for box in (first, second):
        box.limit(LIMIT)
    exporter, importer = first.caller(), second.caller()
    pointer = exporter.made(f"cuMemAlloc_v2 & {HALF}")
    handle = exporter.ask(f"export {pointer}")[1]
    opened = importer.made(f"open {handle}")
    assert importer.left() == HALF
    importer.does(f"cuIpcCloseMemHandle {opened}")
    importer.made(f"cuMemAlloc_v2 & {HALF + MIB}")
    assert importer.ask(f"open {handle}")[0] == str(OUT_OF_MEMORY)
    assert importer.left() == HALF - MIB
    exporter.does(f"cuMemFree_v2 {pointer}")
    assert held_within(first) == HALF + MIB, "what was refused is closed"


@pytest.mark.parametrize("kept", [False, True])
def test_a_handle_of_freed_memory_opens_no_other_memory(box: SimBox, kept: bool) -> None:
    """The second memory may get what the first one had: the address, the descriptor's number, the share's number."""
    exporter, importer, keeper = box.caller(), box.caller(), box.caller()
    first = exporter.made(f"cuMemAlloc_v2 & {128 * MIB}")
    handle = exporter.ask(f"export {first}")[1]
    if kept:
        keeper.made(f"open {handle}")
    exporter.does(f"cuMemFree_v2 {first}")
    second = exporter.made(f"cuMemAlloc_v2 & {192 * MIB}")
    assert exporter.ask(f"export {second}")[0] == "0"
    assert importer.ask(f"open {handle}")[0] != "0"
    exporter.does(f"cuMemFree_v2 {second}")
    left = 128 * MIB if kept else 0
    assert (importer.left(), held_within(box)) == (LIMIT - left, left)


def test_a_context_that_ends_closes_what_it_has_opened(box: SimBox) -> None:
    exporter, importer = box.caller(), box.caller()
    pointer = exporter.made(f"cuMemAlloc_v2 & {HALF}")
    importer.made(f"open {exporter.ask(f'export {pointer}')[1]}")
    exporter.does(f"cuMemFree_v2 {pointer}")
    assert exporter.left() == HALF
    importer.does("cuDevicePrimaryCtxReset_v2 0")
    assert exporter.left() == LIMIT
