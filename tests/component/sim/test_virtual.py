"""Virtual time: it advances when all threads wait, in a defined order. A thread that has ended or waits elsewhere does
not stop it for ever.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MS = 1_000_000
LAUNCH = 4_000  #: ns that a launch costs its thread
SWITCH = 50_000  #: until a card that had another context, or none, begins


def test_time_stands_still_while_one_computes(line: Any) -> None:
    """An hour's sleep takes no real time: run() waits for a minute."""
    hour = 3600 * 1000 * MS
    assert line(1).run(f"before = t(); time.sleep(0.3); after = t(); until({hour}); say([before, after, t()])") == [
        [0, 0, hour]
    ]


def test_a_launch_costs_and_a_kernel_takes_its_time(line: Any) -> None:
    code = "launch(MS); launched = t(); sync(); done = t(); launch(MS); sync(); say([launched, done, t()])"
    assert line(1).run(code) == [[LAUNCH, LAUNCH + SWITCH + MS, 2 * (LAUNCH + MS) + SWITCH]]


def test_figures_repeat(line: Any) -> None:
    """Three programs compete for a card, on a machine with other load."""
    code = """
seen = []
for number in range(40):
    launch({length} + number * 1000)
    if number % {every} == 0:
        sync(); seen.append(t())
until(500 * MS); say(seen)
"""
    codes = [code.format(length=length, every=every) for length, every in ((100_000, 1), (700_000, 3), (3 * MS, 7))]
    noise = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        runs = []
        for _ in range(4):
            node = line(3)
            answers = node.run(*codes)
            runs.append((answers, node.node.card()["busy_ns"], node.node.card()["switches"], node.stolen))
    finally:
        noise.kill()
        noise.wait()
    assert runs[0][3] == 0
    assert runs[1:] == runs[:1] * 3


def test_threads_that_are_due_at_the_same_time_run_by_rank(line: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    node = line(4)
    for rank in (3, 1, 2, 0):
        node.start(f"until(5 * MS); open({str(log)!r}, 'a').write('{rank}'); until(9 * MS); say(1)", rank=rank)
    assert [node.said(process) for process in node.started] == [1] * 4
    assert log.read_text() == "0123"


def test_an_unannounced_wait_elsewhere_is_detected(line: Any) -> None:
    code = """
def body(number):
    clock.functions.thread_adopt(number); until(50 * MS)
thread = threading.Thread(target=body, args=(clock.functions.thread_announce(),)); thread.start()
thread.join()
say(t())
"""
    node = line(1)
    assert node.run(code)[0] == 50 * MS
    assert node.stolen > 0


@pytest.mark.parametrize("where", ["until(NEVER - BEGIN)", "while True: pass"])
def test_a_killed_process_blocks_no_other(line: Any, where: str) -> None:
    node = line(2)
    victim = node.start(f"until(10 * MS); say(1)\n{where}")
    other = node.start("launch(MS); sync(); until(100 * MS); launch(MS); sync(); say(t())")
    assert victim.stdout.readline() == "1\n"
    victim.kill()
    assert node.said(other) == 100 * MS + LAUNCH + MS
