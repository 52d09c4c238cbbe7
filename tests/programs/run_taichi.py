"""Taichi: fields and kernels. It reads the annotations of its kernels, which therefore have to be values."""

from typing import Any

import taichi
from scenarios import MIB, fill, main, say

taichi.init(arch=taichi.cuda, offline_cache=False, log_level=taichi.CRITICAL)


@taichi.kernel
def add(field: taichi.types.ndarray(dtype=taichi.f32, ndim=1)):
    for place in field:
        field[place] += 1


def work() -> None:
    field = taichi.ndarray(taichi.f32, MIB)
    field.fill(0)
    add(field)
    taichi.sync()
    other = taichi.field(taichi.i32, shape=1024)
    other.fill(7)
    say(taichi.__version__, taichi.cfg.arch == taichi.cuda, field.to_numpy().shape, other.to_numpy().shape)


def allocate(size: int) -> Any:
    return taichi.ndarray(taichi.u8, size)


def out_of_memory() -> None:
    fill(allocate, RuntimeError)
    work()


if __name__ == "__main__":
    main(globals())
