"""Claims: which container holds what on which card. `<run>/containers/<id>/claim.json`; a reboot removes them.

Belongs here: the record and its reading. Not here: who may claim and when a claim ends, which is the ledger's
(vgpu.hook.ledger.ledger).
"""

from __future__ import annotations

from vgpu.config import grants, paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.config.grants import Holder
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.config.request import LOW_PRIORITY, WHOLE_CARD

VERSION = 1
MAX_DIGITS = 7  #: of a device's major or minor


class Claim:
    """One container's hold on its cards.

    `pid` and `start_time` (clock ticks after boot, field 22 of /proc/<pid>/stat) identify the container's init in the
    boot `boot_id`; a check whether it lives compares all three. `cgroup` is where the runtime put the init,
    `<controllers>:<path>` as in /proc/<pid>/cgroup, "" where it has none of its own. `cards` are the limits of the
    cards that it may use; `exclusive` cards have no limits. `grants` are ids, empty outside Kubernetes. `ready` is
    False until the hook has finished. `devices` are the nodes that the hook opened in its device cgroup,
    `<major>:<minor>` -> the host's path. `priority` orders containers for a card's idle time: 0 is high, all else low.
    `lowered`: card uuid -> the highest memory limit, in bytes, of before the limit was lowered; an entry goes when the
    container has freed what it held beyond its limit. None: the claim is of a version that did not record it.
    `promised`: card uuid -> the (cores, memory) of its grants, where its share was lowered below them. The container
    gets them when it starts again, so others do not.
    `common_presence`: the cards whose presence file is the common one. None: all, as in versions that had no other.
    `uncovered`: a line for each copy of a limited library in the image that the hook found and could not cover.
    `limiter` is the inode of the container's libcuda, which is libvcuda; 0: none, or of a version that did not record
    it. `prepared` are the ids of the results of prepared resource claims that the container has
    (vgpu.config.prepared), sorted. Containers with the same ones have one budget: one usage region, and one file each
    of limits and core schedules, by hard links.
    """

    __slots__ = (
        "boot_id", "bundle", "cards", "cgroup", "common_presence", "container", "created", "devices", "exclusive",
        "grants", "holder", "limiter", "lowered", "name", "pid", "prepared", "priority", "promised", "ready",
        "start_time", "uncovered",
    )  # fmt: skip

    def __init__(
        self,
        container: str,
        pid: int,
        start_time: int,
        cards: list[CardLimit],
        exclusive: bool,
        holder: Holder | None,
        grants: list[str],
        bundle: str,
        created: float,
        name: str = "",
        ready: bool = False,
        cgroup: str = "",
        boot_id: str = "",
        priority: int = LOW_PRIORITY,
        devices: dict[str, str] | None = None,
    ) -> None:
        self.container = container
        self.pid = pid
        self.start_time = start_time
        self.cards = cards
        self.exclusive = exclusive
        self.holder = holder
        self.grants = grants
        self.bundle = bundle
        self.created = created
        self.name = name  #: namespace/pod/container, for messages, or ""
        self.ready = ready
        self.cgroup = cgroup
        self.boot_id = boot_id
        self.priority = priority
        self.devices = devices or {}
        self.lowered: dict[str, int] | None = {}
        self.common_presence: list[str] | None = []
        self.promised: dict[str, tuple[int, int]] = {}
        self.uncovered: list[str] = []
        self.limiter = 0
        self.prepared: list[str] = []

    def committed(self, card: CardLimit) -> tuple[int, int]:
        """(cores, memory) of the card that nobody else may get."""
        cores, memory = self.promised.get(card.uuid, (0, 0))
        return max(card.cores, cores), max(card.memory, memory)

    def record(self) -> dict[str, object]:
        later: dict[str, object] = {} if self.lowered is None else {"lowered": self.lowered}
        if self.common_presence is not None:
            later["common_presence"] = self.common_presence
        holder = self.holder and {"pod_uid": self.holder.pod_uid, "container": self.holder.container}
        return {
            "version": VERSION, "container": self.container, "pid": self.pid, "start_time": self.start_time,
            "cards": [
                {"uuid": card.uuid, "memory": card.memory, "cores": card.cores, "core_limit": card.core_limit,
                 "oversubscribe": card.oversubscribe}
                for card in self.cards
            ],
            "exclusive": self.exclusive, "holder": holder, "grants": self.grants, "bundle": self.bundle,
            "created": self.created, "name": self.name, "ready": self.ready, "cgroup": self.cgroup,
            "boot_id": self.boot_id, "priority": self.priority, "devices": self.devices,
            "promised": {uuid: list(amounts) for uuid, amounts in self.promised.items()}, **later,
            **({"uncovered": self.uncovered} if self.uncovered else {}),
            **({"limiter": self.limiter} if self.limiter else {}),
            **({"prepared": self.prepared} if self.prepared else {}),
        }  # fmt: skip


def read(run_dir: str, container: str) -> Claim:
    """The claim; FileNotFoundError when there is none, VgpuError when its file is damaged."""
    path = paths.claim(run_dir, container)
    claim = from_record(records.read(path), path)
    if claim.container != container:
        raise VgpuError(path, expected=f"the claim of {container}", found=f"that of {claim.container}")
    return claim


def from_record(record: dict[str, object], source: str) -> Claim:
    """The Claim in `record`; a VgpuError names `source` and the wrong field."""
    fields = Fields(record, source)
    fields.version(VERSION)
    if not paths.is_container_id(fields.text("container")):
        raise fields.wrong("container", "a container's id")
    if not all(map(paths.is_grant_id, fields.texts("grants"))):
        raise fields.wrong("grants", "ids of grants")
    claim = Claim(
        container=fields.text("container"),
        pid=fields.whole("pid"),
        start_time=fields.whole("start_time"),
        cards=[_card(item) for item in fields.objects("cards")],
        exclusive=fields.flag("exclusive"),
        holder=grants.holder_of(fields),
        grants=fields.texts("grants"),
        bundle=fields.text("bundle"),
        created=fields.time("created"),
        name=fields.text("name"),
        ready=fields.flag("ready"),
        cgroup=fields.text("cgroup") if "cgroup" in record else "",
        boot_id=fields.text("boot_id") if "boot_id" in record else "",
        priority=fields.whole("priority") if "priority" in record else LOW_PRIORITY,
        devices=_devices(fields) if "devices" in record else {},
    )
    claim.lowered = _lowered(fields) if "lowered" in record else None
    claim.promised = _promised(fields) if "promised" in record else {}
    claim.common_presence = fields.texts("common_presence") if "common_presence" in record else None
    claim.uncovered = fields.texts("uncovered") if "uncovered" in record else []
    claim.limiter = fields.whole("limiter") if "limiter" in record else 0
    claim.prepared = fields.texts("prepared") if "prepared" in record else []
    return claim


def one_of_each_budget(claims: list[Claim]) -> list[Claim]:
    """`claims` without those that share the budget of an older one."""
    oldest: dict[str, Claim] = {}
    for claim in claims:
        first = oldest.setdefault(_budget(claim), claim)
        if claim.created < first.created:
            oldest[_budget(claim)] = claim
    return [claim for claim in claims if oldest[_budget(claim)] is claim]


def _budget(claim: Claim) -> str:
    return " ".join(claim.prepared) or claim.container


def _promised(fields: Fields) -> dict[str, tuple[int, int]]:
    found = fields.record["promised"]
    pairs = list(found.values()) if isinstance(found, dict) else [None]
    if not all(isinstance(pair, list) and list(map(type, pair)) == [int, int] and min(pair) >= 0 for pair in pairs):
        raise fields.wrong("promised", "an object of pairs of cores and bytes")
    assert isinstance(found, dict)
    return {uuid: (min(cores, WHOLE_CARD), min(memory, UNLIMITED)) for uuid, (cores, memory) in found.items()}


def _lowered(fields: Fields) -> dict[str, int]:
    found = fields.record["lowered"]
    if not isinstance(found, dict) or not all(type(size) is int and 0 <= size <= UNLIMITED for size in found.values()):
        raise fields.wrong("lowered", "an object of bytes")
    return dict(found)


def _devices(fields: Fields) -> dict[str, str]:
    found = fields.mapping("devices")
    for number in found:
        major, _, minor = number.partition(":")
        if not all(part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS for part in (major, minor)):
            raise fields.wrong("devices", "an object of <major>:<minor> and paths")
    return found


def _card(fields: Fields) -> CardLimit:
    uuid = fields.text("uuid", empty=False)
    memory = fields.whole("memory", 0, UNLIMITED)
    cores, core_limit = fields.whole("cores", 0, 100), fields.whole("core_limit", 0, 100)
    return CardLimit(uuid, memory, cores, core_limit, fields.flag("oversubscribe"))
