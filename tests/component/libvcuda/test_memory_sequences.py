"""Random programs: after each call libvcuda has charged what the cards hold, by the simulator's ledger.

Processes of a container call the driver at random, on two cards whose limits change meanwhile. Beside them a model
knows what lives, and so which calls the limits have room for. A failure prints its seed and all calls so far;
VGPU_SEED=<seed> runs that history again, and any other.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits, usage

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

INVALID_VALUE, OUT_OF_MEMORY = 1, 2
MIB = 1 << 20
GIB = 1 << 30
STEPS = 150
#: The steps on a full card that may be oversubscribed.
REPLACED = ("pointer", "stream_ordered", "pool", "from_pool", "end", "end", "gated", "die", "limit", "trim")
CARDS = (0, 1)
MANY = 800
PROCESSES = (0, 0, 1)  #: the card of each
CREATES = ("cuCtxCreate_v2 & 0", "cuCtxCreate_v3 & 0 0 0", "cuCtxCreate_v4 & 0 0")
FLOAT, LAYERED, SPARSE = 32, 1, 64
FILE_DESCRIPTOR = 1
RELEASE_THRESHOLD, EVERYTHING = 4, (1 << 64) - 1
MAP, UNMAP = 1, 2
NON_BLOCKING = 1
LARGE = "Q:16384,Q:8192,Q:0,i:32,I:1"
NODE = "{i:1,i:0,i:1,i:%d,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,Q:0,Q:0,Q:%d,Q:0}"
AUTO_FREE = 1
POOL = "{i:1,i:0,i:1,i:%d,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0}"
PHYSICAL = "{i:1,i:1,i:1,i:%d,q:0,q:0}"
#: Arrays: the call that makes one, and the bytes of its elements.
ARRAYS = (
    (f"cuArrayCreate_v2 & {{Q:1024,Q:512,i:{FLOAT},i:4}}", 8 * MIB),
    (f"cuArray3DCreate_v2 & {{Q:256,Q:256,Q:16,i:{FLOAT},i:2,i:0}}", 8 * MIB),
    (f"cuArray3DCreate_v2 & {{Q:256,Q:256,Q:8,i:{FLOAT},i:4,i:{LAYERED}}}", 8 * MIB),
    (f"cuArray3DCreate_v2 & {{Q:65536,Q:0,Q:0,i:{FLOAT},i:4,i:0}}", MIB),
    (f"cuMipmappedArrayCreate & {{Q:512,Q:512,Q:0,i:{FLOAT},i:4,i:0}} 2", 5 * MIB),
    (f"cuMipmappedArrayCreate & {{Q:512,Q:512,Q:8,i:{FLOAT},i:4,i:0}} 2", 36 * MIB),
)


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


@dataclass(eq=False)
class Process:
    client: Client
    card: int
    contexts: list[int]  #: the first one is the primary context; the last one is current
    holds: list[Hold] = field(default_factory=list)
    pools: dict[int, bool] = field(default_factory=dict)  #: whether the pool keeps what is freed
    execs: dict[int, list[int]] = field(default_factory=dict)  #: what a launch of the graph takes of each card
    keeps: bool = False  #: a pool, or the card's graph memory, may hold more than what lives
    leaves: bool = False  #: a graph may hold memory that it has left

    def of(self, *kinds: str) -> list[Hold]:
        return [hold for hold in self.holds if hold.kind in kinds]


class History:
    """A random program: `step` makes one step of it, and `check` compares."""

    def __init__(self, box: SimBox, seed: int, full: bool) -> None:
        self.box, self.chance, self.full = box, random.Random(seed), full
        self.lines = [f"VGPU_SEED={seed}"]
        self.neighbours = [sum(int(each["allocated"]) for each in card["processes"]) for card in box.cards()]
        self.limits = dict.fromkeys(CARDS, 4 * GIB)
        self.uuids = [card["uuid"] for card in box.cards()]
        (box.path / "limits").write_bytes(limits.encode("box", self.card_limits()))
        self.watchers = [box.caller(card) for card in CARDS]
        self.processes = [self.started(card) for card in PROCESSES]

    # ---- what the container holds ----

    def card_limits(self) -> list[limits.CardLimit]:
        return [limits.CardLimit(self.uuids[card], self.limits[card], oversubscribe=self.full) for card in CARDS]

    def live(self, card: int) -> int:
        memories = {hold.memory for process in self.processes for hold in process.holds}
        return sum(memory.size for memory in memories if memory.card == card)

    def held(self, card: int) -> int:
        """Without contexts, which libvcuda sees by NVML alone."""
        state = self.box.cards()[card]
        return int(state["used"]) - self.neighbours[card] - sum(int(each["context"]) for each in state["processes"])

    def managed(self) -> int:
        """The bytes of managed memory that replace a full card's, by the usage region."""
        slots = (self.box.path / "usage/usage").read_bytes()[usage.CARDS_END : usage.CHARGES_OFFSET]
        return sum(int(slot[3]) for slot in usage.SLOT.iter_unpack(slots))

    def charged(self, card: int) -> int:
        return self.limits[card] - self.watchers[card].left()

    def check(self) -> None:
        replaced = 0
        for card in CARDS:
            held, live, charged = self.held(card), self.live(card), self.charged(card)
            beyond = live - held if self.full else 0  # in managed memory, where the card had no room
            replaced += beyond
            assert charged == min(held + beyond, self.limits[card]), f"card {card}: charged {charged}, {held} held"
            assert self.full or held == live or (self.kept(card) and held > live), f"{card}: {held} held, {live} live"
        assert self.managed() == replaced

    def kept(self, card: int) -> bool:
        return any(process.keeps for process in self.processes if process.leaves or process.card == card)

    # ---- calls ----

    def started(self, card: int) -> Process:
        client = self.box.caller(card)
        return Process(client, card, [client.numbers("cuCtxGetCurrent &")[1]])

    def ask(self, process: Process, line: str) -> list[str]:
        answer = process.client.ask(line)
        self.lines.append(f"process {self.processes.index(process)}: {line} -> {' '.join(answer)}")
        return answer

    def does(self, process: Process, line: str) -> None:
        assert self.ask(process, line)[0] == "0", line

    def made(self, process: Process, line: str) -> int:
        result, key = self.ask(process, line)[:2]
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

    def ends(self, process: Process, hold: Hold) -> None:
        """End a hold, and what goes with it."""
        self.does(process, self.by_a_thread(hold.end.replace("KEY", str(hold.key))))
        process.holds = [other for other in process.holds if hold not in (other, other.within)]
        self.does(process, "cuCtxSynchronize")
        for other in self.processes if hold.kind == "export" else ():
            other.client.left()  # a closed file counts until its exporter asks for something

    def some_size(self, card: int) -> int:
        """Some MiB, or just what the limit has room for, or a little more."""
        room = max(self.limits[card] - self.live(card), 0) // (2 * MIB) * 2 * MIB
        size = self.chance.choice((2, 4, 16, 64, 128, 256, 700)) * MIB
        return self.chance.choice((size, size, max(room, 2 * MIB), room + 2 * MIB))

    # ---- the steps; each has its name's part of the random choice ----

    def step(self) -> None:
        steps = [name for name in dir(self) if name.startswith("step_")] + ["step_end"] * 3
        if self.full:  # managed memory replaces only this
            steps = [f"step_{kind}" for kind in REPLACED]
        process = self.chance.choice(self.processes)
        getattr(self, self.chance.choice(steps))(process)
        self.check()

    def step_pointer(self, process: Process) -> None:
        size, context = self.some_size(process.card), process.contexts[-1]
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
        call, size = self.chance.choice(ARRAYS)
        end = "cuMipmappedArrayDestroy KEY" if "Mipmapped" in call else "cuArrayDestroy KEY"
        self.makes(process, "array", size, call, end, process.contexts[-1])

    def step_sparse_array(self, process: Process) -> None:
        """In the primary context: the simulator keeps what is bound to an array of a context that was destroyed."""
        if len(process.contexts) == 1:
            call = f"cuArray3DCreate_v2 & {{{LARGE},I:{SPARSE}}}"
            self.makes(process, "sparse_array", 0, call, "cuArrayDestroy KEY", process.contexts[0])

    def step_stream_ordered(self, process: Process) -> None:
        size, suffix = self.some_size(process.card), self.chance.choice(("", "_ptsz"))
        end = self.chance.choice((f"cuMemFreeAsync{suffix} KEY 0", "cuMemFree_v2 KEY"))
        self.makes(process, "stream_ordered", size, f"cuMemAllocAsync{suffix} & {size} 0", end)

    def step_pool(self, process: Process) -> None:
        pool = self.made(process, f"cuMemPoolCreate & {POOL % process.card}")
        process.pools[pool] = not self.full and self.chance.random() < 0.5
        if process.pools[pool]:
            self.does(process, f"cuMemPoolSetAttribute {pool} {RELEASE_THRESHOLD} {{Q:{EVERYTHING}}}")

    def step_from_pool(self, process: Process) -> None:
        """Half of the time it is freed at once, so that the pool may keep it."""
        if not process.pools:
            self.step_pool(process)
        pool, size = self.chance.choice(list(process.pools)), self.some_size(process.card)
        process.keeps |= process.pools[pool]
        before = len(process.holds)
        self.makes(
            process, "stream_ordered", size, f"cuMemAllocFromPoolAsync & {size} {pool} 0", "cuMemFreeAsync KEY 0"
        )
        if len(process.holds) > before and self.chance.random() < 0.5:
            self.ends(process, process.holds[-1])
        elif self.chance.random() < 0.5:
            self.does(process, f"cuMemPoolDestroy {pool}")
            del process.pools[pool]

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
            address = self.made(process, f"cuMemAddressReserve & {size} 0 0 0")
            self.does(process, f"cuMemMap {address} {size} 0 {hold.key} 0")
            process.holds.append(Hold(hold.memory, kind, address, f"cuMemUnmap KEY {size}"))

    def step_retain(self, process: Process) -> None:
        for hold in self.chosen(process, "map", "imported_map"):
            handle, kind = self.made(process, f"cuMemRetainAllocationHandle & {hold.key}"), {"map": "physical"}
            process.holds.append(Hold(hold.memory, kind.get(hold.kind, "imported"), handle, "cuMemRelease KEY"))

    def step_export(self, process: Process) -> None:
        for hold in self.chosen(process, "physical", "imported"):
            line = f"cuMemExportToShareableHandle & {hold.key} {FILE_DESCRIPTOR} 0"
            if hold.kind == "imported":
                assert self.ask(process, line)[0] == str(INVALID_VALUE)  # docs/reality.md
                continue
            file = self.made(process, line) & 0xFFFFFFFF
            process.holds.append(Hold(hold.memory, "export", file, "python os.close(KEY)or(0)"))

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

    def step_bind(self, process: Process) -> None:
        for array in self.chosen(process, "sparse_array"):
            for hold in self.chosen(process, "physical", "imported"):
                self.does(process, f"cuMemMapArrayAsync {self.binding(array.key, MAP, hold.key)} 1 0")
                unbind = f"cuMemMapArrayAsync {self.binding(array.key, UNMAP)} 1 0"
                process.holds = [other for other in process.holds if other.within is not array]
                process.holds.append(Hold(hold.memory, "binding", array.key, unbind, within=array))
                self.ends(process, hold)
                self.check()
                if self.chance.random() < 0.7:
                    self.ends(process, self.chance.choice((array, process.of("binding")[-1])))

    @staticmethod
    def binding(array: int, operation: int, memory: int = 0) -> str:
        """A CUarrayMapInfo: the whole first level."""
        part = "i:0,i:0,I:0,I:0,I:0,I:0,I:0,I:16384,I:8192,I:1"
        return f"{{i:0,i:0,Q:{array},{part},i:{operation},i:0,Q:{memory},Q:0,I:1,I:0,I:0,I:0}}"

    def step_open(self, process: Process) -> None:
        for hold in self.chosen(process, "pointer"):
            others = [each for each in self.processes if each is not process and each.card == process.card]
            if not others or hold.context != process.contexts[0]:
                continue
            if not hold.memory.exported:
                result, hold.memory.exported = self.ask(process, f"export {hold.key}")
                assert result == "0"
            other = self.chance.choice(others)
            pointer = self.made(other, f"open {hold.memory.exported}")
            end = "cuIpcCloseMemHandle KEY"
            other.holds.append(Hold(hold.memory, "opened", pointer, end, other.contexts[-1]))

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
                assert self.charged(process.card) == charged, "freed by its exporter, and not by its importer"
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
        leaves = self.chance.random() < 0.3
        if pointer is not None and not leaves:
            self.does(process, f"cuMemFreeAsync {pointer} {stream}")
        graph = self.made(process, f"cuStreamEndCapture {stream} &")
        self.does(process, f"cuStreamDestroy_v2 {stream}")
        if pointer is not None:
            executable = self.made(process, f"cuGraphInstantiateWithFlags & {graph} {int(leaves)}")
            process.execs[executable] = [size * (card == process.card) for card in CARDS]
            process.leaves |= leaves

    def step_graph_of_nodes(self, process: Process) -> None:
        graph = self.made(process, "cuGraphCreate & 0")
        sizes = [self.some_size(card) for card in CARDS]
        for card, size in enumerate(sizes):
            self.made(process, f"cuGraphAddMemAllocNode & {graph} 0 0 {NODE % (card, size)}")
        result, executable = self.ask(process, f"cuGraphInstantiateWithFlags & {graph} {AUTO_FREE}")
        if result == "0":
            process.execs[int(executable)] = sizes
            process.leaves = True
        else:
            assert result == str(OUT_OF_MEMORY)
            assert any(self.held(card) + sizes[card] > self.limits[card] for card in CARDS)

    def step_launch(self, process: Process) -> None:
        for executable, sizes in self.chance.sample(list(process.execs.items()), min(1, len(process.execs))):
            process.keeps = True
            before = [self.held(card) for card in CARDS]
            result = self.ask(process, f"cuGraphLaunch {executable} 0")[0]
            room = all(held + size <= self.limits[card] for card, (held, size) in enumerate(zip(before, sizes)))
            assert result == "0" or (result == str(OUT_OF_MEMORY) and not room), "refused, though it fits"
            self.does(process, "cuCtxSynchronize")
            assert all(self.held(card) <= max(self.limits[card], before[card]) for card in CARDS), (
                "granted, though it does not fit"
            )

    def step_gated(self, process: Process) -> None:
        """What a stream is still to free counts."""
        word, stream = self.gate(process)
        freed = list(self.chosen(process, "stream_ordered"))
        for hold in freed:
            self.does(process, f"cuMemFreeAsync {hold.key} {stream}")
        self.check()
        self.ask(process, f"python ctypes.memset({word},1,1)")
        while process.client.ask(f"cuStreamQuery {stream}") != ["0"]:
            pass
        process.client.left()  # a look is enough: no call synchronizes
        for hold in freed:
            process.holds.remove(hold)

    def step_destroy_graph(self, process: Process) -> None:
        if process.execs:
            self.does(process, f"cuGraphExecDestroy {process.execs.popitem()[0]}")

    def step_gated_graph(self, process: Process) -> None:
        """What a graph is still to take counts, though the driver's pool was trimmed."""
        if self.kept(0) or self.kept(1):
            return
        self.step_graph(process)
        word, stream = self.gate(process)
        for executable, sizes in list(process.execs.items())[-1:]:
            if self.ask(process, f"cuGraphLaunch {executable} {stream}")[0] == "0":
                process.keeps = True
                for card, size in enumerate(sizes):
                    self.does(process, f"cuDeviceGraphMemTrim {card}")
                    assert self.charged(card) == min(self.live(card) + size, self.limits[card])
                self.does(process, f"cuGraphLaunch {executable} {stream}")  # takes nothing more
        self.ask(process, f"python ctypes.memset({word},1,1)")
        self.does(process, f"cuStreamSynchronize {stream}")

    def gate(self, process: Process) -> tuple[int, int]:
        """A word, and a stream that waits until it is 1."""
        word = self.made(process, "cuMemHostAlloc & 4096 0")
        stream = self.made(process, f"cuStreamCreate & {NON_BLOCKING}")
        self.does(process, f"cuStreamWaitValue32_v2 {stream} {word} 1 0")
        return word, stream

    def step_context(self, process: Process) -> None:
        process.contexts.append(self.made(process, f"{self.chance.choice(CREATES)} {process.card}"))
        self.step_array(process)
        self.step_pointer(process)
        self.check()
        if self.chance.random() < 0.5:
            self.step_destroy_context(process)

    def step_destroy_context(self, process: Process) -> None:
        if len(process.contexts) > 1:
            gone = process.contexts.pop()
            self.does(process, f"cuCtxDestroy_v2 {gone}")
            process.holds = [
                hold
                for hold in process.holds
                if hold.context != gone and not (hold.within and hold.within.context == gone)
            ]
            self.does(process, f"cuCtxSetCurrent {process.contexts[-1]}")

    def step_end(self, process: Process) -> None:
        for hold in self.chosen(process):
            self.ends(process, hold)

    def step_die(self, process: Process) -> None:
        if self.chance.random() < 0.5:
            return
        number = self.processes.index(process)
        for other in self.processes:  # memory that only files keep is found by nobody then (docs/memory-limit.md)
            for hold in other.of("export"):
                if hold.memory.maker is process:
                    self.ends(other, hold)
        self.lines.append(f"process {number} ends")
        self.chance.choice((process.client.kill, process.client.close))()
        self.processes[number] = self.started(process.card)

    def step_limit(self, process: Process) -> None:
        self.limits[process.card] = self.chance.choice((64, 256, 512, 1024, 1536)) * MIB
        self.lines.append(f"limits {self.limits}")
        limits.update(str(self.box.path / "limits"), "box", self.card_limits())

    def chosen(self, process: Process, *kinds: str) -> Iterator[Hold]:
        """One of the process's holds. If it has none of these kinds and there is room, one is made."""
        if kinds and not process.of(*kinds):
            getattr(self, f"step_{kinds[0]}")(process)
        holds = process.of(*kinds) if kinds else process.holds
        return iter(self.chance.sample(holds, min(1, len(holds))))


SEEDS = [int(os.environ["VGPU_SEED"])] if "VGPU_SEED" in os.environ else range(4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("full", [False, True], ids=["with-room", "full"])
def test_what_is_charged_is_what_the_cards_hold(sim_box: Callable[..., SimBox], full: bool, seed: int) -> None:
    neighbour, box = sim_box("a100x2"), sim_box("a100x2")
    left = 4 * box.context + GIB // 2  # the contexts', and what is left to allocate
    for card in CARDS if full else ():
        neighbour.caller(card).made(f"cuMemAlloc_v2 & {int(box.cards()[card]['capacity']) - left}")
    history = History(box, seed, full)
    try:
        for _ in range(STEPS):
            history.step()
    finally:
        print(*history.lines, box.log, sep="\n")
