"""The names of all annotations that vgpu reads, the nearest of them to a misspelled one, and vgpu's labels of a node.

Belongs here: which names exist, and the distance between two words. Not here: the meaning of an annotation, which is in
vgpu.config.request, grants and dialects, and the values of labels (vgpu.plugin.apiserver.node_labels). Every `vgpu.io/`
name is vgpu's own, so an unknown one is a mistake. Other projects own the other prefixes: there, only a name that is
nearly one of those that vgpu reads counts as a mistake.
"""

from __future__ import annotations

from vgpu.config import grants, request

NAMES = (
    request.CORES, request.MEMORY, request.GPUS, request.CORE_LIMITS[0], request.PRIORITIES[0], request.POLICIES[0],
    request.PROFILE, request.NOUSE_PROFILE, *(request.PREFIX + name for name in request.WISHES),
)  # fmt: skip
#: The device plugin and schedulers write these.
WRITTEN = (
    *grants.ANNOTATIONS.values(), "vgpu.io/placement", "vgpu.io/placement-node", "vgpu.io/assigned",
    "vgpu.io/node-cards", "vgpu.io/node-holdings",
)  # fmt: skip
#: Labels that the device plugin keeps on the node.
READY, MODEL, MEMORY, DRIVER = NODE_LABELS = ("vgpu.io/ready", "vgpu.io/model", "vgpu.io/memory", "vgpu.io/driver")
PEERS = (
    *request.CORE_LIMITS[1:], *request.PRIORITIES[1:], *request.POLICIES[1:],
    *(prefix + name for prefix in request.WISH_PREFIXES[1:] for name in request.WISHES),
)  # fmt: skip
DOMAINS = tuple(dict.fromkeys(name.partition("/")[0] for name in (*NAMES, *PEERS)))
MAX_NAME = 64
PEERS_MISTAKES = 2
#: So many hexadecimal digits in a row may be a key, or nearly one: no message shows them.
SECRET = 12
KEY = "<key>"


def unknown(annotations: dict[str, str]) -> list[str]:
    """The `vgpu.io/` names that vgpu does not read, in order."""
    return sorted(
        key for key in annotations
        if key.startswith(request.PREFIX) and not key.startswith(request.REQUEST)
        and key not in NAMES and key not in WRITTEN
    )  # fmt: skip


def masked(name: str) -> str:
    """An annotation's name for a message: without what may be a key."""
    digits, text = "", ""
    for letter in name + "\0":
        if letter in "0123456789abcdefABCDEF":
            digits += letter
        else:
            text += (KEY if len(digits) >= SECRET else digits) + letter
            digits = ""
    return text[:-1]


def misspelled(annotations: dict[str, str]) -> list[str]:
    """The unknown `vgpu.io/` names, then other projects' names that are nearly one that vgpu reads."""
    foreign = (key for key in annotations if not key.startswith(request.PREFIX) and key not in PEERS)
    return unknown(annotations) + sorted(key for key in foreign if _is_near_a_peers(key))


def nearest(key: str) -> str:
    """The name that is most like `key`; "" if none is."""
    key = masked(key.lower())
    if key.endswith(KEY):
        return request.REQUEST + KEY if distance(key, request.REQUEST + KEY) <= 2 * PEERS_MISTAKES else ""
    names = NAMES if key.startswith(request.PREFIX) else (*NAMES, *PEERS)
    if len(key) > MAX_NAME:
        return ""
    begun = [name for name in names if name.startswith(key) and key != request.PREFIX]
    found = begun[0] if begun else min(names, key=lambda name: distance(key, name))
    word = found.rpartition("/")[2]
    return found if begun or distance(key, found) <= max(1, len(word) // 2) else ""


def _is_near_a_peers(key: str) -> bool:
    """Whether `key` has almost the letters of a name that vgpu reads. Most keys differ in the domain already."""
    domain, slash, _ = key.partition("/")
    if not slash or len(key) > MAX_NAME or all(distance(domain, known) > PEERS_MISTAKES for known in DOMAINS):
        return False
    names = [name for name in (*NAMES, *PEERS) if abs(len(name) - len(key)) <= PEERS_MISTAKES]
    return any(distance(key, name) <= PEERS_MISTAKES for name in names)


def distance(one: str, other: str) -> int:
    """How many letters to insert, remove, replace or swap with the next one until `one` is `other`."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        row = [i + 1]
        for j, wanted in enumerate(other):
            least = min(last[j + 1] + 1, row[j] + 1, last[j] + (letter != wanted))
            if i and j and letter == other[j - 1] and one[i - 1] == wanted:
                least = min(least, before[j - 1] + 1)
            row.append(least)
        before, last = last, row
    return last[-1]
