"""Memory that is mapped to a sparse array stays charged until it is unmapped or the array goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 512 * MIB
HALF = LIMIT // 2
ON_CARD = "{i:1,i:1,i:1,i:0,q:0,q:0}"
SPARSE = "{Q:16384,Q:8192,Q:0,i:32,I:1,I:64}"
MAP, UNMAP = 1, 2


@pytest.fixture
def client(t4: SimBox) -> Client:
    t4.limit(LIMIT)
    return t4.caller()


def info(array: int, operation: int, memory: int = 0, layer: int = 0) -> str:
    """A CUarrayMapInfo: the whole first level of a layer."""
    part = f"i:0,i:0,I:0,I:{layer},I:0,I:0,I:0,I:16384,I:8192,I:1"
    return f"{{i:0,i:0,Q:{array},{part},i:{operation},i:0,Q:{memory},Q:0,I:1,I:0,I:0,I:0}}"


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("end", ["unmap", "destroy", "replace"])
def test_mapped_memory_stays_charged(t4: SimBox, client: Client, end: str, suffix: str) -> None:
    array = client.made(f"cuArray3DCreate_v2 & {SPARSE}")
    memory = client.made(f"cuMemCreate & {HALF} {ON_CARD} 0")
    client.does(f"cuMemMapArrayAsync{suffix} {info(array, MAP, memory)} 1 0")
    client.does(f"cuMemRelease {memory}")
    assert (client.left(), t4.held()) == (HALF, HALF)
    assert client.numbers(f"cuMemCreate & {HALF + 2 * MIB} {ON_CARD} 0")[0] == OUT_OF_MEMORY
    if end == "unmap":
        client.does(f"cuMemMapArrayAsync{suffix} {info(array, UNMAP)} 1 0")
    elif end == "destroy":
        client.does(f"cuArrayDestroy {array}")
    else:
        other = client.made(f"cuMemCreate & {2 * MIB} {ON_CARD} 0")
        client.does(f"cuMemMapArrayAsync{suffix} {info(array, MAP, other)} 1 0")
        assert (client.left(), t4.held()) == (LIMIT - 2 * MIB, 2 * MIB)
        return
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_a_map_that_fails_keeps_nothing(t4: SimBox, client: Client) -> None:
    memory = client.made(f"cuMemCreate & {HALF} {ON_CARD} 0")
    solid = client.made("cuArray3DCreate_v2 & {Q:64,Q:64,Q:0,i:32,I:1,I:0}")
    assert client.numbers(f"cuMemMapArrayAsync {info(solid, MAP, memory)} 1 0")[0] != 0
    client.does(f"cuMemRelease {memory}")
    client.does(f"cuArrayDestroy {solid}")
    assert (client.left(), t4.held()) == (LIMIT, 0)
