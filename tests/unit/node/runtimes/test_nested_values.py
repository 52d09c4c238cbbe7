"""Values in nested tables."""

from __future__ import annotations

import pytest

from vgpu.node.runtimes.nested_values import look_up

DOCUMENT = {"a": {"b": {"c": 1}, "none": None}, "list": [{"b": 2}]}


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ((), DOCUMENT),
        (("a", "b"), {"c": 1}),
        (("a", "b", "c"), 1),
        (("a", "b", "c", "d"), None),
        (("a", "x"), None),
        (("a", "none", "b"), None),
        (("list", "b"), None),
    ],
)
def test_the_value_below_the_keys(keys: tuple[str, ...], value: object) -> None:
    assert look_up(DOCUMENT, keys) == value
