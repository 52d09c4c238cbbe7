"""NVML's bus ids of cards, in the form of /proc."""

from __future__ import annotations

import pytest

from vgpu.node.driver import nvml


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:41:00.0", "0000:41:00.0"), ("0000:3B:00.0", "0000:3b:00.0"), ("00010001:0a:00.0", "10001:0a:00.0")],
)
def test_bus_ids_are_those_of_proc(text: str, expected: str) -> None:
    assert nvml.bus_id_of(text) == expected
