"""Records of vgpud's rounds: containers that share cards, with every figure known."""

from __future__ import annotations

from typing import Any

from vgpu.config import rounds
from vgpu.config.clock import since_boot
from vgpu.hook.linux import staleness

GIB = 1 << 30
BOUNDS = [0.001, 0.01, 0.1, 1.0]


def uuid_of(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def card(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "uuid": uuid_of(index), "index": index, "minor": index, "bus_id": f"0000:{index:02x}:00.0", "name": "Tesla T4",
        "memory": 16 * GIB, "memory_used": 5 * GIB, "utilization": 40, "cores_held": 75, "memory_held": 12 * GIB,
        "exclusive": False, "holders": 3, "lent_ns": 2_500_000_000, "foreign": [], "fault": "", **changes,
    }  # fmt: skip


def reported(**changes: Any) -> dict[str, Any]:
    return {
        "memory": 2 * GIB, "allocated": GIB + (GIB >> 1), "used_ns": 7_000_000_000, "idle_ns": 250_000_000,
        "throttled_ns": 3_000_000_000, "refusals": 4,
        "waits": {"bounds": BOUNDS, "buckets": [5, 3, 2, 1, 0], "sum": 0.75}, **changes,
    }  # fmt: skip


def share(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "uuid": uuid_of(index), "memory_limit": 4 * GIB, "cores": 25, "core_limit": 50, "oversubscribe": False,
        "cores_used": 20.5, "cores_seen": 22.0, "lent": 30, "doubted": False, "lent_ns": 1_500_000_000,
        "borrowed_ns": 500_000_000, "memory_driver": 3 * GIB // 4, "memory_measured": 2 * GIB + GIB // 4,
        "reported": reported(), **changes,
    }  # fmt: skip


def container(number: int, cards: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    name = f"{number:064x}"
    return {
        "container": name, "name": f"team/web-{number}/main", "namespace": "team", "pod": f"web-{number}",
        "container_name": "main", "pod_uid": f"00000000-0000-4000-8000-{number:012d}", "pid": 1000 + number,
        "start_time": 77, "created": 1_700_000_000.5, "exclusive": False, "ready": True, "priority": 1,
        "pids": [1000 + number], "processes": 1, "state": "running", "cards": cards, **changes,
    }  # fmt: skip


def record(cards: int = 1, containers: int = 1, **changes: Any) -> dict[str, Any]:
    """A record of this moment: the containers in turn on the cards."""
    return {
        "boot_id": staleness.boot_id(), "taken": since_boot(), "time": 1_700_000_100.25, "node": "node-1",
        "driver_version": "550.54.14",
        "vgpud": {
            "version": "0.1.0", "pid": 1, "started": 1.0, "rounds": 100, "round_seconds": 0.02, "released": 3,
            "inventory": {"state": "fresh", "error": ""}, "warnings": ["one"], "health_known": True,
        },
        "plugin": {"alive": True, "ready": False, "health_known": False, "warnings": ["one"]},
        "registrations": {"working": 2, "broken": 0},
        "cards": [card(index) for index in range(cards)],
        "containers": [container(number, [share(number % cards)]) for number in range(containers)],
        "ledger": {"claims": {"total": containers, "living": containers, "damaged": 0}, "grants": 2},
        "hook": {
            "starts": 12, "stops": 9, "refusals": {"allocation": 2},
            "seconds": {"bounds": [0.1, 1.0], "buckets": [10, 1, 1], "sum": 4.5},
        },
        "held": [
            {"namespace": "team", "pod": f"web-{number}", "container_name": "main", "core_seconds": 25.5 + number,
             "memory_byte_seconds": 100.0 * GIB}
            for number in range(containers)
        ],
        "violations": [], "violation_counts": {"reported": 1, "killed": 0}, **changes,
    }  # fmt: skip


def write(run_dir: str, made: dict[str, Any]) -> None:
    rounds.write(run_dir, made)
