#!/usr/bin/env python3
"""Make and read what the simulated driver works on: its state directory and a driver root.

The structures mirror sim_state.h, which says how the ledger works; tests/unit/sim/test_layout.py compares the two.
A *state* is the shared memory file that stands for the cards of a node; a *driver root* is a directory that looks
like a host with the driver installed. Neither is ever packaged. Making device nodes wants root, the rest does not.

    simctl.py state DIR --profile a100x2 [--device-nodes no] [--clock virtual --parties 3]
    simctl.py root DIR --profile a100x2 [--build BUILD] [--device-nodes no]
    simctl.py show DIR [--json]
    simctl.py event DIR [--card 0] [--kind xid] [--data 79]
    simctl.py set DIR [--card 0] [--lost yes] [--ecc 0,1] [--remapped-rows 0,1,1,0] [--temperature 90] ...
    simctl.py driver DIR unloaded
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
PROFILES = os.path.join(HERE, "profiles")
DEFAULT_BUILD = os.path.join(HERE, "..", "..", "build")

MAGIC = b"vgpu-sim"
VERSION = 3
MAX_CARDS = 16
MAX_SLOTS = 1024
MAX_LINKS = 18
MAX_WAITING = 256
PERIODS = 64
MAX_SAMPLES = 120
MAX_INCIDENTS = 32
LOST_MARK = 0x74736F6C
MAX_PROCESSES = 256
MAX_THREADS = 1024
MAX_MEETINGS = 128
MEETING_ROUNDS = 4
LINK_SWITCH = 0xFE
LINK_NONE = 0xFF
MIB = 1 << 20
DEFAULT_GRANULARITY = 512
DEFAULT_TIMING = {"slice_us": 2000, "switch_us": 50, "kernel_us": 10, "sample_us": 166667}

# Not zero, so that the difference to something long past is not negative.
VIRTUAL_BEGIN_NS = 1000 * 10**9

# NVML's levels of PCIe distance.
SAME_CARD, SAME_SWITCH, SAME_BRIDGE, SAME_NODE, OTHER_NODE = 0, 10, 30, 40, 50

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
UVM_MAJOR = 511

# struct flock, as F_OFD_GETLK takes it.
FLOCK = "hhxxxxqqixxxx"


class SimError(Exception):
    """One line: what is wrong with a profile, a state or a build."""


class Header(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("version", ctypes.c_uint32),
        ("card_count", ctypes.c_uint32),
        ("slot_count", ctypes.c_uint32),
        ("device_nodes", ctypes.c_uint32),
        ("slot_high", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint32),
        ("switch_ns", ctypes.c_uint32),
        ("kernel_ns", ctypes.c_uint32),
        ("driver", ctypes.c_uint32),
        ("is_virtual", ctypes.c_uint32),
        ("parties", ctypes.c_uint32),
        ("period_ns", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 200),
    )


class Card(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("name", ctypes.c_char * 64),
        ("serial", ctypes.c_char * 16),
        ("memory", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("granularity", ctypes.c_uint64),
        ("bar1", ctypes.c_uint64),
        ("minor", ctypes.c_uint32),
        ("pci_domain", ctypes.c_uint32),
        ("pci_bus", ctypes.c_uint32),
        ("pci_device", ctypes.c_uint32),
        ("pci_device_id", ctypes.c_uint32),
        ("pci_subsystem_id", ctypes.c_uint32),
        ("numa_node", ctypes.c_int32),
        ("cpu_first", ctypes.c_uint32),
        ("cpu_count", ctypes.c_uint32),
        ("sm_count", ctypes.c_uint32),
        ("compute_major", ctypes.c_uint32),
        ("compute_minor", ctypes.c_uint32),
        ("clock_mhz", ctypes.c_uint32),
        ("memory_clock_mhz", ctypes.c_uint32),
        ("bus_width", ctypes.c_uint32),
        ("l2_bytes", ctypes.c_uint32),
        ("power_limit_mw", ctypes.c_uint32),
        ("link_count", ctypes.c_uint32),
        ("links", ctypes.c_uint8 * 32),
        ("relation", ctypes.c_uint8 * MAX_CARDS),
        ("padding", ctypes.c_uint8 * 256),
    )


class Slot(ctypes.Structure):
    _fields_ = (
        ("token", ctypes.c_uint64),
        ("pid", ctypes.c_int32),
        ("group", ctypes.c_uint32),
        ("command", ctypes.c_char * 16),
        ("allocated", ctypes.c_uint64 * MAX_CARDS),
        ("context", ctypes.c_uint64 * MAX_CARDS),
        ("busy_ns", ctypes.c_uint64 * MAX_CARDS),
        ("wake", ctypes.c_uint32),
        ("running", ctypes.c_uint32 * MAX_CARDS),
        ("padding", ctypes.c_uint8 * 28),
    )


class TurnHolder(ctypes.Structure):
    _fields_ = (("token", ctypes.c_uint64), ("slot", ctypes.c_uint32), ("context", ctypes.c_uint32))


class Sample(ctypes.Structure):
    _fields_ = (
        ("time_us", ctypes.c_uint64),
        ("slot", ctypes.c_uint32),
        ("busy_permille", ctypes.c_uint32),
        ("token", ctypes.c_uint64),
    )


class Incident(ctypes.Structure):
    _fields_ = (("time_us", ctypes.c_uint64), ("type", ctypes.c_uint64), ("data", ctypes.c_uint64))


class Board(ctypes.Structure):
    _fields_ = (
        ("holder", TurnHolder),
        ("last", TurnHolder),
        ("since", ctypes.c_uint64),
        ("until", ctypes.c_uint64),
        ("waiting_count", ctypes.c_uint32),
        ("incident_count", ctypes.c_uint32),
        ("waiting", TurnHolder * MAX_WAITING),
        ("busy_ns", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
        ("period", ctypes.c_uint64 * PERIODS),
        ("period_ns", ctypes.c_uint64 * PERIODS),
        ("sample_count", ctypes.c_uint64),
        ("samples", Sample * MAX_SAMPLES),
        ("incidents", Incident * MAX_INCIDENTS),
        ("ecc", ctypes.c_uint64 * 4),
        ("temperature", ctypes.c_int32),
        ("power_mw", ctypes.c_uint32),
        ("is_lost", ctypes.c_uint32),
        ("remapped", ctypes.c_uint32 * 4),
        ("retired", ctypes.c_uint32 * 3),
        ("padding", ctypes.c_uint8 * 3368),
    )


class TimelineProcess(ctypes.Structure):
    _fields_ = (
        ("namespace", ctypes.c_uint64),
        ("start", ctypes.c_uint64),
        ("pid", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
    )


class TimelineThread(ctypes.Structure):
    _fields_ = (
        ("state", ctypes.c_uint32),
        ("process", ctypes.c_uint32),
        ("tid", ctypes.c_int32),
        ("wake", ctypes.c_uint32),
        ("order", ctypes.c_uint64),
    )


class Timeline(ctypes.Structure):
    _fields_ = (
        ("now", ctypes.c_uint64),
        ("passes", ctypes.c_uint64),
        ("running", ctypes.c_uint32),
        ("thread_high", ctypes.c_uint32),
        ("process_count", ctypes.c_uint32),
        ("sequence", ctypes.c_uint32),
        ("stolen", ctypes.c_uint64),
        ("due", ctypes.c_uint64 * MAX_THREADS),
        ("key", ctypes.c_uint64 * MAX_THREADS),
        ("threads", TimelineThread * MAX_THREADS),
        ("processes", TimelineProcess * MAX_PROCESSES),
        ("padding", ctypes.c_uint8 * 4056),
    )


class Meeting(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_uint64),
        ("round", ctypes.c_uint64),
        ("begun", ctypes.c_uint64),
        ("met", ctypes.c_uint64 * MEETING_ROUNDS),
    )


class File(ctypes.Structure):
    _fields_ = (
        ("header", Header),
        ("cards", Card * MAX_CARDS),
        ("slots", Slot * MAX_SLOTS),
        ("boards", Board * MAX_CARDS),
        ("timeline", Timeline),
        ("meetings", Meeting * MAX_MEETINGS),
    )


# ---- profiles ----


def load_profile(profile: str | dict[str, Any]) -> dict[str, Any]:
    """A profile by name (profiles/NAME.yaml), by path, or as it is."""
    if isinstance(profile, dict):
        return profile
    path = profile if os.sep in profile or profile.endswith(".yaml") else os.path.join(PROFILES, f"{profile}.yaml")
    try:
        with open(path, encoding="utf-8") as file:
            loaded = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        raise SimError(f"profile {profile}: {error}") from error
    if not isinstance(loaded, dict) or not loaded.get("cards"):
        raise SimError(f"profile {path}: expected a mapping with a list of cards")
    loaded.setdefault("name", os.path.basename(path).rsplit(".", 1)[0])
    return loaded


def _parse_bus(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.0", text)
    if not match:
        raise SimError(f"bus {text!r}: expected something like 0000:3b:00.0")
    domain, bus, device = (int(part, 16) for part in match.groups())
    return domain, bus, device


def _relation(a: dict[str, Any], b: dict[str, Any]) -> int:
    if a is b:
        return SAME_CARD
    for key, level in (("switch", SAME_SWITCH), ("bridge", SAME_BRIDGE)):
        if a.get(key) is not None and a.get(key) == b.get(key):
            return level
    return SAME_NODE if a.get("numa_node", -1) == b.get("numa_node", -1) else OTHER_NODE


def _links(profile: dict[str, Any], index: int) -> list[int]:
    """Where each NVLink of the card ends."""
    nvlink = profile.get("nvlink", {})
    links = [LINK_SWITCH] * nvlink.get("switch", 0)
    for a, b, lanes in nvlink.get("pairs", []):
        if index in (a, b):
            links += [b if index == a else a] * lanes
    if len(links) > MAX_LINKS:
        raise SimError(f"card {index}: {len(links)} NVLinks, at most {MAX_LINKS} are possible")
    return links


def _fill_model(card: Card, model: dict[str, Any]) -> None:
    card.name = model["name"].encode()
    card.memory = model["memory_mib"] * MIB
    card.reserved = model.get("reserved_mib", 0) * MIB
    card.context = model["context_mib"] * MIB
    card.granularity = model.get("allocation_granularity", DEFAULT_GRANULARITY)
    card.bar1 = model.get("bar1_mib", 256) * MIB
    major, minor = model["compute_capability"].split(".")
    card.compute_major, card.compute_minor = int(major), int(minor)
    card.l2_bytes = model.get("l2_kib", 4096) * 1024
    card.power_limit_mw = model.get("power_limit_w", 100) * 1000
    for key in ("pci_device_id", "pci_subsystem_id", "sm_count", "clock_mhz", "memory_clock_mhz", "bus_width"):
        setattr(card, key, model[key])


def _fill_place(card: Card, profile: dict[str, Any], index: int) -> None:
    entry = profile["cards"][index]
    identity = uuid.UUID(entry["uuid"]) if "uuid" in entry else uuid.uuid5(uuid.NAMESPACE_DNS, _label(profile, index))
    card.uuid = (ctypes.c_uint8 * 16)(*identity.bytes)
    card.serial = entry.get("serial", f"{identity.int % 10**13:013d}").encode()
    card.minor = entry.get("minor", index)
    card.pci_domain, card.pci_bus, card.pci_device = _parse_bus(entry["bus"])
    card.numa_node = entry.get("numa_node", -1)
    nodes = profile.get("numa", [])
    if 0 <= card.numa_node < len(nodes):
        card.cpu_first = nodes[card.numa_node]["cpu_first"]
        card.cpu_count = nodes[card.numa_node]["cpu_count"]
    else:
        card.cpu_count = os.cpu_count() or 1


def _label(profile: dict[str, Any], index: int) -> str:
    return f"{index}.{profile.get('name', 'profile')}.sim.vgpu.io"


def _build_card(profile: dict[str, Any], index: int) -> Card:
    entries = profile["cards"]
    card = Card()
    try:
        _fill_model(card, {**profile.get("models", {}).get(entries[index].get("model"), {}), **entries[index]})
        _fill_place(card, profile, index)
    except KeyError as error:
        raise SimError(f"card {index} of profile {profile.get('name')}: {error} is missing") from error
    links = _links(profile, index)
    card.link_count = len(links)
    card.links = (ctypes.c_uint8 * 32)(*(links + [LINK_NONE] * (32 - len(links))))
    card.relation = (ctypes.c_uint8 * MAX_CARDS)(*(_relation(entries[index], other) for other in entries))
    return card


def _wants_nodes(profile: dict[str, Any], override: bool | None) -> bool:
    return bool(profile.get("device_nodes", True)) if override is None else override


# ---- state ----


def make_state(
    directory: str,
    profile: str | dict[str, Any],
    device_nodes: bool | None = None,
    clock: str = "wall",
    parties: int = 0,
) -> str:
    """Create (or replace) the state in `directory` and return the directory.

    `device_nodes` overrides the profile's key: False shows every card to every process. Processes that still use a
    replaced state go on with the old one. With the `clock` "virtual", time begins when `parties` processes are there.
    """
    loaded = load_profile(profile)
    if len(loaded["cards"]) > MAX_CARDS:
        raise SimError(f"{len(loaded['cards'])} cards, at most {MAX_CARDS} are possible")
    file = File()
    file.header.magic = MAGIC
    file.header.version = VERSION
    file.header.card_count = len(loaded["cards"])
    file.header.slot_count = MAX_SLOTS
    file.header.device_nodes = int(_wants_nodes(loaded, device_nodes))
    timing = {**DEFAULT_TIMING, **loaded.get("timing", {})}
    file.header.slice_ns = round(timing["slice_us"] * 1000)
    file.header.switch_ns = round(timing["switch_us"] * 1000)
    file.header.kernel_ns = round(timing["kernel_us"] * 1000)
    file.header.period_ns = round(timing["sample_us"] * 1000)
    file.header.is_virtual = int(clock == "virtual")
    file.header.parties = parties
    file.timeline.now = VIRTUAL_BEGIN_NS
    for index in range(len(loaded["cards"])):
        file.cards[index] = _build_card(loaded, index)
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o755)  # noqa: S103 - every container's user has to get in
    for name, content in (("slots", b""), ("cards", bytes(file))):
        _write_shared(os.path.join(directory, name), content)
    return directory


def _write_shared(path: str, content: bytes) -> None:
    """Everybody may write: containers run as any user, and this is a simulator."""
    temporary = f"{path}.{secrets.token_hex(4)}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o666)  # noqa: S103 - see above
    os.rename(temporary, path)


# By (device, inode), and never closed: closing drops the locks of a libcuda in this process, see sim_state.h.
_slot_files: dict[tuple[int, int], int] = {}


def _slots_fd(directory: str) -> int:
    path = os.path.join(directory, "slots")
    status = os.stat(path)
    key = (status.st_dev, status.st_ino)
    if key not in _slot_files:
        _slot_files[key] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return _slot_files[key]


def _owner(slots_fd: int, slot: int) -> int | None:
    """The pid of the slot's living owner as we see it (0: in another PID namespace), None when it is dead."""
    request = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
    kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(slots_fd, fcntl.F_OFD_GETLK, request))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _read_file(directory: str) -> File:
    path = os.path.join(directory, "cards")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # As the libraries do: one consistent view of all slots. The lock goes with the descriptor.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        content = os.pread(fd, ctypes.sizeof(File), 0)
    finally:
        os.close(fd)
    if len(content) < ctypes.sizeof(File):
        raise SimError(f"{path}: {len(content)} bytes, expected {ctypes.sizeof(File)}")
    file = File.from_buffer_copy(content)
    if file.header.magic != MAGIC or file.header.version != VERSION or file.header.card_count > MAX_CARDS:
        raise SimError(f"{path}: is no state of this version")
    return file


def read_state(directory: str) -> dict[str, Any]:
    """The ledger: cards with total, used and free bytes and the living processes that use them.

    `capacity` is what programs can have (CUDA's total), `used` counts allocations and contexts. A process has the
    pid as seen from here (0 when it is in a PID namespace that does not show here) and `own_pid`, as it sees itself.
    """
    file = _read_file(directory)
    slots_fd = _slots_fd(directory)
    owners = {i: _owner(slots_fd, i) for i in range(MAX_SLOTS) if file.slots[i].token}
    alive = [(file.slots[i], pid) for i, pid in owners.items() if pid is not None]
    return {
        "device_nodes": bool(file.header.device_nodes),
        "clock": {"now": file.timeline.now, "passes": file.timeline.passes, "stolen": file.timeline.stolen},
        "cards": [_describe(file, i, alive) for i in range(file.header.card_count)],
    }


def _running(file: File, slot: Slot, index: int) -> int:
    """What its running kernels have had, by the virtual clock."""
    since = slot.running[index]
    elapsed = (file.timeline.now - since) % 2**32 if since else 0
    return elapsed if elapsed < 2**31 else 0


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
    used = sum(process["allocated"] + process["context"] for process in processes)
    capacity = card.memory - card.reserved
    return {
        "index": index,
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(card.uuid))}",
        "name": card.name.decode(errors="replace"),
        "minor": card.minor,
        "bus_id": f"{card.pci_domain:08x}:{card.pci_bus:02x}:{card.pci_device:02x}.0",
        "numa_node": card.numa_node,
        "total": card.memory,
        "reserved": card.reserved,
        "capacity": capacity,
        "context_overhead": card.context,
        "used": used,
        "free": capacity - used,
        "busy_ns": file.boards[index].busy_ns + sum(_running(file, slot, index) for slot, _ in alive),
        "switches": file.boards[index].switches,
        "processes": processes,
    }


# ---- what tests make happen to a card ----

EVENT_TYPES = {"single_bit_ecc": 0x1, "double_bit_ecc": 0x2, "performance_state": 0x4, "xid": 0x8, "clock": 0x10}
# No events of NVML's: from then on it finds the card fallen off the bus, or back.
LOSSES = {"lost": True, "back": False}
DRIVER_STATES = {"loaded": 0, "unloaded": 1, "mismatched": 2}


Part = TypeVar("Part", bound=ctypes.Structure)


def _change_part(directory: str, kind: type[Part], offset: int, change: Callable[[Part], None]) -> None:
    """Read, change and write a structure in the file under the lock that the libraries take."""
    fd = os.open(os.path.join(directory, "cards"), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        part = kind.from_buffer_copy(os.pread(fd, ctypes.sizeof(kind), offset))
        change(part)
        os.pwrite(fd, bytes(part), offset)
    finally:
        os.close(fd)


def _change_board(directory: str, index: int, change: Callable[[Board], None]) -> None:
    if not 0 <= index < MAX_CARDS:
        raise SimError(f"card {index}: expected 0 to {MAX_CARDS - 1}")
    _change_part(directory, Board, File.boards.offset + index * ctypes.sizeof(Board), change)


def inject_event(directory: str, index: int, kind: str = "xid", data: int = 0) -> None:
    """Programs that wait for this kind of event (EVENT_TYPES) of the card get it; `data` is the Xid's number.

    `lost` and `back` are set_lost's.
    """
    if kind in LOSSES:
        set_lost(directory, index, LOSSES[kind])
        return

    def change(board: Board) -> None:
        incident = Incident(time.time_ns() // 1000, EVENT_TYPES[kind], data)
        board.incidents[board.incident_count % MAX_INCIDENTS] = incident
        board.incident_count += 1

    _change_board(directory, index, change)


def inject_ecc(directory: str, index: int, corrected: int = 0, uncorrected: int = 0) -> None:
    """Count so many further ECC errors, and tell who waits for them."""

    def change(board: Board) -> None:
        for lifetime in (0, 2):
            board.ecc[lifetime] += corrected
            board.ecc[lifetime + 1] += uncorrected

    _change_board(directory, index, change)
    for kind, count in (("single_bit_ecc", corrected), ("double_bit_ecc", uncorrected)):
        if count:
            inject_event(directory, index, kind)


def set_readings(directory: str, index: int, temperature: int = 0, power_w: int = 0) -> None:
    """What the card's sensors say from now on; 0: what its load says."""

    def change(board: Board) -> None:
        board.temperature = temperature
        board.power_mw = power_w * 1000

    _change_board(directory, index, change)


def set_lost(directory: str, index: int, lost: bool = True) -> None:
    """The card falls off the bus, or is back: meanwhile NVML's every call says GPU_IS_LOST, and CUDA starts nothing."""

    def change(board: Board) -> None:
        board.is_lost = LOST_MARK if lost else 0

    _change_board(directory, index, change)


def set_remapped_rows(
    directory: str, index: int, corrected: int = 0, uncorrected: int = 0, pending: bool = False, failed: bool = False
) -> None:
    """Rows of memory that were replaced for errors; one waits for a reset; one could not be replaced."""

    def change(board: Board) -> None:
        board.remapped = (ctypes.c_uint32 * 4)(corrected, uncorrected, pending, failed)

    _change_board(directory, index, change)


def set_retired_pages(
    directory: str, index: int, single_bit: int = 0, double_bit: int = 0, pending: bool = False
) -> None:
    """The same for cards before Ampere, which retire pages."""

    def change(board: Board) -> None:
        board.retired = (ctypes.c_uint32 * 3)(single_bit, double_bit, pending)

    _change_board(directory, index, change)


def set_driver(directory: str, state: str) -> None:
    """The kernel's part of the driver is `loaded`, `unloaded`, or `mismatched` with the libraries."""

    def change(header: Header) -> None:
        header.driver = DRIVER_STATES[state]

    _change_part(directory, Header, 0, change)


# ---- driver root ----


def make_root(
    directory: str, profile: str | dict[str, Any], build: str = DEFAULT_BUILD, device_nodes: bool | None = None
) -> str:
    """Lay out a driver root in `directory` and return it. Device nodes are made where the profile has them."""
    loaded = load_profile(profile)
    cards = [_build_card(loaded, i) for i in range(len(loaded["cards"]))]
    uvm_major = loaded.get("uvm_major", UVM_MAJOR)
    version = _install_libraries(os.path.join(build, "lib", "sim"), os.path.join(directory, "usr/lib", _multiarch()))
    _install_programs(os.path.join(build, "bin", "sim"), os.path.join(directory, "usr/bin"))
    _write_proc(os.path.join(directory, "proc"), cards, version, uvm_major)
    _write_sys(os.path.join(directory, "sys/bus/pci/devices"), cards)
    os.makedirs(os.path.join(directory, "dev"), exist_ok=True)
    if _wants_nodes(loaded, device_nodes):
        _make_nodes(os.path.join(directory, "dev"), cards, uvm_major)
    return directory


def _multiarch() -> str:
    return f"{os.uname().machine}-linux-gnu"


def _soname(path: str) -> str:
    output = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    match = re.search(r"\(SONAME\).*\[(.*)\]", output)
    if not match:
        raise SimError(f"{path}: has no SONAME")
    return match.group(1)


def _install_libraries(source: str, target: str) -> str:
    """Copy the libraries with their SONAME links; the driver's version, from their names."""
    names = sorted(name for name in os.listdir(source) if ".so." in name) if os.path.isdir(source) else []
    versions = {name.partition(".so.")[2] for name in names if name.startswith("libcuda.so.")}
    if len(versions) != 1:
        raise SimError(f"{source}: expected one simulated libcuda.so.<version>, found {sorted(versions)}; build first")
    version = versions.pop()
    os.makedirs(target, exist_ok=True)
    for name in names:
        if not name.endswith(f".so.{version}"):
            continue
        _replace_file(os.path.join(source, name), os.path.join(target, name))
        soname = _soname(os.path.join(source, name))
        if soname != name:
            _replace_link(name, os.path.join(target, soname))
    for name in ("libcuda.so", "libnvidia-ml.so"):
        _replace_link(f"{name}.1", os.path.join(target, name))
    return version


def _replace_file(source: str, target: str) -> None:
    # A copy by another name and a rename: whoever has the old one mapped keeps it.
    shutil.copy2(source, f"{target}.new")
    os.rename(f"{target}.new", target)


def _replace_link(content: str, path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(content, path)


def _install_programs(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for name in sorted(os.listdir(source)):
        _replace_file(os.path.join(source, name), os.path.join(target, name))


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _write_proc(proc: str, cards: list[Card], version: str, uvm_major: int) -> None:
    nvidia = os.path.join(proc, "driver", "nvidia")
    _write(
        os.path.join(proc, "devices"),
        f"Character devices:\n  1 mem\n{NVIDIA_MAJOR:3d} nvidia-frontend\n{uvm_major:3d} nvidia-uvm\n\n"
        "Block devices:\n",
    )
    _write(
        os.path.join(nvidia, "version"),
        f"NVRM version: NVIDIA UNIX {os.uname().machine} Kernel Module  {version}  simulated by vgpu\n"
        "GCC version:  none\n",
    )
    _write(
        os.path.join(nvidia, "params"),
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
    )
    _write(os.path.join(nvidia, "registry"), 'Binary: ""\n')
    for card in cards:
        bus_id = f"{card.pci_domain:04x}:{card.pci_bus:02x}:{card.pci_device:02x}.0"
        _write(os.path.join(nvidia, "gpus", bus_id, "information"), _information(card, bus_id, version))


def _write_sys(devices: str, cards: list[Card]) -> None:
    """The node that a card is near to: the kernel's, NVML only tells it as a set of bits."""
    for card in cards:
        bus_id = f"{card.pci_domain:04x}:{card.pci_bus:02x}:{card.pci_device:02x}.0"
        _write(os.path.join(devices, bus_id, "numa_node"), f"{card.numa_node}\n")


def _information(card: Card, bus_id: str, version: str) -> str:
    lines = (
        ("Model", card.name.decode()),
        ("IRQ", "0"),
        ("GPU UUID", f"GPU-{uuid.UUID(bytes=bytes(card.uuid))}"),
        ("Video BIOS", "??.??.??.??.??"),
        ("Bus Type", "PCIe"),
        ("DMA Size", "47 bits"),
        ("DMA Mask", "0x7fffffffffff"),
        ("Bus Location", bus_id),
        ("Device Minor", str(card.minor)),
        ("GPU Firmware", version),
        ("GPU Excluded", "No"),
    )
    return "".join(f"{key}:\t {value}\n" for key, value in lines)


def _make_nodes(dev: str, cards: list[Card], uvm_major: int) -> None:
    nodes = {f"nvidia{card.minor}": (NVIDIA_MAJOR, card.minor) for card in cards}
    nodes["nvidiactl"] = (NVIDIA_MAJOR, CONTROL_MINOR)
    nodes["nvidia-uvm"] = (uvm_major, 0)
    nodes["nvidia-uvm-tools"] = (uvm_major, 1)
    for name, (major, minor) in nodes.items():
        path = os.path.join(dev, name)
        if os.path.lexists(path):
            os.unlink(path)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            raise SimError(f"{path}: device nodes want root; as another user say --device-nodes no") from error
        os.chmod(path, 0o666)  # noqa: S103 - the mode of a real node


# ---- command line ----


def _print_state(state: dict[str, Any]) -> None:
    for card in state["cards"]:
        print(
            f"{card['index']} {card['uuid']} {card['name']} minor {card['minor']} {card['bus_id']}: "
            f"{card['used'] / MIB:.1f} of {card['capacity'] / MIB:.1f} MiB used"
        )
        for process in card["processes"]:
            print(
                f"    pid {process['pid']} (own {process['own_pid']}) {process['command']}: "
                f"allocated {process['allocated']}, context {process['context']}"
            )


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simctl.py", description="state and driver root of the simulated driver")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (("state", "create a state directory"), ("root", "lay out a driver root")):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("directory")
        command.add_argument("--profile", required=True, help="a name in profiles/ or a file")
        command.add_argument("--device-nodes", choices=("yes", "no"), help="override the profile")
        if verb == "state":
            command.add_argument("--clock", choices=("wall", "virtual"), default="wall")
            command.add_argument("--parties", type=int, default=0, help="processes with which virtual time begins")
        if verb == "root":
            command.add_argument("--build", default=DEFAULT_BUILD)
    event = verbs.add_parser("event", help="make an event happen to a card")
    event.add_argument("directory")
    event.add_argument("--card", type=int, default=0)
    event.add_argument("--kind", choices=sorted({**EVENT_TYPES, **LOSSES}), default="xid")
    event.add_argument("--data", type=int, default=0, help="the Xid's number")
    _add_set(verbs.add_parser("set", help="change how a card is"))
    driver = verbs.add_parser("driver", help="load or unload the kernel's part of the driver")
    driver.add_argument("directory")
    driver.add_argument("state", choices=sorted(DRIVER_STATES))
    show = verbs.add_parser("show", help="print the ledger")
    show.add_argument("directory")
    show.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _add_set(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory")
    command.add_argument("--card", type=int, default=0)
    command.add_argument("--lost", choices=("yes", "no"), help="fallen off the bus")
    command.add_argument("--ecc", type=_numbers(2), help="corrected,uncorrected: so many further errors")
    command.add_argument("--remapped-rows", type=_numbers(4), help="corrected,uncorrected,pending,failed")
    command.add_argument("--retired-pages", type=_numbers(3), help="single-bit,double-bit,pending")
    command.add_argument("--temperature", type=int, help="degrees; 0: by its load")
    command.add_argument("--power", type=int, help="watts; 0: by its load")


def _numbers(count: int) -> Callable[[str], list[int]]:
    def parse(text: str) -> list[int]:
        numbers = [int(part) for part in text.split(",")]
        if len(numbers) != count or min(numbers) < 0:
            raise ValueError(text)
        return numbers

    parse.__name__ = f"list of {count} numbers"  # argparse names it so
    return parse


def _set(options: argparse.Namespace) -> None:
    directory, card = options.directory, options.card
    if options.lost:
        set_lost(directory, card, options.lost == "yes")
    if options.ecc:
        inject_ecc(directory, card, *options.ecc)
    if options.remapped_rows:
        set_remapped_rows(directory, card, *options.remapped_rows)
    if options.retired_pages:
        set_retired_pages(directory, card, *options.retired_pages)
    if options.temperature is not None or options.power is not None:
        set_readings(directory, card, options.temperature or 0, options.power or 0)


def _show(options: argparse.Namespace) -> None:
    state = read_state(options.directory)
    print(json.dumps(state, indent=2)) if options.json else _print_state(state)


def _make(options: argparse.Namespace) -> None:
    nodes = {"yes": True, "no": False, None: None}[options.device_nodes]
    if options.verb == "state":
        make_state(options.directory, options.profile, nodes, options.clock, options.parties)
    else:
        make_root(options.directory, options.profile, options.build, nodes)


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "state": _make,
    "root": _make,
    "show": _show,
    "event": lambda options: inject_event(options.directory, options.card, options.kind, options.data),
    "set": _set,
    "driver": lambda options: set_driver(options.directory, options.state),
}


def main(arguments: list[str] | None = None) -> int:
    options = _parse_arguments(arguments)
    try:
        VERBS[options.verb](options)
    except (SimError, OSError) as error:
        print(f"simctl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
