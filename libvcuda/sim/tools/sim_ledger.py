"""Making a state, and reading it as one consistent view.

state/state.h describes the ledger; sim_layout.py has its structures. Changing a card later is in sim_incidents.py; what
the cards are comes from sim_profiles.py.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import struct
from typing import Any

from sim_layout import (
    FLOCK,
    MAGIC,
    MAX_CARDS,
    MAX_SHARES,
    MAX_SLOTS,
    SHARE_BYTE,
    STOPPED,
    VERSION,
    File,
    Share,
    SimError,
    Slot,
    Timeline,
)
from sim_mig import instances_of, lay_out, name_of
from sim_profiles import load_profile, wants_nodes

DEFAULT_TIMING = {
    "slice_us": 2000,
    "switch_us": 50,
    "kernel_us": 10,
    "sample_us": 166667,
    "wake_us": 0,
    "whole_kernels": 0,
    "idle_us": 0,
    "shared_copies": 0,
    "event_turn": 0,
    "late_us": 0,
    "cpu_percent": 0,
    "value_look_us": 0,
}

# What the driver takes beside what is asked for. Profiles give bytes, the header's fields.
DEFAULT_MEMORY = {
    "block_bytes": 0,
    "pool_chunk_bytes": 0,
    "context_unlisted_bytes": 0,
    "context_spread_bytes": 0,
    "each_context": 0,
    "teardown_ms": 0,
    "context_ms": 0,
    "function_bytes": 0,
    "graph_node_bytes": 0,
    "stacks": 0,
    "stream_bytes": 0,
    "nvml_lag_ms": 0,
}

# Not zero, so that the difference to a much earlier time is not negative.
VIRTUAL_BEGIN_NS = 1000 * 10**9


def make_state(
    directory: str,
    profile: str | dict[str, Any],
    device_nodes: bool | None = None,
    clock: str = "wall",
    parties: int = 0,
) -> str:
    """Create (or replace) the state in `directory` and return the directory.

    `device_nodes` overrides the profile's key: False shows every card to every process. Processes that use a replaced
    state continue with the old one. With the `clock` "virtual", time begins when `parties` processes have registered.
    """
    loaded = load_profile(profile)
    if len(loaded["cards"]) > MAX_CARDS:
        raise SimError(f"{len(loaded['cards'])} cards, expected at most {MAX_CARDS}")
    file = File()
    file.header.magic = MAGIC
    file.header.version = VERSION
    file.header.slot_count = MAX_SLOTS
    file.header.device_nodes = int(wants_nodes(loaded, device_nodes))
    for name, value in _section(loaded, "memory", DEFAULT_MEMORY).items():
        setattr(file.header, name, value)
    for name, value in _section(loaded, "timing", DEFAULT_TIMING).items():
        field = "period_ns" if name == "sample_us" else name.replace("_us", "_ns")
        setattr(file.header, field, round(value * 1000) if name.endswith("_us") else value)
    file.header.is_virtual = int(clock == "virtual")
    file.header.parties = parties
    file.timeline.now = VIRTUAL_BEGIN_NS
    lay_out(file, loaded)
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o755)  # noqa: S103 - every container's user must be able to enter
    for name, content in (("slots", b""), ("cards", bytes(file))):
        _write_shared(os.path.join(directory, name), content)
    return directory


def _section(profile: dict[str, Any], name: str, defaults: dict[str, int]) -> dict[str, int]:
    values = {**defaults, **profile.get(name, {})}
    if unknown := values.keys() - defaults.keys():
        raise SimError(f"{name}: unknown {', '.join(sorted(unknown))}, expected {', '.join(defaults)}")
    return values


def _write_shared(path: str, content: bytes) -> None:
    """Write a file that every user may write to: containers run as any user, and this is a simulator."""
    temporary = f"{path}.{secrets.token_hex(4)}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o666)  # noqa: S103 - see above
    os.rename(temporary, path)


# By (device, inode). Never closed: closing would drop the locks of a libcuda in this process, see state/state.h.
_slot_files: dict[tuple[int, int], int] = {}


def _slots_fd(directory: str) -> int:
    path = os.path.join(directory, "slots")
    status = os.stat(path)
    key = (status.st_dev, status.st_ino)
    if key not in _slot_files:
        _slot_files[key] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return _slot_files[key]


def _owner(slots_fd: int, slot: int) -> int | None:
    """The pid of the slot's owner in this PID namespace (0: it is in another one); None if the owner is dead."""
    request = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(slots_fd, fcntl.F_OFD_GETLK, request))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _read_file(directory: str) -> File:
    path = os.path.join(directory, "cards")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # The lock gives one consistent view of all slots, as in the libraries. Closing the descriptor releases it.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        content = os.pread(fd, ctypes.sizeof(File), 0)
        held = {number for number in range(MAX_SHARES) if _owner(fd, SHARE_BYTE + number) is not None}
    finally:
        os.close(fd)
    if len(content) < ctypes.sizeof(File):
        raise SimError(f"{path}: {len(content)} bytes, expected {ctypes.sizeof(File)}")
    file = File.from_buffer_copy(content)
    if file.header.magic != MAGIC or file.header.version != VERSION or file.header.card_count > MAX_CARDS:
        raise SimError(f"{path}: not a state of this version")
    for number in set(range(MAX_SHARES)) - held:
        file.shares[number].size = 0
    return file


def _clock(timeline: Timeline) -> dict[str, int]:
    stopped = sum(thread.state == STOPPED for thread in timeline.threads[: timeline.thread_high])
    counts = {"processes": timeline.process_count, "stopped": stopped}
    return {"now": timeline.now, "passes": timeline.passes, "stolen": timeline.stolen, **counts}


def read_state(directory: str) -> dict[str, Any]:
    """The ledger: cards with total, used and free bytes and the living processes that use them.

    `capacity` is what programs can allocate (CUDA's total); `used` counts allocations and contexts. A process has
    `pid`, its pid in this PID namespace (0: it is not visible from here), and `own_pid`, its pid in its own namespace.
    MIG's instances are behind the whole cards, as cards with `parent`, `gi` and `ci`.
    """
    file = _read_file(directory)
    slots_fd = _slots_fd(directory)
    owners = {i: _owner(slots_fd, i) for i in range(MAX_SLOTS) if file.slots[i].token}
    alive = [(file.slots[i], pid) for i, pid in owners.items() if pid is not None]
    return {
        "device_nodes": bool(file.header.device_nodes),
        "clock": _clock(file.timeline),
        "cards": [
            _describe(file, i, alive) for i in range(MAX_CARDS) if i < file.header.card_count or file.cards[i].instance
        ],
    }


def _running(file: File, slot: Slot, index: int) -> int:
    """Nanoseconds that the process' kernels have run so far, on the virtual clock."""
    since = slot.running[index]
    elapsed = (file.timeline.now - since) % 2**32 if since else 0
    return elapsed if elapsed < 2**31 else 0


def _is_held(share: Share, alive: list[tuple[Slot, int]]) -> bool:
    """Whether the memory's exporter has it in its slot."""
    return bool(share.is_held) and any(slot.token == share.token for slot, _ in alive)


def _with_memory_of(file: File, index: int) -> list[int]:
    """The entries that use the memory: of a card its instances, of an instance those in the same GPU instance."""
    card = file.cards[index]
    parent, gi = (card.parent, card.gi) if card.instance else (index, None)
    return sorted({index, *instances_of(file, parent, gi)})


def _used(file: File, index: int, alive: list[tuple[Slot, int]]) -> int:
    used = sum(slot.allocated[index] + slot.context[index] for slot, _ in alive)
    return used + sum(share.size for share in file.shares if share.card == index and not _is_held(share, alive))


def _describe(file: File, index: int, alive: list[tuple[Slot, int]]) -> dict[str, Any]:
    card = file.cards[index]
    processes = [
        {
            "pid": pid,
            "own_pid": slot.pid,
            "command": slot.command.decode(errors="replace"),
            "allocated": slot.allocated[index],
            "context": slot.context[index],
            "group": slot.group,
            "busy_ns": slot.busy_ns[index] + _running(file, slot, index),
        }
        for slot, pid in alive
        if slot.allocated[index] or slot.context[index]
    ]
    used = sum(_used(file, entry, alive) for entry in _with_memory_of(file, index))
    capacity = card.memory - card.reserved
    return {
        "index": index,
        "uuid": name_of(card),
        "name": card.name.decode(errors="replace"),
        "minor": card.minor,
        "bus_id": f"{card.pci_domain:08x}:{card.pci_bus:02x}:{card.pci_device:02x}.0",
        "numa_node": card.numa_node,
        "total": card.memory,
        "reserved": card.reserved,
        "capacity": capacity,
        "context_overhead": card.context,
        "used": used,
        "most_used": file.boards[index].most_used,
        "free": capacity - used,
        "busy_ns": file.boards[index].busy_ns + sum(_running(file, slot, index) for slot, _ in alive),
        "switches": file.boards[index].switches,
        "processes": processes,
        "mig": [bool(mode) for mode in file.boards[index].mig_mode],
        **({name: getattr(card, name) for name in ("parent", "gi", "ci")} if card.instance else {}),
    }
