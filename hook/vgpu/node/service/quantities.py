"""Amounts in Kubernetes' notation.

Belongs here: reading and writing a quantity, as pure functions. Not here: what an amount is of.
"""

from __future__ import annotations

import math
from fractions import Fraction

_FACTORS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}  # fmt: skip
_WRITTEN = ("Ti", "Gi", "Mi")
MAX_DIGITS = 18


def quantity(value: object) -> int | None:
    """A whole number in Kubernetes' notation (3000 comes back as 3k); None for anything else."""
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    digits = text.rstrip("kKMGTPEi")
    factor = _FACTORS.get(text[len(digits) :])
    if factor is None or not digits.isascii() or not digits.isdigit() or len(digits) > MAX_DIGITS:
        return None
    amount = int(digits) * factor
    return amount if amount < 1 << 63 else None


def rounded_up(value: object, step: int) -> int | None:
    """The least multiple of `step` that is not below a quantity as people write it: 500m, 1.5Gi; None for others."""
    text = value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
    number = text.rstrip("kKMGTPEim")
    unit = text[len(number) :]
    whole, _, part = number.partition(".")
    factor = Fraction(1, 1000) if unit == "m" else _FACTORS.get(unit)
    digits = whole + part
    if factor is None or not digits.isascii() or not digits.isdigit() or len(digits) > MAX_DIGITS:
        return None
    return math.ceil(Fraction(int(digits), 10 ** len(part)) * factor / step) * step


def canonical(amount: int) -> str:
    """A quantity as Kubernetes writes it: with the largest binary unit of which it is a multiple."""
    units = ((_FACTORS[name], name) for name in _WRITTEN)
    return next((f"{amount // unit}{name}" for unit, name in units if amount and not amount % unit), str(amount))
