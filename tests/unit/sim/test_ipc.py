"""Memory of one process in another: who pays, what it holds, and when it goes."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
INVALID_VALUE, INVALID_CONTEXT = 1, 201


def test_memory_of_another_process(node: Any) -> None:
    owner, other = node.client().start(), node.client().start()
    before = node.card()["used"]
    pointer = owner("alloc", 4 * MIB)[1]
    assert owner("write", pointer + 100, "before") == 0
    code, handle = owner("ipc_handle", pointer + 64)
    assert code == 0
    assert owner("ipc_open", handle)[0] == INVALID_CONTEXT
    code, mapped = other("ipc_open", handle)
    assert code == 0
    assert node.card()["used"] == before + 4 * MIB
    assert other("read", mapped + 36, 6) == [0, "before"]
    assert other("write", mapped + 36, "after!") == 0
    assert owner("read", pointer + 100, 6) == [0, "after!"]
    assert other("ipc_open", handle) == [0, mapped]
    assert other("free", mapped) == INVALID_VALUE
    assert other("ipc_close", mapped) == 0
    assert other("ipc_close", mapped) == 0
    assert other("ipc_close", mapped) == INVALID_VALUE
    assert owner("free", pointer) == 0
    assert node.card()["used"] == before


def test_the_importer_keeps_its_bytes(node: Any) -> None:
    owner, other = node.client().start(), node.client().start()
    pointer = owner("alloc", MIB)[1]
    assert owner("write", pointer, "kept") == 0
    _, handle = owner("ipc_handle", pointer)
    _, mapped = other("ipc_open", handle)
    owner.kill()
    assert other("read", mapped, 4) == [0, "kept"]
    assert node.client().start()("ipc_open", handle)[0] == INVALID_VALUE


def test_a_handle_that_is_none(node: Any) -> None:
    client = node.client().start()
    assert client("ipc_open", "00" * 64)[0] == INVALID_VALUE
    assert client("ipc_open", b"vgpu-ipc".hex() + "ff" * 56)[0] == INVALID_VALUE
    assert client("ipc_handle", 4096)[0] == INVALID_VALUE
