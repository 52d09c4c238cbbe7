"""cuGetProcAddress where the driver's answers are awkward. The usual answers are in test_recorded_drivers.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import recorded_drivers

if TYPE_CHECKING:
    from vcuda_boxes import Box, Compiled

OURS = "/lib/vcuda/libcuda.so.1"
PER_THREAD = 2


def test_a_pointer_that_dlsym_does_not_know_is_taken_by_name_version_and_flags(awkward: Box) -> None:
    awkward.limit(1 << 20)
    client = awkward.opened(level="info")
    for asked, meant in (
        ("cuMemFree 12000 0", "cuMemFree_v2"),
        ("cuMemFreeAsync 12000 0", "cuMemFreeAsync"),
        (f"cuMemFreeAsync 12000 {PER_THREAD}", "cuMemFreeAsync_ptsz"),
    ):
        result, _, library, symbol = client.ask(f"proc {asked}")
        assert (result, symbol) == ("0", meant)
        assert library.endswith(OURS)
        assert f"unknown pointer, taken for {meant} " in awkward.log


def test_a_pointer_of_the_driver_is_taken_as_what_it_is(awkward: Box) -> None:
    """The driver ignores the version. The returned pointer decides, not the name's meaning at that version."""
    awkward.limit(1 << 20)
    client = awkward.opened()
    assert client.ask("proc cuMemAlloc 2000 0")[3] == "cuMemAlloc_v2"
    assert client.ask(f"proc cuMemAllocAsync 12000 {PER_THREAD}")[3] == "cuMemAllocAsync_ptsz"
    assert client.ask("proc cuMemAllocAsync 12000 0")[3] == "cuMemAllocAsync"


def test_what_is_not_hooked_stays_the_drivers(awkward: Box) -> None:
    awkward.limit(1 << 20)
    client = awkward.opened()
    assert client.ask("proc cuOnlyInTheDriver 12000 0")[3] == "cuOnlyInTheDriver"


def test_a_hook_that_the_driver_lacks_is_not_advertised(awkward: Box) -> None:
    awkward.limit(1 << 20)
    client = awkward.opened()
    assert client.ask("proc cuMemAllocManaged 12000 0") == ["500", "1", "none", "none"]


def test_without_limits_the_driver_answers_for_itself(awkward: Box) -> None:
    client = awkward.opened()
    assert client.ask("proc cuMemFree 12000 0")[2] == "/usr/local/vgpu/driver/libcuda.so.1"


def test_a_tool_that_the_driver_loads_in_cuInit_gets_libvcudas_functions(awkward: Box, compiled: Compiled) -> None:
    """CUDA_INJECTION64_PATH, as profilers use it: by dlsym and by cuGetProcAddress, as the program itself."""
    awkward.limit(1 << 20)
    source = recorded_drivers.RECORDS / "injection.c"
    awkward.environment["CUDA_INJECTION64_PATH"] = str(compiled(source, "-shared", "-fPIC", "-ldl"))
    client = awkward.start()
    client.send("init")
    ours = f"{awkward.libraries}/libcuda.so.1"
    assert client.receive() == ["injected:", "cuMemFree", ours, ours]
