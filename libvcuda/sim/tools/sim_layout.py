"""The structures and constants of the state's file, for the other tools.

They mirror state/state.h, which describes the ledger; the layout test of the simulator compares the two. Reading and
writing the file is in sim_ledger.py and sim_incidents.py.
"""

from __future__ import annotations

import ctypes

MAGIC = b"vgpu-sim"
VERSION = 8
MAX_CARDS = 32
NO_COMPUTE = 0xFFFFFFFF
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
STOPPED = 5  #: the state of a thread: enum in state/virtual.c
MAX_SHARES = 256
SHARE_BYTE = 4096
MEETING_ROUNDS = 4
LINK_SWITCH = 0xFE
LINK_NONE = 0xFF

# struct flock, for F_OFD_GETLK.
FLOCK = "hhxxxxqqixxxx"


class SimError(Exception):
    """What is wrong with a profile, a state or a build, in one line."""


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
        ("wake_ns", ctypes.c_uint32),
        ("whole_kernels", ctypes.c_uint32),
        ("idle_ns", ctypes.c_uint32),
        ("shared_copies", ctypes.c_uint32),
        ("event_turn", ctypes.c_uint32),
        ("late_ns", ctypes.c_uint32),
        ("cpu_percent", ctypes.c_uint32),
        ("value_look_ns", ctypes.c_uint32),
        ("block_bytes", ctypes.c_uint32),
        ("pool_chunk_bytes", ctypes.c_uint32),
        ("context_unlisted_bytes", ctypes.c_uint32),
        ("context_spread_bytes", ctypes.c_uint32),
        ("each_context", ctypes.c_uint32),
        ("teardown_ms", ctypes.c_uint32),
        ("context_ms", ctypes.c_uint32),
        ("function_bytes", ctypes.c_uint32),
        ("graph_node_bytes", ctypes.c_uint32),
        ("stacks", ctypes.c_uint32),
        ("stream_bytes", ctypes.c_uint32),
        ("nvml_lag_ms", ctypes.c_uint32),
        ("instance_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 116),
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
        ("instance", ctypes.c_uint32),
        ("parent", ctypes.c_uint32),
        ("gi", ctypes.c_uint32),
        ("ci", ctypes.c_uint32),
        ("gi_slices", ctypes.c_uint32),
        ("ci_slices", ctypes.c_uint32),
        ("padding", ctypes.c_uint8 * 216),
    )


class Slot(ctypes.Structure):
    _fields_ = (
        ("token", ctypes.c_uint64),
        ("pid", ctypes.c_int32),
        ("group", ctypes.c_uint32),
        ("command", ctypes.c_char * 16),
        ("allocated", ctypes.c_uint64 * MAX_CARDS),
        ("unlisted", ctypes.c_uint64 * MAX_CARDS),
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
        ("most_used", ctypes.c_uint64),
        ("copies_end", ctypes.c_uint64 * 2),
        ("shown_used", ctypes.c_uint64),
        ("shown_at", ctypes.c_uint64),
        ("mig_mode", ctypes.c_uint32 * 2),
        ("padding", ctypes.c_uint8 * 3320),
    )


class TimelineProcess(ctypes.Structure):
    _fields_ = (
        ("namespace", ctypes.c_uint64),
        ("start", ctypes.c_uint64),
        ("pid", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("sequence", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
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
        ("reserved", ctypes.c_uint32),
        ("stolen", ctypes.c_uint64),
        ("due", ctypes.c_uint64 * MAX_THREADS),
        ("key", ctypes.c_uint64 * MAX_THREADS),
        ("threads", TimelineThread * MAX_THREADS),
        ("processes", TimelineProcess * MAX_PROCESSES),
        ("padding", ctypes.c_uint8 * 2008),
    )


class Meeting(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_uint64),
        ("round", ctypes.c_uint64),
        ("begun", ctypes.c_uint64),
        ("met", ctypes.c_uint64 * MEETING_ROUNDS),
    )


class Share(ctypes.Structure):
    _fields_ = (
        ("token", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("slot", ctypes.c_uint32),
        ("card", ctypes.c_uint32),
        ("is_held", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
    )


class File(ctypes.Structure):
    _fields_ = (
        ("header", Header),
        ("cards", Card * MAX_CARDS),
        ("slots", Slot * MAX_SLOTS),
        ("boards", Board * MAX_CARDS),
        ("timeline", Timeline),
        ("meetings", Meeting * MAX_MEETINGS),
        ("shares", Share * MAX_SHARES),
    )
