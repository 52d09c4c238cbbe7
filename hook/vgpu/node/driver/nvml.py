"""The cards of this node, the links between them, and the processes that use them, read through NVML.

Belongs here: every use of pynvml except the probe of the cards' health (vgpu.node.cards.nvml_probe). NVML may take
seconds, and may hang with a broken card. Therefore nothing here runs while a container starts;
vgpu.node.driver.discover puts the cards into the inventory beforehand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pynvml  # type: ignore[import-untyped]

from vgpu.config import limits
from vgpu.config.errors import NotKnown, VgpuError, is_absent
from vgpu.config.inventory import Card
from vgpu.node.driver import device_nodes

Note = Callable[[str], None]
Answer = TypeVar("Answer")

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
_MAX_INSTANCES = 16  # of one card; NVIDIA's cards have 7
MIB = 1 << 20
_MAX_LINKS = 36  # NVML refuses links that a card lacks; pynvml's constant depends on its version (12, 18, 36)


def take(library: str, dev_dir: str, proc_root: str, sys_root: str, note: Note) -> list[Card]:
    """The usable cards, read through the NVML at path `library`. A card that fails is left out, with a note.

    Raises VgpuError if NVML itself does not start, and NotKnown or OSError if this process cannot look.
    """
    with nvml(library):
        found, instances = [], []
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                card = _card(handle, index, dev_dir, sys_root)
                mig, pending = _mig_mode(handle)
                parts = list(_parts(handle)) if mig else []
            except pynvml.NVMLError as error:
                _left_out(f"card {index}", error, note)
                continue
            if mig != pending:
                note(f"{card.label()}: MIG is to be {'on' if pending else 'off'} after the next reset of the card")
            if mig:
                first = count + index * _MAX_INSTANCES
                instances += _instances(card, parts, first, dev_dir, proc_root, note)
            else:
                found.append((card, handle))
        _link(found, note)
    return [card for card, _ in found] + instances


def _left_out(what: str, error: Exception, note: Note) -> None:
    if isinstance(error, pynvml.NVMLError):
        if error.value in OF_THE_PROCESS:
            raise NotKnown(what, expected="to look at it", found=f"NVML reports {error}") from error
        error = VgpuError(f"NVML reports {error}")
    note(f"{what} is left out: {error}")


def _instances(
    card: Card, parts: list[tuple[int, Any]], first: int, dev_dir: str, proc_root: str, note: Note
) -> list[Card]:
    """The MIG instances of a card in MIG mode. One that fails is left out, with a note. `first` is the first index."""
    made: list[Card] = []
    for at, part in parts:
        try:
            uuid = _text(pynvml.nvmlDeviceGetUUID(part))
            limits.uuid_bytes(uuid)  # before R470 it was made of the two numbers, which another instance may get
            ids = pynvml.nvmlDeviceGetGpuInstanceId(part), pynvml.nvmlDeviceGetComputeInstanceId(part)
            place = f"gpu{card.minor}/mig/gi{ids[0]}/ci{ids[1]}"
            capabilities = device_nodes.capabilities(dev_dir, proc_root, place, note)
            name, memory = _text(pynvml.nvmlDeviceGetName(part)), _usable(_memory(part))
            if _text(pynvml.nvmlDeviceGetUUID(part)) != uuid:  # NVML uses the handle of a destroyed one again
                raise VgpuError(uuid, expected="an instance that stays", found="another in its place")
            made.append(Card(
                uuid, first + at, card.minor, card.bus_id,
                name, memory, card.device, card.numa,
                architecture=card.architecture, cuda_version=card.cuda_version, parent=card.uuid,
                capabilities=capabilities,
            ))  # fmt: skip
        except NotKnown:
            raise
        except (VgpuError, pynvml.NVMLError) as error:
            _left_out(f"MIG instance {at} of {card.label()}", error, note)
    _divide(made, note)
    for instance, inside in device_nodes.instances(proc_root).items():
        if instance.startswith(f"gpu{card.minor}/") and not inside:
            note(f"{instance} of {card.label()} offers nothing: it has no compute instance (nvidia-smi mig -cci)")
    if not made:
        note(f"{card.label()} offers nothing: it is in MIG mode, and has no instance that can be used")
    return made


def _divide(made: list[Card], note: Note) -> None:
    """Divide the memory of a GPU instance among its compute instances, each of which reports all of it."""
    inside: dict[str, list[Card]] = {}
    for card in made:
        inside.setdefault(next(iter(card.capabilities)), []).append(card)
    for name, cards in inside.items():
        for card in cards if len(cards) > 1 else ():
            card.memory = card.memory // len(cards) // MIB * MIB
            note(f"{card.label()}: {len(cards)} compute instances share the memory of {name}: {card.memory // MIB} MiB")


def _parts(handle: Any) -> Iterator[tuple[int, Any]]:
    """(index, handle) of each MIG instance of a card in MIG mode. The indexes have gaps."""
    for at in range(min(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), _MAX_INSTANCES)):
        try:
            yield at, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:
                raise


def _of_each(library: str, query: Callable[[Any], Answer], note: Note, trouble: str) -> dict[str, Answer]:
    """What `query` answers for each card and each MIG instance, by uuid. One that fails is noted."""
    with nvml(library):
        found = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                parts = [part for _, part in _parts(handle)] if _mig_mode(handle)[0] else [handle]
                for part in parts:
                    found[_text(pynvml.nvmlDeviceGetUUID(part))] = query(part)
            except pynvml.NVMLError as error:
                note(f"card {index}: NVML {trouble}: {error}")
    return found


def users(library: str, note: Note) -> dict[str, list[tuple[int, bool, int]]]:
    """(pid, whether it computes, bytes) of each process on each card, by uuid. A card that fails is noted.

    Processes of MPS clients count as computing. NVML returns pids of the initial PID namespace.
    """
    return _of_each(library, _users, note, "does not list its processes")


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
    return _of_each(library, lambda handle: _samples(handle, since), note, "does not report the use by process")


def _samples(handle: Any, since: int) -> list[tuple[int, int, int]]:
    """The samples of one card. If all processes are idle, the driver returns NOT_FOUND; it keeps none of instances."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED):
            return []
        raise
    return [(int(item.pid), int(item.smUtil), int(item.timeStamp)) for item in samples if item.pid]


def card_use(library: str, note: Note) -> dict[str, list[int | None]]:
    """[bytes in use, percent of the time in which a kernel ran] of each card, by uuid. A card that fails is noted.

    The percent is None if a card does not measure it.
    """

    def use(handle: Any) -> list[int | None]:
        return [int(_memory(handle).used), _busy(handle)]

    return _of_each(library, use, note, "does not report its use")


def conditions(library: str, note: Note) -> dict[str, Conditions]:
    """What stands in the way of programs that share a card, by uuid. A card that fails is noted."""

    def state(handle: Any) -> Conditions:
        return Conditions(
            int(_memory(handle).free),
            _is(pynvml.nvmlDeviceGetComputeMode, handle, pynvml.NVML_COMPUTEMODE_DEFAULT, True),
            _is(pynvml.nvmlDeviceGetDisplayActive, handle, pynvml.NVML_FEATURE_ENABLED, False),
            _is(pynvml.nvmlDeviceGetPersistenceMode, handle, pynvml.NVML_FEATURE_ENABLED, True),
        )

    return _of_each(library, state, note, "does not report its state")


class Conditions(NamedTuple):
    """`free`: bytes. `shared`: in the compute mode in which several processes may have contexts."""

    free: int
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
        device=device_nodes.card_node(dev_dir, minor),
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


def _mig_mode(handle: Any) -> tuple[bool, bool]:
    """Whether MIG is on now, and whether after the next reset."""
    try:
        now, pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # not supported: most cards
        return False, False
    return bool(now), bool(pending)


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
