"""The driver's own memory, which vgpud writes into the limits file: libvcuda counts it once, while it is fresh."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits

if TYPE_CHECKING:
    from vcuda_boxes import Box, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30
LIMIT = GIB


def set_overhead(box: Box, overhead: int, lasts: int = 60) -> None:
    limits.set_overheads(str(box.path / "limits"), {box.uuid: (overhead, int(time.time()) + lasts)})


def test_the_hosts_figure_is_part_of_the_limit(t4: SimBox) -> None:
    t4.limit(LIMIT)
    set_overhead(t4, 100 * MIB)
    client = t4.opened()
    assert client.numbers("info") == (0, LIMIT - 100 * MIB, LIMIT)
    assert client.alloc(LIMIT - 100 * MIB + 1)[0] == OUT_OF_MEMORY
    assert client.alloc(LIMIT - 100 * MIB)[0] == 0
    assert client.alloc(1, "async")[0] == OUT_OF_MEMORY
    set_overhead(t4, 0)
    assert client.alloc(100 * MIB)[0] == 0


@pytest.mark.parametrize("lasts", [-1, 10 * 86400], ids=["too old", "the clock was set back"])
def test_a_figure_that_was_not_renewed_does_not_count(t4: SimBox, lasts: int) -> None:
    t4.limit(LIMIT)
    set_overhead(t4, 100 * MIB, lasts)
    client = t4.opened()
    assert client.free_bytes() == LIMIT
    assert client.alloc(LIMIT)[0] == 0


def test_memory_freed_since_the_host_looked_is_free(t4: SimBox) -> None:
    t4.limit(LIMIT)
    client = t4.opened()
    _, pointer = client.alloc(LIMIT - 100 * MIB)
    set_overhead(t4, 100 * MIB)
    assert client.free_bytes() == 0
    client.ask(f"free {pointer}")
    assert client.free_bytes() == LIMIT - 100 * MIB


def test_what_processes_have_charged_themselves_does_not_count_twice(t4_nvml: SimBox) -> None:
    t4_nvml.limit(LIMIT)
    context = t4_nvml.context
    first, second = t4_nvml.opened(), t4_nvml.opened()
    set_overhead(t4_nvml, 2 * context)
    assert [first.free_bytes(), second.free_bytes()] == [LIMIT - 2 * context] * 2
    assert first.numbers("nvml 0")[2] == 2 * context
    set_overhead(t4_nvml, 2 * context + MIB)  # of a process that libvcuda does not see
    assert second.free_bytes() == LIMIT - 2 * context - MIB
    assert second.alloc(LIMIT - 2 * context - MIB + 1)[0] == OUT_OF_MEMORY
    assert second.alloc(LIMIT - 2 * context - MIB)[0] == 0


def test_before_any_process_has_looked_it_does_not_count_twice_either(t4_nvml: SimBox) -> None:
    limit = 8 * GIB
    t4_nvml.limit(limit)
    context = t4_nvml.context
    set_overhead(t4_nvml, 2 * context)
    _, second = t4_nvml.opened(), t4_nvml.opened()
    assert second.alloc(limit - 2 * context + 1)[0] == OUT_OF_MEMORY
    assert second.alloc(limit - 2 * context)[0] == 0


@pytest.fixture
def foreign(sim_box: Callable[..., SimBox]) -> Callable[[], SimBox]:
    """Boxes with PID namespaces on a card whose driver reports the host's pids, so no process finds its own pid."""

    def make() -> SimBox:
        box = sim_box("t4x1", nvml=True, pids=True)
        box.environment["VGPU_SIM_PIDS"] = "host"
        box.limit(LIMIT)
        return box

    return make


def test_among_the_hosts_pids_what_all_hold_at_least_is_ones_own_too(foreign: Callable[[], SimBox]) -> None:
    box, neighbour = foreign(), foreign()
    client = box.opened()
    assert client.free_bytes() == LIMIT - box.context
    assert neighbour.opened().alloc(LIMIT // 2)[0] == 0
    other = box.opened()
    assert (other.free_bytes(), client.free_bytes()) == (LIMIT - 2 * box.context,) * 2
    assert client.alloc(LIMIT - 2 * box.context + 1)[0] == OUT_OF_MEMORY
    assert client.alloc(LIMIT - 2 * box.context)[0] == 0


def test_among_the_hosts_pids_nobody_pays_for_a_neighbour(foreign: Callable[[], SimBox]) -> None:
    """Half of its context is certain, as one process holds no more beyond these charges. Without a context, none is."""
    box, neighbour = foreign(), foreign()
    box.limit(limit := 4 * GIB)  # with room for a context of any size: libvcuda does not look before there are charges
    assert neighbour.opened().alloc(LIMIT // 2)[0] == 0
    small = neighbour.opened()
    client = box.opened()
    assert client.alloc(box.context // 2)[0] == 0
    assert client.free_bytes() == limit - box.context // 2 - box.context // 2
    assert small.close() == 0
    assert client.ask("reset 0") == ["0"]
    assert box.usage()[2] == 0


def test_the_hosts_figure_of_a_process_that_charged_the_least_counts_once(foreign: Callable[[], SimBox]) -> None:
    box = foreign()
    client = box.opened()
    assert client.free_bytes() == LIMIT - box.context
    set_overhead(box, box.context)
    assert client.free_bytes() == LIMIT - box.context
    assert client.alloc(LIMIT - box.context + 1)[0] == OUT_OF_MEMORY


def test_a_driver_that_names_the_askers_pids_needs_no_host(sim_box: Callable[..., SimBox]) -> None:
    """Two containers on one card, with the same pids in each."""
    box, neighbour = sim_box("t4x1", nvml=True, pids=True), sim_box("t4x1", nvml=True, pids=True)
    box.limit(LIMIT)
    neighbour.limit(LIMIT)
    assert neighbour.opened().alloc(LIMIT // 2)[0] == 0
    client = box.opened()
    assert client.free_bytes() == LIMIT - box.context
    other = box.opened()
    assert (client.free_bytes(), other.free_bytes()) == (LIMIT - 2 * box.context,) * 2
