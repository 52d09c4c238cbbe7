"""libvcuda charges every function that starts work on a card, or docs/compute-limit.md gives the reason why not.

The tests compare the charges with the simulator's ledger of finished work.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Callable

import pytest
import recorded_drivers
from checkout import LIBRARIES
from vcuda_boxes import CHECKOUT, Client, SimBox, load_simctl

from vgpu.config import limits, usage

HOOKS = CHECKOUT / "libvcuda/src/driver/cuda_table.h"
DOCS = CHECKOUT / "docs/compute-limit.md"
#: Patterns of names of functions that submit work to a card or a stream.
WORK = re.compile(
    r"^cu(Launch|Memset|Memcpy|GraphLaunch|GraphUpload|.*Async|.*(Cpy|Copy)Batch|Ctx.*Event$|GreenCtx.*Event$)"
)
DOUBLES = LIBRARIES[1]
BYTES = 1 << 20
PITCH = 8192


def documented() -> dict[str, list[str]]:
    """The rows of the table under "What is accounted": patterns of names by what is done."""
    text = DOCS.read_text().partition("## What is accounted\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    return {done.strip(): re.findall(r"`(cu[^`]*)`", names) for done, names in rows if "`" in names}


def names() -> list[str]:
    """Nearly all functions that take a stream have variants for per-thread default streams."""
    known = recorded_drivers.functions("libcuda")
    streams = {re.sub(r"_pt[sd][sz]$", "", name) for name in known if re.search(r"_pt[sd][sz]$", name)}
    return [name for name in known if WORK.match(name) or re.sub(r"_pt[sd][sz]$", "", name) in streams]


def test_every_function_that_takes_a_stream_is_known_to_the_docs() -> None:
    table = documented()
    hooked = set(re.findall(r"HOOK\((\w+),", HOOKS.read_text()))
    assert len(table) == 9
    for name in names():
        rows = [done for done, patterns in table.items() if any(fnmatchcase(name, one) for one in patterns)]
        assert len(rows) == 1, f"{name}: {rows or 'not in docs/compute-limit.md, What is accounted'}"
        assert name in hooked or rows[0].startswith("no: "), name


def test_the_table_names_no_function_that_there_is_not() -> None:
    known = recorded_drivers.functions("libcuda")
    for pattern in (pattern for patterns in documented().values() for pattern in patterns):
        assert any(fnmatchcase(name, pattern) for name in known), pattern


# ---- the time that calls take, by the card's ledger, in virtual time ----

PTX = ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry spin_200us() { ret; }\n"
BOX_2D = "{{N:0,N:0,i:2,P:0,Q:{b},P:0,N:8192,N:0,N:0,i:2,P:0,Q:{a},P:0,N:8192,N:8192,N:{rows}}}"
BOX_3D = (
    "{{N:0,N:0,N:0,N:0,i:2,P:0,Q:{b},P:0,P:0,N:8192,N:{rows},"
    "N:0,N:0,N:0,N:0,i:2,P:0,Q:{a},P:0,P:0,N:8192,N:{rows},N:8192,N:{rows},N:1}}"
)
ANY_2D = BOX_2D.replace("i:2", "i:4")  # CU_MEMORYTYPE_UNIFIED
CONFIG = "{{I:1,I:1,I:1,I:32,I:1,I:1,I:0,P:%s,P:0,I:0}}"
PARAMS = "{{P:{f},I:1,I:1,I:1,I:32,I:1,I:1,I:0,P:{stream},P:0}}"
GRID = "1 1 1 32 1 1 0"
#: Bytes that the program keeps, and their kind of memory.
KEEP = "kept.append(ctypes.create_string_buffer(%r)) or ctypes.addressof(kept[-1])"

FILLS = [
    *(f"cuMemset{name} {{low}} 1 {{n}}/{size}" for name, size in (("D8", 1), ("D16", 2), ("D32", 4))),
    *(
        f"cuMemset{name}{form} {{a}} 1 {{n}}/{size}{stream}"
        for name, size in (("D8", 1), ("D16", 2), ("D32", 4))
        for form, stream in (("_v2", ""), ("_v2_ptds", ""), ("Async", " {stream}"), ("Async_ptsz", " 0"))
    ),
    *(
        f"cuMemset{name}{form} {{a}} 8192 1 8192/{size} {{rows}}{stream}"
        for name, size in (("D2D8", 1), ("D2D16", 2), ("D2D32", 4))
        for form, stream in (("_v2", ""), ("_v2_ptds", ""), ("Async", " {stream}"), ("Async_ptsz", " 0"))
    ),
]
COPIES = [
    *(f"cuMemcpy{name} {{a}} {{b}} {{n}}" for name in ("", "_ptds", "DtoD_v2", "DtoD_v2_ptds")),
    *(f"cuMemcpy{name} {{a}} {{b}} {{n}} {{stream}}" for name in ("Async", "DtoDAsync_v2")),
    *(f"cuMemcpy{name} {{a}} {{b}} {{n}} 0" for name in ("Async_ptsz", "DtoDAsync_v2_ptsz")),
    "cuMemcpyDtoD {low} {other} {n}",
    "cuMemcpyDtoDAsync {low} {other} {n} {stream}",
    *(f"cuMemcpy{name} {{a}} {{context}} {{b}} {{context}} {{n}}" for name in ("Peer", "Peer_ptds")),
    *(f"cuMemcpyPeerAsync{form} {{a}} {{context}} {{b}} {{context}} {{n}} {{stream}}" for form in ("", "_ptsz")),
    *(f"cuMemcpyDtoA_v2{form} {{array}} 0 {{a}} {{row}}" for form in ("", "_ptds")),
    *(f"cuMemcpyAtoD_v2{form} {{a}} {{array}} 0 {{row}}" for form in ("", "_ptds")),
    *(f"cuMemcpyAtoA_v2{form} {{array}} 0 {{array2}} 0 {{row}}" for form in ("", "_ptds")),
    *(f"cuMemcpy2D{form} {box}" for form in ("_v2", "_v2_ptds", "Unaligned_v2") for box in (BOX_2D, ANY_2D)),
    *(f"cuMemcpy2DAsync_v2{form} {BOX_2D} {{stream}}" for form in ("", "_ptsz")),
    *(f"cuMemcpy3D{form} {BOX_3D}" for form in ("_v2", "_v2_ptds", "Peer", "Peer_ptds")),
    *(f"cuMemcpy3D{form} {BOX_3D} {{stream}}" for form in ("Async_v2", "Async_v2_ptsz", "PeerAsync", "PeerAsync_ptsz")),
    "cuMemcpyBatchAsync {{N:{a}}} {{N:{b}}} {{N:{n}}} 1 {{i:1,i:0}} {{N:0}} 1 & {stream}",
]
LAUNCHES = [
    "cuLaunch {f}",
    "cuLaunchGrid {f} 1 1",
    "cuLaunchGridAsync {f} 1 1 {stream}",
    f"cuLaunchKernel {{f}} {GRID} {{stream}} 0 0",
    f"cuLaunchKernel_ptsz {{f}} {GRID} 0 0 0",
    f"cuLaunchKernelEx {CONFIG % '{stream}'} {{f}} 0 0",
    f"cuLaunchKernelEx_ptsz {CONFIG % '0'} {{f}} 0 0",
    f"cuLaunchCooperativeKernel {{f}} {GRID} {{stream}} 0",
    f"cuLaunchCooperativeKernel_ptsz {{f}} {GRID} 0 0",
    f"cuLaunchCooperativeKernelMultiDevice {PARAMS} 1 0",
    "cuGraphLaunch {graph} {stream}",
    "cuGraphLaunch_ptsz {graph} 0",
]
ELSEWHERE = [
    "cuMemcpyHtoD_v2 {a} {host} {n}",
    "cuMemcpyDtoH_v2 {host} {a} {n}",
    "cuMemcpyHtoDAsync_v2 {a} {host} {n} {stream}",
    "cuMemcpyAsync {a} {host} {n} {stream}",
    "cuMemcpy {host} {b} {n}",
    *(f"cuMemcpy2D_v2 {ANY_2D.replace(side, '{host}')}" for side in ("{a}", "{b}")),
    "cuGraphUpload {graph} {stream}",
    "cuStreamWriteValue32_v2 {stream} {a} 1 0",
]


class Account:
    """A program with a core share: the time that libvcuda charged it, and its time by the card's ledger."""

    def __init__(self, box: SimBox) -> None:
        self.box = box
        (box.path / "limits").write_bytes(limits.encode("box", [limits.CardLimit(box.uuid, limits.UNLIMITED, 50, 50)]))
        box.environment["PYTHONPATH"] = str(DOUBLES)
        self.client = box.caller()
        self.client.ask("python globals().update(clock=__import__('simulated_clock').Clock())")
        self.client.ask("python clock.hold(1)")  # while the program waits for the next line
        self.things = self.make(self.client)

    @staticmethod
    def make(client: Client) -> dict[str, int]:
        """Make the objects that the calls need."""
        made = {"n": BYTES, "rows": BYTES // PITCH, "row": 1 << 20}
        client.ask("python globals().update(kept=[])")
        text = client.ask(f"python {KEEP % PTX.encode()}")
        name = client.ask(f"python {KEEP % b'spin_200us'}")
        module = client.made(f"cuModuleLoadData & {text[0]}")
        made["f"] = client.made(f"cuModuleGetFunction & {module} {name[0]}")
        made.update({name: client.made(f"cuMemAlloc_v2 & {BYTES}") for name in ("a", "b")})
        made.update({name: client.made(f"cuMemAlloc & {BYTES}") for name in ("low", "other")})
        made.update({name: client.made("cuArrayCreate_v2 & {N:65536,N:0,i:32,I:4}") for name in ("array", "array2")})
        made["host"] = client.made(f"cuMemAllocHost_v2 & {BYTES}")
        made["stream"] = client.made("cuStreamCreate & 1")
        made["context"] = client.made("cuCtxGetCurrent &")
        client.does(f"cuFuncSetBlockShape {made['f']} 32 1 1")
        client.does(f"cuStreamBeginCapture_v2 {made['stream']} 0")
        client.does(f"cuLaunchKernel {made['f']} {GRID} {made['stream']} 0 0")
        graph = client.made(f"cuStreamEndCapture {made['stream']} &")
        made["graph"] = client.made(f"cuGraphInstantiateWithFlags & {graph} 0")
        return made

    def used(self) -> int:
        data = (self.box.path / "usage/usage").read_bytes()
        places = usage.places(data[: usage.CARDS_END])
        return usage.time_at(data[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET], places[self.box.uuid]).used

    def under_way(self) -> int:
        """ns that the work of the program's first slot is expected to take; the region has it in units of 16."""
        data = (self.box.path / "usage/usage").read_bytes()
        place = usage.places(data[: usage.CARDS_END])[self.box.uuid]
        return usage.FLIGHT.unpack_from(data, usage.FLIGHTS_OFFSET + place * usage.SLOTS * usage.FLIGHT.size)[0] * 16

    def busy(self) -> int:
        return int(self.box.cards()[0]["busy_ns"])

    def of(self, line: str) -> tuple[float, float]:
        """ns of a call by libvcuda's charges and by the card, 50 ms after it has finished."""
        used, busy = self.used(), self.busy()
        line = re.sub(r"\b(\d+)/(\d)\b", lambda match: str(int(match[1]) // int(match[2])), line.format(**self.things))
        self.client.does(line)
        self.client.does("cuCtxSynchronize")
        self.client.ask("python clock.sleep_until(clock.now() + 50_000_000)")
        return self.used() - used, self.busy() - busy


@pytest.fixture
def account(sim_box: Callable[..., SimBox]) -> Account:
    """A program on a card with slow memory, so that what the calls cost their thread is short in comparison."""
    profile = load_simctl().load_profile("t4x1")
    profile["models"]["t4"]["memory_clock_mhz"] = 50
    return Account(sim_box(profile, clock="virtual"))


@pytest.mark.parametrize("lines", [FILLS, COPIES, LAUNCHES], ids=["fills", "copies", "launches"])
def test_work_that_keeps_the_card_busy_is_charged(account: Account, lines: list[str]) -> None:
    account.of(lines[0])  # which makes the card this program's
    for line in lines:
        used, busy = account.of(line)
        assert busy > 10_000, line
        assert used == pytest.approx(busy, rel=0.01), line


def test_work_of_copy_engines_is_not_charged(account: Account) -> None:
    account.of(LAUNCHES[0])
    for line in ELSEWHERE:
        assert account.of(line) == (0, 0), line


def test_a_launch_into_a_capture_is_not_charged(account: Account) -> None:
    account.of(LAUNCHES[0])
    used, stream = account.used(), account.things["stream"]
    account.client.does(f"cuStreamBeginCapture_v2 {stream} 0")
    account.client.does(f"cuLaunchKernel {account.things['f']} {GRID} {stream} 0 0")
    account.client.made(f"cuStreamEndCapture {stream} &")
    assert account.used() == used


@pytest.mark.parametrize(("measured", "nodes"), [(20, 10), (20, 0), (0, 10)])
def test_a_new_graph_is_expected_to_take_what_its_known_kernels_take(
    account: Account, measured: int, nodes: int
) -> None:
    """Also at the address of an earlier graph; else 0.1 ms, as each kernel that was never measured."""
    stream, client = account.things["stream"], account.client
    for _ in range(measured):
        account.of(LAUNCHES[3])
    for length in (nodes, 2 * nodes):
        client.does(f"cuStreamBeginCapture_v2 {stream} 0")
        for _ in range(length):
            client.does(f"cuLaunchKernel {account.things['f']} {GRID} {stream} 0 0")
        if not nodes:
            client.does(f"cuMemsetD8Async {account.things['a']} 1 {BYTES} {stream}")
        graph = client.made(f"cuStreamEndCapture {stream} &")
        made = client.made(f"cuGraphInstantiateWithFlags & {graph} 0")
        client.does(f"cuGraphLaunch {made} {stream}")
        expected = length * 200_000 if measured and nodes else 100_000
        assert account.under_way() == pytest.approx(expected, rel=0.02, abs=2000)
        account.of(f"cuGraphExecDestroy {made}")
