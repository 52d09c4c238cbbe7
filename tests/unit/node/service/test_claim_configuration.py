"""Which opaque configuration counts for a request, and which is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu.node.service import claim_configuration
from vgpu.node.service.claim_configuration import Final

HEAD = {"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareConfig"}


def entry(source: str = "FromClaim", requests: tuple[str, ...] = (), **changed: Any) -> dict[str, Any]:
    """A field that is None is left out; `_` stands for -."""
    given = {**HEAD, **{name.replace("_", "-", 1): value for name, value in changed.items()}}
    parameters = {name: value for name, value in given.items() if value is not None}
    return {"source": source, "requests": list(requests), "opaque": {"driver": "gpu.vgpu.io", "parameters": parameters}}


def of(request: str, *config: dict[str, Any]) -> tuple[int, int]:
    found = claim_configuration.entries("claim n/c", list(config))
    return claim_configuration.of_request("claim n/c", found, request)


@pytest.mark.parametrize(("config", "expected"), [
    ([], (0, 1)),
    ([entry()], (0, 1)),
    ([entry(core_limit=50, priority=0)], (50, 0)),
    ([entry(core_limit="soft")], (100, 1)),
    ([entry(core_limit="hard"), entry("FromClass", core_limit="soft", priority=0)], (0, 0)),
    ([entry("FromClass", priority=0), entry("FromClass", priority=0)], (0, 0)),  # one for each request of the class
    ([entry(requests=("g",), core_limit=50)], (50, 1)),
    ([entry(requests=("g/small",), core_limit=50), entry(requests=("g/large", "other"), core_limit=60)], (50, 1)),
    ([{"opaque": {"driver": "another.example", "parameters": 3}}, {"opaque": None}], (0, 1)),
])  # fmt: skip
def test_what_counts_for_a_request(config: list[dict[str, Any]], expected: tuple[int, int]) -> None:
    assert of("g/small", *config) == expected


@pytest.mark.parametrize(("config", "line"), [
    ([entry(apiVersion="gpu.vgpu.io/v2")], "config: apiVersion: expected gpu.vgpu.io/v1, found gpu.vgpu.io/v2"),
    ([entry(kind=None)], "config: kind: expected ShareConfig, found nothing"),
    ([entry("FromClass", cores=30)], "config of its DeviceClass: cores: expected no field but core-limit and priority"),
    ([entry(core_limit=0)], "config: core-limit: expected hard, soft or a whole number from 1 to 100, found 0"),
    ([entry(core_limit="50")], "core-limit: expected hard, soft or a whole number from 1 to 100, found 50"),
    ([entry(core_limit=True)], "found True"),
    ([entry(core_limit=101)], "found 101"),
    ([entry(priority=-1)], "config: priority: expected a whole number from 0 to 999999999, found -1"),
    ([entry(priority=1.5)], "found 1.5"),
    ([entry(priority=0), entry(requests=("g",), priority=1)], "config: expected one for request g/small, found 2"),
    ([{"opaque": {"driver": "gpu.vgpu.io"}}], "config: parameters: expected an object, found nothing"),
])  # fmt: skip
def test_what_is_wrong_is_refused_with_claim_and_field(config: list[dict[str, Any]], line: str) -> None:
    with pytest.raises(Final, match=f"claim n/c: .*{line}"):
        of("g/small", *config)
