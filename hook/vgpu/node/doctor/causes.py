"""Which findings of the doctor follow from another one, so that each cause is named once.

Belongs here: the checks whose failure makes another check fail, and findings that repeat what another one says. Does
not belong here: the checks, and the printing (vgpu.node.ctl.doctor). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from vgpu.node.doctor.findings import FAILURE, OK, Finding

#: A check -> the checks without which it cannot succeed, the deepest cause first.
NEEDS = {
    "nodes": ("settings", "driver"),
    "uvm": ("settings", "driver"),
    "inventory": ("settings", "driver"),
    "libvcuda": ("settings",),
    "dry run": ("settings", "hook", "python", "driver", "inventory", "libvcuda", "nodes", "uvm"),
    "card health": ("settings", "driver"),
    "cards in use": ("settings", "driver", "inventory"),
}
LAST = ("daemon", "device plugin")  #: these programs warn of what other checks find, too
LEAST_TEXT = 12  #: characters of a text that no two causes have in common by accident
_PROCESS = re.compile(r"\bprocess \d+ \(")


def fold(findings: Sequence[Finding]) -> list[Finding]:
    """The findings in their order. `cause` of each that follows from another one is the check that found the cause."""
    failed = {item.check for item in findings if item.status == FAILURE}
    causes: dict[int, str] = {}
    before: list[Finding] = []
    for item in sorted((item for item in findings if item.status != OK), key=lambda item: item.check in LAST):
        other = _repeated(item, before)
        causes[id(item)] = _needed(item, failed) or (other and (causes[id(other)] or other.check)) or ""
        before.append(item)
    return [replace(item, cause=causes[id(item)]) if causes.get(id(item)) else item for item in findings]


def _needed(item: Finding, failed: set[str]) -> str:
    """The first check that `item` needs and that failed: no check in NEEDS comes before one that it needs."""
    return next((check for check in NEEDS.get(item.check, ()) if check in failed), "")


def _repeated(item: Finding, before: Sequence[Finding]) -> Finding | None:
    """An earlier finding of another check that says the same, or is about the same process."""
    for other in before:
        if other.check != item.check and (_says(item, other) or _processes(item) & _processes(other)):
            return other
    return None


def _says(item: Finding, other: Finding) -> bool:
    """Whether `item` repeats what `other` found, or what it advises."""
    return any(len(text) >= LEAST_TEXT and text in item.found for text in (other.found, other.do))


def _processes(item: Finding) -> set[str]:
    return set(_PROCESS.findall(item.found))
