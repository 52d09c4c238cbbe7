"""Fixtures of the faults: what fault_hook needs, and the journals of full counts."""

from __future__ import annotations

from collections.abc import Callable

import attack_records
import pytest
from fault_bed import Tools
from fault_journal import Journal


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def journal(request: pytest.FixtureRequest) -> Callable[..., Journal]:
    """All faults with --long, or the next part of them; otherwise as many as `sample`."""
    full = request.config.getoption("--long")
    percent, code = attack_records.percent_of_now(), attack_records.code_of_now()
    return lambda name, sample=6: Journal(name, 0 if full else sample, percent=percent, code=code)
