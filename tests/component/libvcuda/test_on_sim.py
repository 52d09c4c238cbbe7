"""libvcuda between a program and the simulated driver, whose ledger has each process's memory."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits

if TYPE_CHECKING:
    from pathlib import Path

    from vcuda_boxes import Compiled, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30
LIMIT = 2 * GIB
RELEASE_THRESHOLD = 4


def test_a_program_that_is_linked_finds_both(t4: SimBox, compiled: Compiled, sim_driver: Path) -> None:
    t4.limit(LIMIT)
    program = compiled("linked_client.c", str(sim_driver / "libcuda.so.1"))
    command = t4.command(str(program))
    result = subprocess.run(command, env=t4.environment, check=True, stdout=subprocess.PIPE, text=True)
    assert result.stdout.split() == ["0", "0", str(LIMIT), "0"]


def test_get_proc_address_gives_our_cu_init(t4: SimBox) -> None:
    """test_recorded_drivers.py has the other names. It does not notice when this one is the driver's own."""
    t4.limit(LIMIT)
    result, status, library, found = t4.opened().ask("proc cuInit 12000 0")
    assert (result, status, found) == ("0", "0", "cuInit")
    assert library.endswith("/lib/vcuda/libcuda.so.1")


@pytest.mark.parametrize("how", ["alloc", "alloc_v1", "managed", "async", "async_ptsz"])
def test_each_way_of_allocating_is_charged(t4: SimBox, how: str) -> None:
    limit = 64 * MIB  # the first versions' memory lies below 4 GiB
    t4.limit(limit)
    client = t4.opened()
    result, pointer = client.alloc(limit - MIB, how)
    assert result == 0
    assert client.free_bytes() == MIB
    assert client.alloc(MIB + 1, how)[0] == OUT_OF_MEMORY
    assert client.numbers(f"free {pointer}") == (0,)
    assert client.free_bytes() == limit


def test_a_driver_without_room_leaves_no_trace(t4: SimBox) -> None:
    t4.limit(100 * GIB)
    client = t4.opened()
    assert client.alloc(50 * GIB)[0] == OUT_OF_MEMORY
    assert t4.usage() == (1, 0, 0)


def test_containers_do_not_count_each_others_memory(sim_box: Callable[..., SimBox]) -> None:
    first_box, second_box = sim_box("t4x1"), sim_box("t4x1")
    first_box.limit(LIMIT)
    second_box.limit(3 * GIB)
    first, second = first_box.opened(), second_box.opened()
    assert first.fills(256 * MIB) == LIMIT
    assert second.numbers("info") == (0, 3 * GIB, 3 * GIB)
    assert second.fills(256 * MIB) == 3 * GIB
    assert first_box.held() == LIMIT + 3 * GIB


def test_limits_go_by_uuid_not_by_index(sim_box: Callable[..., SimBox]) -> None:
    box = sim_box("a100x2", nvml=True)
    second = box.cards()[1]["uuid"]
    box.limit(LIMIT + box.context, uuid=second)
    first_client, second_client = box.opened(device=0), box.opened(device=1)
    assert first_client.numbers("total 1") == (0, LIMIT + box.context)
    assert first_client.numbers("total 0") == (0, box.cards()[0]["capacity"])
    assert first_client.alloc(4 * LIMIT)[0] == 0
    assert second_client.alloc(LIMIT + 1)[0] == OUT_OF_MEMORY
    assert second_client.alloc(LIMIT)[0] == 0
    assert first_client.numbers("nvml 1")[:4] == (0, LIMIT + box.context, LIMIT + box.context, 0)
    assert first_client.numbers("nvml 0")[1] == box.cards()[0]["total"]


def test_another_cards_pool_is_charged_to_that_card_by_its_limit_of_now(sim_box: Callable[..., SimBox]) -> None:
    """A refused allocation takes nothing: it is not asked of the driver."""
    box = sim_box("a100x2")
    one, other = (card["uuid"] for card in box.cards())
    cards = [limits.CardLimit(one, 8 * LIMIT), limits.CardLimit(other, LIMIT)]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    client, watcher = box.caller(), box.caller(1)
    client.does(f"cuCtxPushCurrent_v2 {client.made('cuDevicePrimaryCtxRetain & 1')}")
    stream = client.made("cuStreamCreate & 0")
    client.made("cuCtxPopCurrent_v2 &")
    pool = client.made("cuDeviceGetDefaultMemPool & 1")
    client.does(f"cuMemPoolSetAttribute {pool} {RELEASE_THRESHOLD} {{Q:{(1 << 64) - 1}}}")
    client.made(f"cuMemAllocFromPoolAsync & {GIB} {pool} 0")
    assert (client.left(), watcher.left()) == (8 * LIMIT, LIMIT - GIB)
    assert client.numbers(f"cuMemAllocAsync & {LIMIT} {stream}")[0] == OUT_OF_MEMORY
    limits.update(str(box.path / "limits"), "box", [limits.CardLimit(uuid, 8 * LIMIT) for uuid in (one, other)])
    assert watcher.left() == 8 * LIMIT - box.held(1) == 8 * LIMIT - GIB
    client.made(f"cuMemAllocAsync & {2 * LIMIT} {stream}")
    assert watcher.left() == 8 * LIMIT - box.held(1) == 6 * LIMIT - GIB


def test_visible_devices_reorder_and_the_limits_follow(sim_box: Callable[..., SimBox]) -> None:
    box = sim_box("a100x2")
    box.environment["CUDA_VISIBLE_DEVICES"] = "1"
    box.limit(LIMIT, uuid=box.cards()[1]["uuid"])
    client = box.opened(device=0)
    assert client.numbers("total 0") == (0, LIMIT)
    assert client.fills(256 * MIB) == LIMIT
    assert [box.held(0), box.held(1)] == [0, LIMIT]


def test_nvml_agrees(t4_nvml: SimBox) -> None:
    t4_nvml.limit(LIMIT)
    client = t4_nvml.opened()
    used = t4_nvml.context
    assert client.numbers("nvml 0") == (0, LIMIT, used, LIMIT - used, 0, LIMIT, used, LIMIT - used, 0)
    client.alloc(MIB)
    free = client.free_bytes()
    assert free == LIMIT - used - MIB
    assert client.numbers("nvml 0") == (0, LIMIT, used + MIB, free, 0, LIMIT, used + MIB, free, 0)


def test_nvml_sees_what_another_process_of_the_container_holds(t4_nvml: SimBox) -> None:
    t4_nvml.limit(LIMIT)
    holder, other, watcher = t4_nvml.opened(), t4_nvml.opened(), t4_nvml.start()
    other.free_bytes()  # its context is booked, the holder's is not
    assert watcher.numbers("nvml 0")[2] == 2 * t4_nvml.context
    holder.alloc(GIB)
    assert watcher.numbers("nvml 0")[2] == GIB + 2 * t4_nvml.context
    holder.kill()
    assert watcher.numbers("nvml 0")[2] == t4_nvml.context


def test_nvml_without_limits_and_with_broken_ones(t4_nvml: SimBox) -> None:
    card = t4_nvml.cards()[0]
    assert t4_nvml.start().numbers("nvml 0")[:2] == (0, card["total"])
    (t4_nvml.path / "limits").write_bytes(b"garbage")
    client = t4_nvml.start()
    answer = client.numbers("nvml 0")
    assert (answer[0], answer[4]) == (999, 999)
    assert len(t4_nvml.log.splitlines()) == 1


def test_a_child_forked_before_cuda_has_its_own_charges(t4: SimBox) -> None:
    t4.limit(LIMIT)
    client = t4.start()
    client.ask("fork")
    client.ask("init")
    client.ask("open 0")
    assert client.alloc(GIB)[0] == 0
    assert t4.usage() == (1, 0, GIB)
    assert client.numbers("exit") == (0,)  # the parent's answer: its child's status
    client.ask("init")
    client.ask("open 0")
    assert client.alloc(LIMIT)[0] == 0
    assert t4.held() == LIMIT
