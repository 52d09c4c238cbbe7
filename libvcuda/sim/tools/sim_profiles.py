"""Profiles: reading the YAML files that describe the cards of a node, and building the structures of a state from them.

The profiles are in ../profiles. Writing the structures to a state is in sim_ledger.py; laying out a driver root in
sim_root.py.
"""

from __future__ import annotations

import ctypes
import os
import re
import uuid
from typing import Any

import yaml
from sim_layout import LINK_NONE, LINK_SWITCH, MAX_CARDS, MAX_LINKS, Card, SimError

PROFILES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "profiles")
MIB = 1 << 20
DEFAULT_GRANULARITY = 512

# NVML's levels of PCIe distance.
SAME_CARD, SAME_SWITCH, SAME_BRIDGE, SAME_NODE, OTHER_NODE = 0, 10, 30, 40, 50


def load_profile(profile: str | dict[str, Any]) -> dict[str, Any]:
    """Load a profile by name (profiles/NAME.yaml) or by path; return a dict unchanged."""
    if isinstance(profile, dict):
        return profile
    path = profile if os.sep in profile or profile.endswith(".yaml") else os.path.join(PROFILES, f"{profile}.yaml")
    try:
        with open(path, encoding="utf-8") as file:
            loaded = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        raise SimError(f"profile {profile}: {error}") from error
    if not isinstance(loaded, dict) or not loaded.get("cards"):
        raise SimError(f"profile {path}: expected a mapping with a list of cards")
    loaded.setdefault("name", os.path.basename(path).rsplit(".", 1)[0])
    return loaded


def _parse_bus(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.0", text)
    if not match:
        raise SimError(f"bus {text!r}: expected something like 0000:3b:00.0")
    domain, bus, device = (int(part, 16) for part in match.groups())
    return domain, bus, device


def _relation(a: dict[str, Any], b: dict[str, Any]) -> int:
    if a is b:
        return SAME_CARD
    for key, level in (("switch", SAME_SWITCH), ("bridge", SAME_BRIDGE)):
        if a.get(key) is not None and a.get(key) == b.get(key):
            return level
    return SAME_NODE if a.get("numa_node", -1) == b.get("numa_node", -1) else OTHER_NODE


def _links(profile: dict[str, Any], index: int) -> list[int]:
    """Where each NVLink of the card ends."""
    nvlink = profile.get("nvlink", {})
    links = [LINK_SWITCH] * nvlink.get("switch", 0)
    for a, b, lanes in nvlink.get("pairs", []):
        if index in (a, b):
            links += [b if index == a else a] * lanes
    if len(links) > MAX_LINKS:
        raise SimError(f"card {index}: {len(links)} NVLinks, expected at most {MAX_LINKS}")
    return links


def _fill_model(card: Card, model: dict[str, Any]) -> None:
    card.name = model["name"].encode()
    card.memory = model["memory_mib"] * MIB
    card.reserved = model.get("reserved_mib", 0) * MIB
    card.context = model["context_mib"] * MIB
    card.granularity = model.get("allocation_granularity", DEFAULT_GRANULARITY)
    card.bar1 = model.get("bar1_mib", 256) * MIB
    major, minor = model["compute_capability"].split(".")
    card.compute_major, card.compute_minor = int(major), int(minor)
    card.l2_bytes = model.get("l2_kib", 4096) * 1024
    card.power_limit_mw = model.get("power_limit_w", 100) * 1000
    for key in ("pci_device_id", "pci_subsystem_id", "sm_count", "clock_mhz", "memory_clock_mhz", "bus_width"):
        setattr(card, key, model[key])


def _fill_place(card: Card, profile: dict[str, Any], index: int) -> None:
    entry = profile["cards"][index]
    identity = uuid.UUID(entry["uuid"]) if "uuid" in entry else uuid.uuid5(uuid.NAMESPACE_DNS, label_of(profile, index))
    card.uuid = (ctypes.c_uint8 * 16)(*identity.bytes)
    card.serial = entry.get("serial", f"{identity.int % 10**13:013d}").encode()
    card.minor = entry.get("minor", index)
    card.pci_domain, card.pci_bus, card.pci_device = _parse_bus(entry["bus"])
    card.numa_node = entry.get("numa_node", -1)
    nodes = profile.get("numa", [])
    if 0 <= card.numa_node < len(nodes):
        card.cpu_first = nodes[card.numa_node]["cpu_first"]
        card.cpu_count = nodes[card.numa_node]["cpu_count"]
    else:
        card.cpu_count = os.cpu_count() or 1


def label_of(profile: dict[str, Any], index: int) -> str:
    return f"{index}.{profile.get('name', 'profile')}.sim.vgpu.io"


def build_card(profile: dict[str, Any], index: int) -> Card:
    entries = profile["cards"]
    card = Card()
    try:
        _fill_model(card, {**profile.get("models", {}).get(entries[index].get("model"), {}), **entries[index]})
        _fill_place(card, profile, index)
    except KeyError as error:
        raise SimError(f"card {index} of profile {profile.get('name')}: {error} is missing") from error
    links = _links(profile, index)
    card.link_count = len(links)
    card.links = (ctypes.c_uint8 * 32)(*(links + [LINK_NONE] * (32 - len(links))))
    card.relation = (ctypes.c_uint8 * MAX_CARDS)(*(_relation(entries[index], other) for other in entries))
    return card


def wants_nodes(profile: dict[str, Any], override: bool | None) -> bool:
    return bool(profile.get("device_nodes", True)) if override is None else override
