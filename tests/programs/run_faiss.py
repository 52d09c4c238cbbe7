"""faiss: indexes on cards, searched."""

from __future__ import annotations

from typing import Any

import faiss
import numpy
from scenarios import MIB, fill, main, say

WIDTH = 256


def resources() -> Any:
    made = faiss.StandardGpuResources()
    made.setTempMemory(16 * MIB)
    return made


def index(owner: Any, size: int) -> Any:
    made = faiss.GpuIndexFlatL2(owner, WIDTH)
    made.add(numpy.zeros((size // WIDTH // 4, WIDTH), numpy.float32))
    return made


def work() -> None:
    say(faiss.__version__, faiss.get_num_gpus())
    made = index(resources(), MIB)
    distances, found = made.search(numpy.zeros((5, WIDTH), numpy.float32), 3)
    say("searched", made.ntotal, distances.shape, found.shape)
    say("copied back", faiss.index_gpu_to_cpu(made).ntotal)


def out_of_memory() -> None:
    owner = resources()
    fill(lambda size: index(owner, size), RuntimeError)
    say("goes on", index(owner, MIB).ntotal)


def two_cards() -> None:
    made = faiss.index_cpu_to_all_gpus(faiss.IndexFlatL2(WIDTH))
    made.add(numpy.zeros((4096, WIDTH), numpy.float32))
    say(faiss.get_num_gpus(), made.ntotal, made.search(numpy.zeros((5, WIDTH), numpy.float32), 3)[0].shape)


if __name__ == "__main__":
    main(globals())
