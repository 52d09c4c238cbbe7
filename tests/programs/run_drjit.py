"""Dr.Jit: arrays whose operations become one kernel when somebody asks for the result."""

from __future__ import annotations

from typing import Any

import drjit
from drjit.cuda import Float, UInt8
from scenarios import MIB, fill, main, say


def work() -> None:
    values = drjit.sqrt(drjit.arange(Float, MIB)) + 1
    drjit.eval(values)
    drjit.sync_thread()
    say(drjit.__version__, drjit.width(values), drjit.sum(values).numpy().shape)
    host = drjit.load(Float, [1.0, 2.0, 3.0]) if hasattr(drjit, "load") else Float([1.0, 2.0, 3.0])
    say("copy", host.numpy().tolist())


def out_of_memory() -> None:
    def allocate(size: int) -> Any:
        array = drjit.empty(UInt8, size)
        drjit.make_opaque(array)
        return array

    fill(allocate, RuntimeError)
    drjit.flush_malloc_cache()
    work()


if __name__ == "__main__":
    main(globals())
