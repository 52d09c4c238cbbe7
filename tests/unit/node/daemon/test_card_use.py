"""The use of whole cards: NVML is asked in a worker, and an answer that is not renewed expires."""

from __future__ import annotations

import io
from typing import Any

from cards import inventory

from vgpu.config.settings import Settings
from vgpu.node.daemon.card_use import INTERVAL, VALID, CardUseMonitor
from vgpu.node.service.log import Conditions, Log


class Done:
    """A worker that has ended."""

    def __init__(self, result: dict[str, Any], error: str = "") -> None:
        self.result, self.error, self.done = result, error, True

    def check(self, _now: float) -> None:
        pass

    def gone(self) -> bool:
        return True


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.answer = Done({"cards": {"GPU-a": [5, 70], "GPU-b": [6, None]}, "notes": []})
        self.conditions = Conditions(Log(io.StringIO(), False))
        self.monitor = CardUseMonitor(Settings({}), self.conditions, self.spawn, clock=lambda: self.now)  # type: ignore[arg-type]

    def spawn(self, _work: object, _deadline: float) -> Done:
        self.asked += 1
        return self.answer

    def look(self) -> None:
        self.monitor.look(inventory())


def test_an_answer_counts_until_it_is_too_old() -> None:
    bench = Bench()
    bench.look()
    bench.look()
    assert bench.monitor.use() == {"GPU-a": (5, 70), "GPU-b": (6, None)}
    assert bench.asked == 1, "not again before its time"
    bench.now += INTERVAL * VALID + 1
    assert bench.monitor.use() == {}


def test_an_error_is_a_condition_and_the_last_answer_stays_for_its_time() -> None:
    bench = Bench()
    bench.look()
    bench.look()
    bench.now += INTERVAL
    bench.answer = Done({}, "no answer in time: the driver hangs")
    bench.look()
    bench.look()
    assert "the driver hangs" in "".join(bench.conditions.present.values())
    assert bench.monitor.use()["GPU-a"] == (5, 70)


def test_a_node_without_an_inventory_asks_nothing() -> None:
    bench = Bench()
    bench.monitor.look(None)
    assert bench.asked == 0
