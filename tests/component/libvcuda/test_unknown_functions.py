"""The list of functions beside libvcuda, and the rules for a driver's functions that are not on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import recorded_drivers
from checkout import BUILD

from vgpu.config import inventory
from vgpu.config.errors import VgpuError
from vgpu.node.driver import discover, unknown_functions

LIBRARIES = BUILD / "lib/vcuda"


def test_a_drivers_new_function_is_named_unless_a_rule_calls_it_harmless() -> None:
    driver = [
        "cuMemAlloc_v2", "cuMemAlloc_v3", "cuLaunchKernelEx2", "cuMemcpyNew", "cuDeviceGetNews", "private", "cuNew",
    ]  # fmt: skip
    expected = ["cuLaunchKernelEx2", "cuMemAlloc_v3", "cuMemcpyNew", "cuNew", "private"]
    assert unknown_functions.unknown_functions(driver, {"cuMemAlloc_v2"}) == expected


def test_known_functions_are_not_named() -> None:
    known = unknown_functions.known_functions(str(LIBRARIES)) - unknown_functions.UNDOCUMENTED
    assert {"cuMemCreate", "cuLaunchKernel", "cuGraphLaunch_ptsz"} <= known
    assert unknown_functions.unknown_functions(known, known) == []


@pytest.mark.parametrize("library", unknown_functions.FILES)
def test_all_hooked_functions_would_be_named_if_they_were_not_known(library: str) -> None:
    """No rule calls a function harmless that libvcuda charges, throttles or corrects, nor a newer version of one."""
    hooked = recorded_drivers.hooked(library)
    every = hooked | {f"{name}_v9" for name in hooked}
    assert set(unknown_functions.unknown_functions(every, [])) == every


def test_what_615_brought_is_named_to_a_libvcuda_of_the_time_of_580() -> None:
    new = recorded_drivers.exports("libcuda", "615") - recorded_drivers.exports("libcuda", "580")
    named = set(unknown_functions.unknown_functions(new, recorded_drivers.exports("libcuda", "580")))
    assert named > unknown_functions.UNDOCUMENTED | {
        "cuLogicalEndpointBindMem",
        "cuMulticastBindMem_v2",
        "cuGraphAddNode_v3",
    }
    assert {"cuMemGetLocationInfo", "cuStreamBeginCaptureToCig_ptsz", "cuCheckpointOperationComplete"} <= named
    assert {"cuGraphGetId", "cuFuncGetParamCount", "cuCoredumpRegisterStartCallback", "cudbgPreInit"} <= new - named


@pytest.mark.parametrize("release", recorded_drivers.RELEASES)
@pytest.mark.parametrize("library", unknown_functions.FILES)
def test_every_function_of_the_recorded_drivers_is_known_or_harmless(library: str, release: str) -> None:
    known = unknown_functions.known_functions(str(LIBRARIES), library)
    exported = recorded_drivers.exports(library, release)
    assert set(unknown_functions.unknown_functions(exported, known)) == exported & unknown_functions.UNDOCUMENTED


def test_undocumented_functions_are_named_though_libvcuda_passes_them_on() -> None:
    assert unknown_functions.unknown_functions(["cuSubgridCreate"], ["cuSubgridCreate"]) == ["cuSubgridCreate"]


def test_the_inventory_names_them_with_the_library(tmp_path: Path) -> None:
    paths = [str(recorded_drivers.stand_in(tmp_path, "615", library)) for library in unknown_functions.FILES]
    libraries = [inventory.Library(path, Path(path).name, "", "compute") for path in paths]
    notes: list[str] = []
    discover._check_functions(libraries, str(LIBRARIES), notes.append)
    named = "cuSubgridCreate, cuSubgridWorkerGridCreate, cuSubgridWorksetCreate"
    assert notes == [f"{paths[0]}: libvcuda does not know what these functions do, and limits none: {named}"]


@pytest.mark.parametrize("content", [None, "", "[]", '{"hooked": []}'])
def test_a_damaged_list_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "vcuda.json").write_text(content)
    with pytest.raises(VgpuError, match=r"vcuda\.json"):
        unknown_functions.known_functions(str(tmp_path))
