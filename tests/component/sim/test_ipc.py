"""Memory and events of one process in another: charges, contents, lifetime, and which stream waits for which."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY = 1, 201, 400, 600


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


def test_an_invalid_handle(node: Any) -> None:
    client = node.client().start()
    assert client("ipc_open", "00" * 64)[0] == INVALID_VALUE
    assert client("ipc_open", b"vgpu-ipc".hex() + "ff" * 56)[0] == INVALID_VALUE
    assert client("ipc_handle", 4096)[0] == INVALID_VALUE


def test_an_event_of_another_process(node: Any) -> None:
    """The event's gate blocks the exporter's stream, and with it the importer's."""
    owner, other = node.client().start(), node.client().start()
    event = owner("event")
    code, handle = owner("event_handle", event)
    assert code == 0
    assert owner("event_open", handle)[0] == INVALID_CONTEXT
    code, opened = other("event_open", handle)
    assert code == 0
    assert other("query", opened) == 0  # never recorded
    assert owner("gate") == 0
    assert owner("record", event) == 0
    assert [owner("query", event), other("query", opened)] == [NOT_READY, NOT_READY]
    assert other("wait", opened) == 0
    assert other("query") == NOT_READY
    owner("gate_open")
    assert other("synchronize") == 0
    assert other("synchronize", opened) == 0
    assert [owner("query", event), other("query", opened)] == [0, 0]
    # The other way round, and with the exporter's handle gone.
    assert owner("event_destroy", event) == 0
    assert other("gate") == 0
    assert other("record", opened) == 0
    assert other("query", opened) == NOT_READY
    other("gate_open")
    assert other("synchronize", opened) == 0


def test_an_event_of_a_process_that_ended(node: Any) -> None:
    owner, other = node.client().start(), node.client().start()
    event = owner("event")
    _, handle = owner("event_handle", event)
    opened = other("event_open", handle)[1]
    assert owner("gate") == 0
    assert owner("record", event) == 0
    assert other("wait", opened) == 0
    assert other("query") == NOT_READY
    owner.kill()
    assert other("synchronize") == 0
    assert other("event_open", handle)[0] == INVALID_VALUE


def test_an_invalid_event(node: Any) -> None:
    client = node.client().start()
    assert client("event_handle", 4096)[0] == INVALID_HANDLE
    assert client("event_open", "00" * 64)[0] == INVALID_VALUE
    _, memory = client("ipc_handle", client("alloc", MIB)[1])
    assert client("event_open", memory)[0] == INVALID_VALUE


def test_a_pool_of_another_process(node: Any) -> None:
    owner, other = node.client().start(), node.client().start()
    before = node.card()["used"]
    pool = owner("pool")[1]
    pointer = owner("pool_alloc", pool, 4 * MIB)[1]
    assert owner("write", pointer, "before") == 0
    code, fd = owner("pool_export", pool)
    assert code == 0
    code, imported = other("pool_import", f"/proc/{owner.process.pid}/fd/{fd}")
    assert code == 0
    assert other("pool_alloc", imported, MIB)[0] == INVALID_VALUE
    code, data = owner("pointer_export", pointer)
    assert code == 0
    assert other("pointer_import", pool, data)[0] == INVALID_VALUE
    code, mapped = other("pointer_import", imported, data)
    assert code == 0
    assert node.card()["used"] == before + 4 * MIB
    assert other("read", mapped, 6) == [0, "before"]
    assert other("write", mapped, "after!") == 0
    assert owner("read", pointer, 6) == [0, "after!"]
    assert other("pool_free", mapped) == 0
    assert node.card()["used"] == before + 4 * MIB
    assert owner("pool_free", pointer) == 0
    assert node.card()["used"] == before


def test_a_pool_that_is_not_for_others(node: Any) -> None:
    client = node.client().start()
    pool = client("pool", 0)[1]
    assert client("pool_export", pool)[0] == INVALID_VALUE
    assert client("pointer_export", client("pool_alloc", pool, MIB)[1])[0] == INVALID_VALUE
    assert client("pool", 8)[0] == 801
