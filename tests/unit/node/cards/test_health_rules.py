"""When a card counts as unhealthy and when it returns: rules without NVML."""

from __future__ import annotations

import pytest

from vgpu.node.cards import xids
from vgpu.node.cards.health_rules import GOOD, QUIET, CardState, Fault, Look, fault_of_xid, from_answer

LOST = Look("NVML reports: GPU is lost", gone=True)
FINE = Look(ecc=0)


def seen(state: CardState, *looks: Look, at: float = 0.0) -> str:
    for look in looks:
        state.saw(look, at)
    return state.reason()


def faulty(number: int, at: float = 0.0) -> CardState:
    state = CardState()
    seen(state, FINE)
    state.happened(fault_of_xid(number, at))
    return state


def test_a_card_that_answers_is_healthy() -> None:
    state = CardState()
    assert state.reason() == ""
    assert seen(state, FINE) == ""
    assert not state.apart()


def test_a_card_that_does_not_answer_returns_with_its_second_answer() -> None:
    state = CardState()
    assert seen(state, LOST) == "NVML reports: GPU is lost"
    assert state.apart()
    assert seen(state, *[FINE] * (GOOD - 1)), "one answer may be luck"
    assert seen(state, FINE) == ""


def test_a_loose_card_stays_away() -> None:
    state = CardState()
    assert all(seen(state, look) for look in [LOST, FINE] * 5)


@pytest.mark.parametrize("number", [54, 94, 63, 12345])
def test_an_error_that_needs_no_reset_passes(number: int) -> None:
    state = faulty(number, at=10.0)
    assert state.reason() == f"Xid {number}; returns when it stays quiet"
    assert not state.apart(), "further events of it are wanted"
    assert seen(state, FINE, at=9.0 + QUIET)
    assert seen(state, FINE, at=10.0 + QUIET) == ""


def test_every_further_error_begins_the_time_again() -> None:
    state = faulty(92, at=10.0)
    state.happened(fault_of_xid(92, 200.0))
    assert seen(state, FINE, at=10.0 + QUIET)
    assert seen(state, FINE, at=200.0 + QUIET) == ""


@pytest.mark.parametrize("number", sorted(xids.RESET))
def test_an_error_that_needs_a_reset_stays(number: int) -> None:
    state = faulty(number)
    assert state.reason() == f"Xid {number}, {xids.RESET[number]}; reset the card"
    assert state.apart(), "nothing of ours may be in the way of the reset"
    assert seen(state, FINE, at=1000 * QUIET)


def test_a_lesser_error_does_not_cover_one_that_needs_a_reset() -> None:
    state = faulty(62)
    state.happened(fault_of_xid(92, 1.0))
    assert seen(state, FINE, at=10 * QUIET) == state.reason() != ""


def test_away_and_back_was_the_reset() -> None:
    state = faulty(79)
    assert seen(state, LOST, FINE)
    assert seen(state, FINE) == ""


def test_away_before_the_error_was_reported() -> None:
    """NVML may report a lost card before it delivers the event."""
    state = CardState()
    seen(state, FINE, LOST)
    state.happened(fault_of_xid(79, 0.0))
    assert seen(state, *[FINE] * GOOD) == ""


def test_away_and_back_before_the_error_is_no_reset() -> None:
    state = CardState()
    seen(state, LOST, *[FINE] * GOOD)
    state.happened(fault_of_xid(62, 0.0))
    assert seen(state, *[FINE] * GOOD, at=10 * QUIET)


def test_a_card_that_hangs_and_answers_again_was_not_reset() -> None:
    state = faulty(62)
    assert seen(state, Look("NVML hangs when asked for it"), *[FINE] * GOOD)


def test_the_driver_was_loaded_anew() -> None:
    state = faulty(62)
    state.reset()
    assert state.reason() == ""


def test_the_drivers_own_reset_recommendation_decides() -> None:
    state = faulty(62, at=0.0)
    assert seen(state, Look(action=1)) == "the driver wants the card reset"
    assert seen(state, Look(action=0), at=QUIET - 1), "it may be about to ask"
    assert seen(state, Look(action=0), at=QUIET) == ""


def test_a_driver_asks_without_an_error() -> None:
    state = CardState()
    assert seen(state, Look(action=2)) == "the driver wants the node rebooted"
    assert state.apart()
    assert seen(state, Look(action=99)) == "the driver wants recovery 99"
    assert seen(state, Look(action=0)) == ""


def test_pages_and_rows() -> None:
    state = CardState()
    assert "page" in seen(state, Look(pages=True))
    assert "row" in seen(state, Look(rows=True))
    assert seen(state, FINE) == ""


def test_pages_keep_a_card_whose_error_would_have_passed() -> None:
    state = faulty(92)
    assert seen(state, Look(pages=True), at=10 * QUIET)
    assert seen(state, FINE, at=10 * QUIET) == ""


def test_memory_errors_that_only_polling_shows() -> None:
    """A card without events is polled. Errors that it counted before the first poll do not count."""
    state = CardState()
    assert seen(state, Look(ecc=7), Look(ecc=7)) == ""
    assert seen(state, Look(ecc=9), at=1.0) == "2 uncorrected memory errors; returns when it stays quiet"
    assert seen(state, Look(ecc=9), at=1.0 + QUIET) == ""
    assert seen(state, Look(ecc=0), at=2.0 + QUIET) == "", "counted anew since a reset"
    assert seen(state, Look(ecc=-1), Look(ecc=5), at=3.0 + QUIET) == "", "not known in between"


def test_a_fault_of_before_a_restart_counts() -> None:
    state = CardState(Fault("Xid 62", 0.0, True))
    assert seen(state, *[FINE] * GOOD) == "Xid 62; reset the card"


def test_notices_are_no_errors() -> None:
    assert not set(xids.NOTICES) & set(xids.RESET)


def test_answers_of_the_process_that_asks() -> None:
    look = from_answer({"look": "GPU-1", "error": "lost", "gone": True, "action": 3})
    assert (look.error, look.gone, look.action, look.ecc, look.pages) == ("lost", True, 3, -1, False)
    look = from_answer({"error": 7, "gone": "yes", "pages": 1, "ecc": "many"})
    assert (look.error, look.gone, look.pages, look.ecc) == ("", False, False, -1)
