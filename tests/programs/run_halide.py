"""Halide: a pipeline that its compiler makes for the card."""

from __future__ import annotations

from typing import Any

import halide
import numpy
from scenarios import MIB, fill, main, say

TARGET = halide.get_host_target().with_feature(halide.TargetFeature.CUDA)


def realized(size: int) -> Any:
    place, block, thread = halide.Var("place"), halide.Var("block"), halide.Var("thread")
    function = halide.Func("function")
    function[place] = halide.cast(halide.UInt(8), place)
    function.gpu_tile(place, block, thread, 64)
    return function.realize([size], TARGET)


def work() -> None:
    say(*(numpy.array(realized(size * MIB)).shape for size in range(1, 6)))


def out_of_memory() -> None:
    fill(realized, halide.HalideError)
    work()


if __name__ == "__main__":
    main(globals())
