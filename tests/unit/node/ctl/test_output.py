"""Tables that fit a terminal, and those that do not need to."""

from __future__ import annotations

import json
import os
import re

import pytest

from vgpu.node.ctl.output import Bytes, Id, Time, print_table, print_text

ID, CARD = "0123456789ab" + "c" * 52, "GPU-01234567-89ab-cdef-0123-456789abcdef"
HEADERS = ("container", "name", "card", "cores", "core limit", "memory used", "state", "since")
ROWS = [
    (Id(ID), "namespace/a-pod-with-a-long-name/main", Id(CARD), 30, 100, Bytes(3 << 30), "running", Time(1)),
    (Id("chosen-by-a-person-0123456789"), "", [Id(CARD), Id(CARD)], 1, 1, Bytes(1), "stopped", Time(2)),
]


def printed(capsys: pytest.CaptureFixture[str], **options: object) -> str:
    print_table(ROWS, HEADERS, **options)  # type: ignore[arg-type]
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 100, 132, 200])
def test_no_line_is_longer_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(capsys)
    assert max(map(len, text.splitlines())) <= columns
    assert ID[:13] not in text
    if columns >= 80:
        assert ID[:12] in text
        assert text.count("stopped") == 1


def test_optional_columns_go_before_anything_is_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "132")
    text = printed(capsys, optional=("since", "state"))
    assert text.splitlines()[-1] == "(--wide also shows: since)"
    assert "namespace/a-pod-with-a-long-name/main" in text
    assert "running" in text
    assert "1970" not in text


def test_wide_and_no_terminal_show_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = printed(capsys, optional=("since",))
    assert text.splitlines()[0].split() == " ".join(HEADERS).split()
    assert all(word in text for word in (ID, CARD, "1970-01-01 ", "namespace/a-pod-with-a-long-name/main"))
    monkeypatch.setenv("COLUMNS", "60")
    assert printed(capsys, wide=True, optional=("since",)) == text


def test_json_does_not_depend_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    first = json.loads(printed(capsys, output="json", optional=("since",)))[0]
    assert (first["container"], first["card"], first["memory_used"]) == (ID, CARD, 3 << 30)
    assert re.fullmatch(r"19(70-01-01|69-12-31)T\d\d:\d\d:\d\d[+-]\d\d:\d\d", first["since"])


def test_times_have_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", str(Time(0)))


def test_a_terminal_wraps_text_and_a_pipe_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_text("one two three four five six seven")
    assert capsys.readouterr().out == "one two three four\nfive six seven\n"
    monkeypatch.setenv("COLUMNS", "no number")
    print_text("one two three four five six seven")
    assert capsys.readouterr().out == "one two three four five six seven\n"
    assert "COLUMNS" in os.environ
