"""What tests make happen to a card of a state, and to the driver: events, errors, readings."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import time
from collections.abc import Callable
from typing import TypeVar

from sim_layout import FLOCK, LOST_MARK, MAX_CARDS, MAX_INCIDENTS, Board, File, Header, Incident, SimError

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
