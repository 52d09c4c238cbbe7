"""Figures of turns from raw stamps: by the card's own clock, which no simulator writes, and by events."""

from __future__ import annotations

from vgpu.node.selftest.card import STAMPED, Figure, spells

SLICE, SWITCH = 2_000_000, 150_000
STOP = SLICE + 2 * SWITCH


def test_stamps_of_the_cards_clock_are_spells() -> None:
    stamps = [[begin, begin + SLICE] for begin in range(0, 5 * (SLICE + STOP), SLICE + STOP)]
    found = spells({"by": "card", "stamps": stamps})
    assert (found.lengths, found.stops, found.inner) == ([SLICE] * 3, [STOP] * 4, stamps)


def test_a_kernel_that_takes_longer_was_stopped() -> None:
    """Two kernels, then one in which the context was stopped; the first stamp is left out, as the launch is in it."""
    ends = [0, 1000, *(at * (3 * STAMPED + STOP) + part for at in range(1, 4) for part in (0, STAMPED, 2 * STAMPED))]
    found = spells({"by": "events", "stamps": [list(pair) for pair in zip(ends, ends[1:])]})
    assert set(found.stops[1:]) == {STOP}
    assert set(found.lengths[1:]) == {3 * STAMPED}
    assert all(begin < end for begin, end in found.inner)


def test_figures_agree_within_their_errors() -> None:
    figure = Figure("timing.slice_us", 2000, 3, "us")
    assert figure.agrees(Figure("timing.slice_us", 2005, 2, "us"))
    assert not figure.agrees(Figure("timing.slice_us", 2006, 2, "us"))
