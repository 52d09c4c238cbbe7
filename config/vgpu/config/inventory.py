"""The inventory record: the node's driver, libraries, binaries, cards, links and device nodes. `<run>/inventory.json`.

Belongs here: the classes and their codec. Not here: taking an inventory, which is vgpu.node.driver.discover's. The hook
and the plugin read it. Paths are host paths as the hook opens them, with the driver root.
"""

from __future__ import annotations

import os

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.config.request import profile_name

VERSION = 1
MAX_DEVICE = 1 << 20
DO = "run: vgpuctl inventory refresh"


class Library:
    """A library of the driver: `path` on the host, file `name`, DT_SONAME (or ""), capability, 64 or 32 bits."""

    __slots__ = ("bits", "capability", "name", "path", "soname")

    def __init__(self, path: str, name: str, soname: str, capability: str, bits: int = 64) -> None:
        self.path = path
        self.name = name
        self.soname = soname
        self.capability = capability
        self.bits = bits


class Binary:
    """A program of the driver: `path` on the host, `name` as it appears in the container's /usr/bin."""

    __slots__ = ("capability", "name", "path")

    def __init__(self, path: str, name: str, capability: str) -> None:
        self.path = path
        self.name = name
        self.capability = capability


class Device:
    """A character device node: `path` on the host, `name` below /dev in the container, and the device number."""

    __slots__ = ("capability", "major", "minor", "name", "path")

    def __init__(self, path: str, name: str, major: int, minor: int, capability: str = "") -> None:
        self.path = path
        self.name = name
        self.major = major
        self.minor = minor
        self.capability = capability  #: "": every container with a card gets it


class Card:
    """One GPU. `memory` is in bytes; `links` maps another card's uuid to NV<n>, PIX, PXB, PHB, NODE or SYS.

    `context` is how many bytes the driver takes for a CUDA context (0: not known), and `context_source` says who found
    that out (vgpu.config.context_sizes). `architecture` is Turing or the like, and `cuda_version` the newest CUDA that
    the driver serves on the card, as 12.4; "" for either: not known.

    A MIG instance is a card: a compute instance of the card with the uuid `parent`, which is "" for a whole card.
    `minor`, `bus_id`, `device` and `numa` are the parent's. `capabilities` are the nodes of its GPU instance and of
    itself, by their files below /proc/driver/nvidia/capabilities, in this order.
    """

    __slots__ = (
        "architecture", "bus_id", "capabilities", "context", "context_source", "cuda_version", "device", "index",
        "links", "memory", "minor", "name", "numa", "parent", "uuid",
    )  # fmt: skip

    def __init__(
        self,
        uuid: str,
        index: int,
        minor: int,
        bus_id: str,
        name: str,
        memory: int,
        device: Device,
        numa: int = -1,
        links: dict[str, str] | None = None,
        context: int = 0,
        context_source: str = "",
        architecture: str = "",
        cuda_version: str = "",
        parent: str = "",
        capabilities: dict[str, Device] | None = None,
    ) -> None:
        self.uuid = uuid
        self.index = index
        self.minor = minor
        self.bus_id = bus_id
        self.name = name
        self.memory = memory
        self.device = device
        self.numa = numa
        self.links = links or {}
        self.context = context
        self.context_source = context_source
        self.architecture = architecture
        self.cuda_version = cuda_version
        self.parent = parent
        self.capabilities = capabilities or {}

    @property
    def physical(self) -> str:
        """The uuid of the card that one can reset, and that reports errors."""
        return self.parent or self.uuid

    @property
    def profile(self) -> str:
        """The MIG profile, as vgpu.config.request.profile_name has it; "" of a whole card."""
        return profile_name(self.name.rpartition(" MIG ")[2]) if self.parent else ""

    @property
    def names(self) -> list[str]:
        """As CUDA_VISIBLE_DEVICES may have it: a MIG instance also by its numbers."""
        if not self.parent:
            return [self.uuid]
        *_, instance, compute_instance, _ = list(self.capabilities)[-1].split("/")
        return [self.uuid, f"MIG-{self.parent}/{instance[2:]}/{compute_instance[2:]}"]

    @property
    def nodes(self) -> list[Device]:
        """The nodes of the card alone."""
        return [self.device, *self.capabilities.values()]

    def label(self) -> str:
        """The card's name in messages."""
        return f"card {self.index} ({self.uuid}, {self.name})"


class LimiterCopy:
    """One of libvcuda's libraries, and the copy of it for this driver.

    `packaged` is the `identity` of the packaged library and `build_id` its build id. `hidden` counts its names that
    the driver lacks. `path` is the copy, without those names, and `digest` its SHA-256. No path and no reason: the
    driver has all names. No path and a `reason`: there is no copy, for that reason.
    """

    __slots__ = ("build_id", "digest", "hidden", "name", "packaged", "path", "reason")

    def __init__(
        self,
        name: str,
        packaged: str,
        build_id: str,
        path: str = "",
        digest: str = "",
        hidden: int = 0,
        reason: str = "",
    ) -> None:
        self.name = name
        self.packaged = packaged
        self.build_id = build_id
        self.path = path
        self.digest = digest
        self.hidden = hidden
        self.reason = reason


class Inventory:
    """What `vgpuctl inventory refresh` found; `devices` are the nodes that do not belong to one card. `copies` is empty
    where an older vgpu took the inventory, or libvcuda is not installed."""

    __slots__ = ("binaries", "boot_id", "cards", "copies", "devices", "driver_version", "libraries", "taken")

    def __init__(
        self,
        driver_version: str,
        boot_id: str,
        taken: float,
        libraries: list[Library],
        binaries: list[Binary],
        devices: list[Device],
        cards: list[Card],
        copies: list[LimiterCopy] | None = None,
    ) -> None:
        self.driver_version = driver_version
        self.boot_id = boot_id
        self.taken = taken
        self.libraries = libraries
        self.binaries = binaries
        self.devices = devices
        self.cards = cards
        self.copies = copies or []

    def record(self) -> dict[str, object]:
        return {
            "version": VERSION,
            "driver_version": self.driver_version,
            "boot_id": self.boot_id,
            "taken": self.taken,
            "libraries": [_fields(item) for item in self.libraries],
            "binaries": [_fields(item) for item in self.binaries],
            "devices": [_fields(item) for item in self.devices],
            "cards": [_card_fields(card) for card in self.cards],
            "copies": [_fields(item) for item in self.copies],
        }


def nvml_of(libraries: list[Library]) -> str:
    """The path of the driver's 64-bit NVML; VgpuError when `libraries` have none."""
    for item in libraries:
        if item.bits == 64 and item.name.startswith("libnvidia-ml.so."):
            return item.path
    raise VgpuError("inventory", expected="the driver's libnvidia-ml.so", found="none", do=DO)


def identity(status: os.stat_result) -> str:
    """What changes when a file is replaced or written: one stat tells whether it is the same as before."""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _fields(item: Library | Binary | Device | Card | LimiterCopy) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__slots__}


def _card_fields(card: Card) -> dict[str, object]:
    capabilities = {name: _fields(node) for name, node in card.capabilities.items()}
    return {**_fields(card), "device": _fields(card.device), "capabilities": capabilities}


def from_record(record: dict[str, object], source: str) -> Inventory:
    """The Inventory in `record`; a VgpuError names `source` and the wrong field."""
    fields = Fields(record, source, DO)
    fields.version(VERSION)
    return Inventory(
        fields.text("driver_version"),
        fields.text("boot_id"),
        fields.time("taken"),
        [_library(item) for item in fields.objects("libraries")],
        [_binary(item) for item in fields.objects("binaries")],
        [_device(item) for item in fields.objects("devices")],
        [_card(item) for item in fields.objects("cards")],
        [_copy(item) for item in fields.objects("copies")] if "copies" in fields.record else [],
    )


def read(run_dir: str) -> Inventory:
    """The inventory of this node; VgpuError when there is none or it is damaged."""
    path = paths.inventory(run_dir)
    try:
        record = records.read(path, DO, limit=16 << 20)
    except FileNotFoundError:
        raise VgpuError(path, expected="this node's inventory", found="no file", do=DO) from None
    return from_record(record, path)


def _library(fields: Fields) -> Library:
    capability, bits = fields.text("capability"), fields.whole("bits", 32, 64)
    return Library(_path(fields), _name(fields), fields.text("soname"), capability, bits)


def _binary(fields: Fields) -> Binary:
    return Binary(_path(fields), _name(fields), fields.text("capability"))


def _path(fields: Fields) -> str:
    path = fields.text("path")
    if not path.startswith("/"):
        raise fields.wrong("path", "an absolute path")
    return path


def _name(fields: Fields) -> str:
    name = fields.text("name")
    if "/" in name or name in ("", ".", ".."):
        raise fields.wrong("name", "a file's name")
    return name


def _device(fields: Fields) -> Device:
    major, minor = fields.whole("major", 0, MAX_DEVICE), fields.whole("minor", 0, MAX_DEVICE)
    return Device(fields.text("path"), fields.text("name", empty=False), major, minor, fields.text("capability"))


def _copy(fields: Fields) -> LimiterCopy:
    return LimiterCopy(
        fields.text("name", empty=False),
        fields.text("packaged"),
        fields.text("build_id"),
        fields.text("path"),
        fields.text("digest"),
        fields.whole("hidden"),
        fields.text("reason"),
    )


def _card(fields: Fields) -> Card:
    return Card(
        uuid=fields.text("uuid", empty=False),
        index=fields.whole("index", 0, MAX_DEVICE),
        minor=fields.whole("minor", 0, MAX_DEVICE),
        bus_id=fields.text("bus_id"),
        name=fields.text("name"),
        memory=fields.whole("memory"),
        device=_device(fields.inner("device")),
        numa=fields.whole("numa", -1, MAX_DEVICE),
        links=fields.mapping("links"),
        context=fields.whole("context") if "context" in fields.record else 0,  # an older vgpu wrote none
        context_source=fields.text("context_source") if "context_source" in fields.record else "",
        architecture=fields.text("architecture") if "architecture" in fields.record else "",
        cuda_version=fields.text("cuda_version") if "cuda_version" in fields.record else "",
        parent=fields.text("parent") if "parent" in fields.record else "",
        capabilities=_capabilities(fields.inner("capabilities")) if "capabilities" in fields.record else {},
    )


def _capabilities(fields: Fields) -> dict[str, Device]:
    if any(len(name.split("/")) < 4 or not set(name.split("/")).isdisjoint(("", ".", "..")) for name in fields.record):
        raise VgpuError(fields.source, expected="paths such as gpu0/mig/gi1/ci0/access", do=DO)
    return {name: _device(fields.inner(name)) for name in fields.record}
