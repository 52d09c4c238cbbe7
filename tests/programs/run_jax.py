"""JAX: compiled functions, derivatives, copies between cards. XLA_PYTHON_CLIENT_ALLOCATOR chooses its allocator."""

from __future__ import annotations

from typing import Any

from jax._src import hardware_utils
from scenarios import MIB, fill, in_process, main, say

hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for a device node, which the simulated driver has not

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def allocate(size: int, card: int = 0) -> Any:
    return jax.block_until_ready(jax.device_put(jnp.empty(size, jnp.uint8), jax.devices()[card]))


def work() -> None:
    say(jax.__version__, len(jax.devices()), jax.devices()[0].device_kind)
    host = jnp.arange(MIB, dtype=jnp.int32)
    card = jax.device_put(host)
    say("copy", card.nbytes, jax.device_get(card).shape)
    step = jax.jit(jax.value_and_grad(lambda weights, data: ((data * weights).sum() - 1.0) ** 2))
    weights = jnp.ones(1024)
    for _ in range(10):
        loss, gradient = step(weights, jnp.ones(1024))
        weights = weights - 0.1 * gradient
    say("step", loss.shape, jax.block_until_ready(weights).shape)
    say("mapped", jax.vmap(jnp.sort)(jnp.ones((16, 64))).shape)
    say("random", jax.random.normal(jax.random.key(0), (128,)).shape)


def out_of_memory() -> None:
    fill(allocate, (ValueError, jax.errors.JaxRuntimeError))
    work()


def two_cards() -> None:
    say(len(jax.devices()))
    for card in (0, 1):
        fill(lambda size, card=card: allocate(size, card), (ValueError, jax.errors.JaxRuntimeError))
    both = jax.pmap(lambda row: row * 2)(jnp.ones((2, 1024)))
    say("on both", both.shape)


def children() -> None:
    say("spawned", in_process("spawn", count))


def count() -> int:
    return len(jax.devices())


if __name__ == "__main__":
    main(globals())
