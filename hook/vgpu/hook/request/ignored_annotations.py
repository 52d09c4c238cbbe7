"""Notes for the hook's log on annotations that have no effect on a container's start.

Belongs here: which annotations and values nothing reads, as pure functions. Not here: values that fail a start
(vgpu.config.request), and the device plugin's events with the same facts. A pod's author has no other way to learn that
a wish does not count: an ignored annotation fails nothing.
"""

from __future__ import annotations

from vgpu.config import annotations as names
from vgpu.config import request
from vgpu.config.errors import shown
from vgpu.config.request import CORE_LIMITS, POLICIES, PRIORITIES, REQUEST, WHOLE_CARD, WISH_PREFIXES, Request
from vgpu.config.standalone import KEY_DIGITS

AMOUNTS = (request.CORES, request.MEMORY, request.GPUS)
#: The keys of one wish in all dialects. The first one that a container has counts.
ALTERNATIVES = (CORE_LIMITS, PRIORITIES, *(tuple(prefix + name for prefix in WISH_PREFIXES) for name in request.WISHES))
MAX_UNKNOWN = 8


def in_pod(annotations: dict[str, str]) -> list[str]:
    """Notes on the annotations of a pod that ask for amounts, on wishes that nothing reads, and on unknown names."""
    asked = _asked(annotations)
    amounts = [_ignored(key, "a pod's amounts come from the limits in its spec") for key in asked]
    return [*amounts, *_wishes(annotations), *_unknown(annotations)]


def standalone(annotations: dict[str, str], wanted: Request) -> list[str]:
    """Notes on the wishes of a container outside Kubernetes that nothing reads."""
    return [*_wishes(annotations), *core_limit(request.core_limit_wish(annotations), wanted)]


def beside_authority(annotations: dict[str, str]) -> list[str]:
    """Notes on the annotations of a container whose request came by key or by the hook's command line."""
    read = [key for key in names.NAMES + names.PEERS if key in annotations and key not in AMOUNTS]
    why = "beside a request by key, or by the hook's command line, only that one counts"
    return [_ignored(key, why) for key in [*[key for key in AMOUNTS if key in annotations], *read]]


def core_limit(limit: int, wanted: Request) -> list[str]:
    """Notes on the core limit of an annotation (0: none) that does not count for the request."""
    if not limit or (wanted.exclusive and limit == WHOLE_CARD):
        return []
    if wanted.exclusive:
        return [f"the core limit {limit} is ignored: whole cards have no core limit"]
    if limit >= wanted.cores:
        return []
    return [
        f"the core limit {limit} is ignored: it is below the {wanted.cores} cores of the share, which are its limit"
    ]


def _asked(annotations: dict[str, str]) -> list[str]:
    """The amounts; a request by key is named once, without its key."""
    by_key = [names.masked(REQUEST + "0" * KEY_DIGITS)] if any(key.startswith(REQUEST) for key in annotations) else []
    return [key for key in AMOUNTS if key in annotations] + by_key


def _wishes(annotations: dict[str, str]) -> list[str]:
    notes = []
    policy = annotations.get(POLICIES[0], "")
    if policy not in ("", "binpack", "spread"):
        notes.append(_ignored(POLICIES[0], f"expected binpack or spread, found {shown(policy)}"))
    for key in [prefix + "numa-bind" for prefix in WISH_PREFIXES]:
        if annotations.get(key, "false") not in ("true", "false"):
            notes.append(_ignored(key, f"expected true or false, found {shown(annotations[key])}"))
    for keys in ALTERNATIVES:
        first, *others = [key for key in keys if key in annotations] or [""]
        notes += [_ignored(key, f"{first} counts") for key in others if annotations[key] != annotations[first]]
    return notes


def _unknown(annotations: dict[str, str]) -> list[str]:
    """A line for each misspelled annotation of a pod. It stops no pod: tenants write annotations."""
    notes = []
    for key in names.misspelled(annotations)[:MAX_UNKNOWN]:
        near = names.nearest(key)
        notes.append(f"annotation {shown(key)} is unknown and ignored" + (f": did you mean {near}?" if near else ""))
    return notes


def _ignored(key: str, why: str) -> str:
    return f"annotation {key} is ignored: {why}"
