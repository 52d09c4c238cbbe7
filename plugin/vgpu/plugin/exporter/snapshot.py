"""vgpud's last round as values, and the file from which it comes.

Belongs here: reading the record again when it has changed, and giving each figure its type. A figure that is missing or
of another type is None: vgpud may be older or newer, and no figure may stop the others. Not here: their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from vgpu.config import paths, rounds, usage
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import staleness
from vgpu.node.service.file_signature import Signature, signature

NS = 1e9


class Fields:
    """The fields of a record of any form."""

    def __init__(self, record: object) -> None:
        self.record: dict[str, object] = record if isinstance(record, dict) else {}

    def number(self, name: str) -> float | None:
        value = self.record.get(name)
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value

    def seconds(self, name: str) -> float | None:
        """Seconds of a figure in ns."""
        value = self.number(name)
        return None if value is None else value / NS

    def ratio(self, name: str) -> float | None:
        """The ratio of a figure in percent."""
        value = self.number(name)
        return None if value is None else value / 100

    def text(self, name: str) -> str:
        value = self.record.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool:
        return self.record.get(name) is True

    def items(self, name: str) -> list[object]:
        value = self.record.get(name)
        return value if isinstance(value, list) else []

    def inner(self, name: str) -> Fields:
        return Fields(self.record.get(name))

    def numbers(self, name: str) -> dict[str, float]:
        found = self.inner(name)
        return {key: value for key in found.record if (value := found.number(key)) is not None}


@dataclass(frozen=True)
class Card:
    """One card of the node. Ratios are parts of the card."""

    uuid: str
    index: str
    model: str
    bus_id: str
    fields: Fields

    @property
    def labels(self) -> tuple[str, ...]:
        return self.index, self.uuid, self.model, self.bus_id


@dataclass(frozen=True)
class Share:
    """What a container has of one card. `reported` are the container's own words; None: it has none to read."""

    uuid: str
    index: str
    bus_id: str
    fields: Fields
    reported: Fields | None

    def memory_used(self) -> float | None:
        """The bytes that the container's programs see as used: what they hold, and what the host found beside it."""
        if self.reported is None:
            return None
        held, allocated = self.reported.number("memory"), self.reported.number("allocated")
        if held is None or allocated is None:
            return None
        return usage.memory_in_use(int(held), int(allocated), int(self.fields.number("memory_driver") or 0))

    def memory_by_kind(self) -> dict[str, float]:
        used = self.memory_used()
        if used is None or self.reported is None:
            return {}
        allocated = self.reported.number("allocated") or 0
        return {"allocated": allocated, "driver": used - allocated}

    def use(self) -> float | None:
        """Percent of the card that NVML saw in use; else what the container reports."""
        seen = self.fields.number("cores_seen")
        return seen if seen is not None else self.fields.number("cores_used")


@dataclass(frozen=True)
class Container:
    """A living container with cards. Not `counted`: it shares the budget of an older one, whose figures are of both."""

    id: str
    namespace: str
    pod: str
    name: str
    pod_uid: str
    fields: Fields
    cards: tuple[Share, ...]
    counted: bool

    @property
    def labels(self) -> tuple[str, ...]:
        return self.namespace, self.pod, self.name

    @property
    def shares(self) -> tuple[Share, ...]:
        """What sums over containers count."""
        return self.cards if self.counted else ()


@dataclass(frozen=True)
class Snapshot:
    """The state that a scrape shows. Without a fresh record there are neither cards nor containers."""

    node: str
    problem: str = ""
    fields: Fields = field(default_factory=lambda: Fields(None))
    cards: tuple[Card, ...] = ()
    containers: tuple[Container, ...] = ()


def of_record(record: dict[str, object]) -> Snapshot:
    fields = Fields(record)
    cards = {card.uuid: card for card in map(_card, fields.items("cards")) if card.uuid}
    containers: dict[tuple[str, ...], Container] = {}
    for item in fields.items("containers"):
        one = _container(Fields(item), cards)
        known = containers.get(one.labels)
        if one.id and (known is None or _age(known) <= _age(one)):
            containers[one.labels] = one  # of two lives under one name the younger: series must not repeat
    return Snapshot(fields.text("node"), "", fields, tuple(cards.values()), tuple(containers.values()))


def _age(container: Container) -> float:
    return container.fields.number("created") or 0.0


def _card(item: object) -> Card:
    fields = Fields(item)
    return Card(fields.text("uuid"), _index(fields), fields.text("name"), fields.text("bus_id"), fields)


def _index(fields: Fields) -> str:
    index = fields.number("index")
    return "" if index is None else str(int(index))


def _container(fields: Fields, cards: dict[str, Card]) -> Container:
    shares = {share.uuid: share for share in (_share(item, cards) for item in fields.items("cards")) if share.uuid}
    return Container(
        fields.text("container"), fields.text("namespace"), fields.text("pod"), fields.text("container_name"),
        fields.text("pod_uid"), fields, tuple(shares.values()), fields.record.get("counted") is not False,
    )  # fmt: skip


def _share(item: object, cards: dict[str, Card]) -> Share:
    fields = Fields(item)
    card = cards.get(fields.text("uuid"))
    reported = fields.record.get("reported")
    return Share(
        fields.text("uuid"), card.index if card else "", card.bus_id if card else "", fields,
        Fields(reported) if isinstance(reported, dict) else None,
    )  # fmt: skip


class Source:
    """The last round below `run_dir`, for the node `node` where there is no record. `proc` is the root of procfs."""

    def __init__(
        self, run_dir: str, node: str = "", proc: str = "/proc", clock: Callable[[], float] = since_boot
    ) -> None:
        self.run_dir = run_dir
        self.node = node or os.uname().nodename
        self.proc = proc
        self.clock = clock
        self._signature: Signature = ()
        self._record: dict[str, object] = {}
        self._snapshot = Snapshot(self.node)

    def look(self) -> tuple[Snapshot, object]:
        """The state now, and a value that changes with it."""
        try:
            self._read()
        except (OSError, VgpuError, RecursionError) as error:
            self._signature = ()
            return Snapshot(self.node, str(error)), str(error)
        if not rounds.is_fresh(self._record, staleness.boot_id(self.proc), self.clock()):
            return Snapshot(self.node, "vgpud's last round is out of date: it hangs or has ended"), "old"
        return self._snapshot, self._signature

    def _read(self) -> None:
        found = signature(paths.round_record(self.run_dir))
        if found and found == self._signature:
            return
        self._record = rounds.read(self.run_dir)
        self._snapshot, self._signature = of_record(self._record), found
