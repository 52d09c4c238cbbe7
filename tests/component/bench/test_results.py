"""The form of a benchmark's JSON, from a made-up group. A create that fails is an error and not a figure."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import bundles
import pytest
from checkout import BENCH


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tests/bench/run.py, which is a script."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("run")


@pytest.fixture
def hook(run: ModuleType) -> ModuleType:
    """The group `hook`."""
    return importlib.import_module("hook")


def test_json_and_table(run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stub() -> list[object]:
        return [
            run.Result.of("stub.met", "ratio", 0.5, [0.3, 0.1, 0.2], "below its bar"),
            run.Result.of("stub.missed", "ratio", 0.5, [0.6], "above its bar"),
            run.Result.at_least("stub.reached", 0.9, [0.95], "above what it has to reach"),
            run.Result.at_least("stub.short", 0.9, [0.85], "below it"),
            run.Result.of("stub.plain", "ms", None, [2.0, 4.0], "without a bar"),
        ]

    assert run.main(["stub"], {"stub": stub}, tmp_path) == 0, "a missed bar is marked, and no error"
    written = json.loads((tmp_path / "stub.json").read_text())
    assert [set(item) for item in written] == [{"id", "unit", "bar", "min", "median", "max", "runs", "what"}] * 5
    expected = {"unit": "ratio", "bar": 0.5, "min": 0.1, "median": 0.2, "max": 0.3, "runs": 3, "what": "below its bar"}
    assert written[0] == {"id": "stub.met", **expected}
    assert (written[4]["bar"], written[4]["median"]) == (None, 3.0)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("stub.")}
    assert [name for name, line in lines.items() if "MISSED" in line] == ["stub.missed", "stub.short"]


def test_the_error_of_an_unknown_group_lists_the_known_ones(
    run: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["no_such"]) == 2
    assert "hook" in capsys.readouterr().err


def test_failing_create_is_an_error(
    run: ModuleType, hook: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = bundles.Runtime(tmp_path / "state", "sh", "-c", "echo no such luck >&2; exit 1", "sh")
    bundle = bundles.Bundle(tmp_path / "bundle", tmp_path / "rootfs")

    def stub() -> list[object]:
        return [hook.timed_create(runtime, bundle, "c")]

    assert run.main(["stub"], {"stub": stub}, tmp_path) == 1
    assert "no such luck" in capsys.readouterr().err
    assert not (tmp_path / "stub.json").exists()


def test_ratios_are_taken_round_by_round(hook: ModuleType) -> None:
    others = ("no_allocation", "one_card_bytecode", "one_card_disk", "bare_disk", "eight_cards", "state", "shim_state")
    costs = {name: [1.0, 1.0] for name in others}
    costs.update(bare=[1.0, 2.0], reference=[3.0, 6.0], one_card=[4.0, 6.0])
    one_card = next(item for item in hook.results(costs) if item.id == "hook.one_card")
    assert (one_card.min, one_card.median, one_card.max, one_card.runs) == (1.0, 1.25, 1.5, 2)


def test_the_warm_up_round_is_not_counted(hook: ModuleType) -> None:
    calls = {"a": 0, "b": 0}

    def timed(name: str) -> float:
        calls[name] += 1
        return float(calls[name])

    costs = hook.interleaved({"a": lambda: timed("a"), "b": lambda: timed("b")}, rounds=2, repeats=3)
    assert calls == {"a": 9, "b": 9}
    assert costs == {"a": [5.0, 8.0], "b": [5.0, 8.0]}
