"""The report: its result, its schema, its page, and what it refuses to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.selftest import report
from vgpu.node.selftest.report import FAIL, INFO, NOT_APPLICABLE, NOT_JUDGED, PASS, Row

HEAD: dict[str, Any] = {
    "vgpu": "0.1.0", "date": "2026-11-28", "way": "bare", "depth": "quick", "seconds": 41.5, "driver": "580.159.04",
    "cuda": "13.0", "kernel": "6.18.0", "machine": "x86_64", "notes": [], "profile": {},
    "card": {"uuid": "GPU-8c955f18", "name": "Tesla T4", "memory": 16 << 30, "capability": [7, 5]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [
        ((PASS, INFO, NOT_APPLICABLE), PASS),
        ((PASS, FAIL, NOT_JUDGED), FAIL),
        ((PASS, NOT_JUDGED), NOT_APPLICABLE),
        ((INFO, NOT_APPLICABLE), NOT_APPLICABLE),
        ((), NOT_APPLICABLE),
    ],
)
def test_result(verdicts: tuple[str, ...], result: str) -> None:
    made = report.document(HEAD, [Row("a.b", "all", "it", verdict) for verdict in verdicts])
    assert made["result"] == result


def test_a_page_has_every_row_and_why_one_failed(tmp_path: Path) -> None:
    rows = [Row("a.good", "1", "2", PASS), Row("b.bad", "3", "4", FAIL, "docs/x.md: words"), Row("c.c", "", "5", INFO)]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.document(HEAD, rows)))
    lines = report.page(report.read(str(path))).splitlines()
    assert lines[0] == "vgpu self-test: fail"
    assert "  a.good: promised 1; measured 2" in lines
    at = lines.index("  b.bad: promised 3; measured 4")
    assert lines[at + 1] == "    limits: docs/x.md: words"
    assert "  c.c: 5" in lines


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({**HEAD, "host": "a"})])
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(VgpuError, match=r"report\.json.*expected a report.*found [^\n]*$"):
        report.read(str(tmp_path / "report.json"))
