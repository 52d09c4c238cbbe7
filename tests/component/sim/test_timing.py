"""How the card's time is shared, to the nanosecond, in virtual time: slices, streams, meetings, NVML's figure."""

from __future__ import annotations

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
