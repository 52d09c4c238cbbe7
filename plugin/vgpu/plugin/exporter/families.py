"""The metrics of vgpu's own names, from a snapshot: Prometheus' base units and naming rules.

Belongs here: each metric's name, help, labels and value. A figure that is not known has no series. What a container
says of itself has `_reported_` in its name. Not here: the names of other projects (vgpu.plugin.exporter.peer_families).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from vgpu.plugin.exporter.exposition import COUNTER, GAUGE, HISTOGRAM, Names, add_histogram, family
from vgpu.plugin.exporter.snapshot import Fields, Snapshot

CARD = ("node", "card", "uuid", "model", "bus_id")
CONTAINER = ("node", "namespace", "pod", "container")
SHARE = (*CONTAINER, "card", "uuid")


def of_snapshot(snapshot: Snapshot, version: str) -> Iterator[Metric]:
    """All families of a snapshot."""
    yield family(GAUGE, "vgpu_build_info", "The exporter's version.", ("version",), [((version,), 1)])
    up = [((snapshot.node,), float(not snapshot.problem))]
    yield family(GAUGE, "vgpu_vgpud_up", "Whether vgpud's last round is at most 15 seconds old.", ("node",), up)
    if snapshot.problem:
        return
    yield from _node(snapshot)
    yield from _programs(snapshot)
    yield from _hook(snapshot)
    yield from _cards(snapshot)
    yield from _containers(snapshot)
    yield from _shares(snapshot)
    yield from _reported(snapshot)
    yield from _held(snapshot)


# The node

NODE = (
    (GAUGE, "vgpu_round_timestamp_seconds", "When vgpud finished its last round, in seconds since 1970.", "", "time"),
    (COUNTER, "vgpu_vgpud_rounds", "Rounds since vgpud's start.", "vgpud", "rounds"),
    (GAUGE, "vgpu_vgpud_round_duration_seconds", "How long vgpud's last round took.", "vgpud", "round_seconds"),
    (GAUGE, "vgpu_ledger_grants", "Grants that the device plugin has given and not ended.", "ledger", "grants"),
    (COUNTER, "vgpu_ledger_released", "Claims of dead containers that vgpud removed.", "vgpud", "released"),
)  # fmt: skip


def _node(snapshot: Snapshot) -> Iterator[Metric]:
    at = (snapshot.node,)
    for kind, name, text, part, key in NODE:
        fields = snapshot.fields.inner(part) if part else snapshot.fields
        yield family(kind, name, text, ("node",), [(at, fields.number(key))])
    vgpud = snapshot.fields.inner("vgpud")
    yield family(GAUGE, "vgpu_vgpud_warnings", "Warnings of vgpud that are present.", ("node",),
                  [(at, float(len(vgpud.items("warnings"))))])  # fmt: skip
    state = vgpud.inner("inventory").text("state")
    yield family(GAUGE, "vgpu_inventory_info", "The inventory's state and the driver.", ("node", "state", "driver"),
                  [((*at, state, snapshot.fields.text("driver_version")), 1)])  # fmt: skip
    claims = snapshot.fields.inner("ledger").numbers("claims")
    yield family(GAUGE, "vgpu_ledger_claims", "Claims by state; total has the dead and the damaged ones, too.",
                  ("node", "state"), [((*at, state), value) for state, value in claims.items()])  # fmt: skip
    found = snapshot.fields.numbers("registrations")
    yield family(GAUGE, "vgpu_runtime_registrations", "Runtimes' registrations of the hook, by state.",
                  ("node", "state"), [((*at, state), value) for state, value in found.items()])  # fmt: skip
    counts = snapshot.fields.numbers("violation_counts")
    yield family(COUNTER, "vgpu_violations", "Containers found beyond their memory limit, by what was done.",
                  ("node", "action"), [((*at, action), value) for action, value in counts.items()])  # fmt: skip


def _programs(snapshot: Snapshot) -> Iterator[Metric]:
    """The device plugin's state, none where no plugin has run since boot, and whether the programs see the cards."""
    at, plugin = (snapshot.node,), snapshot.fields.inner("plugin")
    for name in ("alive", "ready"):
        text = f"Whether the device plugin is {name}."
        yield family(GAUGE, f"vgpu_plugin_{name}", text, ("node",), [(at, _flag(plugin, name))])
    warnings = float(len(plugin.items("warnings"))) if "warnings" in plugin.record else None
    yield family(GAUGE, "vgpu_plugin_warnings", "Warnings of the device plugin that are present.", ("node",),
                  [(at, warnings)])  # fmt: skip
    known = [((*at, program), _flag(snapshot.fields.inner(program), "health_known")) for program in ("plugin", "vgpud")]
    text = "Whether the program could look at the cards; what it knew of them stays while it cannot."
    yield family(GAUGE, "vgpu_card_health_known", text, ("node", "program"), known)


def _flag(fields: Fields, name: str) -> float | None:
    return float(fields.flag(name)) if name in fields.record else None


def _hook(snapshot: Snapshot) -> Iterator[Metric]:
    at, hook = (snapshot.node,), snapshot.fields.inner("hook")
    yield family(COUNTER, "vgpu_hook_starts", "Starts of containers with cards, also refused ones.", ("node",),
                  [(at, hook.number("starts"))])  # fmt: skip
    yield family(COUNTER, "vgpu_hook_stops", "Ends of containers with cards.", ("node",), [(at, hook.number("stops"))])
    refusals = hook.numbers("refusals")
    yield family(COUNTER, "vgpu_hook_refusals", "Starts that the hook refused, by the step that failed.",
                  ("node", "step"), [((*at, step), value) for step, value in refusals.items()])  # fmt: skip
    durations = Metric("vgpu_hook_duration_seconds", "How long the hook took.", HISTOGRAM)
    _histogram(durations, ("node",), at, hook.inner("seconds"))
    yield durations


def _histogram(found: Metric, names: Names, at: Names, fields: Fields) -> None:
    """Add a histogram of `bounds`, `buckets` (one more) and `sum`, unless they do not fit together."""
    bounds, counts = _numbers(fields.items("bounds")), _numbers(fields.items("buckets"))
    total = fields.number("sum")
    if total is not None and len(counts) == len(bounds) + 1:
        add_histogram(found, names, at, bounds, counts, total)


def _numbers(items: list[object]) -> list[float]:
    return [item for item in items if isinstance(item, (int, float)) and not isinstance(item, bool)]


# Cards

CARDS = (
    (GAUGE, "vgpu_card_memory_bytes", "The card's memory.", Fields.number, "memory"),
    (GAUGE, "vgpu_card_memory_used_bytes", "Memory in use on the card, by NVML.", Fields.number, "memory_used"),
    (GAUGE, "vgpu_card_memory_committed_bytes", "Memory that is held.", Fields.number, "memory_held"),
    (GAUGE, "vgpu_card_utilization_ratio", "Part of the time in which a kernel ran, by NVML.", Fields.ratio,
     "utilization"),
    (GAUGE, "vgpu_card_cores_committed_ratio", "Part of the card's time that containers and grants hold.", Fields.ratio,
     "cores_held"),
    (GAUGE, "vgpu_card_exclusive", "Whether one container has the whole card.", lambda at, key: float(at.flag(key)),
     "exclusive"),
    (GAUGE, "vgpu_card_holders", "Containers and grants that hold a part of the card.", Fields.number, "holders"),
    (GAUGE, "vgpu_card_foreign_processes", "Processes on the card that no container with a claim on it has.",
     lambda at, key: float(len(at.items(key))), "foreign"),
    (GAUGE, "vgpu_card_healthy", "Whether the card may get new containers.", lambda at, key: float(not at.text(key)),
     "fault"),
    (COUNTER, "vgpu_card_lent_seconds", "Time of the card that was lent to containers beyond their shares.",
     Fields.seconds, "lent_ns"),
)  # fmt: skip


def _cards(snapshot: Snapshot) -> Iterator[Metric]:
    for kind, name, text, value, key in CARDS:
        values = [((snapshot.node, *card.labels), value(card.fields, key)) for card in snapshot.cards]
        yield family(kind, name, text, CARD, values)


# Containers

CONTAINERS = (
    ("vgpu_container_created_timestamp_seconds", "When the hook made the container's claim, in seconds since 1970.",
     Fields.number, "created"),
    ("vgpu_container_ready", "Whether the hook has finished.", lambda at, key: float(at.flag(key)), "ready"),
    ("vgpu_container_exclusive", "Whether the container has whole cards, without limits.",
     lambda at, key: float(at.flag(key)), "exclusive"),
    ("vgpu_container_processes", "Processes of the container.", Fields.number, "processes"),
    ("vgpu_container_unlimited_processes", "Processes that use a card without libvcuda.", Fields.number, "unlimited"),
    ("vgpu_container_uncovered_copies", "Copies of libcuda in the image that the hook could not cover.", Fields.number,
     "uncovered"),
)  # fmt: skip


def _containers(snapshot: Snapshot) -> Iterator[Metric]:
    yield family(GAUGE, "vgpu_container_info", "The container's ids.", (*CONTAINER, "pod_uid", "container_id"), [
        ((snapshot.node, *one.labels, one.pod_uid, one.id), 1) for one in snapshot.containers
    ])  # fmt: skip
    for name, text, value, key in CONTAINERS:
        values = [((snapshot.node, *one.labels), value(one.fields, key)) for one in snapshot.containers]
        yield family(GAUGE, name, text, CONTAINER, values)


SHARES = (
    (GAUGE, "vgpu_container_memory_limit_bytes", "The container's memory limit on the card.", Fields.number,
     "memory_limit"),
    (GAUGE, "vgpu_container_memory_driver_bytes", "Memory of the driver for the container, as the host measured it.",
     Fields.number, "memory_driver"),
    (GAUGE, "vgpu_container_memory_measured_bytes", "Memory of the container's processes on the card, by NVML.",
     Fields.number, "memory_measured"),
    (GAUGE, "vgpu_container_core_share_ratio", "The part of the card's time that the container is sure of.",
     Fields.ratio, "cores"),
    (GAUGE, "vgpu_container_core_limit_ratio", "The most of the card's time that the container may have.", Fields.ratio,
     "core_limit"),
    (GAUGE, "vgpu_container_utilization_ratio", "Part of the time in which the container's kernels ran, by NVML.",
     Fields.ratio, "cores_seen"),
    (GAUGE, "vgpu_container_core_lent_ratio", "The rate that is lent to the container now; 0: it has its share.",
     Fields.ratio, "lent"),
    (GAUGE, "vgpu_container_doubted", "Whether the container uses more of the card than it reports.",
     lambda at, key: float(at.flag(key)), "doubted"),
    (COUNTER, "vgpu_container_lent_seconds", "Time beyond its share that was lent to the container.", Fields.seconds,
     "lent_ns"),
)  # fmt: skip


FOUND = (
    ("vgpu_container_violation", "Whether the container is beyond its memory limit.", "violations"),
    ("vgpu_container_lock_flood", "Whether the container holds so many file locks that others take no turns.",
     "lock_floods"),
)  # fmt: skip


def _each(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The labels of each container on each of its cards, and the share."""
    for one in snapshot.containers:
        for share in one.shares:
            yield (snapshot.node, *one.labels, share.index, share.uuid), share


def _shares(snapshot: Snapshot) -> Iterator[Metric]:
    rows = list(_each(snapshot))
    for kind, name, text, value, key in SHARES:
        yield family(kind, name, text, SHARE, [(at, value(share.fields, key)) for at, share in rows])
    for name, text, key in FOUND:
        found = {(item.text("container"), item.text("uuid")) for item in map(Fields, snapshot.fields.items(key))}
        yield family(GAUGE, name, text, SHARE, [
            ((snapshot.node, *one.labels, share.index, share.uuid), float((one.id, share.uuid) in found))
            for one in snapshot.containers for share in one.cards
        ])  # fmt: skip


HELD = (
    (COUNTER, "vgpu_held_core_seconds", "Cards times seconds that the container has held, by its claims.",
     "core_seconds"),
    (COUNTER, "vgpu_held_memory_byte_seconds", "Bytes times seconds that the container has held, by its claims.",
     "memory_byte_seconds"),
)  # fmt: skip


def _held(snapshot: Snapshot) -> Iterator[Metric]:
    """Also of containers that ended of late, so that the last scrape has their ends."""
    rows = [Fields(item) for item in snapshot.fields.items("held")]
    for kind, name, text, key in HELD:
        values = [
            ((snapshot.node, at.text("namespace"), at.text("pod"), at.text("container_name")), at.number(key))
            for at in rows
        ]
        yield family(kind, name, text, CONTAINER, values)


REPORTED = (
    (COUNTER, "vgpu_container_reported_core_seconds", "Time of the card that the container used.", "used_ns"),
    (COUNTER, "vgpu_container_reported_throttled_seconds", "Time that launches waited for the share.", "throttled_ns"),
)  # fmt: skip


def _reported(snapshot: Snapshot) -> Iterator[Metric]:
    """What containers say of themselves; a container without a readable region has no series here."""
    rows = [(at, share) for at, share in _each(snapshot) if share.reported is not None]
    yield family(GAUGE, "vgpu_container_reported_memory_used_bytes",
                  "Memory in use as the container's programs see it.", SHARE,
                  [(at, share.memory_used()) for at, share in rows])  # fmt: skip
    yield family(GAUGE, "vgpu_container_reported_memory_bytes",
                  "The same by kind: allocated by programs, and the driver's contexts and code.", (*SHARE, "kind"), [
                      ((*at, kind), value) for at, share in rows for kind, value in share.memory_by_kind().items()
                  ])  # fmt: skip
    yield family(GAUGE, "vgpu_container_reported_utilization_ratio", "Part of the card's time of late.", SHARE,
                  [(at, share.fields.ratio("cores_used")) for at, share in rows])  # fmt: skip
    yield family(COUNTER, "vgpu_container_reported_borrowed_seconds", "Time beyond its share that it used.", SHARE,
                  [(at, share.fields.seconds("borrowed_ns")) for at, share in rows])  # fmt: skip
    for kind, name, text, key in REPORTED:
        yield family(kind, name, text, SHARE, [(at, share.reported.seconds(key)) for at, share in rows])
    yield family(COUNTER, "vgpu_container_reported_out_of_memory", "Allocations that libvcuda refused.", SHARE,
                  [(at, share.reported.number("refusals")) for at, share in rows])  # fmt: skip
    waits = Metric("vgpu_container_reported_wait_seconds", "How long launches waited for the share.", HISTOGRAM)
    for at, share in rows:
        _histogram(waits, SHARE, at, share.reported.inner("waits"))
    yield waits
