"""The ledger over random histories of pods: nothing is promised twice, and nothing is refused that kubelet has back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pod_histories import History

STEPS = 80  #: of a history


@pytest.fixture
def fast_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history writes hundreds of records, and their durability is no matter here."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.mark.usefixtures("fast_writes")
def test_no_card_is_promised_beyond_itself_and_freed_units_can_be_started(tmp_path: Path) -> None:
    run(tmp_path, range(30))


@pytest.mark.long
@pytest.mark.usefixtures("fast_writes")
@pytest.mark.parametrize("block", range(20))
def test_over_many_histories(tmp_path: Path, block: int) -> None:
    run(tmp_path, range(1000 + 100 * block, 1100 + 100 * block))


def run(path: Path, seeds: range) -> None:
    started = refused = waited = 0
    for seed in seeds:
        history = History(path / str(seed), seed)
        for step in range(STEPS):
            try:
                history.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error
        started += history.started
        refused += history.refused
        waited += history.waited
    assert started > 5 * len(seeds)
    assert refused > len(seeds) / 50
    assert waited
