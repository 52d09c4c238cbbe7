"""The modules of tests/bench, which are scripts, as attributes of one fixture."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from checkout import BENCH


class Bench:
    """`bench.cores_owed` is the module, and so is `bench["cores_owed"]`; `bench.rows` is conformance.rows."""

    def __getattr__(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(f"conformance.{name}" if name in ("columns", "rows", "suite") else name)
        except ModuleNotFoundError as error:
            raise AttributeError(name) from error

    __getitem__ = __getattr__


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    sys.path.insert(0, str(BENCH))
    yield Bench()
    sys.path.remove(str(BENCH))
