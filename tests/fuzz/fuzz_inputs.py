"""The inputs that Python reads and others write, each as a function of bytes: TARGETS.

Belongs here: what has to hold for any bytes. A target returns True when the input was accepted, False when a VgpuError
of one line refused it; anything else is a finding. Not here: where the bytes come from (test_inputs: the kept corpus
and hypothesis; fuzz.py: atheris).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from vgpu.config import (
    claims,
    context_sizes,
    core_schedule,
    foreign,
    grants,
    inventory,
    limits,
    paths,
    pods,
    records,
    request,
    settings,
    usage,
)
from vgpu.config.dialects import placements
from vgpu.config.errors import VgpuError
from vgpu.config.pods import Pod
from vgpu.hook.devices import systemd
from vgpu.hook.formats import ldcache
from vgpu.hook.formats.ldcache import Addition
from vgpu.hook.linux import dbus
from vgpu.hook.request import identity, ignored_annotations, oci_state

SPLIT = b"\n---\n"  #: between the state JSON and config.json in one input
SOURCE = "input"
_folder: list[str] = []  # a directory of this process for inputs that are read from files


def folder() -> str:
    if not _folder:
        _folder.append(tempfile.mkdtemp(prefix="vgpu-fuzz-"))
    return _folder[0]


def put(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(data)


def state(data: bytes) -> None:
    """The state JSON and the bundle's config.json, up to the request that they make."""
    first, _, second = data.partition(SPLIT)
    value = records.decode_object(first, SOURCE)
    if isinstance(value.get("bundle"), str):
        value["bundle"] = folder()
    put(f"{folder()}/config.json", second)
    container = oci_state.read(value)
    assert type(container.pid) is int
    assert all(isinstance(item, str) for pair in container.annotations.items() for item in pair)
    ignored_annotations.in_pod(container.annotations)
    found = identity.identify([container.annotations.get("cgroup", "/")], container.annotations)
    assert found.holder is None or paths.is_pod_uid(found.holder.pod_uid)
    request.wishes_from(container.annotations)
    asked(container.annotations)


def asked(annotations: dict[str, str]) -> None:
    wanted = request.from_annotations(annotations)
    assert wanted.gpus >= 1
    assert 0 <= wanted.cores <= 100 * wanted.gpus
    assert 0 <= wanted.memory <= request.MAX_SIZE


def claim(data: bytes) -> None:
    read = claims.from_record(records.decode_object(data, SOURCE), SOURCE)
    assert paths.is_container_id(read.container)
    assert again(read.record(), lambda record: claims.from_record(record, SOURCE).record())


def again(record: dict[str, object], reading: Callable[[dict[str, object]], object]) -> bool:
    """Whether a record is the same after writing and reading it."""
    return reading(records.decode_object(records.encode(record).encode(), SOURCE)) == record


def grant(data: bytes) -> None:
    read = grants.from_record(records.decode_object(data, SOURCE), SOURCE)
    assert paths.is_grant_id(read.id)
    assert again(read.record(), lambda record: grants.from_record(record, SOURCE).record())


def pod(data: bytes) -> None:
    read = pods.from_record(records.decode_object(data, SOURCE), SOURCE)
    assert paths.is_pod_uid(read.uid)
    assert again(read.record(), lambda record: pods.from_record(record, SOURCE).record())


def placement(data: bytes) -> None:
    """The placement annotations of every dialect: a JSON object of annotations, for a pod of two containers."""
    value = records.decode_object(data, SOURCE)
    annotations = {key: text for key, text in value.items() if isinstance(text, str)}
    limit = {"cores": 50, "memory": 4096, "nvidia.com/gpu": 1, "volcano.sh/vgpu-number": 1}
    of = Pod("uid", "default", "pod", "node", [], ["main", "side"], annotations, {"main": limit, "side": limit})
    for dialect in placements.READERS:
        for choice in placements.choices(of, "main", "node", [dialect]):
            assert 0 < len(choice.cards) <= placements.MAX_CARDS
    ignored_annotations.in_pod(annotations)


def foreign_users(data: bytes) -> None:
    put(paths.foreign(folder()), data)
    foreign.read(folder(), "boot", 1000.0)


def contexts(data: bytes) -> None:
    put(paths.context_sizes(folder()), data)
    found = context_sizes.read(folder())
    assert again(context_sizes.record(found), lambda record: record)


class _Heard(dbus.Bus):
    """A connection on which the peer has said all its bytes at once."""

    __slots__ = ()

    def __init__(self, data: bytes) -> None:
        self.path, self.destination, self.deadline = SOURCE, "", 0.0
        self._buffer, self._serial = data, 0

    def _write(self, data: bytes) -> None:
        pass

    def _read(self) -> None:
        raise dbus.BusError("closed the connection")


def bus(data: bytes) -> None:
    """What whoever answers as systemd says to the questions about a unit."""
    try:
        unit = systemd._read(_Heard(data), "a.scope")
    except (dbus.BusError, dbus.ErrorReply) as error:
        raise VgpuError(SOURCE, found=str(error)) from error
    assert unit.version >= 0
    assert all(isinstance(text, str) for pair in unit.allow.items() for text in pair)


def limits_file(data: bytes) -> None:
    cards = limits.decode(data)[1]
    assert len(cards) <= limits.MAX_CARDS
    limits.overheads(data)
    assert limits.decode(limits.encode("c", cards))[1] == cards


def schedule_file(data: bytes) -> None:
    found, offset = core_schedule.decode(data)
    assert len(found) <= core_schedule.MAX_CARDS
    assert -(1 << 63) <= offset < 1 << 63


def usage_region(data: bytes) -> None:
    """The first bytes of the region; zeros follow, as in a file that is long enough."""
    if data[:1] == b"\x5a":
        usage.decode(data)
    whole = data[: usage.SIZE].ljust(usage.SIZE, b"\0")
    usage.decode(whole)
    usage.allocated(whole, SOURCE, frozenset({0}))
    assert all(owner.slot < usage.SLOTS for owner in usage.owners(whole))
    for place in usage.places(whole[: usage.CARDS_END]).values():
        usage.time_at(whole[usage.TIMES_OFFSET : usage.FLIGHTS_OFFSET], place)
    usage.contexts(whole[: usage.CARDS_END])


def loader_cache(data: bytes) -> None:
    """An image's /etc/ld.so.cache: what is made of it is a cache with the driver's names, and stays the same."""
    additions = [Addition("libcuda.so.1", "/usr/lib/libcuda.so.1"), Addition("libnvidia-ml.so.1", "/usr/lib/ml.so.1")]
    merged = ldcache.merge(data, additions, ("libcuda.so.99",))
    assert len(merged) <= 4 * len(data) + 65536
    assert ldcache.merge(merged, additions) == merged
    paths_of = {entry.path for entry in ldcache.parse(merged).entries if entry.name == b"libcuda.so.1"}
    assert b"/usr/lib/libcuda.so.1" in paths_of


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bus": bus,
    "claim": claim,
    "contexts": contexts,
    "foreign": foreign_users,
    "grant": grant,
    "inventory": lambda data: inventory.from_record(records.decode_object(data, SOURCE), SOURCE),
    "ldcache": loader_cache,
    "limits": limits_file,
    "placements": placement,
    "pod": pod,
    "schedule": schedule_file,
    "settings": lambda data: settings.from_record(records.decode_object(data, SOURCE), SOURCE),
    "state": state,
    "usage": usage_region,
}


def accepted(target: str, data: bytes) -> bool:
    """Run one input. False: refused, as a damaged input has to be."""
    try:
        TARGETS[target](data)
    except VgpuError as error:
        text = str(error)
        assert text
        assert text.isprintable(), repr(text)
        return False
    return True
