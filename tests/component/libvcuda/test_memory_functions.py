"""A walk over the driver's API: libvcuda/src/memory/functions.txt says what each function does with device memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import recorded_drivers
from checkout import CHECKOUT

LIBVCUDA = CHECKOUT / "libvcuda"
RULES = LIBVCUDA / "src/memory/functions.txt"
HOOKED = ("charged", "freed", "kept")
CLASSES = (*HOOKED, "figure", "harmless", "gap")
GIVES_MEMORY = re.compile(
    r"cu(Mem\w*Alloc|Mem(Create|Map|Import|PoolCreate|PoolImport)|\w*Array\w*Create|Graph\w*(Alloc|Instantiate)|"
    r"Import|Ipc\w*Open|ExternalMemory|Multicast(Create|Bind)|\w*CtxCreate|DevicePrimaryCtxRetain|(Module|Library)Load)"
)


class Rule(NamedTuple):
    kind: str
    names: str
    reason: str


def rules() -> Iterator[Rule]:
    for line in RULES.read_text().splitlines():
        if line and not line.startswith("#"):
            kind, _, rest = line.partition(" ")
            names, _, reason = rest.partition(": ")
            yield Rule(kind, names, reason)


def classes(name: str) -> list[str]:
    """The classes of all rules for the name."""
    return [rule.kind for rule in rules() if re.fullmatch(rule.names, name)]


def driver_functions() -> list[str]:
    return sorted(recorded_drivers.functions("libcuda"))


def recorded_functions() -> set[str]:
    """What real drivers export, and the names that their cuGetProcAddress knows. cudbg...: not the driver's API."""
    exported = {name for release in recorded_drivers.RELEASES for name in recorded_drivers.exports("libcuda", release)}
    asked = {name for release in recorded_drivers.RELEASES for name, _ in recorded_drivers.answers(release)}
    asked.discard("cuNoSuchFunction")  # which no driver knows
    return {name for name in exported | asked if re.match("cu[A-Z]", name)}


def hooked_functions() -> set[str]:
    return set(re.findall(r"HOOK\((\w+),", (LIBVCUDA / "src/driver/cuda_table.h").read_text()))


def test_every_function_belongs_to_one_rule() -> None:
    found = {name: classes(name) for name in {*driver_functions(), *recorded_functions()}}
    assert len(found) > 700
    assert {name: kinds for name, kinds in found.items() if len(kinds) != 1} == {}


def test_what_is_charged_freed_or_kept_is_hooked() -> None:
    hooked = hooked_functions()
    assert [name for name in driver_functions() if {*classes(name)} & {*HOOKED} and name not in hooked] == []


def test_every_rule_has_a_class_a_reason_and_a_function() -> None:
    names = driver_functions()
    for rule in rules():
        assert rule.kind in CLASSES, rule
        assert rule.reason or rule.kind == "freed", rule
        assert any(re.fullmatch(rule.names, name) for name in names), f"no function: {rule}"


def test_no_function_that_looks_like_one_that_gives_memory_is_harmless() -> None:
    """Those below describe nodes or memory, or pass on a pool."""
    strange = [name for name in driver_functions() if GIVES_MEMORY.match(name)]
    assert [name for name in strange if classes(name) == ["harmless"]] == [
        "cuGraphAddMemAllocNode", "cuGraphMemAllocNodeGetParams", "cuImportExternalSemaphore", "cuIpcOpenEventHandle",
        "cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle",
        "cuMemPoolImportFromShareableHandle",
    ]  # fmt: skip


NEWER = [
    "cuMemAllocNear", "cuMemAlloc_v3", "cuMemCreateOnCluster", "cuMemGetHandleForPool", "cuMemMapTensor",
    "cuMemImportFromFabric", "cuMemPoolCreate_v2", "cuMipmappedArrayCreate_v2", "cuSubgridMemoryCreate",
    "cuIpcOpenPool", "cuCtxCreate_v5", "cuMulticastBindPool", "cuLibraryLoadMany",
]  # fmt: skip


@pytest.mark.parametrize("name", NEWER)
def test_a_function_of_a_newer_driver_belongs_to_no_rule(name: str) -> None:
    assert classes(name) == []


def test_no_rule_holds_for_a_newer_version_of_a_function_that_counts() -> None:
    counted = [name for name in driver_functions() if {*classes(name)} & {*HOOKED}]
    assert len(counted) > 80
    assert [name for name in counted if classes(f"{name}_v9") or classes(f"{name}OnCluster")] == []
