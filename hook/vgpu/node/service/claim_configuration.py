"""Opaque configuration for this driver in claims and DeviceClasses: the core limit and the priority of a request.

Belongs here: the checks of an allocation's `config`, and which of it counts for a request, as pure functions. The
values mean what the annotations of the same names mean (vgpu.config.request). Not here: what is prepared of a claim
(claim_allocation).
"""

from __future__ import annotations

from typing import NamedTuple

from vgpu.config.errors import VgpuError, shown
from vgpu.config.prepared import DRIVER
from vgpu.config.request import LOW_PRIORITY, MAX_PRIORITY, WHOLE_CARD
from vgpu.node.service.claim_devices import Object

API_VERSION = f"{DRIVER}/v1"
KIND = "ShareConfig"
CORE_LIMIT, PRIORITY = "core-limit", "priority"
WORDS = {"hard": 0, "soft": WHOLE_CARD}  #: core limits by name: the share itself, and the whole card
_SOURCES = {"FromClass": "config of its DeviceClass", "FromClaim": "config"}  #: the later one goes before


class Final(VgpuError):
    """The claim cannot be prepared as it is. Another attempt would end alike."""


class Configuration(NamedTuple):
    """`core_limit` percent, 0 for the share itself."""

    core_limit: int = 0
    priority: int = LOW_PRIORITY


class Entry(NamedTuple):
    """A checked entry. It counts for these `requests`, for all of the claim if there are none."""

    source: str
    requests: list[str]
    values: dict[str, int]

    def counts_for(self, request: str) -> bool:
        """`request` is `g`, or of several alternatives `g/small`; an entry for `g` is one for each alternative."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


def entries(claim: str, config: list[Object]) -> list[Entry]:
    """The entries for this driver. Final names the claim and the field that is wrong."""
    return [_entry(claim, one, opaque) for one in config if (opaque := _opaque(one)) is not None]


def of_request(claim: str, found: list[Entry], request: str) -> Configuration:
    """What counts for the request: a claim's fields go before those of its DeviceClass. Final where two entries of
    one of both differ: nothing says which goes first."""
    values: dict[str, int] = {}
    for source, where in _SOURCES.items():
        mine = [one.values for one in found if one.source == source and one.counts_for(request)]
        if any(one != mine[0] for one in mine):
            raise Final(f"{claim}: {where}", expected=f"one for request {request}", found=f"{len(mine)}")
        values.update(mine[0] if mine else {})
    return Configuration(values.get(CORE_LIMIT, 0), values.get(PRIORITY, LOW_PRIORITY))


def _opaque(entry: Object) -> Object | None:
    opaque = entry.get("opaque")
    return opaque if isinstance(opaque, dict) and opaque.get("driver") == DRIVER else None


def _entry(claim: str, entry: Object, opaque: Object) -> Entry:
    source = entry.get("source", "FromClaim")
    where = f"{claim}: {_SOURCES.get(str(source), 'config')}"
    parameters, requests = opaque.get("parameters", "nothing"), entry.get("requests")
    if not isinstance(parameters, dict):
        raise Final(f"{where}: parameters", expected="an object", found=parameters)
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(name) != expected:
            raise Final(f"{where}: {name}", expected=expected, found=parameters.get(name, "nothing"))
    known = {CORE_LIMIT: _core_limit, PRIORITY: _priority}
    values = {}
    for name, value in parameters.items():
        if name in known:
            values[name] = known[name](f"{where}: {name}", value)
        elif name not in ("apiVersion", "kind"):
            raise Final(f"{where}: {shown(name)}", expected=f"no field but {' and '.join(known)}", found=value)
    return Entry(str(source), [str(one) for one in requests] if isinstance(requests, list) else [], values)


def _core_limit(what: str, value: object) -> int:
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if type(value) is not int or not 1 <= value <= WHOLE_CARD:
        raise Final(what, expected=f"{', '.join(WORDS)} or a whole number from 1 to {WHOLE_CARD}", found=value)
    return value


def _priority(what: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_PRIORITY:
        raise Final(what, expected=f"a whole number from 0 to {MAX_PRIORITY}", found=value)
    return value
