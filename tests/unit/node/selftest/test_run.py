"""What stops a run before anything is judged, and what an error of a row means for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.driver.nvml import Conditions
from vgpu.node.selftest import bench, rows, run
from vgpu.node.selftest.program import NotJudged
from vgpu.node.selftest.report import FAIL, NOT_APPLICABLE, NOT_JUDGED, PASS, Row

UUID = "GPU-8c955f18-586b-56f7-8394-6e42bf246681"
GOOD = Conditions(8 << 30, shared=True, display=False, persistent=True)


class Way:
    cannot = {"d.d": "no container"}  # noqa: RUF012
    holders: list[str] = []  # noqa: RUF012

    def disturbed(self, _uuid: str) -> list[str]:
        return self.holders


@pytest.mark.parametrize(
    ("seen", "users", "holders", "reason"),
    [
        (GOOD, [], [], ""),
        (GOOD._replace(persistent=False), [], [], ""),  # a note
        (None, [], [], "has no state in NVML, or is in MIG mode"),
        (GOOD._replace(shared=False), [], [], "is in an exclusive compute mode"),
        (GOOD._replace(display=True), [], [], "has a display"),
        (GOOD, [(4194305, True, 1)], [], "is used by pid 4194305"),
        (GOOD, [], ["container train"], "is held by container train"),
    ],
)
def test_a_card_that_somebody_uses_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, seen: Conditions | None, users: Any, holders: list[str], reason: str
) -> None:
    monkeypatch.setattr(run, "runs_mps", lambda: False)
    monkeypatch.setattr(Way, "holders", holders)
    found = run.unfit(Way(), UUID, seen, users)  # type: ignore[arg-type]
    assert found == ([f"GPU-8c955f18 {reason}"] if reason else [])


class Answers:
    """A program that gives the same answer to every line."""

    def __init__(self, **answer: object) -> None:
        self.answer = answer

    def ask(self, _line: str) -> dict[str, object]:
        return self.answer


@pytest.mark.parametrize(
    "hello", [{"missing": "libcuda.so.1: none"}, {"code": 100}, {"driver": 12040, "cards": []}]
)  # fmt: skip
def test_a_machine_without_a_card_is_not_judged(hello: dict[str, object]) -> None:
    with pytest.raises(NotJudged, match=r"the driver|a card"):
        run.choose(Way(), Answers(**hello), "")  # type: ignore[arg-type]


def test_after_a_lost_card_the_rest_is_not_judged() -> None:
    def of(name: str, verdict: str, error: VgpuError | None = None) -> rows.Part:
        def function(_bench: bench.Bench) -> Iterator[Row]:
            yield Row(name, "", "", verdict)
            if error:
                raise error

        return rows.Part(function, (name, f"{name}.second") if error else (name,))

    parts = [
        of("a.a", FAIL, VgpuError("one row")),
        of("d.d", PASS),
        of("b.b", PASS, NotJudged("lost")),
        of("c.c", PASS),
    ]
    found = run.all_rows(bench.Bench(Way(), None, UUID), parts, lambda _line: None)  # type: ignore[arg-type]
    assert [(row.id, row.verdict) for row in found] == [
        ("a.a", FAIL), ("a.a.second", NOT_JUDGED), ("d.d", NOT_APPLICABLE), ("b.b", PASS), ("b.b.second", NOT_JUDGED),
        ("c.c", NOT_JUDGED),
    ]  # fmt: skip
