"""The cards of this node, the links between them, and the processes that use them, read through NVML.

Belongs here: every use of pynvml except the probe of the cards' health (vgpu.node.cards.nvml_probe). NVML may take
seconds, and may hang with a broken card. Therefore nothing here runs while a container starts;
vgpu.node.driver.discover puts the cards into the inventory beforehand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pynvml  # type: ignore[import-untyped]

from vgpu.config.errors import NotKnown, VgpuError, is_absent
from vgpu.config.inventory import Card
from vgpu.node.driver.device_nodes import card_node

Note = Callable[[str], None]

_ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # both cards on one board: nearer than any switch
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
_SWITCH = "switch"
_ARCHITECTURE = "NVML_DEVICE_ARCH_"
#: NVML's errors that speak of the process that asks, not of a card: no memory or descriptors, or a filter.
OF_THE_PROCESS = (
    getattr(pynvml, "NVML_ERROR_OPERATING_SYSTEM", 17), pynvml.NVML_ERROR_MEMORY,
    getattr(pynvml, "NVML_ERROR_INSUFFICIENT_RESOURCES", 23),
)  # fmt: skip
_MAX_LINKS = 36  # NVML refuses links that a card lacks; pynvml's constant depends on its version (12, 18, 36)


def take(library: str, dev_dir: str, sys_root: str, note: Note) -> list[Card]:
    """The usable cards, read through the NVML at path `library`. A card that fails is left out, with a note.

    Raises VgpuError if NVML itself does not start, and NotKnown or OSError if this process cannot look.
    """
    with nvml(library):
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                card = _card(handle, index, dev_dir, sys_root)
                mig = _mig_enabled(handle)
            except pynvml.NVMLError as error:
                if error.value in OF_THE_PROCESS:
                    raise NotKnown(f"card {index}", expected="to look at it", found=f"NVML reports {error}") from error
                note(f"card {index} is left out: NVML reports {error}")
                continue
            if mig:
                note(f"{card.label()} is left out: in MIG mode no program can use the whole card")
                continue
            found.append((card, handle))
        _link(found, note)
    return [card for card, _ in found]


def users(library: str, note: Note) -> dict[str, list[tuple[int, bool, int]]]:
    """(pid, whether it computes, bytes) of each process on each card, by uuid. A card that fails is noted.

    Processes of MPS clients count as computing. NVML returns pids of the initial PID namespace.
    """
    with nvml(library):
        found = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found[_text(pynvml.nvmlDeviceGetUUID(handle))] = _users(handle)
            except pynvml.NVMLError as error:
                note(f"card {index}: NVML does not list its processes: {error}")
    return found


def _users(handle: Any) -> list[tuple[int, bool, int]]:
    found: dict[int, tuple[int, bool, int]] = {}
    for process in _listed(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle):
        found[process.pid] = (process.pid, False, process.usedGpuMemory or 0)
    for query in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetMPSComputeRunningProcesses):
        for process in _listed(query, handle):
            found[process.pid] = (process.pid, True, process.usedGpuMemory or 0)
    return sorted(found.values())


def utilization(library: str, since: int, note: Note) -> dict[str, list[tuple[int, int, int]]]:
    """(pid, percent of the time in which a kernel of the process ran, when) of each card's processes, by uuid.

    The samples are those after `since`. Times are us of the wall clock. Samples are up to 9 s old. The list is empty if
    a driver or a card keeps no samples.
    """
    with nvml(library):
        found = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found[_text(pynvml.nvmlDeviceGetUUID(handle))] = _samples(handle, since)
            except pynvml.NVMLError as error:
                note(f"card {index}: NVML does not report the use by process: {error}")
    return found


def _samples(handle: Any, since: int) -> list[tuple[int, int, int]]:
    """The samples of one card. If all processes are idle, the driver returns NOT_FOUND."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:
            return []
        raise
    return [(int(item.pid), int(item.smUtil), int(item.timeStamp)) for item in samples if item.pid]


def card_use(library: str, note: Note) -> dict[str, list[int | None]]:
    """[bytes in use, percent of the time in which a kernel ran] of each card, by uuid. A card that fails is noted.

    The percent is None if a card does not measure it.
    """
    with nvml(library):
        found: dict[str, list[int | None]] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                used = int(_memory(handle).used)
                found[_text(pynvml.nvmlDeviceGetUUID(handle))] = [used, _busy(handle)]
            except pynvml.NVMLError as error:
                note(f"card {index}: NVML does not report its use: {error}")
    return found


def conditions(library: str, note: Note) -> dict[str, Conditions]:
    """What stands in the way of programs that share a card, by uuid. A card that fails is noted."""
    with nvml(library):
        found = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found[_text(pynvml.nvmlDeviceGetUUID(handle))] = Conditions(
                    int(_memory(handle).free),
                    _mig_enabled(handle),
                    _is(pynvml.nvmlDeviceGetComputeMode, handle, pynvml.NVML_COMPUTEMODE_DEFAULT, True),
                    _is(pynvml.nvmlDeviceGetDisplayActive, handle, pynvml.NVML_FEATURE_ENABLED, False),
                    _is(pynvml.nvmlDeviceGetPersistenceMode, handle, pynvml.NVML_FEATURE_ENABLED, True),
                )
            except pynvml.NVMLError as error:
                note(f"card {index}: NVML does not report its state: {error}")
    return found


class Conditions(NamedTuple):
    """`free`: bytes. `shared`: in the compute mode in which several processes may have contexts."""

    free: int
    mig: bool
    shared: bool
    display: bool
    persistent: bool


def _is(query: Callable[[Any], int], handle: Any, value: int, otherwise: bool) -> bool:
    """Whether `query` answers `value`; `otherwise` where the driver or the card does not know."""
    try:
        return query(handle) == value
    except pynvml.NVMLError:
        return otherwise


def _busy(handle: Any) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return None


def _listed(query: Callable[[Any], list[Any]], handle: Any) -> list[Any]:
    """The processes that `query` lists; [] if the driver or the card does not support it. Other errors are raised."""
    try:
        return query(handle)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return []
        raise


@contextmanager
def nvml(library: str) -> Iterator[None]:
    """Start NVML from the file `library`. pynvml would load it by name, and the loader does not search a driver root.

    pynvml keeps the library and its functions in module variables, and loads only what these variables lack.
    """
    do = (
        "look at the output of nvidia-smi; after a driver update reboot or reload the module, "
        "then: vgpuctl inventory refresh"
    )
    try:
        pynvml.nvmlLib = ctypes.CDLL(library)
        getattr(pynvml, "_nvmlGetFunctionPointer_cache", {}).clear()
        pynvml.nvmlInit()
    except (OSError, pynvml.NVMLError) as error:
        raise VgpuError(f"NVML ({library})", expected="NVML to start", found=str(error), do=do) from error
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def bus_id_of(text: str) -> str:
    """`0000:41:00.0`, as /proc/driver/nvidia/gpus names it, of NVML's `00000000:41:00.0`."""
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def _card(handle: Any, index: int, dev_dir: str, sys_root: str) -> Card:
    minor = pynvml.nvmlDeviceGetMinorNumber(handle)
    bus_id = bus_id_of(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
    return Card(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        minor=minor,
        bus_id=bus_id,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory=_usable(_memory(handle)),
        device=card_node(dev_dir, minor),
        numa=_numa(handle, bus_id, sys_root),
        architecture=_architecture(handle),
        cuda_version=_cuda_version(),
    )


def _architecture(handle: Any) -> str:
    """Turing or the like, by the name of pynvml's constant; "" where the driver or pynvml does not know it."""
    try:
        value = pynvml.nvmlDeviceGetArchitecture(handle)
    except (AttributeError, pynvml.NVMLError):
        return ""
    names = (name for name, one in vars(pynvml).items() if one == value and name.startswith(_ARCHITECTURE))
    name = next(names, "").replace(_ARCHITECTURE, "")
    return name.capitalize() if name != "UNKNOWN" else ""


def _cuda_version() -> str:
    try:
        value = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except (AttributeError, pynvml.NVMLError):
        return ""
    return f"{value // 1000}.{value % 1000 // 10}"


def _memory(handle: Any) -> Any:
    """NVML's figures in bytes. The first version, before R510, counts what the driver keeps as used."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _usable(figures: Any) -> int:
    """The card's bytes without those that the driver keeps, which no program gets. They are unknown before R510."""
    return int(figures.total) - int(getattr(figures, "reserved", 0))


def _text(value: bytes | str) -> str:
    """`value` as text: older versions of pynvml return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _numa(handle: Any, bus_id: str, sys_root: str) -> int:
    """The NUMA node that the card is attached to, -1 if unknown.

    sysfs comes first: on coherent platforms (GH200), nvmlDeviceGetNumaNodeId returns the node of the card's *own*
    memory.
    """
    try:
        with open(f"{sys_root}/bus/pci/devices/{bus_id}/numa_node", encoding="ascii") as file:
            return max(int(file.read(16)), -1)
    except ValueError:
        pass
    except OSError as error:
        if not is_absent(error):
            raise
    try:
        return int(pynvml.nvmlDeviceGetNumaNodeId(handle))
    except (AttributeError, pynvml.NVMLError):  # pynvml, the driver or the platform lacks it
        return -1


def _mig_enabled(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:  # not supported: most cards
        return False


def _link(found: list[tuple[Card, Any]], note: Note) -> None:
    """Fill `links` of each card towards each other one."""
    buses = {card.bus_id for card, _ in found}
    ends = {card.uuid: _link_ends(handle, buses) for card, handle in found}
    for number, (card, handle) in enumerate(found):
        for other, other_handle in found[number + 1 :]:
            link = nvlink(ends[card.uuid], ends[other.uuid], card.bus_id, other.bus_id)
            link = link or _ancestor(card, handle, other, other_handle, note)
            card.links[other.uuid] = other.links[card.uuid] = link


def nvlink(ends: list[str], other_ends: list[str], bus_id: str, other_bus_id: str) -> str:
    """NV<n> for n NVLinks between two cards, or "" without a link. `ends` and `other_ends` are where their links end.

    Behind NVSwitches all cards reach each other with all their links.
    """
    direct = max(ends.count(other_bus_id), other_ends.count(bus_id))
    switched = min(ends.count(_SWITCH), other_ends.count(_SWITCH))
    return f"NV{direct + switched}" if direct + switched else ""


def _link_ends(handle: Any, buses: set[str]) -> list[str]:
    """Where each active NVLink of a card ends: another card's bus id, or `_SWITCH`."""
    ends = []
    for link in range(_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            bus_id = bus_id_of(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
            ends.append(bus_id if bus_id in buses else _kind_of_end(handle, link))
        except pynvml.NVMLError:  # no such link on this card, or none at all
            continue
    return ends


def _kind_of_end(handle: Any, link: int) -> str:
    kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    return _SWITCH if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else ""


def _ancestor(card: Card, handle: Any, other: Card, other_handle: Any, note: Note) -> str:
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other_handle)
    except pynvml.NVMLError as error:
        note(f"the link from card {card.index} to card {other.index} is unknown, assumed SYS: NVML reports {error}")
        return "SYS"
    return _ANCESTORS.get(level, "SYS")
