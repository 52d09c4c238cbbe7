"""Virtual time: it advances when all threads wait, in a defined order. A thread that has ended or waits elsewhere does
not stop it for ever.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
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


def test_time_begins_when_all_are_there(line: Any) -> None:
    node = line(2)
    early = node.start("say(t())")
    time.sleep(0.5)
    assert early.poll() is None
    late = node.start("say(t())")
    assert [node.said(early), node.said(late)] == [0, 0]


def test_words_wake_across_processes(line: Any, tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(bytes(4096))
    word = f"word = shared_word({str(tmp_path / 'words')!r}); "
    waiting = word + "padding = mmap.mmap(-1, 1 << 20); wait(word, 0); say([word.value, t()])"
    late = word + "wait(word, 0, 2 * MS); first = t(); wait(word, 7); say([first, t()])"
    waking = word + "until(5 * MS); wake(word); after = t(); until(6 * MS); say(after)"
    assert line(3).run(waiting, late, waking) == [[1, 5 * MS], [2 * MS, 2 * MS], 5 * MS]


def test_a_new_thread_counts_from_its_announcement(line: Any) -> None:
    """Time does not advance while the kernel is still starting it."""
    code = """
seen = []
def body(number):
    clock.functions.thread_adopt(number); seen.append(t()); until(3 * MS); seen.append(t())
def slow(number):
    time.sleep(0.3); body(number)
threads = [threading.Thread(target=target, args=(clock.functions.thread_announce(),)) for target in (slow, body)]
for thread in threads: thread.start()
until(10 * MS)
say(seen)
"""
    node = line(1)
    assert node.run(code) == [[0, 0, 3 * MS, 3 * MS]]
    assert node.stolen == 0


def test_a_thread_that_announces_a_wait_elsewhere_does_not_count(line: Any) -> None:
    code = """
def body(number):
    clock.functions.thread_adopt(number); until(50 * MS)
thread = threading.Thread(target=body, args=(clock.functions.thread_announce(),)); thread.start()
clock.leave(); thread.join(); clock.enter()
say(t())
"""
    node = line(1)
    assert node.run(code)[0] == 50 * MS
    assert node.stolen == 0


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


@pytest.mark.parametrize("where", ["until(NEVER - BEGIN)", "time.sleep(60)", "while True: pass"])
def test_a_killed_process_blocks_no_other(line: Any, where: str) -> None:
    node = line(2)
    victim = node.start(f"until(10 * MS); say(1)\n{where}")
    other = node.start("launch(MS); sync(); until(100 * MS); launch(MS); sync(); say(t())")
    assert victim.stdout.readline() == "1\n"
    victim.kill()
    assert node.said(other) == 100 * MS + LAUNCH + MS


def test_a_stopped_process_blocks_no_other_and_comes_back(line: Any) -> None:
    node = line(2)
    victim = node.start("until(10 * MS); os.kill(os.getpid(), signal.SIGSTOP); until(20 * MS); say(t())")
    other = node.start("until(5 * MS); launch(MS); sync(); until(100 * MS); say(t()); clock.hold(1); sys.stdin.read()")
    assert json.loads(other.stdout.readline()) == 100 * MS
    victim.send_signal(signal.SIGCONT)
    assert other.communicate(timeout=60)[0] == ""
    assert (node.said(victim), node.stolen) == (100 * MS, 0)


def test_time_stands_still_while_a_thread_holds_it(line: Any) -> None:
    node = line(2)
    code = (
        "until(5 * MS); clock.hold(1); time.sleep(0.5); before = t(); clock.hold(0); until(9 * MS); say([before, t()])"
    )
    assert node.run(code, "until(7 * MS); say(t())") == [[5 * MS, 9 * MS], 7 * MS]
    assert node.stolen == 0


def test_both_libraries_are_one_process(line: Any) -> None:
    """A thread that also calls libnvidia-ml is the same thread."""
    code = """
other = Clock("libnvidia-ml.so.1")
until(3 * MS); other.sleep_until(BEGIN + 5 * MS); before = t(); until(6 * MS)
say([before, other.now() - BEGIN])
"""
    node = line(1)
    assert node.run(code) == [[5 * MS, 6 * MS]]
    assert node.stolen == 0


def test_a_child_is_not_its_parent(line: Any) -> None:
    code = """
child = os.fork()
if not child:
    os._exit(cuda.cuInit(0))
clock.leave(); status = os.waitpid(child, 0)[1]; clock.enter()
until(5 * MS); launch(MS); sync()
say([os.waitstatus_to_exitcode(status), t()])
"""
    assert line(1).run(code) == [[3, 5 * MS + LAUNCH + SWITCH + MS]]


def test_polling_ends(line: Any) -> None:
    """Queries cost time, so the awaited event comes."""
    code = "launch(MS); last = event(); polls = 0\nwhile cuda.cuEventQuery(last): polls += 1\nsay([polls, t()])"
    polls, end = line(1).run(code)[0]
    assert 1_900 < polls < 2_200
    assert MS < end < 1.2 * MS


def test_the_functions_mean_the_same_in_real_time(line: Any) -> None:
    code = """
word = ctypes.c_uint32(0)
begin = clock.now(); clock.sleep_until(begin + 5 * MS); slept = clock.now() - begin
clock.functions.wait(ctypes.byref(word), 1, NEVER)
clock.functions.wait(ctypes.byref(word), 0, clock.now() + 5 * MS)
thread = threading.Thread(target=wait, args=(word, 0)); thread.start()
wake(word); thread.join()
say([clock.functions.is_virtual(), slept >= 5 * MS, abs(clock.now() - time.monotonic_ns()) < 1e9])
"""
    assert line(1, clock="wall").run(code) == [[0, True, True]]
