"""How the card's time is shared, to the nanosecond, in virtual time: slices, priorities, copies, NVML's samples."""

from __future__ import annotations

from typing import Any

import pytest

MS = 1_000_000
LAUNCH, COPY, SYNCHRONIZE = 4_000, 3_000, 2_000  #: ns that a call costs its thread
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


@pytest.mark.parametrize("slice_us", [300, 1000, 2000, 5000])
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


def test_a_context_without_work_is_skipped(line: Any) -> None:
    """The card does not wait for it, and only the context switches cost time."""
    code = "until({begin})\nfor _ in range({count}): launch(MS); sync(); until(t() + 1_000_000)\nsay(t())"
    ends = line(2).run(code.format(begin=0, count=10), "launch(100 * MS); sync(); say(t())")
    assert ends[0] < 10 * (4 * MS + 2 * SWITCH) + 10 * MS
    assert ends[1] == pytest.approx(110 * MS + 20 * SWITCH, abs=2 * MS)


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


def test_a_higher_priority_comes_next(line: Any) -> None:
    """It overtakes all kernels that have not begun. A running kernel is not interrupted."""
    code = """
low, high = stream(0), stream(-5)
for _ in range(10): launch(MS, low)
until(1_500_000); launch(MS, high); sync(high); first = t(); sync(low); say([first, t()])
"""
    begin = LAUNCH + SWITCH
    assert line(1).run(code) == [[begin + 3 * MS, begin + 11 * MS]]


def test_streams_of_one_priority_alternate(line: Any) -> None:
    code = """
queues = [stream(), stream()]
for queue in queues:
    for _ in range(10): launch(MS, queue)
sync(queues[1]); first = t(); sync(queues[0]); say([first, t()])
"""
    first, last = line(1).run(code)[0]
    assert abs(last - first) <= MS


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


@pytest.mark.parametrize(
    ("work", "is_busy"),
    [
        ("check(cuda.cuMemsetD8Async(target, 0, ctypes.c_size_t(64 << 20), None))", True),
        ("check(cuda.cuMemcpyDtoDAsync_v2(target, source, ctypes.c_size_t(64 << 20), None))", True),
        ("check(cuda.cuMemcpyHtoDAsync_v2(target, pinned, ctypes.c_size_t(64 << 20), None))", False),
        ("check(cuda.cuMemcpyDtoHAsync_v2(pinned, target, ctypes.c_size_t(64 << 20), None))", False),
    ],
)
def test_what_keeps_the_card_busy(line: Any, work: str, is_busy: bool) -> None:
    """Multiprocessors do fills and copies within the card, and no copies over the bus."""
    code = f"target, source, pinned = memory(64 << 20), memory(64 << 20), host(64 << 20); begin = t(); {work}; sync()"
    node = line(1)
    took = node.run(f"{code}; say(t() - begin)")[0]
    assert took > 0.1 * MS
    assert node.node.card()["busy_ns"] == (pytest.approx(took, abs=SWITCH + COPY + 1) if is_busy else 0)


def test_copies_of_one_direction_follow_each_other(line: Any) -> None:
    code = """
target, pinned, size = memory(64 << 20), host(64 << 20), ctypes.c_size_t(64 << 20)
queues = [stream() for _ in range(3)]
begin = t(); check(cuda.cuMemcpyHtoDAsync_v2(target, pinned, size, queues[0])); sync(queues[0]); one = t() - begin
begin = t()
for queue in queues[:2]: check(cuda.cuMemcpyHtoDAsync_v2(target, pinned, size, queue))
check(cuda.cuMemcpyDtoHAsync_v2(pinned, target, size, queues[2]))
sync(queues[2]); there = t() - begin; sync(queues[0]); sync(queues[1]); say([one, there, t() - begin])
"""
    one, opposite, two = line(1).run(code)[0]
    assert opposite == pytest.approx(one, abs=5 * COPY)
    assert two == pytest.approx(2 * one, abs=5 * COPY)


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


def test_kernels_meet_across_processes_again_and_again(line: Any) -> None:
    code = "on({card})\nfor _ in range(10): launch(MS, card={card}, meet=(7, 2)); until(t() + {gap})\nsync(); say(t())"
    node = line(2, "a100x2")
    quick, slow = node.run(code.format(card=0, gap=0), code.format(card=1, gap=3 * MS))
    assert quick == pytest.approx(slow, abs=3 * MS + SWITCH)
    assert slow == pytest.approx(10 * 3 * MS, abs=MS)


def test_a_kernel_that_waits_for_a_partner_yields_to_others(line: Any) -> None:
    lonely = "launch(MS, meet=(7, 2)); until(100 * MS); say(cuda.cuStreamQuery(None))"
    assert line(2).run(lonely, "for _ in range(10): launch(MS)\nsync(); say(t() < 25 * MS)") == [600, True]


NVML = """
class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("time_us", ctypes.c_ulonglong), ("sm", ctypes.c_uint), ("", ctypes.c_uint * 3)]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
check(nvml.nvmlInit_v2())
card = ctypes.c_void_p()
check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)))
def utilization():
    rates = (ctypes.c_uint * 2)()
    check(nvml.nvmlDeviceGetUtilizationRates(card, rates))
    return rates[0]
def samples():
    found, count = (Sample * 100)(), ctypes.c_uint(100)
    result = nvml.nvmlDeviceGetProcessUtilization(card, found, ctypes.byref(count), ctypes.c_ulonglong(0))
    return [sample.sm for sample in found[:count.value]] if result == 0 else result
"""


@pytest.mark.parametrize("period_us", [166667, 1000000])
def test_utilization_is_that_of_the_last_period(line: Any, simctl: Any, period_us: int) -> None:
    """Half a period's work is visible after the period, for one period."""
    period = period_us * 1000
    origin = -(-(1000 * 10**9) // period) * period - 1000 * 10**9  # where the first whole period begins
    code = f"""{NVML}
until({origin})
launch({period // 2})
seen = []
for at in (0.6, 1.1, 1.9, 2.1):
    until({origin} + int(at * {period})); seen.append(utilization())
say(seen)
"""
    assert line(1, timed(simctl, sample_us=period_us)).run(code)[0] == [0, pytest.approx(50, abs=1), 50, 0]


def test_samples_of_processes_are_late(line: Any) -> None:
    code = f"""{NVML}
def work(seconds):
    end = t() + seconds * 1000 * MS
    while t() < end: launch(MS); until(t() + 2 * MS)
    return samples()
seen = [work(0.6), work(2)]
until(t() + 10_000 * MS)
say([*seen, samples()])
"""
    missing = 6
    assert line(1).run(code) == [[missing, [pytest.approx(50, abs=2)], missing]]


def test_groups_and_what_runs_are_in_the_ledger(line: Any) -> None:
    """A kernel counts while it runs: 30 ms of it at the time of the look."""
    node = line(2)
    node.start("launch(100 * MS); until(200 * MS); say(0)", VGPU_SIM_GROUP="5")
    Look(node, 30 * MS + LAUNCH + SWITCH).reached()
    (process,) = node.node.card()["processes"]
    assert (process["group"], process["busy_ns"]) == (5, pytest.approx(30 * MS, abs=2))
    assert node.node.card()["busy_ns"] == process["busy_ns"]
