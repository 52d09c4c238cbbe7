"""The self-test's program on the simulated driver: what it says it did is what the simulator's ledger has.

Belongs here: commands and answers of libvcuda/selftest. What `vgpuctl selftest` makes of them has tests of its own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from checkout import BUILD

from vgpu.config.errors import VgpuError
from vgpu.node.selftest.program import Program

PROGRAM = str(BUILD / "bin/vgpu-selftest")
MIB, MS, SECOND = 1 << 20, 1_000_000, 1_000_000_000
KINDS = ("device", "pitch", "managed", "array", "pool", "mapping", "graph")
OUT_OF_MEMORY = 2
CODE = 64 << 10  #: bytes of the card that the program's own code takes
#: Load -> kernels in a round, and the least part of a second that it works when it is alone.
LOADS = {
    "flood kernel=1000000": (1, 0.99),
    "service work=2000000 period=20000000": (1, 0.1),
    "pauses work=2000000 gap=1000000": (1, 0.6),
    "pauses work=2000000 gap=1000000 wait=event": (1, 0.6),
    "pauses work=2000000 gap=1000000 wait=poll": (1, 0.6),
    "graphs kernel=100000 nodes=20": (20, 0.98),
    "copies kernel=1000000 bytes=1048576": (1, 0.95),
}


@pytest.fixture
def node(make_node: Any) -> Any:
    """One T4 in virtual time."""
    return make_node("t4x1", clock="virtual")


@pytest.fixture
def program(node: Any) -> Any:
    started = Program([PROGRAM], str(node.directory / "log"), node.environment())
    assert started.ask("hello")["cards"][0]["name"] == "Tesla T4"
    assert started.ask("use 0")["code"] == 0
    yield started
    started.close()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("no", "there is no command no "),
        ("run idle begin=1 end=2", "there is no command run idle"),
        ("alloc device", "alloc: expected KIND BYTES#"),
        ("alloc device 1 2", "alloc: expected KIND BYTES#"),
        ("alloc device -1", "alloc: expected KIND BYTES#"),
        ("alloc device 99999999999999999999", "alloc: expected KIND BYTES#"),
        ("alloc paper 1", "paper: there is no such kind of memory"),
        ("run flood kernel=1 begin=1", "run: expected LOAD kernel=# begin=# end=# [ahead=4]"),
        ("run flood kernel=1 begin=1 end=2 ahead=0", "run flood: expected ahead from 1 to 512"),
        ("run pauses work=1 gap=1 begin=1 end=2 wait=long", "run pauses: expected wait=stream, event or poll"),
        ("use GPU-0", "use: there is no card GPU-0"),
        ("free 7", "free: nothing is held as 7"),
        ("cost sleep count=1", "cost: expected launch, alloc, event or pair, and a count from 1 to 20000"),
    ],
)
def test_words_that_make_no_sense_are_an_error(program: Program, line: str, found: str) -> None:
    with pytest.raises(VgpuError) as raised:
        program.ask(line)
    assert raised.value.found == found


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_memory_is_taken_and_given_back(node: Any, program: Program, kind: str) -> None:
    for size in (1, MIB, 100 * MIB):
        taken = program.ask(f"alloc {kind} {size}")
        assert (taken["code"], taken["bytes"] >= size) == (0, True)
        assert 0 <= node.held() - taken["bytes"] - CODE < 512
        assert program.ask(f"free {taken['id']}") == {"code": 0}
    filled = program.ask(f"fill {kind} {1 << 30}")
    if kind == "managed":  # it goes on in the host's memory
        assert filled["bytes"] > program.ask("memory")["total"]
    else:
        assert filled["code"] == OUT_OF_MEMORY
        assert program.ask("memory")["free"] < 2 * MIB
    assert program.ask("free all") == {"code": 0}
    assert node.held() == CODE


@pytest.mark.parametrize("load", LOADS)
def test_the_work_of_a_load_is_what_the_card_did(node: Any, program: Program, load: str) -> None:
    kernels, least = LOADS[load]
    begin = program.ask("clock")["now"] + SECOND
    before = node.card()["busy_ns"]
    answer = program.ask(f"run {load} begin={begin} end={begin + SECOND}")
    busy = node.card()["busy_ns"] - before
    kernel = answer["work"] // answer["rounds"] // kernels
    assert (answer["code"], answer["begin"], answer["lost"]) == (0, begin, 0)
    assert answer["work"] >= least * SECOND
    assert 0 <= busy - answer["work"] <= 5 * kernels * kernel  # what had begun at the end
    assert answer["latency"]["p50"] <= answer["latency"]["p99"] <= answer["latency"]["max"]


def test_by_the_walls_clock_it_says_for_how_long_it_had_no_processor(make_node: Any) -> None:
    node = make_node("t4x1")
    program = Program([PROGRAM], str(node.directory / "log"), node.environment())
    program.ask("hello")
    program.ask("use 0")
    begin = program.ask("clock")["now"]
    answer = program.ask(f"run flood kernel={MS} begin={begin} end={begin + 100 * MS}")
    program.close()
    assert answer["lost"] > 0  # the kernel counts ns, and threads that wake wait for some


def test_time_stands_still_from_clock_to_the_next_command(node: Any, program: Program) -> None:
    """So that several programs can be told to begin at one time."""
    other = Program([PROGRAM], str(node.directory / "log"), node.environment())
    other.ask("hello")
    now = program.ask("clock")["now"]
    other.send(f"sleep until={now + SECOND}")
    assert node.simctl.read_state(str(node.directory))["clock"]["now"] - now < MS
    program.ask("hello")
    assert other.receive("sleep") == {"now": now + SECOND}
    other.close()


@pytest.mark.parametrize("version", ["470.256.02", "615.71.09"])
def test_the_oldest_and_the_newest_release_have_all_that_it_calls(node: Any, tmp_path: Path, version: str) -> None:
    for name in ("libcuda", "libnvidia-ml"):
        (tmp_path / f"{name}.so.1").symlink_to(BUILD / f"lib/drivers/{version}/{name}.so.{version}")
    program = Program([PROGRAM], str(tmp_path / "log"), {**node.environment(), "LD_LIBRARY_PATH": str(tmp_path)})
    assert program.ask("hello")["release"] == version
    assert program.ask("use 0")["code"] == 0
    for kind in KINDS:
        assert program.ask(f"alloc {kind} {MIB}")["code"] == 0
    listed = program.ask("processes")
    assert [one["pid"] for one in listed["listed"]] == [listed["own"]]
    assert program.ask("run graphs kernel=100000 nodes=20 begin=0 end=0")["code"] == 0
    program.close()


def test_without_a_driver_every_answer_says_so() -> None:
    command = [PROGRAM, "--library", "none.so"]
    done = subprocess.run(command, input="hello\nuse 0\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count('{"missing": "none.so: cannot open')) == (0, 2)
