"""PyTorch, as its tutorials use it: copies, streams, graphs, data loaders, training, compiled functions."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from scenarios import MIB, fill, in_process, main, say
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.backends.cudnn.enabled = False  # it computes convolutions by code that brings its own runtime


class Numbers(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((1000,), float(index))


def network() -> Any:
    nn = torch.nn
    convolution = (nn.Conv2d(3, 16, 3), nn.ReLU(), nn.BatchNorm2d(16), nn.Flatten())
    linear = (nn.Linear(16 * 30 * 30, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 10))
    return nn.Sequential(*convolution, *linear).cuda()


def empty(size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def work() -> None:
    say(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_name())
    host = torch.arange(4 * MIB, dtype=torch.int32)
    card = host.to("cuda")
    say("copy", torch.equal(card.cpu(), host), torch.cuda.memory_allocated())
    pinned = host.pin_memory()
    card.copy_(pinned, non_blocking=True)
    back = torch.empty_like(host).pin_memory()
    back.copy_(card, non_blocking=True)
    torch.cuda.synchronize()
    say("pinned", back.is_pinned(), torch.equal(back, host))
    begin, end, stream = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        begin.record()
        other = (card * 2).relu() + 1
        other.record_stream(torch.cuda.current_stream())
        end.record()
    end.synchronize()
    say("events", begin.elapsed_time(end) > 0, stream.query(), end.query())
    say("shapes", torch.nonzero(torch.zeros(10, device="cuda")).shape, torch.topk(card.float(), 5).values.shape)
    del card, other
    torch.cuda.empty_cache()
    say("given back", torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


def train() -> None:
    """Mixed precision with pinned batches of a data loader's processes, then inference of a transformer."""
    model = network()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler()
    data = TensorDataset(torch.zeros(256, 3, 32, 32), torch.zeros(256, dtype=torch.long))
    loader = DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                guess = model(images.cuda(non_blocking=True))
                loss = torch.nn.functional.cross_entropy(guess, labels.cuda(non_blocking=True))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    say("trained", tuple(guess.shape), torch.cuda.max_memory_allocated())
    with torch.no_grad():
        layer = torch.nn.TransformerEncoderLayer(256, 8, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).cuda().half().eval()
        say("inferred", tuple(encoder(torch.zeros(8, 128, 256, device="cuda", dtype=torch.half)).shape))


def graphs() -> None:
    """Graphs that share a pool, with side streams; a callable with its backward; one that is invalid."""
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    captured = torch.cuda.make_graphed_callables(layer, (torch.zeros(8, 64, device="cuda", requires_grad=True),))
    optimizer = torch.optim.Adam(layer.parameters(), capturable=True, foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        captured(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    made = []
    for number, mode in enumerate(("global", "thread_local", "relaxed")):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            result = torch.empty(MIB, dtype=torch.uint8, device="cuda")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                result.zero_()
            torch.cuda.current_stream().wait_stream(side)
        made.append((graph, result, number))
    for _ in range(50):
        for graph, _result, _number in made:
            graph.replay()
    torch.cuda.synchronize()
    say("replayed", [int(result[0]) for _, result, _ in made], torch.cuda.memory_allocated())
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(10, device="cuda").cpu()
    except RuntimeError as error:
        say("invalid", str(error).partition("\n")[0])
    torch.zeros(10, device="cuda").cpu()
    beside_a_busy_thread()


def beside_a_busy_thread() -> None:
    stopped = threading.Event()

    def busy() -> None:
        stream = torch.cuda.Stream()
        while not stopped.is_set():
            with torch.cuda.stream(stream):
                torch.zeros(1 << 16, device="cuda").add_(1)
            stream.synchronize()

    thread = threading.Thread(target=busy)
    thread.start()
    for _ in range(10):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            torch.zeros(1 << 10, device="cuda").add_(1)
        graph.replay()
    stopped.set()
    thread.join()
    torch.cuda.synchronize()
    say("captured beside a busy thread")


def use_card() -> str:
    try:
        return f"worked {torch.zeros(4, device='cuda').sum().item()}"
    except RuntimeError as error:
        return f"{type(error).__name__} {str(error)[:60]}"


def children() -> None:
    """Workers by fork and by spawn while the parent has a context; a forked child cannot use the card."""
    torch.zeros(MIB, device="cuda").add_(1)
    for how in ("fork", "spawn"):
        loader = DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=how)
        sums = [int(batch.to("cuda", non_blocking=True).cpu().sum()) for batch in loader]
        say(how, sums, in_process(how, use_card))
    child = os.fork()
    if child == 0:
        os._exit(0)
    say("forked", os.waitpid(child, 0)[1])


def compiled() -> None:
    """torch.compile with its graphs, whose kernels Triton makes."""
    data = torch.zeros(MIB, device="cuda")
    function = torch.compile(lambda value: (value * 2 + 1).relu().sum(), mode="reduce-overhead")
    say("compiled", [tuple(function(data).shape) for _ in range(4)])


def out_of_memory() -> None:
    fill(empty, torch.cuda.OutOfMemoryError)
    torch.cuda.empty_cache()
    say("goes on", torch.zeros(MIB, device="cuda").sum().item())


def pair() -> None:
    """Another process holds some memory, in its own context."""
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        say("holds", pool.apply(hold, (256 * MIB,)))
        fill(empty, torch.cuda.OutOfMemoryError)
        say("still", pool.apply(hold, (0,)))
        tensor = torch.full((MIB,), 7, dtype=torch.uint8).cuda()
        say("shared", pool.apply(first_of, (tensor,)))
    torch.cuda.empty_cache()
    fill(empty, torch.cuda.OutOfMemoryError)


HELD: list[Any] = []


def hold(size: int) -> int:
    if size:
        HELD.append(empty(size))
    return sum(tensor.nbytes for tensor in HELD)


def first_of(tensor: Any) -> int:
    return int(tensor[0])


def two_cards() -> None:
    """A thread for each card, each until that card's own limit, and copies between them."""
    say(torch.cuda.device_count(), torch.cuda.can_device_access_peer(0, 1))
    first = torch.arange(MIB, device="cuda:0")
    second = first.to("cuda:1")
    back = second.to("cuda:0", non_blocking=True)
    torch.cuda.synchronize(1)
    torch.cuda.synchronize(0)
    say("copies", torch.equal(back.cpu(), first.cpu()))
    event = torch.cuda.Event()
    event.record(torch.cuda.Stream(1))
    torch.cuda.current_stream(0).wait_event(event)
    for card in (0, 1):
        with torch.cuda.device(card):
            fill(empty, torch.cuda.OutOfMemoryError)
            torch.cuda.empty_cache()
    threads = [threading.Thread(target=lambda card=card: torch.zeros(MIB, device=card).add_(1)) for card in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(globals())
