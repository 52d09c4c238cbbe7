"""Triton: a kernel of its own language, launched, captured and measured."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from scenarios import MIB, main, say


@triton.jit
def add(source, target, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    inside = offsets < count
    tl.store(target + offsets, tl.load(source + offsets, mask=inside) + 1, mask=inside)


def work() -> None:
    source = torch.zeros(MIB, device="cuda")
    target = torch.empty_like(source)

    def launch() -> None:
        add[(1024,)](source, target, source.numel(), block=1024)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()
    say(triton.__version__, "measured", triton.testing.do_bench(launch, warmup=5, rep=20) > 0)


if __name__ == "__main__":
    main(globals())
