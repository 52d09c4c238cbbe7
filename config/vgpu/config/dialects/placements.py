"""A scheduler's placement in a pod's annotations, in every dialect: the cards of each container, and how much of each.

Belongs here, as pure functions: annotation values in, choices for each container out, and the writing of our own form.
Not here: how far a choice counts, which the hook decides (vgpu.hook.request.resolve_grants). Tenants can write the
values, so each is read strictly: a malformed or overlong value, or one for another node, is an error that names the
annotation.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError
from vgpu.config.limits import MAX_CARDS
from vgpu.config.pods import Pod
from vgpu.config.request import WHOLE_CARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_VALUE = 32 << 10  #: characters of one annotation
MAX_CONTAINERS = 256
MAX_ID = 64
MAX_MIB = 1 << 30
ALL = "all"

OWN = "vgpu.io/placement"
OWN_NODE = "vgpu.io/placement-node"
PREDICATE_INDEX = "predicate-gpu-idx-"
PREDICATE_NODE = "predicate-node"
HAMI, HAMI_NODE = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"
VOLCANO, VOLCANO_NODE = "volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-node"
MANAGER, MANAGER_REAL = "nvidia.com/pre-allocated", "nvidia.com/real-allocated"
MANAGER_NODE = "nvidia.com/predicate-node"

_DO = "delete the pod, so that it is scheduled anew"
_FOUR_FIELDS = "UUID,NVIDIA,MiB,cores of each device, devices ended by :"


class Chosen:
    """One card for one container, by `uuid`, or by `index` where that is "". An amount of 0 means that none is given.

    `cores` in percent and `memory` in bytes are what the scheduler counted on that card.
    """

    __slots__ = ("cores", "index", "memory", "uuid")

    def __init__(self, uuid: str, index: int = -1, cores: int = 0, memory: int = 0) -> None:
        self.uuid = uuid
        self.index = index
        self.cores = cores
        self.memory = memory

    def key(self) -> tuple[str, int, int, int]:
        return (self.uuid, self.index, self.cores, self.memory)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chosen) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"Chosen{self.key()}"


class Placement:
    """One dialect's placement of a pod: container -> cards, from the annotation `key`, for the node `node`.

    `node_key` is the annotation with the node's name; `node` is "" where the pod has none.
    """

    __slots__ = ("cards", "dialect", "key", "node", "node_key")

    def __init__(self, dialect: str, key: str, node_key: str, node: str, cards: dict[str, tuple[Chosen, ...]]) -> None:
        self.dialect = dialect
        self.key = key
        self.node_key = node_key
        self.node = node
        self.cards = cards


class Choice:
    """One scheduler's choice for one container; `key` is the annotation with it."""

    __slots__ = ("cards", "key")

    def __init__(self, key: str, cards: tuple[Chosen, ...]) -> None:
        self.key = key
        self.cards = cards


def choices(pod: Pod, container: str, node: str, dialects: Iterable[str]) -> list[Choice]:
    """The choice of each of `dialects` for `container`; the caller compares them.

    VgpuError for a malformed value, and for a placement on another node than `node`.
    """
    found = []
    for placement in read(pod, dialects):
        if placement.node and placement.node != node:
            expected = f"this node, {node}, in the annotation that goes with {placement.key}"
            raise VgpuError(placement.node_key, expected=expected, found=placement.node, do=_DO)
        if placement.cards.get(container):
            found.append(Choice(placement.key, placement.cards[container]))
    return found


def read(pod: Pod, dialects: Iterable[str]) -> list[Placement]:
    """Every placement in the pod's annotations of these `dialects` (`all`: every dialect)."""
    wanted = set(dialects)
    found = [reader(pod) for name, reader in READERS.items() if name in wanted or ALL in wanted]
    return [placement for placement in found if placement is not None]


def by_index(annotations: dict[str, str]) -> bool:
    """Whether some placement refers to a container by its place in the pod, which only the pod's record has."""
    return any(PREDICATE_INDEX in key or key in (HAMI, VOLCANO) for key in annotations)


# Readers, one for each dialect. They return None where the pod has no placement of that dialect.


def _own(pod: Pod) -> Placement | None:
    value = _value(pod, OWN)
    cards = {}
    for part in value.split(";") if value else ():
        name, equals, items = part.partition("=")
        if not equals or not _is_container(pod, name) or name in cards:
            raise _wrong(OWN, "<container>=<UUID>[:<cores>:<MiB>],... for each container once, joined by ;", part)
        cards[name] = _several(OWN, items.split(","), _own_card)
    return Placement("vgpu", OWN, OWN_NODE, _value(pod, OWN_NODE), cards) if cards else None


def _own_card(key: str, text: str) -> Chosen:
    uuid, *amounts = text.split(":")
    if len(amounts) not in (0, 2):
        raise _wrong(key, "<UUID> or <UUID>:<cores>:<MiB>", text)
    cores, mib = amounts or ("0", "0")
    return _card(key, uuid, cores, mib)


def _tencent(pod: Pod) -> Placement | None:
    return _admission("tencent", "tencent.com/", pod)


def _nvidia(pod: Pod) -> Placement | None:
    return _admission("nvidia", "nvidia.com/", pod)


def _admission(dialect: str, prefix: str, pod: Pod) -> Placement | None:
    """gpu-admission and its fork: an annotation of card indexes for each container, numbered as in spec.containers."""
    keys = [key for key in pod.annotations if key.startswith(prefix + PREDICATE_INDEX)]
    if not keys or not pod.containers:
        return None
    cards = {}
    for key in keys:
        at = key[len(prefix + PREDICATE_INDEX) :]
        if not _digits(at, MAX_CONTAINERS) or int(at) >= len(pod.containers):
            raise VgpuError(key, expected=f"a container's number, 0 to {len(pod.containers) - 1}", found=at, do=_DO)
        cards[pod.containers[int(at)]] = _several(key, _value(pod, key).split(","), _indexed_card)
    node_key = prefix + PREDICATE_NODE
    return Placement(dialect, min(keys), node_key, _value(pod, node_key), cards)


def _indexed_card(key: str, text: str) -> Chosen:
    return Chosen("", _whole(key, text, MAX_CARDS - 1, "card indexes, joined by ,"))


def _hami(pod: Pod) -> Placement | None:
    """HAMi: a segment for each container, init containers first; versions before 2.5 leave those out."""
    segments = _segments(pod, HAMI)
    if not segments or not pod.containers:
        return None
    names = [pod.names(), pod.containers]
    return Placement("hami", HAMI, HAMI_NODE, _value(pod, HAMI_NODE), _matched(HAMI, segments, names))


def _volcano(pod: Pod) -> Placement | None:
    """Volcano: a segment for each container that asks for a vGPU, without init containers."""
    segments = _segments(pod, VOLCANO)
    if not segments or not pod.containers:
        return None
    asking = [name for name in pod.containers if any(_asks(item) for item in pod.limits.get(name, {}))]
    cards = _matched(VOLCANO, segments, [asking, pod.containers])
    return Placement("volcano", VOLCANO, VOLCANO_NODE, _value(pod, VOLCANO_NODE), cards)


def _asks(resource: str) -> bool:
    return resource.endswith(("/vgpu-number", "/vgpu-memory"))


def _segments(pod: Pod, key: str) -> list[str]:
    """The segments of HAMi's and Volcano's common form: HAMi ends each with ;, Volcano separates them with ;."""
    value = _value(pod, key)
    return (value[:-1] if key == HAMI and value.endswith(";") else value).split(";") if value else []


def _matched(key: str, segments: list[str], names: list[list[str]]) -> dict[str, tuple[Chosen, ...]]:
    """Container -> cards, for the first list in `names` with as many names as there are segments."""
    containers = next((listed for listed in names if len(listed) == len(segments)), None)
    if containers is None:
        counts = " or ".join(sorted({str(len(listed)) for listed in names}))
        raise _wrong(key, f"{counts} parts, one for each container", f"{len(segments)} parts")
    cards = {}
    for name, segment in zip(containers, segments):
        items = [item for item in segment.split(":") if item]
        if items:
            cards[name] = _several(key, items, _four)
    return cards


def _four(key: str, text: str) -> Chosen:
    fields = text.split(",")
    if len(fields) != 4 or not fields[1].startswith("NVIDIA"):
        raise _wrong(key, _FOUR_FIELDS, text)
    return _card(key, fields[0], fields[3], fields[2])


def _manager(pod: Pod) -> Placement | None:
    """vgpu-manager: `main[0_GPU-..._30_4096,...];side[]`. The node's annotation counts if the scheduler's is gone."""
    key = MANAGER if _value(pod, MANAGER) else MANAGER_REAL
    value = _value(pod, key)
    cards = {}
    for part in value.split(";") if value else ():
        name, bracket, items = part.partition("[")
        if not bracket or not items.endswith("]") or not _is_container(pod, name) or name in cards:
            raise _wrong(key, "<container>[<index>_<UUID>_<cores>_<MiB>,...] for each container once", part)
        cards[name] = _several(key, items[:-1].split(","), _manager_card) if items != "]" else ()
    return Placement("vgpu-manager", key, MANAGER_NODE, _value(pod, MANAGER_NODE), cards) if cards else None


def _manager_card(key: str, text: str) -> Chosen:
    fields = text.split("_")
    if len(fields) != 4 or not _digits(fields[0], MAX_CONTAINERS):
        raise _wrong(key, "<index>_<UUID>_<cores>_<MiB>", text)
    return _card(key, fields[1], fields[2], fields[3])  # a reboot may change the index, but not the UUID


READERS: dict[str, Callable[[Pod], Placement | None]] = {
    "vgpu": _own, "tencent": _tencent, "nvidia": _nvidia, "hami": _hami, "volcano": _volcano, "vgpu-manager": _manager,
}  # fmt: skip


# Parts of values


def _value(pod: Pod, key: str) -> str:
    """The text under `key`, "" without one."""
    value = pod.annotations.get(key, "")
    if len(value) > MAX_VALUE:
        raise _wrong(key, f"at most {MAX_VALUE} characters", f"{len(value)}")
    return value


def _is_container(pod: Pod, name: str) -> bool:
    """Whether the pod has a container `name`. Where its containers are unknown: whether the name is well-formed."""
    known = pod.names()
    return name in known if known else bool(name) and all(c.isalnum() or c == "-" for c in name)


def _several(key: str, items: list[str], read_card: Callable[[str, str], Chosen]) -> tuple[Chosen, ...]:
    if len(items) > MAX_CARDS:
        raise _wrong(key, f"at most {MAX_CARDS} cards of a container", f"{len(items)}")
    return tuple([read_card(key, item) for item in items])


def _card(key: str, uuid: str, cores: str, mib: str) -> Chosen:
    if not is_uuid(uuid):
        raise _wrong(key, "a card's UUID, GPU-... or MIG-...", uuid)
    percent = _whole(key, cores, WHOLE_CARD, "0 to 100 cores of each card")
    return Chosen(uuid, -1, percent, _whole(key, mib, MAX_MIB, "memory of each card in MiB") << 20)


def is_uuid(text: str) -> bool:
    """Whether `text` has the form of a card's UUID."""
    known = text.startswith(("GPU-", "MIG-")) and 4 < len(text) <= MAX_ID
    return known and all(c.isascii() and (c.isalnum() or c == "-") for c in text)


def _whole(key: str, text: str, high: int, expected: str) -> int:
    if not _digits(text, high):
        raise _wrong(key, expected, text)
    return int(text)


def _digits(text: str, high: int) -> str:
    """`text` if it is a whole number of at most `high`, else ""."""
    return text if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= high else ""


def _wrong(key: str, expected: str, found: str) -> VgpuError:
    return VgpuError(f"annotation {key}", expected=expected, found=found, do=_DO)
