"""Random programs: after each step libvcuda has charged what the cards hold, by the simulator's ledger.

Processes of a container call the driver at random, on two cards whose limits change meanwhile. On a driver that takes
what it is asked for, a model beside them knows what lives, and so which calls the limits have room for: without NVML,
with NVML's figures of contexts, with the host's figure instead, and on full cards. On a driver that takes more
(`harsh`), the bound of docs/memory-limit.md holds at any moment, and nothing is refused that fits.

A failure prints its seed and all calls so far. VGPU_SEED=<seed> runs that history again, and any other; a step depends
on the test, the seed, its number and what lives, so VGPU_STEPS=<number>,... runs a part of it. tests/beds/shrink.py
finds a short part that still fails.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

import pytest
from shrink import shrunk
from vcuda_boxes import load_simctl

from vgpu.config import limits, usage

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
MIB = 1 << 20
CHUNK = 32 * MIB  #: by which pools are taken to grow
GIB = 1 << 30
STEPS = 150
BLOCK = 25  #: every other so many steps do few kinds of things, and so more of each
BOUND = 64 * MIB  #: or 1 % of the limit, if that is more
FUNCTIONS = 20
CODE = (
    "python globals().update(image=ctypes.create_string_buffer(b'.version 7.0\\n.target sm_80\\n.address_size 64\\n'"
    f"+b''.join(b'.visible .entry k%d(){{ret;}}'%i for i in range({FUNCTIONS}))+b' '*PAD),lib=ctypes.c_uint64(),"
    f"f=(ctypes.c_uint64*{FUNCTIONS})())or(cuda.cuLOADED(ctypes.byref(lib),image,0,0,0,0,0,0))"
)
FUNCTION = "python cuda.cuFOUND(ctypes.byref(f,8*{0}),lib,b'k{0}')"
LAUNCH = "python cuda.cuLaunchKernel(ctypes.c_uint64(f[{}]),1,1,1,1,1,1,0,None,None,None)"
#: The ways of loading code: the calls that load it, find a function, find out more of it, and unload it.
WAYS = {
    "Library": ("LibraryLoadData", "LibraryGetKernel", "KernelGetFunction(ctypes.byref(f,8*{0}),", "LibraryUnload"),
    "Module": ("ModuleLoadData", "ModuleGetFunction", "FuncLoad(", "ModuleUnload"),
}
MOST_CODE = FUNCTIONS * 12 * MIB  #: of a step
STACKS = (1024, 2048, 8192)
#: What the threads of a storm do at once.
STORMS = (
    "pointer managed",
    "pointer stream_ordered trim",
    "graph",
    "graph pointer trim",
    "physical pointer managed graph",
    "physical shared shared shared",
)
#: The steps on a full card that may be oversubscribed.
REPLACED = ("pointer", "stream_ordered", "pool", "from_pool", "end", "end", "gated", "die", "limit", "trim")
CARDS = (0, 1)
MANY = 800
RACES = 5000  #: allocations of each process: two that meet are rare where others use the cores
PROCESSES = (0, 0, 1)  #: the card of each
PER_THREAD = (
    "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemMapArrayAsync", "cuStreamSynchronize",
    "cuGraphLaunch", "cuGraphUpload",
)  # fmt: skip
#: A call -> another that does the same, which at times takes its place.
ALIKE = {
    **{name: f"{name}_ptsz {{all}}" for name in PER_THREAD},
    "cuCtxDestroy_v2": "cuCtxDestroy {all}",
    "cuCtxSynchronize": "cuCtxSynchronize_v2 {context}",
    "cuDevicePrimaryCtxRelease_v2": "cuDevicePrimaryCtxRelease {all}",
    "cuGraphInstantiateWithFlags": "cuGraphInstantiateWithParams {0} {1} {{Q:{2},q:0,q:0,i:0}}",
}
GREEN = "cuGreenCtxCreate & {resources} {card} 1"
BUFFER = "ctypes.create_string_buffer(512)"
CREATES = ("cuCtxCreate_v2 & 0", "cuCtxCreate_v3 & 0 0 0", "cuCtxCreate_v4 & 0 0")
FLOAT, LAYERED, CUBEMAP, SPARSE = 32, 1, 4, 64
MIPMAP_END = "cuMipmappedArrayDestroy"
PART = "i:0,i:0,I:%d,I:0,I:%d,I:0,I:0,I:2048,I:1024,I:1"  #: of an array: a level, and a place in it
EXPORTS = ("export", "dma_buf")
SHARED = (*EXPORTS, "imported", "imported_map", "maps", "binding", "external", "opened")
CLOSE = "python os.close(KEY)or(0)"
RELEASE_THRESHOLD, EVERYTHING = 4, (1 << 64) - 1
MAP, UNMAP = 1, 2
LAUNCHES = ("cuGraphLaunch", "cuGraphUpload")
LARGE = "Q:16384,Q:8192,Q:0,i:32,I:1"
NODE = "{i:1,i:0,i:1,i:%d,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,Q:0,Q:0,Q:%d,Q:0}"
FILE_DESCRIPTOR = NON_BLOCKING = AUTO_FREE = 1
POOL = "{i:1,i:0,i:1,i:%d,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0}"
MANAGED_POOL = POOL.replace("i:1", "i:2", 1)
PHYSICAL = "{i:1,i:1,i:1,i:%d,q:0,q:0}"
NO_STREAM, NO_DEVICE, NO_FLAGS = 4096, 99, 1 << 30
#: Calls that the driver refuses. KEY, WITHIN: a pointer, and another in it; PHYSICAL has SIZE; BINDING: to an array.
MISTAKES = (
    "cuMemMap 4096 SIZE 0 PHYSICAL 0", "BINDING 1 0", "cuMemRelease 12345", "cuMemFree_v2 4096",
    f"cuMemFreeAsync KEY {NO_STREAM}", "cuMemFree_v2 WITHIN", "cuMemFreeAsync WITHIN 0", "cuArrayDestroy KEY",
    f"cuCtxCreate_v2 & 0 {NO_DEVICE}", "cuMemAlloc_v2 & 0", f"cuMemAlloc_v2 & {1 << 60}",
)  # fmt: skip


@dataclass(eq=False)
class Memory:
    """Bytes on a card. They live as long as anything holds them."""

    card: int
    size: int
    exported: str = ""  #: its IPC handle
    maker: Process | None = None  #: the process that created it, as physical memory


@dataclass(eq=False)
class Hold:
    """Something of a process that keeps memory: a pointer, a handle, a mapping, an open file, an array."""

    memory: Memory
    kind: str
    key: int
    end: str  #: the call that ends it; without a key of its own, in the context in which it was made
    context: int = 0  #: with which it goes; 0: it outlives contexts
    within: Hold | None = None  #: the array with which it goes
    part: str = ""  #: of the array


@dataclass(eq=False)
class Process:
    client: Client
    card: int
    contexts: list[int]  #: the first one is the primary context; the last one is current
    holds: list[Hold] = field(default_factory=list)
    pools: dict[int, bool] = field(default_factory=dict)  #: whether the pool keeps what is freed
    left_by: dict[int, int] = field(default_factory=dict)  #: the pointer to what a launch of the graph leaves
    execs: dict[int, list[int]] = field(default_factory=dict)  #: what a launch of the graph takes of each card
    keeps: bool = False  #: a pool, or the card's graph memory, may hold more than what lives
    leaves: bool = False  #: a graph may hold memory that it has left
    stacks: dict[int, int] = field(default_factory=dict)  #: their size in a context, if it was set
    greens: dict[int, int] = field(default_factory=dict)  #: the green context that a context belongs to
    code: str = ""  #: the way in which it has loaded CODE
    endpoint: int = -1  #: an id that it has reserved
    has_left: bool = False  #: its main thread has ended
    is_child: bool = False  #: of a process without CUDA, which waits for it and starts the next one

    def of(self, *kinds: str) -> list[Hold]:
        return [hold for hold in self.holds if hold.kind in kinds]


class History:
    """A random program: `step` makes one step of it, and `check` compares."""

    exact = True  #: the driver takes what it is asked for
    lists = False  #: NVML is there
    told = False  #: it names the host's pids, and the host's figure has the contexts
    #: Steps of other drivers.
    unused: tuple[str, ...] = ("code", "stack", "streams", "blocks", "workers")
    some_limits: tuple[int, ...] = (64, 256, 512, 1024, 1536)  #: in MiB
    context = 0  #: what one takes
    tops: list[int]  #: what the cards may hold at most, where code exceeds the limit
    alone = 0  #: the step before which nobody looks but the processes themselves, which do few kinds of things

    def __init__(self, box: SimBox, seed: str, neighbour: SimBox | None = None, full: bool = False) -> None:
        self.beside = [neighbour.caller(card) for card in CARDS] if neighbour else []
        self.multicasts = len(box.cards()) > len(CARDS)  # a board with switches
        self.box, self.chance, self.full, self.seed = box, random.Random(seed), full, seed
        self.lines = [f"seed {seed}"]
        self.before = box.cards()
        self.limits = dict.fromkeys(CARDS, 5 * GIB)  # more than 32 bits count
        self.uuids = [card["uuid"] for card in box.cards()]
        if self.lists and not self.told and self.chance.random() < 0.5:
            self.begins_too_large()
        (box.path / "limits").write_bytes(limits.encode("box", self.card_limits()))
        self.watchers = [box.caller(card) for card in CARDS if not self.alone]
        self.processes: list[Process] = []
        self.processes += [self.started(card) for card in PROCESSES]

    def begins_too_large(self) -> None:
        """Nobody knows what a context takes before the container's first one: it is made, and ends again."""
        small = [limits.CardLimit(uuid, self.box.context // 2) for uuid in self.uuids]
        (self.box.path / "limits").write_bytes(limits.encode("box", small))
        card, client = self.chance.choice(CARDS), self.box.uninitialized()
        client.does("cuInit 0")
        line = f"{self.chance.choice(('cuDevicePrimaryCtxRetain &', *CREATES))} {card}"
        assert client.numbers(line)[0] == OUT_OF_MEMORY, line
        assert [each["used"] for each in self.box.cards()] == [each["used"] for each in self.before], line
        client.close()

    # ---- what the container holds ----

    def card_limits(self) -> list[limits.CardLimit]:
        return [limits.CardLimit(self.uuids[card], self.limit_of(card), oversubscribe=self.full) for card in CARDS]

    def limit_of(self, card: int) -> int:
        return self.limits[card]

    def memories(self, card: int) -> set[Memory]:
        memories = {hold.memory for process in self.processes for hold in process.holds}
        return {memory for memory in memories if memory.card == card}

    def shared(self, card: int) -> int:
        """What another process than its maker, or nobody, may be charged for."""
        own = {hold.memory for each in self.processes for hold in each.holds if hold.memory.maker is each}
        own -= {hold.memory for each in self.processes for hold in each.holds if hold.kind in SHARED}
        return sum(memory.size for memory in self.memories(card) - own)

    def live(self, card: int) -> int:
        return sum(memory.size for memory in self.memories(card))

    def held(self, card: int) -> int:
        """Without contexts, which libvcuda sees by NVML alone."""
        return int(self.box.cards()[card]["used"]) - int(self.before[card]["used"]) - self.contexts(card)

    def contexts(self, card: int) -> int:
        """Of the container's processes."""
        now, before = (
            sum(int(each["context"]) for each in cards[card]["processes"]) for cards in (self.box.cards(), self.before)
        )
        return now - before

    def is_over(self, card: int) -> bool:
        return self.beyond(card) > 0

    def beyond(self, card: int) -> int:
        return max(self.live(card), self.held(card)) - self.limits[card]

    def rest(self, card: int) -> int:
        return max(-self.beyond(card), 0) // (2 * MIB) * 2 * MIB

    def managed(self) -> int:
        """The bytes of managed memory that replace a full card's, by the usage region."""
        slots = (self.box.path / "usage/usage").read_bytes()[usage.CARDS_END : usage.CHARGES_OFFSET]
        return sum(int(slot[3]) for slot in usage.SLOT.iter_unpack(slots))

    def charged(self, card: int) -> int:
        result, left, total = self.watchers[card].numbers("cuMemGetInfo_v2 & &")
        assert (result, total) == (0, self.limit_of(card))
        return self.limits[card] - left

    def check(self) -> None:
        replaced = 0
        for card in CARDS:
            held, live, charged = self.held(card), self.live(card), self.charged(card)
            beyond = live - held if self.full else 0  # in managed memory, where the card had no room
            replaced += beyond
            assert charged == min(held + beyond, self.limits[card]), f"card {card}: charged {charged}, {held} held"
            assert self.full or held == live or (self.kept(card) and held > live), f"{card}: {held} held, {live} live"
        assert self.managed() == replaced

    def slack(self, card: int) -> int:
        """By how much a container may exceed its limit, or be refused what fits."""
        del card
        return 0

    def fits(self, card: int, size: int) -> bool:
        return self.held(card) + size + self.slack(card) <= self.limits[card]

    def kept(self, card: int) -> bool:
        return any(process.keeps for process in self.processes if process.leaves or process.card == card)

    # ---- calls ----

    def started(self, card: int, client: Client | None = None) -> Process:
        client = self.box.initialized(client, card) if client else self.box.caller(card)
        return Process(client, card, [client.numbers("cuCtxGetCurrent &")[1]])

    def ask(self, process: Process, line: str) -> list[str]:
        name, *words = line.removeprefix("thread ").split()
        if name in ALIKE and self.chance.random() < 0.3:
            alike = ALIKE[name].format(*words, all=" ".join(words), context=process.contexts[-1])
            line = line[: line.index(name)] + alike
        answer = process.client.ask(line)
        self.lines.append(f"process {self.processes.index(process)}: {line} -> {' '.join(answer)}")
        return answer

    def does(self, process: Process, line: str) -> None:
        assert self.ask(process, line)[0] == "0", line

    def made(self, process: Process, line: str, size: int = 0) -> int:
        """The handle that a call gives which takes so much. Refused: it does not fit, or the card is over its limit."""
        del size
        result, key = self.ask(process, line)[:2]
        if result == str(OUT_OF_MEMORY) and line.startswith("cuStreamCreate"):
            assert self.is_over(process.card), "refused, though it fits"
            raise Refused
        assert result == "0", line
        return int(key)

    def by_a_thread(self, line: str) -> str:
        """The same call, at times by another thread of the process."""
        return f"thread {line}" if line.startswith("cuMem") and self.chance.random() < 0.2 else line

    def granted(self, process: Process, memory: Memory, line: str) -> int | None:
        """The new memory's key. None: it was refused, as it does not fit."""
        live, held, limit = self.live(memory.card), self.held(memory.card), self.limits[memory.card]
        result, key = [*self.ask(process, self.by_a_thread(line)), "0"][:2]
        if result == str(OUT_OF_MEMORY):
            keep = any(other.keeps if other is not process else other.leaves for other in self.processes)
            assert max(live, held if keep else 0) + memory.size > limit, "refused, though it fits"
            return None
        assert result == "0", line
        kept = held if process.keeps else 0
        assert live + memory.size <= max(limit, kept), "granted, though it does not fit"
        return int(key)

    def makes(
        self, process: Process, kind: str, size: int, line: str, end: str, context: int = 0, card: int = -1
    ) -> None:
        memory = Memory(process.card if card < 0 else card, size, maker=process)
        key = self.granted(process, memory, line)
        if key is not None:
            process.holds.append(Hold(memory, kind, key, end, context))

    def takes(self, process: Process, size: int) -> None:
        """Ask for memory of which nobody can tell from outside whether the limit has room for it."""
        result, key = self.ask(process, f"cuMemAlloc_v2 & {size}")
        if result == "0":
            hold = Hold(Memory(process.card, size), "pointer", int(key), "cuMemFree_v2 KEY", process.contexts[-1])
            process.holds.append(hold)

    def ends(self, process: Process, hold: Hold) -> None:
        """End a hold, and what goes with it."""
        self.does(process, self.by_a_thread(hold.end.replace("KEY", str(hold.key))))
        process.holds = [other for other in process.holds if hold not in (other, other.within)]
        self.does(process, "cuCtxSynchronize")
        for other in self.processes if hold.kind in (*EXPORTS, "external") else ():
            other.client.left()  # a closed file counts until its exporter asks for something

    def some_size(self, card: int) -> int:
        """Some MiB, or just what the limit has room for, or a little more, or the most that has to be granted."""
        taken = self.live(card) if self.exact else self.held(card)
        room = max(self.limits[card] - taken, 0) // (2 * MIB) * 2 * MIB
        size = self.chance.choice((2, 4, 16, 64, 128, 256, 700)) * MIB
        least = max(room - self.slack(card) // (2 * MIB) * 2 * MIB, 2 * MIB)
        return self.chance.choice((size, size, max(room, 2 * MIB), room + 2 * MIB, least))

    def some_array(self) -> tuple[str, int]:
        """The call that makes an array of 64 KiB or more in each level, and its bytes."""
        width, height, depth = (1 << self.chance.randrange(low, high) for low, high in ((7, 10), (7, 9), (2, 5)))
        channels, levels = self.chance.choice((1, 2, 4)), self.chance.randrange(4)
        flags = self.chance.choice((0, LAYERED, CUBEMAP))
        if flags == CUBEMAP:
            height, depth = width, 6
        shape = f"{{Q:{width},Q:{height},Q:{depth},i:{FLOAT},i:{channels},i:{flags}}}"
        sizes = [
            4 * channels * (width >> level) * (height >> level) * (depth if flags else max(depth >> level, 1))
            for level in range(levels or 1)
        ]
        while sizes[-1] < 64 << 10:
            sizes.pop()
        if levels:
            return f"cuMipmappedArrayCreate & {shape} {len(sizes)}", sum(sizes)
        flat = f"cuArrayCreate_v2 & {{Q:{width},Q:{height * depth},i:{FLOAT},i:{channels}}}"
        return self.chance.choice((flat, f"cuArray3DCreate_v2 & {shape}")), sizes[0]

    # ---- the steps; each has its name's part of the random choice ----

    def step(self, number: int) -> None:
        self.chance = random.Random(f"{self.seed} {number}")
        self.lines.append(f"step {number}")
        steps = [name for name in dir(self) if name.startswith("step_")] + ["step_end"] * 3
        steps = [name for name in steps if name[5:] not in self.unused]
        if number < self.alone:
            steps = random.Random(self.seed).sample(steps, 6)
        elif number // BLOCK % 2:
            steps = random.Random(f"{self.seed} {number // BLOCK}").sample(steps, 10)
        if self.full:  # managed memory replaces only this
            steps = [f"step_{kind}" for kind in REPLACED]
        process = self.chance.choice(self.processes)
        try:
            getattr(self, self.chance.choice(steps))(process)
        except Refused:
            self.lines.append("refused")
        self.check()

    def step_pointer(self, process: Process, size: int = 0) -> None:
        size, context = size or self.some_size(process.card), process.contexts[-1]
        call = self.chance.choice((f"cuMemAlloc_v2 & {size}", f"cuMemAllocPitch_v2 & & {MIB - 100} {size // MIB} 4"))
        self.makes(process, "pointer", size, call, "cuMemFree_v2 KEY", context)

    def step_many(self, process: Process) -> None:
        """More pointers than the table of allocations has places for at first."""
        name, size = f"many{len(self.lines)}", MANY * 512
        if max(self.live(process.card), self.held(process.card)) + size <= self.limits[process.card]:
            each = f"call(['cuMemAlloc_v2','&','512'])[1]for(_)in(range({MANY}))"
            end = f"python sum(call(['cuMemFree_v2',str(each)])[0]for(each)in({name}))"
            line = f"python globals().update({name}=[{each}])or(0)"
            self.makes(process, "many", size, line, end, process.contexts[-1])

    def step_managed(self, process: Process) -> None:
        size, context = self.some_size(process.card), process.contexts[-1]
        self.makes(process, "managed", size, f"cuMemAllocManaged & {size} 1", "cuMemFree_v2 KEY", context)

    def step_array(self, process: Process) -> None:
        call, size = self.some_array()
        end = f"{MIPMAP_END} KEY" if "Mipmapped" in call else "cuArrayDestroy KEY"
        self.makes(process, "array", size, call, end, process.contexts[-1])

    def step_sparse_array(self, process: Process) -> None:
        """In the primary context: the simulator keeps what is bound to an array of a context that was destroyed."""
        if len(process.contexts) == 1:
            shape = f"{{{LARGE},I:{SPARSE}}}"
            calls = (("cuArray3DCreate_v2 & SHAPE", "cuArrayDestroy"), ("cuMipmappedArrayCreate & SHAPE 3", MIPMAP_END))
            call, end = self.chance.choice(calls)
            self.makes(process, "sparse_array", 0, call.replace("SHAPE", shape), f"{end} KEY", process.contexts[0])

    def step_stream_ordered(self, process: Process, size: int = 0) -> None:
        size = size or self.some_size(process.card)
        end = self.chance.choice(("cuMemFreeAsync KEY 0", "cuMemFree_v2 KEY"))
        self.makes(process, "stream_ordered", size, f"cuMemAllocAsync & {size} 0", end)

    def step_pool(self, process: Process) -> None:
        pool = self.made(process, f"cuMemPoolCreate & {POOL % process.card}")
        process.pools[pool] = not self.full and self.chance.random() < 0.5
        if process.pools[pool]:
            self.does(process, f"cuMemPoolSetAttribute {pool} {RELEASE_THRESHOLD} {{Q:{EVERYTHING}}}")
        if self.chance.random() < 0.3:
            process.keeps |= process.pools[pool]
            card = process.card
            call = self.chance.choice((f"cuDeviceSetMemPool {card}", f"cuMemSetMemPool {{i:1,i:{card}}} 1"))
            self.does(process, f"{call} {pool}")

    def step_pool_of_the_host(self, process: Process) -> None:
        """It costs no card anything."""
        made = self.made(process, f"cuMemPoolCreate & {POOL.replace('i:1,i:%d', 'i:2,i:0')}")
        for pool in (made, self.made(process, "cuMemGetDefaultMemPool & {i:2,i:0} 1")):
            pointer = self.made(process, f"cuMemAllocFromPoolAsync & {64 * MIB} {pool} 0")
            self.check()
            self.does(process, f"cuMemFreeAsync {pointer} 0")
        self.does(process, f"cuMemPoolDestroy {made}")

    def step_managed_pool(self, process: Process) -> None:
        """Its memory lies on the pool's card, whichever is current."""
        card, size = self.chance.choice(CARDS), self.chance.randrange(1, 9) * CHUNK
        is_standing = self.chance.random() < 0.3
        call = f"GetDefaultMemPool & {{i:1,i:{card}}} 2" if is_standing else f"PoolCreate & {MANAGED_POOL % card}"
        pool = self.made(process, f"cuMem{call}")
        line = f"cuMemAllocFromPoolAsync & {size} {pool} 0"
        self.makes(process, "managed", size, line, "cuMemFreeAsync KEY 0", card=card)
        if not is_standing:
            self.does(process, f"cuMemPoolDestroy {pool}")

    def step_from_pool(self, process: Process) -> None:
        """Half of the time it is freed at once, so that the pool may keep it."""
        if not process.pools:
            self.step_pool(process)
        pool, size = self.chance.choice(list(process.pools)), self.some_size(process.card)
        if self.chance.random() < 0.2:
            call = self.chance.choice(("cuMemGetDefaultMemPool", "cuMemGetMemPool"))
            pool = self.made(process, f"{call} & {{i:1,i:{process.card}}} 1")
        process.keeps |= process.pools.get(pool, False)
        before = len(process.holds)
        self.makes(
            process, "stream_ordered", size, f"cuMemAllocFromPoolAsync & {size} {pool} 0", "cuMemFreeAsync KEY 0"
        )
        if len(process.holds) > before and self.chance.random() < 0.5:
            self.ends(process, process.holds[-1])
        if pool in process.pools and self.chance.random() < 0.5:  # with what it keeps, or is in use
            self.does(process, f"cuMemPoolDestroy {pool}")
            del process.pools[pool]

    def step_look(self, process: Process) -> None:
        """libvcuda looks at NVML's figure."""
        self.does(process, f"cuCtxSetLimit 1 {MIB}")

    def step_mistake(self, process: Process) -> None:
        """Calls that the driver refuses change nothing."""
        for array in self.chosen(process, "array"):
            for hold in self.chosen(process, "physical"):
                for pointer in self.chosen(process, "pointer", "stream_ordered"):
                    binding = f"cuMemMapArrayAsync {self.binding(array, PART % (0, 0), MAP, hold.key)}"
                    words = {"KEY": pointer.key, "WITHIN": pointer.key + 4096, "SIZE": hold.memory.size,
                             "PHYSICAL": hold.key, "BINDING": binding}  # fmt: skip
                    for line in self.chance.sample(MISTAKES, 4):
                        filled = " ".join(str(words.get(word, word)) for word in line.split())
                        assert self.ask(process, filled)[0] != "0", filled

    def step_destroy_pool(self, process: Process) -> None:
        for pool in self.chance.sample(list(process.pools), min(1, len(process.pools))):
            self.does(process, f"cuMemPoolDestroy {pool}")
            del process.pools[pool]

    def step_trim(self, process: Process) -> None:
        for pool in process.pools:
            self.does(process, f"cuMemPoolTrimTo {pool} 0")
        self.does(process, f"cuDeviceGraphMemTrim {process.card}")

    def step_physical(self, process: Process) -> None:
        card = self.chance.choice(CARDS)
        size = self.some_size(card)
        call = f"cuMemCreate & {size} {PHYSICAL % card} 0"
        self.makes(process, "physical", size, call, "cuMemRelease KEY", card=card)

    def step_map(self, process: Process) -> None:
        for hold in self.chosen(process, "physical", "imported"):
            size, kind = hold.memory.size, {"physical": "map", "imported": "imported_map"}[hold.kind]
            address = self.mapped(process, hold.key, size)
            if size > 2 * MIB:  # a part of a mapping does not end
                assert self.ask(process, f"cuMemUnmap {address} {2 * MIB}")[0] != "0"
            process.holds.append(Hold(hold.memory, kind, address, f"cuMemUnmap KEY {size}"))

    def step_map_side_by_side(self, process: Process) -> None:
        """One call unmaps several mappings."""
        for hold in self.chosen(process, "physical"):
            size, count = hold.memory.size, self.chance.randrange(2, 5)
            address = self.made(process, f"cuMemAddressReserve & {count * size} 0 0 0")
            for number in range(count):
                self.does(process, f"cuMemMap {address + number * size} {size} 0 {hold.key} 0")
            process.holds.append(Hold(hold.memory, "maps", address, f"cuMemUnmap KEY {count * size}"))
            self.ends(process, hold)

    def step_retain(self, process: Process) -> None:
        for hold in self.chosen(process, "map", "imported_map"):
            handle, kind = self.made(process, f"cuMemRetainAllocationHandle & {hold.key}"), {"map": "physical"}
            process.holds.append(Hold(hold.memory, kind.get(hold.kind, "imported"), handle, "cuMemRelease KEY"))

    def step_export(self, process: Process) -> None:
        for hold in self.chosen(process, "physical", "imported"):
            if hold.kind == "physical":
                self.exports(process, hold)
                continue
            line = f"cuMemExportToShareableHandle & {hold.key} {FILE_DESCRIPTOR} 0"
            assert self.ask(process, line)[0] == str(INVALID_VALUE)  # docs/reality.md

    def step_export_range(self, process: Process) -> None:
        for hold in self.chosen(process, "map"):
            line = f"cuMemGetHandleForAddressRange & {hold.key} {hold.memory.size} {FILE_DESCRIPTOR} 0"
            file = self.made(process, line) & 0xFFFFFFFF
            process.holds.append(Hold(hold.memory, "dma_buf", file, CLOSE))
            for other in [each for each in process.of("physical", "map") if each.memory is hold.memory]:
                self.ends(process, other)

    def step_close_files(self, process: Process) -> None:
        """Only files keep some memory, and all are closed before anybody looks."""
        for _ in range(2):
            self.step_physical(process)
        for hold in process.of("physical"):
            self.exports(process, hold)
            self.ends(process, hold)
        self.check()
        for other in self.processes:
            for hold in other.of(*EXPORTS):
                self.does(other, hold.end.replace("KEY", str(hold.key)))
            other.holds = [hold for hold in other.holds if hold.kind not in EXPORTS]
        for other in self.processes:
            if other is not process:
                other.client.left()  # as in `ends`
        if self.chance.random() < 0.5:
            self.chance.choice((self.step_pointer, self.step_stream_ordered))(process, self.rest(process.card))
        process.client.left()

    def exports(self, process: Process, hold: Hold) -> Hold:
        file = self.made(process, f"cuMemExportToShareableHandle & {hold.key} {FILE_DESCRIPTOR} 0") & 0xFFFFFFFF
        process.holds.append(Hold(hold.memory, "export", file, CLOSE))
        return process.holds[-1]

    def step_pass(self, process: Process) -> None:
        for hold in self.chosen(process, "export"):
            other = self.chance.choice([each for each in self.processes if each is not process])
            other.holds.append(Hold(hold.memory, "export", self.passed(process, other, hold.key), hold.end))

    def passed(self, process: Process, other: Process, file: int) -> int:
        """Pass a descriptor to another process. Returns its number there."""
        passed = process.client.pass_file(other.client, file)
        self.lines.append(f"process {self.processes.index(process)} passes file {file}, which is {passed} there")
        return passed

    def step_import(self, process: Process) -> None:
        for hold in self.chosen(process, "export"):
            handle = self.made(process, f"cuMemImportFromShareableHandle & {hold.key} {FILE_DESCRIPTOR}")
            process.holds.append(Hold(hold.memory, "imported", handle, "cuMemRelease KEY"))

    def step_external(self, process: Process) -> None:
        """The import takes the descriptor, unless no context is current."""
        for hold in self.chosen(process, "export"):
            line = f"cuImportExternalMemory & {{i:1,i:0,i:{hold.key},i:0,q:0,q:{hold.memory.size},q:0}}"
            if self.chance.random() < 0.3:
                self.does(process, "cuCtxSetCurrent 0")
                if self.ask(process, "cuCtxGetCurrent &")[1] == "0":
                    assert self.ask(process, line)[0] != "0"
                self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")
            memory = self.made(process, line)
            process.holds[process.holds.index(hold)] = Hold(
                hold.memory, "external", memory, "cuDestroyExternalMemory KEY", process.contexts[-1]
            )

    def step_bind(self, process: Process) -> None:
        for array in self.chosen(process, "sparse_array"):
            levels = 3 if MIPMAP_END in array.end else 1
            for _ in range(self.chance.choice((1, 4))):
                self.step_physical(process)
                for hold in self.chosen(process, "physical", "imported"):
                    part = PART % (self.chance.randrange(levels), self.chance.choice((0, 0, 2048)))
                    self.does(process, f"cuMemMapArrayAsync {self.binding(array, part, MAP, hold.key)} 1 0")
                    unbind = f"cuMemMapArrayAsync {self.binding(array, part, UNMAP)} 1 0"
                    process.holds = [other for other in process.holds if (other.within, other.part) != (array, part)]
                    process.holds.append(Hold(hold.memory, "binding", array.key, unbind, within=array, part=part))
                    self.ends(process, hold)
                    self.check()
            bindings = process.of("binding")
            for hold in self.chance.sample(bindings, min(1, len(bindings))):
                self.ends(process, self.chance.choice((array, hold)) if hold.within == array else hold)

    def step_object(self, process: Process) -> None:
        """Memory is bound side by side to a logical endpoint or a multicast object, and unbound piece by piece."""
        cards = CARDS if self.multicasts and self.chance.random() < 0.5 else (process.card,)
        count, size = self.chance.randrange(1, 5), self.chance.randrange(1, 33) * 2 * MIB
        if not all(self.fits(card, count * size) for card in cards):
            return
        to, bind, unbind, end = self.made_object(process, count * size, cards)
        pieces = []
        for offset, card in itertools.product(range(0, count * size, size), cards):
            line = f"cuMemCreate & {size} {PHYSICAL % card} 0"
            self.makes(process, "physical", size, line, "cuMemRelease KEY", card=card)
            hold = process.holds[-1]
            assert self.ask(process, f"{bind.format('Mem', card)} 1 {hold.key} 0 {size} 0")[0] != "0"
            if self.chance.random() < 0.5:
                self.does(process, f"{bind.format('Mem', card)} {offset} {hold.key} 0 {size} 0")
            else:
                address = self.mapped(process, hold.key, size)
                self.does(process, f"{bind.format('Addr', card)} {offset} {address} {size} 0")
                self.does(process, f"cuMemUnmap {address} {size}")
            pieces.append(Hold(hold.memory, "piece", 0, f"{unbind} {to} {card} {offset} {size}"))
            process.holds.append(pieces[-1])
            self.ends(process, hold)
        for piece in self.chance.sample(pieces, self.chance.randrange(len(pieces) + 1)):
            self.ends(process, piece)
            self.check()
        if "Multicast" in bind and self.chance.random() < 0.5:  # its mapping keeps what is bound
            address = self.mapped(process, to, count * size)
            self.does(process, end)
            self.check()
            end = f"cuMemUnmap {address} {count * size}"
        self.does(process, end)
        process.holds = [hold for hold in process.holds if hold not in pieces]

    def made_object(self, process: Process, size: int, cards: tuple[int, ...]) -> tuple[int, str, str, str]:
        """What memory can be bound to, and how: the calls that bind (with a way and a card), unbind and end it."""
        if len(cards) > 1 or (self.multicasts and self.chance.random() < 0.7):
            to = self.made(process, f"cuMulticastCreate & {{I:{len(cards)},I:0,Q:{size},Q:0,Q:0}}")
            for card in cards:
                self.does(process, f"cuMulticastAddDevice {to} {card}")
            bind = self.chance.choice((f"cuMulticastBind{{}} {to}", f"cuMulticastBind{{}}_v2 {to} {{}}"))
            return to, bind, "cuMulticastUnbind", f"cuMemRelease {to}"
        if process.endpoint < 0:
            process.endpoint = self.made(process, "cuLogicalEndpointIdReserve & 1")
        to = process.endpoint
        self.does(process, f"cuLogicalEndpointCreate {to} {{i:1,i:{cards[0]},Q:{size},i:0,i:0}}")
        return to, f"cuLogicalEndpointBind{{}} {to} {{}}", "cuLogicalEndpointUnbind", f"cuLogicalEndpointDestroy {to}"

    def mapped(self, process: Process, handle: int, size: int) -> int:
        """The address at which memory of a handle is mapped."""
        address = self.made(process, f"cuMemAddressReserve & {size} 0 0 0")
        self.does(process, f"cuMemMap {address} {size} 0 {handle} 0")
        return address

    @staticmethod
    def binding(array: Hold, part: str, operation: int, memory: int = 0) -> str:
        """A CUarrayMapInfo."""
        kind = int(MIPMAP_END in array.end)
        return f"{{i:{kind},i:0,Q:{array.key},{part},i:{operation},i:0,Q:{memory},Q:0,I:1,I:0,I:0,I:0}}"

    def step_open(self, process: Process) -> None:
        for hold in self.chosen(process, "pointer"):
            others = [each for each in self.processes if each is not process and each.card == process.card]
            if not others or hold.context != process.contexts[0]:
                continue
            if not hold.memory.exported:
                result, hold.memory.exported = self.ask(process, f"export {hold.key}")
                assert result == "0"
            other = self.chance.choice(others)
            if len(other.contexts) == 1 and self.chance.random() < 0.3:
                other.contexts.append(self.creates(other, other.card))
            pointer = self.made(other, f"open {hold.memory.exported}")
            if self.chance.random() < 0.3:
                self.does(other, f"cuIpcCloseMemHandle {self.made(other, f'open {hold.memory.exported}')}")
            end = "cuIpcCloseMemHandle KEY"
            other.holds.append(Hold(hold.memory, "opened", pointer, end, other.contexts[-1]))
            assert self.ask(other, f"cuMemFree_v2 {pointer}")[0] != "0", "freed by who has only opened it"
            if self.chance.random() < 0.5:
                self.check()
                self.step_destroy_context(other)

    def step_pool_of_another(self, process: Process) -> None:
        """Another process maps memory of a shared pool for a while."""
        other = self.chance.choice([each for each in self.processes if each is not process])
        pool = self.made(process, f"cuMemPoolCreate & {POOL.replace('i:0', 'i:1', 1) % process.card}")
        size = self.some_size(process.card)
        memory = Memory(process.card, size)
        pointer = self.granted(process, memory, f"cuMemAllocFromPoolAsync & {size} {pool} 0")
        if pointer is not None:
            file = self.made(process, f"cuMemPoolExportToShareableHandle & {pool} {FILE_DESCRIPTOR} 0") & 0xFFFFFFFF
            passed = self.passed(process, other, file)
            imported = self.made(other, f"cuMemPoolImportFromShareableHandle & {passed} {FILE_DESCRIPTOR} 0")
            ours, theirs = (self.made(each, "cuMemHostAlloc & 64 0") for each in (process, other))
            self.does(process, f"cuMemPoolExportPointer {ours} {pointer}")
            data = self.ask(process, f"python ctypes.string_at({ours},64).hex()")[0]
            self.ask(other, f"python ctypes.memmove({theirs},bytes.fromhex('{data}'),64)")
            mapped = self.made(other, f"cuMemPoolImportPointer & {imported} {theirs}")
            process.holds.append(Hold(memory, "stream_ordered", pointer, "cuMemFreeAsync KEY 0"))
            self.check()
            other.holds.append(Hold(memory, "stream_ordered", mapped, "cuMemFreeAsync KEY 0"))
            self.check()
            if self.chance.random() < 0.5:  # the importer's counts, though the pool has given it back
                self.ends(process, process.holds[-1])
                charged = min(self.held(process.card) + size, self.limits[process.card])
                assert not self.exact or self.charged(process.card) == charged, "freed by its exporter alone"
                self.ends(other, other.holds[-1])
            else:
                self.ends(other, other.holds[-1])
                self.check()
                self.ends(process, process.holds[-1])
            for each, end in ((process, file), (other, passed)):
                self.ask(each, f"python os.close({end})")
            self.does(other, f"cuMemPoolDestroy {imported}")
        self.does(process, f"cuMemPoolDestroy {pool}")

    def step_graph(self, process: Process) -> None:
        size = self.some_size(process.card)
        stream = self.made(process, f"cuStreamCreate & {NON_BLOCKING}")
        self.does(process, f"cuStreamBeginCapture_v2 {stream} 2")
        pointer = self.granted(process, Memory(process.card, size), f"cuMemAllocAsync & {size} {stream}")
        leaves = self.chance.random() < 0.5
        if pointer is not None and not leaves:
            self.does(process, f"cuMemFreeAsync {pointer} {stream}")
        graph = self.made(process, f"cuStreamEndCapture {stream} &")
        self.does(process, f"cuStreamDestroy_v2 {stream}")
        if pointer is not None:
            executable = self.made(process, f"cuGraphInstantiateWithFlags & {graph} {int(leaves)}", size)
            process.left_by[executable] = pointer if leaves else 0
            process.execs[executable] = [size * (card == process.card) for card in CARDS]
            process.leaves |= leaves

    def step_graph_of_nodes(self, process: Process) -> None:
        graph = self.made(process, "cuGraphCreate & 0")
        nodes = [(card, self.some_size(card)) for card in CARDS for _ in range(self.chance.choice((1, 1, 2)))]
        for node in nodes:
            made = self.made(process, f"cuGraphAddMemAllocNode & {graph} 0 0 {NODE % node}")
            if self.chance.random() < 0.3:
                pointer = self.made(process, f"cuGraphMemAllocNodeGetParams {made} &120")
                self.made(process, f"cuGraphAddMemFreeNode & {graph} {{Q:{made}}} 1 {pointer}")
        sizes = [sum(size for on, size in nodes if on == card) for card in CARDS]
        if self.chance.random() < 0.3:
            child, graph = graph, self.made(process, "cuGraphCreate & 0")
            self.made(process, f"cuGraphAddChildGraphNode & {graph} 0 0 {child}")
        result, executable = self.ask(process, f"cuGraphInstantiateWithFlags & {graph} {AUTO_FREE}")
        if result == "0":
            process.execs[int(executable)] = sizes
            process.leaves = True
        else:
            assert result == str(OUT_OF_MEMORY)
            assert not all(self.fits(card, size) for card, size in enumerate(sizes)), "refused, though it fits"

    def step_launch(self, process: Process) -> None:
        if not any(map(process.left_by.get, process.execs)):
            self.step_graph(process)
        executables = self.chance.sample(list(process.execs.items()), min(1, len(process.execs)))
        has_run = False
        for executable, sizes in executables * 3:  # a further launch takes nothing more
            process.keeps = True
            room = has_run or all(self.fits(card, size) for card, size in enumerate(sizes))
            before = [self.held(card) for card in CARDS]
            if self.chance.random() < 0.2 and self.ask(process, f"cuGraphUpload {executable} 0")[0] == "0":
                room = True
                self.does(process, "cuCtxSynchronize")
                self.check()
            result = self.ask(process, f"cuGraphLaunch {executable} 0")[0]
            assert result == "0" or (result == str(OUT_OF_MEMORY) and not room), "refused, though it fits"
            has_run = result == "0"
            self.does(process, "cuCtxSynchronize")
            if has_run and process.left_by.get(executable) and self.chance.random() < 0.5:
                self.frees_what_is_left(process, process.left_by[executable])
                self.does(process, f"cuDeviceGraphMemTrim {process.card}")
                self.check()
                self.step_pointer(process, self.rest(process.card))
                has_run = False  # the next launch takes its memory again
            assert all(self.held(card) <= max(self.limits[card], before[card]) + self.slack(card) for card in CARDS), (
                "granted, though it does not fit"
            )

    def frees_what_is_left(self, process: Process, pointer: int) -> None:
        """By a call, or by another graph."""
        if self.chance.random() < 0.5:
            self.does(process, f"cuMemFree_v2 {pointer}")
            return
        graph = self.made(process, "cuGraphCreate & 0")
        self.made(process, f"cuGraphAddMemFreeNode & {graph} 0 0 {pointer}")
        executable = self.made(process, f"cuGraphInstantiateWithFlags & {graph} 0")
        self.does(process, f"cuGraphLaunch {executable} 0")
        self.does(process, "cuCtxSynchronize")
        self.does(process, f"cuGraphExecDestroy {executable}")

    def step_gated(self, process: Process) -> None:
        """What a stream is still to free counts, and managed memory that replaces a pool's goes with its context."""
        before, within = len(process.holds), self.chance.random() < 0.3
        if within:
            process.contexts.append(self.creates(process, process.card, CREATES))
            self.step_stream_ordered(process)
        if not within and not process.keeps and not self.full:  # the end of managed memory waits for all streams
            self.frees_by_two_streams(process)
        word, stream = self.gate(process)
        freed = process.holds[before:] if within else list(self.chosen(process, "stream_ordered"))
        for hold in freed:
            self.does(process, f"cuMemFreeAsync {hold.key} {stream}")
        self.check()
        self.ask(process, f"python ctypes.memset({word},1,1)")
        if within:
            self.step_destroy_context(process)
        elif self.chance.random() < 0.5:
            self.does(process, f"cuStreamSynchronize {stream}")
        else:
            while process.client.ask(f"cuStreamQuery {stream}") != ["0"]:
                pass
            process.client.left()  # a look is enough: no call synchronizes
        for hold in freed:
            process.holds.remove(hold)

    def frees_by_two_streams(self, process: Process) -> None:
        """One after the other; whoever waits for a stream sees what it has freed."""
        for _ in range(2):
            self.step_stream_ordered(process, CHUNK)
        gates = [(hold, *self.gate(process)) for hold in process.of("stream_ordered")[:2]]
        for hold, _, stream in gates:
            self.does(process, f"cuMemFreeAsync {hold.key} {stream}")
        for hold, word, stream in gates:
            self.ask(process, f"python ctypes.memset({word},1,1)")
            self.does(process, f"cuStreamSynchronize {stream}")
            process.holds.remove(hold)
            self.check()

    def step_destroy_graph(self, process: Process) -> None:
        """One that holds memory, and one without any."""
        empty = self.made(process, f"cuGraphInstantiateWithFlags & {self.made(process, 'cuGraphCreate & 0')} 0")
        for executable in [empty, *list(process.execs)[-1:]]:
            self.does(process, f"cuGraphExecDestroy {executable}")
            process.execs.pop(executable, None)

    def step_gated_graph(self, process: Process) -> None:
        """What a graph is still to take counts, though the driver's pool was trimmed."""
        if self.kept(0) or self.kept(1):
            return
        self.step_graph(process)
        word, stream = self.gate(process)
        for executable, sizes in list(process.execs.items())[-1:]:
            if self.ask(process, f"{self.chance.choice(LAUNCHES)} {executable} {stream}")[0] == "0":
                process.keeps = True
                for line in [f"cuGraphLaunch {executable} {stream}"] * 2:  # takes nothing more
                    self.does(process, line)
                for card, size in enumerate(sizes):
                    self.does(process, f"cuDeviceGraphMemTrim {card}")
                    assert not self.exact or self.charged(card) == min(self.live(card) + size, self.limits[card])
                if self.chance.random() < 0.3:  # what it is still to take counts all the same
                    self.does(process, f"cuGraphExecDestroy {executable}")
                    del process.execs[executable]
                    self.takes(process, self.rest(process.card))
        self.ask(process, f"python ctypes.memset({word},1,1)")
        self.does(process, f"cuStreamSynchronize {stream}")

    def gate(self, process: Process) -> tuple[int, int]:
        """A word, and a stream that waits until it is 1."""
        word = self.made(process, "cuMemHostAlloc & 4096 0")
        stream = self.made(process, f"cuStreamCreate & {NON_BLOCKING}")
        self.does(process, f"cuStreamWaitValue32_v2 {stream} {word} 1 0")
        return word, stream

    def step_renewed_primary(self, process: Process) -> None:
        """Some of what is allocated in a context goes with it. The rest was freed before."""
        context = process.contexts[0]
        if len(process.contexts) > 1 or process.code or process.execs or process.pools or process.endpoint >= 0:
            return
        for hold in [hold for hold in process.holds if hold.kind not in ("pointer", "managed", "array", "opened")]:
            if hold in process.holds:  # and did not go with an array
                self.ends(process, hold)
        end = self.chance.choice(("Reset_v2", "Reset", "Release_v2"))
        keeps, leaves, refused = process.keeps, process.leaves, [str(OUT_OF_MEMORY)]
        if self.chance.random() < 0.5:  # and a graph's memory, whether it has been taken already or not
            self.step_graph(process)
        for executable in process.execs:
            assert self.ask(process, f"cuGraphLaunch {executable} 0") in (["0"], refused)
        self.does(process, f"cuDevicePrimaryCtx{end} {process.card}")
        process.execs, process.left_by, process.keeps, process.leaves = {}, {}, keeps, leaves
        process.holds = [hold for hold in process.holds if hold.context != context]
        process.stacks.clear()
        try:
            process.contexts = [self.opens(process, process.card)]
        except Refused:
            self.makes_room(process.card)
            process.contexts = [self.opens(process, process.card)]
        for other in self.processes:
            other.client.left()  # as in `ends`

    def step_primary(self, process: Process) -> None:
        """A context that is still held keeps its memory."""
        self.made(process, f"cuDevicePrimaryCtxRetain & {process.card}")
        self.does(process, f"cuDevicePrimaryCtxRelease_v2 {process.card}")

    def creates(self, process: Process, card: int, calls: tuple[str, ...] = (GREEN, *CREATES)) -> int:
        """A further context, at times after one that the driver does not make."""
        call = self.chance.choice(calls)
        if call == GREEN:
            buffer = self.ask(process, f"python ctypes.addressof(globals().setdefault('buffer',{BUFFER}))")[0]
            self.does(process, f"cuDeviceGetDevResource {card} {buffer} 1")
            resources = self.made(process, f"cuDevResourceGenerateDesc & {buffer} 1")
            green = self.made(process, call.format(resources=resources, card=card), self.context)
            context = self.made(process, f"cuCtxFromGreenCtx & {green}")
            process.greens[context] = green
            self.does(process, f"cuCtxSetCurrent {context}")
            return context
        if self.chance.random() < 0.5:
            assert self.ask(process, f"{call[:-1]}{NO_FLAGS} {card}")[0] != "0"
        return self.made(process, f"{call} {card}", self.context)

    def destroys(self, process: Process, context: int) -> None:
        """A green context leaves what was allocated in it, and in the simulator does not: nothing is left to it."""
        if context not in process.greens:
            self.does(process, f"cuCtxDestroy_v2 {context}")
            return
        self.does(process, f"cuCtxSetCurrent {context}")
        for hold in [hold for hold in process.holds if hold.context == context]:
            self.ends(process, hold)
        self.does(process, f"cuGreenCtxDestroy {process.greens.pop(context)}")

    def step_context(self, process: Process) -> None:
        process.contexts.append(self.creates(process, process.card))
        self.step_array(process)
        self.step_pointer(process)
        if self.exact and self.chance.random() < 0.5:
            self.step_many(process)
        self.check()
        if self.chance.random() < 0.5:
            self.step_destroy_context(process)

    def step_destroy_context(self, process: Process) -> None:
        if len(process.contexts) > 1:
            gone = process.contexts.pop()
            if self.chance.random() < 0.5:  # or no one is current
                self.does(process, f"cuCtxSetCurrent {self.chance.choice((0, process.contexts[-1]))}")
            has_files = any(hold.context == gone and hold.kind == "external" for hold in process.holds)
            self.destroys(process, gone)
            process.holds = [
                hold
                for hold in process.holds
                if hold.context != gone and not (hold.within and hold.within.context == gone)
            ]
            self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")
            for other in self.processes if has_files else ():
                other.client.left()  # as in `ends`

    def opens(self, process: Process, card: int) -> int:
        """The process's context on the card, as the current one."""
        context = self.made(process, f"cuDevicePrimaryCtxRetain & {card}", self.context)
        self.does(process, f"cuCtxSetCurrent {context}")
        return context

    def step_other_card(self, process: Process) -> None:
        """Memory of a context on the other card, and of a stream there while this card's context is current."""
        card, before = 1 - process.card, len(process.holds)
        if self.is_over(card):
            return  # it gets no stream there
        for number in range(self.chance.choice((1, 4))):
            further = self.creates(process, card)  # the first is the only one there
            if self.chance.random() < 0.5:
                self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")
            self.destroys(process, further)
            if not number:
                self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")
                self.check()
                context = self.opens(process, card)
        self.does(process, f"cuCtxSetCurrent {context}")
        stream, size = self.made(process, f"cuStreamCreate & {NON_BLOCKING}"), self.some_size(card)
        self.makes(process, "pointer", size, f"cuMemAlloc_v2 & {size}", "cuMemFree_v2 KEY", context, card)
        self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")
        size = self.some_size(card)
        end = f"cuMemFreeAsync KEY {stream}"
        self.makes(process, "stream_ordered", size, f"cuMemAllocAsync & {size} {stream}", end, card=card)
        self.check()
        for hold in process.holds[before:]:
            if not hold.context or self.chance.random() < 0.5:
                self.ends(process, hold)
        self.does(process, f"cuDevicePrimaryCtxRelease_v2 {card}")
        process.holds = process.holds[:before]

    def step_end(self, process: Process) -> None:
        for hold in self.chosen(process):
            self.ends(process, hold)

    def step_die(self, process: Process) -> None:
        if self.chance.random() < 0.5:
            return
        self.closes_exports(process)
        self.dies(process, has_heir=not self.full and self.chance.random() < 0.5)  # its room is the next context's

    def dies(self, process: Process, has_heir: bool = False) -> None:
        """`has_heir`: another process then takes what this one has held, before anybody else looks."""
        self.lines.append(f"process {self.processes.index(process)} ends")
        waits = has_heir and not process.is_child and len(self.box.namespaces) == 1
        if process.is_child:
            assert self.ask(process, "python os.kill(os.getpid(),9)") == ["9"]
        elif waits:  # the parent has not waited for it yet
            process.client.process.kill()
            os.waitid(os.P_PID, process.client.process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self.chance.choice((process.client.kill, process.client.close)[len(self.box.namespaces) - 1 :])()
        if has_heir:
            process.holds = []
            self.applies_limits()
            other = self.chance.choice([each for each in self.processes if each is not process])
            self.step_pointer(other, self.rest(other.card))
        if waits:
            process.client.kill()
        parent = self.box.uninitialized() if not process.is_child and self.chance.random() < 0.3 else None
        self.renews(process, parent=process.client if process.is_child else parent)

    def step_outlived(self, process: Process) -> None:
        """Memory that only a file keeps after its maker's end counts once it is imported, and only if it fits."""
        if not self.watchers:
            return
        self.closes_exports(process)
        self.step_physical(process)
        for hold in process.of("physical")[-1:]:
            other = self.chance.choice([each for each in self.processes if each is not process])
            file, card = self.passed(process, other, self.exports(process, hold).key), hold.memory.card
            self.dies(process)
            is_held = any(each.memory is hold.memory for living in self.processes for each in living.holds)
            beyond = self.charged(card) + (0 if is_held else hold.memory.size) - self.limits[card]
            result, key = self.ask(other, f"cuMemImportFromShareableHandle & {file} {FILE_DESCRIPTOR}")
            assert result == "0" or beyond > -self.slack(card), "refused, though it fits"
            assert result != "0" or beyond <= self.slack(card), "granted, though it does not fit"
            if result == "0":
                other.holds.append(Hold(hold.memory, "imported", int(key), "cuMemRelease KEY"))
            self.does(other, CLOSE.replace("KEY", str(file)))

    def step_exec(self, process: Process) -> None:
        """A process executes another program, which has its pid and its descriptors.

        None whose main thread has ended: the simulator then loses what others have opened of its memory.
        """
        if self.chance.random() < 0.5 or process.has_left:
            return
        self.closes_exports(process)
        for hold in process.of(*EXPORTS):
            self.ends(process, hold)
        self.lines.append(f"process {self.processes.index(process)} executes")
        process.client.send("python os.execv(sys.executable,[sys.executable,'-S',*sys.argv])")
        assert process.client.receive() == ["ready"]
        self.renews(process, process.client)

    def step_fork(self, process: Process) -> None:
        """A child has nothing of its parent's, and can call nothing. It may outlive its parent."""
        if self.chance.random() < 0.5:
            self.ask(process, "orphan")
            if not self.is_over(process.card):
                self.step_open(process)
                for hold in [hold for hold in process.of("pointer") if hold.memory.exported]:
                    self.ends(process, hold)
            return
        self.ask(process, "fork")
        assert self.ask(process, "cuMemAlloc_v2 & 4096")[0] == str(NOT_INITIALIZED)
        assert self.ask(process, "exit") == ["0"]

    def step_leave(self, process: Process) -> None:
        """The main thread ends, and another goes on. /proc shows such a process as a zombie."""
        if self.chance.random() < 0.3:
            self.does(process, "leave")
            process.has_left = True
            self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")

    def closes_exports(self, process: Process) -> None:
        """Memory that only files keep after its maker's end is found by nobody (docs/memory-limit.md)."""
        for other in self.processes:
            for hold in other.of(*EXPORTS):
                if hold.memory.maker is process:
                    self.ends(other, hold)

    def renews(self, process: Process, client: Client | None = None, parent: Client | None = None) -> None:
        """Start a process in the place of one that has ended, and with it the descriptors that it had."""
        for other in self.processes:
            if other is not process:
                other.client.left()  # a closed file counts until its exporter asks for something
        if client or parent or not self.exact:  # of its context nobody knows the size without NVML
            self.makes_room(process.card)
        if parent and self.lists:  # it may know what the container holds
            parent.ask(f"listed {self.uuids[process.card]}")
        if parent:
            parent.ask("fork")
        self.processes[self.processes.index(process)] = started = self.started(process.card, parent or client)
        started.is_child = bool(parent) or bool(client and process.is_child)

    def makes_room(self, card: int) -> None:
        self.limits[card] = max(4 * GIB, self.held(card) + GIB)
        self.applies_limits()

    def step_limit(self, process: Process) -> None:
        self.limits[process.card] = self.chance.choice(self.some_limits) * MIB
        self.applies_limits()

    def applies_limits(self) -> None:
        self.lines.append(f"limits {self.limits}")
        limits.update(str(self.box.path / "limits"), "box", self.card_limits())

    def step_race(self, process: Process) -> None:
        """Processes of a card ask at once, again and again, for more than a half of what is left."""
        del process
        card = PROCESSES[0]  # has two
        size = (self.limits[card] - self.held(card)) * 3 // 5 // (2 * MIB) * 2 * MIB
        if not self.exact or size <= 0:
            return
        held = self.held(card)
        before = int(self.box.cards()[card]["used"])
        ask = f"call(['cuMemAlloc_v2','&','{size}'])"
        line = f"python len([call(['cuMemFree_v2',str(p[1])])for(_)in(range({RACES}))for(p)in([{ask}])if(not(p[0]))])*0"
        self.box.forget_most_used()
        self.lines.append(f"all of card {card}: {line}")
        racers = [self.watchers[card], *(each.client for each in self.processes if each.card == card)]
        for each in racers:
            each.send(line)
        assert all(each.receive()[0] == "0" for each in racers)
        most = held + int(self.box.cards()[card]["most_used"]) - before
        assert most <= max(self.limits[card], held), f"card {card}: {most / MIB} MiB at most"

    def step_neighbour(self, process: Process) -> None:
        """While another container fills the card, programs are told no more free memory than it has."""
        watcher, beside = self.watchers[process.card], self.beside[process.card]
        free = int(self.box.cards()[process.card]["free"])
        pointer = beside.made(f"cuMemAlloc_v2 & {(free - watcher.left() // 2) // MIB * MIB}")
        assert watcher.left() <= self.box.cards()[process.card]["free"], "more than the card has"
        beside.does(f"cuMemFree_v2 {pointer}")

    # ---- more that a driver does without being asked ----

    def step_blocks(self, process: Process) -> None:
        """Many allocations whose sizes are no multiples of a block."""
        name, count = f"blocks{len(self.lines)}", self.chance.randrange(1, 120)
        size = self.chance.choice((4096, 3 * MIB // 4, MIB + 61440, 2 * MIB + 1, 5 * MIB))
        line = f"[p[1] for p in (call(['cuMemAlloc_v2','&','{size}']) for _ in range({count})) if not p[0]]"
        made = int(self.ask(process, f"python globals().update({name}={line})or len({name})")[0])
        assert made == count or not self.fits(process.card, size), "refused, though it fits"
        end = f"python sum(call(['cuMemFree_v2',str(each)])[0]for(each)in({name}))"
        process.holds.append(Hold(Memory(process.card, 0), "many", 0, end, process.contexts[-1]))

    def step_code(self, process: Process) -> None:
        """Functions are found, and then launched: the driver may take memory for them at either."""
        if len(process.contexts) > 1:
            return
        numbers = self.chance.sample(range(FUNCTIONS), self.chance.randrange(1, FUNCTIONS))
        way = process.code or self.chance.choice(list(WAYS))
        load, find, more, unload = WAYS[way]
        pad = self.chance.choice((0, 0, 100)) * MIB  # of the image, which is loaded whole
        code, unload = CODE.replace("LOADED", load).replace("PAD", str(pad)), f"python cuda.cu{unload}(lib)"
        if self.chance.random() < 0.2:
            self.loads_too_much(process)
        more = f"python cuda.cu{more}ctypes.c_uint64(f[{{0}}]))"
        calls = [FUNCTION.replace("FOUND", find), *[more] * (self.chance.random() < 0.3), LAUNCH]
        uses = [line.format(number) for line in calls for number in numbers]
        lines = [code] * (not process.code) + uses
        full = [0, -1]  # the line before which the card is filled
        if self.chance.random() < 0.5:  # the same code again may lie where it lay
            full.append(len(lines) + 1)
            lines += [unload, code, *uses]
        lines += [unload] * (self.chance.random() < 0.3)
        filled = self.chance.choice(full)
        for number, line in enumerate(lines):
            if number == filled:
                self.step_pointer(process, self.rest(process.card))
            size = pad if line == code else 0
            if size:  # which is known once it is loaded
                self.tops[process.card] = max(self.tops[process.card], self.held(process.card) + size)
            result = self.ask(process, line)[0]
            assert result == "0" or (result == str(OUT_OF_MEMORY) and not self.fits(process.card, size)), line
            if result != "0" and "Launch" not in line:
                return
            process.code = way if line != unload else ""
            if self.chance.random() < 0.3:
                process.client.left()

    def loads_too_much(self, process: Process) -> None:
        """A module's size is known once it is there: it is unloaded, and nothing of it stays."""
        card, before = process.card, self.held(process.card)
        self.limits[card] = before // MIB * MIB + 100 * MIB
        self.applies_limits()
        self.tops[card] = before + MOST_CODE
        image = f"ctypes.create_string_buffer(b'.version 7.0\\n.target sm_80\\n'+b' '*{MOST_CODE})"
        line = f"python cuda.cuModuleLoadData(ctypes.byref(ctypes.c_uint64()),{image})"
        assert self.ask(process, line)[0] == str(OUT_OF_MEMORY), "loaded, though it does not fit"
        assert self.held(card) <= before + self.slack(card), "refused, and it stays"

    def step_stack(self, process: Process) -> None:
        before, size = process.stacks.get(process.contexts[-1], STACKS[0]), self.chance.choice(STACKS)
        growth = 108 * 2048 * max(0, size - before)
        if growth and self.chance.random() < 0.5:  # it just fits
            self.limits[process.card] = (self.held(process.card) + growth + 2 * BOUND) // MIB * MIB
            self.applies_limits()
        result = self.ask(process, f"cuCtxSetLimit 0 {size}")[0]
        assert result == "0" or not self.fits(process.card, growth), "refused, though it fits"
        if result == "0":
            process.stacks[process.contexts[-1]] = size

    def step_streams(self, process: Process) -> None:
        for _ in range(self.chance.randrange(20)):
            stream = self.granted(process, Memory(process.card, 0), f"cuStreamCreate & {NON_BLOCKING}")
            if stream is not None and self.chance.random() < 0.5:
                self.does(process, f"cuStreamDestroy_v2 {stream}")

    def step_workers(self, process: Process) -> None:
        """Short programs follow one another, each while the driver tears down what the last ones held; or all stay."""
        workers = [
            self.box.uninitialized(nested=self.chance.random() < 0.3) for _ in range(self.chance.randrange(1, 6))
        ]
        stay, race = (self.chance.random() < 0.3 for _ in range(2))
        if stay:  # with so much room, libvcuda does not look for their contexts until the card is full
            self.limits[process.card] = self.held(process.card) // MIB * MIB + 3 * GIB
            self.applies_limits()
        for worker in workers:
            worker.does("cuInit 0")
        if race:
            self.races_for_contexts(process, workers)
        for number, worker in enumerate(() if race else workers):
            could = self.fits(process.card, self.context)  # those before it may end just after the call
            retain = f"cuDevicePrimaryCtxRetain & {process.card}"
            result = worker.numbers(retain)[0]
            if result and could and not stay:  # of one that ends just now the memory may be free and its lock not yet
                for ending in workers[:number]:
                    ending.process.wait(60)
                result = worker.numbers(f"thread {retain}")[0]
            elif result:
                result = worker.numbers(f"thread {retain}")[0]  # which waits for nobody
            self.lines.append(f"a worker's context: {result}")
            assert result == 0 or not could, "refused, though it fits"
            assert worker.process.stdin
            if not stay:
                worker.process.stdin.close()
        for _ in range(3 * stay):
            self.step_pointer(process, self.rest(process.card))
        for worker in workers:
            worker.close()

    def races_for_contexts(self, process: Process, workers: list[Client]) -> None:
        """All make one at once. One may be killed meanwhile, and have had the room that others found taken.

        A process that is refused memory gives back what its pools do not use, perhaps after the contexts were refused.
        """
        held, holds = self.held(process.card), len(process.holds)
        for worker in workers:
            worker.send(f"cuDevicePrimaryCtxRetain & {process.card}")
        if self.chance.random() < 0.5:
            self.takes(process, self.rest(process.card))
        is_killed = self.chance.random() < 0.3
        if is_killed:
            workers.pop(self.chance.randrange(len(workers))).kill()
        results = [worker.receive()[0] for worker in workers]
        self.lines.append(f"contexts made at once: {results}")
        assert {*results} <= {"0", "2"}
        held += results.count("0") * self.context + sum(hold.memory.size for hold in process.holds[holds:])
        could = held + self.context + self.slack(process.card) <= self.limits[process.card]
        assert is_killed or "2" not in results or not could, "refused, though it fits"

    def storm(self, process: Process, killed: bool = False) -> None:
        """All processes make calls from several threads at once."""
        storms = [kinds for kinds in STORMS if not self.exact or "graph" not in kinds]  # whose memory stays
        for each in self.processes:
            kinds, threads = self.chance.choice(storms), self.chance.choice((1, 2, 4))
            line = f"storm {self.chance.randrange(1 << 20)} {threads} {self.chance.randrange(5, 40)} {kinds}"
            self.lines.append(f"process {self.processes.index(each)}: {line}")
            each.client.send(line)
        if killed:
            time.sleep(self.chance.random() * 0.1)
            process.client.kill()
        for each in [other for other in self.processes if other is not process or not killed]:
            assert len(each.client.receive()) == 2, self.box.log

    def step_storm(self, process: Process) -> None:
        self.storm(process)

    def step_kill(self, process: Process) -> None:
        """A process is killed in the middle of its calls."""
        if process.is_child:
            return
        self.closes_exports(process)
        self.storm(process, killed=True)
        self.renews(process)

    def chosen(self, process: Process, *kinds: str) -> Iterator[Hold]:
        """One of the process's holds. If it has none of these kinds and there is room, one is made."""
        if kinds and not process.of(*kinds):
            getattr(self, f"step_{kinds[0]}")(process)
        holds = process.of(*kinds) if kinds else process.holds
        return iter(self.chance.sample(holds, min(1, len(holds))))


class Listed(History):
    """On a driver that lists its processes, and takes for contexts what the limits have beside what is random here."""

    unused = (*History.unused, "neighbour", "kill")
    lists = True

    def __init__(self, box: SimBox, seed: str, told: bool = False, full: bool = False) -> None:
        self.told, self.room = told, 0
        super().__init__(box, seed, full=full)

    def limit_of(self, card: int) -> int:
        memory = max(self.live(card), self.held(card)) + self.room if self.room else self.limits[card]
        return memory + self.contexts(card)

    def applies_limits(self) -> None:
        super().applies_limits()
        until = int(time.time()) + 60
        figures = {self.uuids[card]: (self.contexts(card), until) for card in CARDS if self.told}
        limits.set_overheads(str(self.box.path / "limits"), figures)

    def check(self) -> None:
        self.applies_limits()
        super().check()
        for card in CARDS if not self.told else ():
            listed, used = self.watchers[card].numbers(f"listed {self.uuids[card]}")
            least = min(listed, self.limit_of(card))
            assert least <= used <= least + self.shared(card), f"card {card}: {used} in use, {listed} by processes"

    @contextlib.contextmanager
    def with_room(self) -> Iterator[None]:
        self.room = 8 * GIB if self.told else self.chance.choice((8 * GIB, self.box.context))  # a mark counts as 1 GiB
        self.applies_limits()
        yield
        self.room = 0
        self.applies_limits()

    def started(self, card: int, client: Client | None = None) -> Process:
        with self.with_room():
            return super().started(card, client)

    def opens(self, process: Process, card: int) -> int:
        with self.with_room():
            return super().opens(process, card)

    def made(self, process: Process, line: str, size: int = 0) -> int:
        """libvcuda books a further context like the first one, until one was seen to take nothing."""
        with self.with_room() if "CtxCreate" in line else contextlib.nullcontext():
            return super().made(process, line, size)


class Harsh(History):
    """On a driver that takes more than it is asked for, and lists some of it with no process."""

    exact, lists = False, True
    unused = ("many", "neighbour", "other_card")  #: step_blocks has the former; nobody is beside
    some_limits = (1024, 1536, 2048, 3072)

    def __init__(self, box: SimBox, seed: str) -> None:
        self.alone = random.Random(seed).choice((0, 60))
        super().__init__(box, seed)
        self.context = box.context
        self.tops = [0, 0]

    def held(self, card: int) -> int:
        return int(self.box.cards()[card]["used"])

    def slack(self, card: int) -> int:
        return max(BOUND, self.limits[card] // 100)

    def step(self, number: int) -> None:
        if number >= self.alone and not self.watchers:
            for card in CARDS:
                self.makes_room(card)
            self.watchers = [self.box.caller(card) for card in CARDS]
        self.tops = [self.limits[card] for card in CARDS]
        for card in CARDS:
            held = self.held(card)
            if held > self.limits[card]:  # the limit was lowered, which code may still exceed
                self.tops[card] = held + MOST_CODE
        self.box.forget_most_used()
        super().step(number)

    def check(self) -> None:
        for card in CARDS:
            state, limit, slack = self.box.cards()[card], self.limits[card], self.slack(card)
            held, most = int(state["used"]), int(state["most_used"])
            charged = self.charged(card) if self.watchers else min(held, limit)
            told = f"card {card}, limit {limit / MIB}: charged {charged / MIB}, {held / MIB} held, {most / MIB} at most"
            assert most <= max(limit, self.tops[card]) + slack, told
            assert abs(charged - min(held, limit)) <= slack, told

    def granted(self, process: Process, memory: Memory, line: str) -> int | None:
        result, key = [*self.ask(process, self.by_a_thread(line)), "0"][:2]
        if result == str(OUT_OF_MEMORY):
            assert not self.fits(memory.card, memory.size), "refused, though it fits"
            return None
        assert result == "0", line
        return int(key)

    def creates(self, process: Process, card: int, calls: tuple[str, ...] = (GREEN, *CREATES)) -> int:
        self.leaves_little_room(card)
        return super().creates(process, card, calls)

    def step_workers(self, process: Process) -> None:
        self.leaves_little_room(process.card)
        super().step_workers(process)

    def leaves_little_room(self, card: int) -> None:
        """Sometimes there is hardly more room than a context takes, for which libvcuda then books it beforehand."""
        if self.chance.random() < 0.3:
            self.limits[card] = (self.held(card) + self.context) // MIB * MIB + 100 * MIB
            self.applies_limits()

    def made(self, process: Process, line: str, size: int = 0) -> int:
        key = self.granted(process, Memory(process.card, size), line)
        if key is None:
            raise Refused
        return key


class Refused(Exception):
    """A call that a step needs found no room."""


SEEDS = [int(os.environ["VGPU_SEED"])] if "VGPU_SEED" in os.environ else range(4)


def steps() -> list[int]:
    return [*map(int, os.environ["VGPU_STEPS"].split(","))] if "VGPU_STEPS" in os.environ else [*range(STEPS)]


def runs(history: History) -> None:
    try:
        for number in steps():
            history.step(number)
    finally:
        print(*history.lines, history.box.log, sep="\n")


@pytest.mark.parametrize(("profile", "seed"), [("a100x2", SEEDS[0]), ("h200x8", SEEDS[-1])])
def test_what_is_charged_is_what_the_cards_hold(sim_box: Callable[..., SimBox], profile: str, seed: int) -> None:
    neighbour, box = sim_box(profile), sim_box(profile)
    runs(History(box, f"{seed} {profile}", neighbour))


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("told", [False, True], ids=["listed", "told"])
def test_contexts_are_charged_too(sim_box: Callable[..., SimBox], told: bool, seed: int) -> None:
    box = sim_box("a100x2", nvml=True, pids=told)
    box.environment["VGPU_SIM_PIDS"] = "host" if told else ""
    runs(Listed(box, f"{seed} {told}", told))


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_what_replaces_memory_of_a_full_card_is_charged(sim_box: Callable[..., SimBox], seed: int) -> None:
    neighbour, box = sim_box("a100x2"), sim_box("a100x2", nvml=True)
    left = 4 * box.context + GIB // 2  # the contexts', and what is left to allocate
    for card in CARDS:
        neighbour.caller(card).made(f"cuMemAlloc_v2 & {int(box.cards()[card]['capacity']) - left}")
    runs(Listed(box, f"{seed} full", full=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_that_takes_more_stays_within_the_bound(sim_box: Callable[..., SimBox], seed: int) -> None:
    runs(Harsh(sim_box("harsh", nvml=True), f"{seed} harsh"))


def test_a_failing_history_is_shrunk_to_what_it_needs() -> None:
    assert shrunk(list(range(150)), lambda part: {3, 77, 78} <= set(part)) == [3, 77, 78]


PROFILE = load_simctl().load_profile("harsh")


@pytest.mark.long
@pytest.mark.parametrize("seed", [int(os.environ["VGPU_SEED"])] if "VGPU_SEED" in os.environ else range(8))
@pytest.mark.parametrize("option", ["none", *PROFILE["memory"]])
def test_each_option_of_such_a_driver_does_by_itself(
    sim_box: Callable[..., SimBox], option: str, seed: int, pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("full counts: make test-long")
    memory = {name: value for name, value in PROFILE["memory"].items() if name == option}
    runs(Harsh(sim_box({**PROFILE, "memory": memory}, nvml=True), f"{seed} {option}"))
