"""A request for cards: amounts, limits and wishes, and its reading from annotations.

Belongs here: the annotation keys, the texts that they may have, and the errors for other texts. Not here: the amounts
of pods, which come from grants (vgpu.config.grants): amounts in annotations count only outside Kubernetes, where the
host's root writes them. Sizes are bytes, shares are percent of one card.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError
from vgpu.config.limits import MAX_CARDS

PREFIX = "vgpu.io/"
REQUEST = PREFIX + "request-"  #: before a node's key: a request outside Kubernetes, see vgpu.config.standalone
CORES = PREFIX + "cores"
MEMORY = PREFIX + "memory"
GPUS = PREFIX + "gpus"
CORE_LIMITS = (PREFIX + "core-limit", "tencent.com/vcuda-core-limit", "nvidia.com/vcuda-core-limit")
PRIORITIES = (PREFIX + "priority", "nvidia.com/priority")  #: the latter is also a resource in a pod's limits
POLICIES = (PREFIX + "policy", "hami.io/gpu-scheduler-policy")
WISH_PREFIXES = (PREFIX, "nvidia.com/")
PROFILE, NOUSE_PROFILE = PREFIX + "profile", PREFIX + "nouse-profile"
MIG_RESOURCE = "nvidia.com/mig-"  #: before a profile: kubelet's resource of its instances, by the mixed strategy
WISHES = ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid", "numa-bind")  #: below each of the prefixes

WHOLE_CARD = 100
LOW_PRIORITY = 1  #: as in the peers: 0 is high, every other number is low, and low is the default
MAX_PRIORITY = 10**9 - 1
MAX_LIST = 64
MAX_TEXT = 4096
MAX_SIZE = 1 << 50  #: bytes; more than any node has, and sums stay far below 64 bits

_UNITS = {
    "": 1 << 20, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "MB": 10**6, "GB": 10**9,
}  # fmt: skip


class Wishes:
    """A container's wishes for its cards. They never give it a larger amount.

    `use_types` / `nouse_types`: lower-case substrings of the model's name; `use_uuids` / `nouse_uuids`: exact;
    `profiles` / `nouse_profiles`: MIG instances of these profiles alone, or of none of them.
    `numa`: all cards on one NUMA node; `policy`: binpack, spread or "" for the node's own. `priority` orders containers
    for a card's idle time: 0 comes before all others.
    """

    __slots__ = (
        "nouse_profiles", "nouse_types", "nouse_uuids", "numa", "policy", "priority", "profiles", "use_types",
        "use_uuids",
    )  # fmt: skip

    def __init__(
        self,
        use_types: tuple[str, ...] = (),
        nouse_types: tuple[str, ...] = (),
        use_uuids: tuple[str, ...] = (),
        nouse_uuids: tuple[str, ...] = (),
        numa: bool = False,
        policy: str = "",
        priority: int = LOW_PRIORITY,
        profiles: tuple[str, ...] = (),
        nouse_profiles: tuple[str, ...] = (),
    ) -> None:
        self.profiles = profiles
        self.nouse_profiles = nouse_profiles
        self.use_types = use_types
        self.nouse_types = nouse_types
        self.use_uuids = use_uuids
        self.nouse_uuids = nouse_uuids
        self.numa = numa
        self.policy = policy
        self.priority = priority

    def changed(self, **fields: object) -> Wishes:
        """A copy with these fields changed."""
        return Wishes(**{**{name: getattr(self, name) for name in Wishes.__slots__}, **fields})


class Request:
    """`gpus` different cards, each with `cores` percent and `memory` bytes; 100 cores: a whole card, without limits,
    unless it is `limited`.

    `core_limit` is the ceiling of a share, at least `cores`. `memory` of a whole card is 0 or the least it must have;
    `total` is 0 or the least that several whole cards must have together. `memories`, by uuid, are the bytes of each
    card where they differ; `memory` is then the largest.
    `fixed` are the uuids of the cards that a scheduler has chosen, `preferred` those on which device ids agreed.
    """

    __slots__ = (
        "core_limit",
        "cores",
        "fixed",
        "gpus",
        "limited",
        "memories",
        "memory",
        "preferred",
        "total",
        "wishes",
    )

    def __init__(
        self,
        gpus: int,
        cores: int,
        memory: int,
        core_limit: int = 0,
        wishes: Wishes | None = None,
        fixed: tuple[str, ...] = (),
        preferred: tuple[str, ...] = (),
        total: int = 0,
        memories: dict[str, int] | None = None,
        limited: bool = False,
    ) -> None:
        self.limited = limited
        self.gpus = gpus
        self.cores = cores
        self.memory = memory
        self.core_limit = max(core_limit, cores)
        self.wishes = wishes or Wishes()
        self.fixed = fixed
        self.preferred = preferred
        self.total = total
        self.memories = memories or {}

    @property
    def exclusive(self) -> bool:
        return self.cores >= WHOLE_CARD and not self.limited

    def fixed_on(self, uuids: tuple[str, ...]) -> Request:
        """The same request with these `fixed` cards; () leaves the choice open."""
        return Request(
            self.gpus, self.cores, self.memory, self.core_limit, self.wishes, uuids, self.preferred, self.total,
            self.memories, self.limited,
        )  # fmt: skip

    def at_most(self, cores: int, memory: int, core_limit: int) -> Request:
        """The share with no more than these amounts of each card, and the ceiling `core_limit` where that is more."""
        memories = {uuid: min(size, memory) for uuid, size in self.memories.items()}
        return Request(
            self.gpus, min(self.cores, cores), min(self.memory, memory), core_limit, self.wishes, self.fixed,
            self.preferred, self.total, memories, self.limited,
        )  # fmt: skip

    def memory_of(self, uuid: str) -> int:
        """Bytes of the card `uuid`."""
        return self.memories.get(uuid, self.memory)

    def describe(self) -> str:
        cards = "1 card" if self.gpus == 1 else f"{self.gpus} cards"
        if self.exclusive:
            return f"{cards}, whole"
        each = " each" if self.gpus > 1 else ""
        if self.memories:
            sizes = " and ".join(str(size >> 20) for size in self.memories.values())
            return f"{cards}, {self.cores} cores{each} and {sizes} MiB"
        return f"{cards}, {self.cores} cores and {self.memory >> 20} MiB{each}"


def is_standalone(annotations: dict[str, str]) -> bool:
    """Whether `annotations` ask for an amount at all."""
    return any(key in annotations for key in (CORES, MEMORY, GPUS))


def asks_by_key(annotations: dict[str, str]) -> bool:
    """Whether one of the annotations is a request, with whatever key (vgpu.config.standalone)."""
    return any(name.startswith(REQUEST) for name in annotations)


def from_annotations(annotations: dict[str, str]) -> Request:
    """The request in the annotations that the host's root wrote. A VgpuError names the wrong key."""
    cores = _whole(annotations, CORES, 1, WHOLE_CARD * MAX_CARDS)
    gpus = _whole(annotations, GPUS, 1, MAX_CARDS)
    memory = parse_size(annotations[MEMORY], MEMORY) if MEMORY in annotations else 0
    wishes = wishes_from(annotations)
    if not cores and not (gpus and not memory):
        raise VgpuError(CORES, expected=f"{CORES} beside {MEMORY}", found="nothing", do=_ASK)
    gpus, cores = split_cores(cores or WHOLE_CARD * gpus, gpus, CORES)
    if cores < WHOLE_CARD and not memory:
        raise VgpuError(MEMORY, expected=f"{MEMORY} beside {CORES}={cores}", found="nothing", do=_ASK)
    return Request(gpus, cores, memory, core_limit_from(annotations, cores), wishes)


_ASK = "a share needs both cores and memory, a whole card is cores=100"


def split_cores(cores: int, gpus: int, source: str) -> tuple[int, int]:
    """(cards, cores per card) for `cores` in all of a resource where 100 is a card, and `gpus` cards if named."""
    if cores > WHOLE_CARD and cores % WHOLE_CARD:
        raise VgpuError(source, expected="1 to 99 for a share of one card, or a multiple of 100", found=cores,
                        do="ask for whole cards or for less than one")  # fmt: skip
    cards = max(cores // WHOLE_CARD, 1)
    if cores < WHOLE_CARD:
        return gpus or 1, cores
    if gpus and cards not in (gpus, 1):
        raise VgpuError(source, expected=f"{gpus * WHOLE_CARD} for {gpus} whole cards", found=cores)
    return gpus or cards, WHOLE_CARD


def core_limit_from(annotations: dict[str, str], cores: int) -> int:
    """The ceiling of a share of `cores`: that of an annotation of any dialect, or else the share."""
    limit = core_limit_wish(annotations)
    if cores < WHOLE_CARD and 0 < limit < cores:
        key = next(key for key in CORE_LIMITS if key in annotations)
        raise VgpuError(key, expected=f"{cores} (the share) to 100", found=limit)
    return max(limit, cores)


def core_limit_wish(annotations: dict[str, str]) -> int:
    """The ceiling in an annotation of any dialect, 0 without one."""
    return next((_whole(annotations, key, 1, WHOLE_CARD) for key in CORE_LIMITS if key in annotations), 0)


def wishes_from(annotations: dict[str, str], priority: int = LOW_PRIORITY) -> Wishes:
    """The wishes in `annotations`, of every dialect that the hook reads; `priority` is the default."""
    policy = next((annotations[key] for key in POLICIES if key in annotations), "")
    if policy not in ("", "binpack", "spread"):
        policy = ""  # topology-aware, mutex, numa: for the extender only
    return Wishes(
        tuple(item.lower() for item in _list(annotations, "use-gputype")),
        tuple(item.lower() for item in _list(annotations, "nouse-gputype")),
        _list(annotations, "use-gpuuuid"),
        _list(annotations, "nouse-gpuuuid"),
        any(annotations.get(prefix + "numa-bind", "") == "true" for prefix in WISH_PREFIXES),
        policy,
        _priority_wish(annotations, priority),
        tuple(map(profile_name, _items(annotations, PROFILE))),
        tuple(map(profile_name, _items(annotations, NOUSE_PROFILE))),
    )


def profile_name(text: str) -> str:
    """A MIG profile as resources name it: `1g.10gb.me`, which nvidia-smi writes as 1g.10gb+me."""
    return text.lower().replace("+", ".")


def _priority_wish(annotations: dict[str, str], default: int) -> int:
    """The priority in an annotation, or else `default`."""
    key = next((key for key in PRIORITIES if key in annotations), "")
    return _whole(annotations, key, 0, MAX_PRIORITY) if key else default


def parse_size(text: str, source: str) -> int:
    """Bytes of `2Gi`, `1.5Gi`, `100MiB`, `3000` (MiB), rounded down; VgpuError otherwise."""
    number = text.rstrip("kKMGTiB")
    unit = _UNITS.get(text[len(number) :])
    whole, point, part = number.partition(".")
    digits = whole + part
    sound = digits.isascii() and digits.isdigit() and len(digits) <= 18 and bool(whole) and bool(part) == bool(point)
    size = int(digits) * unit // 10 ** len(part) if sound and unit else 0
    if size == 0:
        expected = "a size such as 2Gi, 1.5Gi, 100Mi or 3000 (MiB)"
        raise VgpuError(source, expected=expected, found=text)
    if size > MAX_SIZE:
        raise VgpuError(source, expected=f"at most {MAX_SIZE >> 40} TiB", found=text)
    return size


def _whole(annotations: dict[str, str], key: str, low: int, high: int) -> int:
    """The whole number under `key`, 0 when it is absent."""
    text = annotations.get(key)
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not low <= int(text) <= high:
        raise VgpuError(key, expected=f"a whole number from {low} to {high}", found=text)
    return int(text)


def _list(annotations: dict[str, str], name: str) -> tuple[str, ...]:
    key = next((prefix + name for prefix in WISH_PREFIXES if prefix + name in annotations), "")
    return _items(annotations, key)


def _items(annotations: dict[str, str], key: str) -> tuple[str, ...]:
    text = annotations.get(key, "")
    items = tuple(item.strip() for item in text.split(",") if item.strip())
    if len(text) > MAX_TEXT or len(items) > MAX_LIST:
        raise VgpuError(key, expected=f"at most {MAX_LIST} items", found=len(items))
    return items
