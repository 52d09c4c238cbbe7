"""The list of functions beside libvcuda, and the warning about a newer driver's functions that are not on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import BUILD

from vgpu.config.errors import VgpuError
from vgpu.node.driver import unknown_functions

LIBRARIES = BUILD / "lib/vcuda"


def test_a_drivers_new_ways_to_memory_and_time_are_named() -> None:
    driver = ["cuMemAlloc_v2", "cuMemAlloc_v3", "cuLaunchKernelEx2", "cuMemcpyNew", "cuDeviceGetNews", "cuda_private"]
    assert unknown_functions.unknown_functions(driver, {"cuMemAlloc_v2"}) == ["cuLaunchKernelEx2", "cuMemAlloc_v3"]


def test_known_functions_are_never_named() -> None:
    known = unknown_functions.known_functions(str(LIBRARIES))
    assert {"cuMemCreate", "cuLaunchKernel", "cuGraphLaunch_ptsz"} <= known
    assert unknown_functions.unknown_functions(known, known) == []


def test_all_hooked_ways_to_memory_would_be_named_if_they_were_not_known() -> None:
    """The patterns match every function that libvcuda charges."""
    ways = {"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"}
    ways |= {"cuMemCreate", "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuGraphLaunch"}
    ways |= {"cuGraphInstantiateWithParams", "cuCtxCreate_v4", "cuDevicePrimaryCtxRetain", "cuLibraryLoadData"}
    assert set(unknown_functions.unknown_functions(ways, [])) == ways


@pytest.mark.parametrize("content", [None, "", "[]", '{"hooked": []}'])
def test_a_damaged_list_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "vcuda.json").write_text(content)
    with pytest.raises(VgpuError, match=r"vcuda\.json"):
        unknown_functions.known_functions(str(tmp_path))
