"""Amounts in Kubernetes' notation."""

from __future__ import annotations

import pytest

from vgpu.node.service import quantities


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0), ("1", 1), ("3k", 3000), ("3000", 3000), ("12288", 12288), ("12Ki", 12288), ("2M", 2_000_000),
        ("1Gi", 1 << 30), (7, 7), ("1E", 10**18), ("9Ei", None), ("", None), ("k", None), ("-1", None), ("0.5", None),
        ("500m", None), ("1e3", None), ("1 k", None), ("1kk", None), ("\u0663", None), ("9" * 19, None), (None, None),
        (True, None), (1.5, None), ([], None),
    ],
)  # fmt: skip
def test_quantities(text: object, amount: int | None) -> None:
    assert quantities.quantity(text) == amount


def test_quantities_are_written_as_kubernetes_returns_them() -> None:
    sizes = (100, 1 << 20, 1536 << 20, 40 << 30, 2 << 40)
    assert [quantities.canonical(size) for size in sizes] == ["100", "1Mi", "1536Mi", "40Gi", "2Ti"]
