"""The memory limit on the awkward driver, which keeps an exact record (tests/data/cuda)."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from vgpu.config import usage
from vgpu.config.errors import VgpuError

if TYPE_CHECKING:
    from vcuda_boxes import Box

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 64 * MIB
FAILING_SIZE = 13


def test_without_a_limits_file_everything_passes_through(awkward: Box) -> None:
    client = awkward.opened()
    assert client.alloc(512 * MIB)[0] == 0
    assert client.numbers("info") == (0, 512 * MIB, 1024 * MIB)
    assert client.numbers("total 0") == (0, 1024 * MIB)
    assert not (awkward.path / "usage/usage").exists()


def test_the_limit_is_hit_to_the_byte(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    assert client.alloc(LIMIT + 1)[0] == OUT_OF_MEMORY
    assert client.alloc(LIMIT - 100)[0] == 0
    assert client.alloc(101)[0] == OUT_OF_MEMORY
    result, pointer = client.alloc(100)
    assert result == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.numbers(f"free {pointer}") == (0,)
    assert client.free_bytes() == 100
    assert client.alloc(100)[0] == 0
    assert awkward.ledger() == (LIMIT, LIMIT)


def test_the_limit_is_reported_to_a_program(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    assert client.numbers("total 0") == (0, LIMIT)
    assert client.numbers("info") == (0, LIMIT, LIMIT)
    client.alloc(MIB)
    assert client.numbers("info") == (0, LIMIT - MIB, LIMIT)


def test_a_limit_above_the_card_reports_the_card(awkward: Box) -> None:
    awkward.limit(4096 * MIB)
    client = awkward.opened()
    assert client.numbers("total 0") == (0, 1024 * MIB)
    assert client.numbers("info") == (0, 1024 * MIB, 1024 * MIB)


@pytest.mark.parametrize("how", ["alloc", "async", "async_ptsz"])
@pytest.mark.parametrize("free", ["free", "freeasync"])
def test_each_way_is_charged_and_given_back(awkward: Box, how: str, free: str) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    result, pointer = client.alloc(LIMIT, how)
    assert result == 0
    assert client.alloc(1, how)[0] == OUT_OF_MEMORY
    assert client.numbers(f"{free} {pointer}") == (0,)
    assert client.alloc(LIMIT, how)[0] == 0


def test_pitched_memory_is_charged_once_with_its_padding(awkward: Box) -> None:
    """The driver allocates it through its own export, which resolves to libvcuda. The guard passes that call."""
    awkward.limit(LIMIT)
    client = awkward.opened()
    result, pointer, pitch = client.numbers("pitch 1500 64")
    assert (result, pitch) == (0, 2048)
    assert client.free_bytes() == LIMIT - 2048 * 64
    assert client.numbers(f"free {pointer}") == (0,)
    assert client.free_bytes() == LIMIT
    assert client.numbers(f"pitch {(1 << 64) - 1} {1 << 40}")[0] == OUT_OF_MEMORY
    assert client.numbers(f"pitch 1500 {LIMIT // 2048}")[0] == 0


def test_a_failed_call_leaves_no_trace(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    assert client.alloc(FAILING_SIZE)[0] == 999
    assert client.alloc(0)[0] == 1
    assert awkward.usage() == (1, 0, 0)
    _, pointer = client.alloc(MIB)
    assert client.numbers("free 0") == (1,)
    assert client.free_bytes() == LIMIT - MIB
    assert client.numbers(f"free {pointer}") == (0,)
    assert client.numbers("free 0") == (1,)
    assert awkward.usage() == (1, 0, 0)


def test_without_a_context_the_driver_answers(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.start()
    assert client.alloc(MIB)[0] == 3
    client.ask("init")
    assert client.alloc(MIB)[0] == 201


def test_what_was_not_charged_is_freed_untouched(awkward: Box) -> None:
    """Memory from a function that is not hooked: the driver frees it, and no charge is released."""
    awkward.limit(LIMIT)
    client = awkward.opened()
    client.alloc(MIB)
    result, pointer = client.alloc(3 * MIB, "unhooked")
    assert result == 0
    assert client.numbers(f"free {pointer}") == (0,)
    assert client.free_bytes() == LIMIT - MIB
    assert awkward.ledger()[0] == MIB


def test_a_change_that_was_cut_short_leaves_the_last_good_limits(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    with (awkward.path / "limits").open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("=Q", 3))
    assert client.alloc(LIMIT)[0] == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert awkward.log.count("cut short") == 1
    awkward.limit(LIMIT + 1)
    assert client.alloc(1)[0] == 0


OTHER_VERSION = struct.pack("=II", 0x55504756, 99) + bytes(2104)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, bytes(2112), OTHER_VERSION])
def test_a_broken_limits_file_refuses_cuda_in_one_line(awkward: Box, content: bytes) -> None:
    (awkward.path / "limits").write_bytes(content)
    client = awkward.start()
    assert client.numbers("init") == (802,)
    client.ask("open 0")
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.alloc(1, "async")[0] == OUT_OF_MEMORY
    assert len(awkward.log.splitlines()) == 1
    assert awkward.log.startswith("vgpu: error: /usr/local/vgpu/limits: ")


def test_a_missing_usage_directory_refuses_memory_in_one_line(awkward: Box) -> None:
    awkward.limit(LIMIT)
    shutil.rmtree(awkward.path / "usage")
    client = awkward.opened()
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert len(awkward.log.splitlines()) == 1
    assert "/usr/local/vgpu/usage/usage" in awkward.log


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(usage.SIZE)])
def test_a_foreign_usage_file_refuses_memory(awkward: Box, content: bytes) -> None:
    awkward.limit(LIMIT)
    (awkward.path / "usage/usage").write_bytes(content)
    client = awkward.opened()
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert len(awkward.log.splitlines()) == 1


def test_a_usage_region_of_scribbles_harms_only_its_container(awkward: Box) -> None:
    awkward.limit(LIMIT)
    awkward.opened().alloc(MIB)
    awkward.clients[0].close()
    file = awkward.path / "usage/usage"
    data = file.read_bytes()
    file.write_bytes(data[:8] + b"\xff" * (len(data) - 8))
    client = awkward.opened()
    assert client.alloc(MIB)[0] == OUT_OF_MEMORY
    assert client.close() == 0


def test_refusals_are_logged_only_on_request(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    client.alloc(2 * LIMIT)
    assert awkward.log == ""
    loud = awkward.opened(level="info")
    loud.alloc(2 * LIMIT)
    assert f"an allocation of {2 * LIMIT} bytes on device 0 was refused" in awkward.log


def test_refusals_are_counted_for_the_host(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    assert refusals(awkward) == 0
    for expected in (1, 2, 3):
        assert client.alloc(2 * LIMIT)[0] == 2
        assert refusals(awkward) == expected
    assert client.alloc(MIB)[0] == 0
    assert refusals(awkward) == 3


def refusals(box: Box) -> int:
    data = (box.path / "usage/usage").read_bytes()
    head = data[: usage.CARDS_END]
    assert usage.has_counts(head)
    return usage.time_at(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET], usage.places(head)[box.uuid]).refusals


def test_any_user_of_the_container_may_join_the_usage_region(awkward: Box) -> None:
    awkward.limit(LIMIT)
    awkward.opened().alloc(1)
    assert (awkward.path / "usage/usage").stat().st_mode & 0o777 == 0o666
    assert sorted(os.listdir(awkward.path / "usage")) == sorted(["usage", *usage.SHARE_FILES])


def test_a_function_that_the_driver_lacks_is_not_supported(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    assert client.alloc(MIB, "alloc_v1")[0] == 801
    assert awkward.usage() == (1, 0, 0)


def test_a_region_made_by_the_host_is_used(awkward: Box) -> None:
    awkward.limit(LIMIT)
    file = awkward.path / "usage/usage"
    file.write_bytes(usage.BEGINNING.ljust(usage.SIZE, b"\0"))
    assert awkward.opened().alloc(MIB)[0] == 0
    assert usage.decode(file.read_bytes()) == {awkward.uuid: MIB}


# A tenant's changes of its own usage region


def test_a_read_only_usage_region_refuses_memory_in_one_line(awkward: Box) -> None:
    awkward.limit(LIMIT)
    usage_dir = "/usr/local/vgpu/usage"
    script = f"mount --bind {usage_dir} {usage_dir} && mount -o remount,bind,ro {usage_dir}"
    subprocess.run(awkward.command("sh", "-c", script), check=True)
    client = awkward.opened()
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.alloc(1, "async")[0] == OUT_OF_MEMORY
    assert client.numbers("info") == (0, 0, LIMIT) or client.numbers("info")[2] == LIMIT
    assert len(awkward.log.splitlines()) == 1
    assert "Read-only" in awkward.log


def test_a_full_usage_region_refuses_memory_in_one_line(awkward: Box) -> None:
    """1,024 slots of an owner that is not provably dead."""
    awkward.limit(LIMIT)
    data = bytearray(usage.BEGINNING.ljust(usage.SIZE, b"\0"))
    struct.pack_into("=Q", data, 8, usage.SLOTS)
    slots = usage.CHARGES_OFFSET - usage.SLOTS * usage.SLOT.size
    for index in range(usage.SLOTS):
        usage.SLOT.pack_into(data, slots + index * usage.SLOT.size, 1 << 22 | 1, 1, 1, 0, 0)
    (awkward.path / "usage/usage").write_bytes(data)
    client = awkward.opened()
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert len(awkward.log.splitlines()) == 1
    assert "1024 processes hold device memory" in awkward.log


def test_a_usage_region_cut_short_ends_its_own_processes_at_most(awkward: Box) -> None:
    if os.environ.get("VGPU_SANITIZER"):
        pytest.skip("it may end in a SIGBUS, which a sanitizer reports")
    awkward.limit(LIMIT)
    client = awkward.opened()
    client.alloc(MIB)
    os.truncate(awkward.path / "usage/usage", 0)
    client.send("alloc 1048576")
    assert client.receive() in ([], [str(OUT_OF_MEMORY), "0", "0"])
    assert client.close() in (0, -signal.SIGBUS)
    with pytest.raises(VgpuError):
        usage.decode((awkward.path / "usage/usage").read_bytes())
    late = awkward.opened()  # another process of the container: refused, not killed
    assert late.alloc(1)[0] == OUT_OF_MEMORY
    assert late.close() == 0


def test_a_usage_region_set_back_to_zero_counts_from_there(awkward: Box) -> None:
    awkward.limit(LIMIT)
    client = awkward.opened()
    client.alloc(MIB)
    with (awkward.path / "usage/usage").open("r+b") as file:
        file.seek(8)
        file.write(bytes(usage.SIZE - 8))
    assert client.alloc(2 * LIMIT)[0] == OUT_OF_MEMORY
    assert client.close() == 0
