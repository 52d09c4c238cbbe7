"""How the card's time is shared, to the nanosecond, in virtual time: slices, streams, meetings, NVML's figure."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

MS = 1_000_000
LAUNCH, SYNCHRONIZE = 4_000, 2_000  #: ns that a call costs its thread
SWITCH = 50_000
RUN_AHEAD = 1024

FLOOD = "while t() < {end}: launch({ns})\nuntil({end} + 1); say(0)"


def timed(simctl: Any, profile: str = "t4x1", **timing: float) -> Any:
    return {**simctl.load_profile(profile), "timing": timing}


def busy(line: Any, card: int = 0) -> list[int]:
    """Busy ns of the processes that are alive, by rank."""
    found = sorted(line.node.card(card)["processes"], key=lambda process: process["group"])
    return [process["busy_ns"] for process in found]


class Look:
    """A program that stops time at `time`, so that the test can read the ledger, and then goes on."""

    def __init__(self, line: Any, time: int) -> None:
        code = f"until({time}); clock.hold(1); say(1); sys.stdin.read(); clock.hold(0); say(2)"
        self.process = line.start(code, rank=99, CARDS="no")

    def reached(self) -> None:
        assert self.process.stdout.readline() == "1\n"


@pytest.mark.parametrize("slice_us", [300, 2000])
def test_slices(line: Any, simctl: Any, slice_us: int) -> None:
    """Two processes that always have work get half each, less the context switches. Kernels' length does not matter."""
    end = 200 * MS
    node = line(3, timed(simctl, slice_us=slice_us))
    for number, ns in enumerate((20_000, 200 * MS)):
        node.start(FLOOD.format(ns=ns, end=end), VGPU_SIM_GROUP=str(number))
    Look(node, end).reached()
    each = end / 2 * slice_us / (slice_us + SWITCH / 1000)
    assert busy(node) == [pytest.approx(each, abs=slice_us * 1000)] * 2
    assert node.node.card()["switches"] == pytest.approx(end / (slice_us * 1000 + SWITCH), abs=2)


def test_a_kernel_is_interrupted_and_goes_on(line: Any) -> None:
    long, short = line(2).run(
        "a = event(); launch(200 * MS); b = event(); say(between(a, b))", "until(50 * MS); launch(MS); sync(); say(t())"
    )
    assert 50 * MS < short <= 50 * MS + LAUNCH + 2 * MS + MS + SWITCH
    assert long == pytest.approx(201 * MS + 3 * SWITCH, abs=SWITCH)


def test_whole_kernels_end_before_others_begin(line: Any, simctl: Any) -> None:
    """A kernel that runs keeps the card, and another that would fit beside it begins in the context's next slice."""
    code = (
        "a, b = stream(), stream(); launch(10 * MS, a, grid=1); until(5 * MS); launch(MS, b, grid=1); sync(b); say(t())"
    )
    other = "until(3 * MS); launch(2 * MS); sync(); say(t())"
    long, short = line(2, timed(simctl, whole_kernels=1)).run(code, other)
    assert short == LAUNCH + SWITCH + 10 * MS + SWITCH + 2 * MS
    assert long == short + SWITCH + MS


@pytest.mark.parametrize(("slice_us", "idle_us", "end"), [(9000, 800, 2_404_000), (2000, 8000, 2_054_000)])
def test_an_idle_context_keeps_its_slice(line: Any, simctl: Any, slice_us: int, idle_us: int, end: int) -> None:
    """It goes on at once with work that comes in time. It loses the card after `idle_us`, or when its slice ends."""
    code = "launch(MS); sync(); until(1_500_000); launch(MS // 10); sync(); done = t(); until(20 * MS); say(done)"
    other = "until(1_200_000); launch(MS); sync(); say(t())"
    times = line(2, timed(simctl, slice_us=slice_us, idle_us=idle_us)).run(code, other)
    assert times == [1_500_000 + LAUNCH + MS // 10, end + SWITCH + MS]


def test_contexts_share_copy_engines(line: Any, simctl: Any) -> None:
    """Each copies 12 MB both ways, which takes 1 ms and the latency: by turns, but the two directions side by side."""
    code = """
size = 12_000_000; space, host = memory(size), ctypes.create_string_buffer(size); until(MS)
check(cuda.cuMemcpyHtoD_v2(space, host, ctypes.c_size_t(size))); to = t()
check(cuda.cuMemcpyDtoH_v2(host, space, ctypes.c_size_t(size))); say([to, t()])
"""
    first, second = line(2, timed(simctl, shared_copies=1)).run(code, code)
    assert [*first, *second] == [pytest.approx(count * (MS + 2_000), abs=20_000) for count in (2, 3, 3, 4)]


@pytest.mark.parametrize(
    "work", ["event() and 0", "cuda.cuStreamWriteValue32_v2(*word)", "cuda.cuStreamWaitValue32_v2(*word)"]
)
def test_events_need_a_turn(line: Any, simctl: Any, work: str) -> None:
    """The stream reaches them when the other's slice has ended, and its context has no more work then."""
    node = line(2, timed(simctl, event_turn=1))
    node.start(FLOOD.format(ns=5 * MS, end=20 * MS))
    code = (
        f"word = None, memory(4), 0, 0; until(MS); check({work}); sync(); at = t(); launch(MS); sync(); say([at, t()])"
    )
    assert node.said(node.start(code)) == [LAUNCH + 2 * MS + 2 * SWITCH, LAUNCH + 5 * MS + 4 * SWITCH]


@pytest.mark.parametrize("look_us", [300, 5000])
def test_a_stream_that_waits_for_a_value_looks_now_and_then(line: Any, simctl: Any, look_us: int) -> None:
    """From when it gets there on. The value is there after 7 ms."""
    code = """
waits, word = stream(), memory(4)
check(cuda.cuStreamWaitValue32_v2(waits, word, 1, 0)); began = t(); until(began + 7 * MS)
check(cuda.cuStreamWriteValue32_v2(stream(), word, 1, 0)); sync(waits); say(t() - began)
"""
    (said,) = line(1, timed(simctl, value_look_us=look_us)).run(code)
    assert said == pytest.approx(math.ceil(7_000 / look_us) * look_us * 1000, abs=20_000)


def test_threads_wake_late(line: Any, simctl: Any) -> None:
    """After a sleep, and a wait for the card; but not a program that uses no card. The same program wakes as late."""
    waits = "until(due); late.append(t() - due); launch(MS); due = t() + MS; sync(); late.append(t() - due)"
    code = f"late = []\nfor _ in range(250): due = t() + MS; {waits}\nsay(late)"
    nodes, cardless = [line(2, timed(simctl, late_us=200)) for _ in range(2)], "until(7 * MS); say(t())"
    runs = [[node.said(each) for each in (node.start(code), node.start(cardless, CARDS="no"))] for node in nodes]
    assert runs[0] == runs[1] == [runs[0][0], 7 * MS]
    for late in (runs[0][0][::2], runs[0][0][1::2]):
        assert sum(late) / 250 == pytest.approx(200_000, rel=0.15)
        assert sum(ns > 200_000 for ns in late) / 250 == pytest.approx(math.exp(-1), rel=0.15)


def test_a_quota_stops_threads(line: Any, simctl: Any) -> None:
    """They run in 30 ms of each 100, at another time in another process, when they wait and when they compute."""
    code = "seen = []\nwhile t() < 1000 * MS: {}; seen.append(t())\nsay(seen)"
    codes = [code.format(step) for step in ("until(t() + MS)", "clock.functions.charge(MS)")]
    begins = []
    for seen in line(2, timed(simctl, cpu_percent=30)).run(*codes):
        begins.append({after % (100 * MS) for before, after in itertools.pairwise(seen) if after - before > 10 * MS})
        (begin,) = begins[-1]
        assert max((at - begin) % (100 * MS) for at in seen) == pytest.approx(30 * MS, abs=MS)
    assert begins[0] != begins[1]


def test_launches_run_ahead_and_then_block(line: Any) -> None:
    code = f"""
times = []
for _ in range({RUN_AHEAD + 20}):
    launch(MS); times.append(t())
say([times[0], times[{RUN_AHEAD - 1}], times[-1]])
"""
    first, last, blocked = line(1).run(code)[0]
    assert (first, last) == (LAUNCH, RUN_AHEAD * LAUNCH)
    assert blocked == 20 * MS + LAUNCH + SWITCH


@pytest.mark.parametrize(
    ("work", "kernels"),
    [
        ("launch(MS, a, grid=1); launch(MS, b, grid=1); sync(a); sync(b)", 1),
        ("launch(MS, a, grid=1); check(cuda.cuStreamWaitEvent(b, event(a), 0)); launch(MS, b, grid=1); sync(b)", 2),
        ("launch(MS, blocking, grid=1); launch(MS, grid=1); sync()", 2),
        ("launch(MS, a, grid=1); check(cuda.cuMemFree_v2(memory(4096)))", 1),
    ],
    ids=["none", "an event", "the default stream", "a free"],
)
def test_what_waits_for_what(line: Any, work: str, kernels: int) -> None:
    """Kernels that do not fill the card run at the same time, unless the one has to wait for the other."""
    streams = (
        "a, b, blocking = stream(), stream(), ctypes.c_void_p(); check(cuda.cuStreamCreate(ctypes.byref(blocking), 0))"
    )
    assert line(1).run(f"{streams}; {work}; say(t())")[0] == pytest.approx(kernels * MS + SWITCH, abs=20_000)


def test_a_higher_priority_comes_next(line: Any) -> None:
    """It overtakes all kernels that have not begun. A running kernel is not interrupted."""
    code = """
low, high = stream(0), stream(-5)
for _ in range(10): launch(MS, low)
until(1_500_000); launch(MS, high); sync(high); first = t(); sync(low); say([first, t()])
"""
    begin = LAUNCH + SWITCH
    assert line(1).run(code) == [[begin + 3 * MS, begin + 11 * MS]]


def test_small_kernels_of_a_context_share_the_card(line: Any) -> None:
    """A T4 has room for 40 blocks of 1,024 threads: four grids of ten at a time."""
    code = """
queues = [stream() for _ in range(8)]
for queue in queues: launch(MS, queue, grid=10)
check(cuda.cuCtxSynchronize()); say(t())
"""
    node = line(1)
    assert node.run(code)[0] == pytest.approx(2 * MS + SWITCH, abs=8 * LAUNCH)
    assert node.node.card()["busy_ns"] == pytest.approx(2 * MS, abs=8 * LAUNCH)


def test_kernels_meet_across_cards(line: Any) -> None:
    """The first waits, and keeps its card busy, until the second has begun."""
    code = """
on(0); launch(MS, card=0, meet=(7, 2)); until(20 * MS)
on(1); launch(MS, card=1, meet=(7, 2)); sync(); second = t()
on(0); sync(); say([second, t()])
"""
    node = line(1, "a100x2")
    second = 20 * MS + LAUNCH + SWITCH + MS
    assert node.run(code) == [[second, second + SYNCHRONIZE]]
    assert node.node.card(0)["busy_ns"] == pytest.approx(second, abs=LAUNCH + SWITCH + 1)
    assert node.node.card(1)["busy_ns"] == MS


NVML = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
check(nvml.nvmlInit_v2())
card = ctypes.c_void_p()
check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)))
def utilization():
    rates = (ctypes.c_uint * 2)()
    check(nvml.nvmlDeviceGetUtilizationRates(card, rates))
    return rates[0]
"""


def test_utilization_is_that_of_the_last_period(line: Any, simctl: Any) -> None:
    """Half a period's work is visible after the period, for one period."""
    period = 1000 * MS
    origin = -(-(1000 * 10**9) // period) * period - 1000 * 10**9  # where the first whole period begins
    code = f"""{NVML}
until({origin})
launch({period // 2})
seen = []
for at in (0.6, 1.1, 1.9, 2.1):
    until({origin} + int(at * {period})); seen.append(utilization())
say(seen)
"""
    assert line(1, timed(simctl, sample_us=period // 1000)).run(code)[0] == [0, pytest.approx(50, abs=1), 50, 0]


def test_groups_and_what_runs_are_in_the_ledger(line: Any) -> None:
    """A kernel counts while it runs: 30 ms of it at the time of the look."""
    node = line(2)
    node.start("launch(100 * MS); until(200 * MS); say(0)", VGPU_SIM_GROUP="5")
    Look(node, 30 * MS + LAUNCH + SWITCH).reached()
    (process,) = node.node.card()["processes"]
    assert (process["group"], process["busy_ns"]) == (5, pytest.approx(30 * MS, abs=2))
    assert node.node.card()["busy_ns"] == process["busy_ns"]
