"""Changes that tests make to a card of a state and to the driver: events, errors, readings, a lost card, memory.

Each function changes one structure of the state's file under the lock that the libraries take. The structures are in
sim_layout.py; the command line is simctl.py.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from sim_layout import LOST_MARK, MAX_CARDS, MAX_INCIDENTS, Board, Incident, SimError
from sim_mig import locked

EVENT_TYPES = {"single_bit_ecc": 0x1, "double_bit_ecc": 0x2, "performance_state": 0x4, "xid": 0x8, "clock": 0x10}
# These are not NVML events: the card falls off the bus, or comes back.
LOSSES = {"lost": True, "back": False}
DRIVER_STATES = {"loaded": 0, "unloaded": 1, "mismatched": 2}


def _change_board(directory: str, index: int, change: Callable[[Board], None]) -> None:
    if not 0 <= index < MAX_CARDS:
        raise SimError(f"card {index}: expected 0 to {MAX_CARDS - 1}")
    with locked(directory) as file:
        change(file.boards[index])


def inject_event(directory: str, index: int, kind: str = "xid", data: int = 0) -> None:
    """Send an event of this kind (EVENT_TYPES) to the programs that wait for it; `data` is the Xid's number.

    The kinds `lost` and `back` call set_lost instead.
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
    """Add ECC errors to the counters, and send the events for them."""

    def change(board: Board) -> None:
        for lifetime in (0, 2):
            board.ecc[lifetime] += corrected
            board.ecc[lifetime + 1] += uncorrected

    _change_board(directory, index, change)
    for kind, count in (("single_bit_ecc", corrected), ("double_bit_ecc", uncorrected)):
        if count:
            inject_event(directory, index, kind)


def set_readings(directory: str, index: int, temperature: int = 0, power_w: int = 0) -> None:
    """Set the readings of the card's sensors; 0: the readings follow its load."""

    def change(board: Board) -> None:
        board.temperature = temperature
        board.power_mw = power_w * 1000

    _change_board(directory, index, change)


def set_lost(directory: str, index: int, lost: bool = True) -> None:
    """Make the card fall off the bus or return. While it is lost, NVML returns GPU_IS_LOST and CUDA starts nothing."""

    def change(board: Board) -> None:
        board.is_lost = LOST_MARK if lost else 0

    _change_board(directory, index, change)


def set_remapped_rows(
    directory: str, index: int, corrected: int = 0, uncorrected: int = 0, pending: bool = False, failed: bool = False
) -> None:
    """Set how many rows of memory were remapped; `pending`: one waits for a reset; `failed`: one was not remapped."""

    def change(board: Board) -> None:
        board.remapped = (ctypes.c_uint32 * 4)(corrected, uncorrected, pending, failed)

    _change_board(directory, index, change)


def set_retired_pages(
    directory: str, index: int, single_bit: int = 0, double_bit: int = 0, pending: bool = False
) -> None:
    """Set how many pages were retired, for cards before Ampere; `pending`: one waits for a reset."""

    def change(board: Board) -> None:
        board.retired = (ctypes.c_uint32 * 3)(single_bit, double_bit, pending)

    _change_board(directory, index, change)


def set_driver(directory: str, state: str) -> None:
    """Set the kernel's part of the driver to `loaded`, `unloaded`, or `mismatched` with the libraries."""

    with locked(directory) as file:
        file.header.driver = DRIVER_STATES[state]


def add_session(directory: str, index: int, pid: int, size: int) -> None:
    """Let the driver hold `size` bytes more for process `pid` without a call of CUDA's API; less where it is negative.

    A session of the video encoder or decoder is such memory.
    """

    with locked(directory) as file:
        found = [slot for slot in file.slots if slot.token and slot.pid == pid]
        for slot in found:
            slot.context[index] += size
    if len(found) != 1:
        raise SimError(f"{len(found)} processes {pid} on the card, expected 1")
