"""Quotas: gpu-admission's format, half cards, pools, and texts that are no quotas."""

from __future__ import annotations

import json

import pytest

from vgpu.config.errors import VgpuError
from vgpu.plugin.scheduler import quota


def quotas(**namespaces):
    return quota.parse(json.dumps(namespaces))


def test_half_cards_count_as_halves() -> None:
    found = quotas(a={"quota": {"M40": 2}})
    assert found.refusal("a", "", lambda: {"M40": 150}, {"M40": 50}) == ""
    expected = "ExceedsGPUQuota: M40: used 1.5, asked 0.75, limit 2"
    assert found.refusal("a", "", lambda: {"M40": 150}, {"M40": 75}) == expected


def test_a_namespace_without_a_quota_has_none() -> None:
    assert quotas(a={"quota": {"M40": 0}}).refusal("b", "", dict, {"M40": 10_000}) == ""


def test_a_model_that_the_quota_leaves_out_is_refused() -> None:
    assert "P40: used 0, asked 1, limit 0" in quotas(a={"quota": {"M40": 8}}).refusal("a", "", dict, {"P40": 100})


def test_an_empty_quota_allows_no_model_and_one_that_is_missing_allows_all() -> None:
    assert "used 0, asked 1, limit 0" in quotas(a={"quota": {}}).refusal("a", "", dict, {"M40": 100})
    assert quotas(a={"pool": []}).refusal("a", "", dict, {"M40": 100}) == ""


@pytest.mark.parametrize(
    ("pools", "pool", "fits"), [([], "x", True), (["x"], "x", True), (["x"], "y", False), (["x"], "", False)]
)
def test_pools(pools, pool: str, fits: bool) -> None:
    assert (quotas(a={"pool": pools}).refusal("a", pool, dict, {"M40": 100}) == "") is fits


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a": 5}', '{"a": {"quota": 5}}', '{"a": {"quota": {"M": "8"}}}', '{"a": {"quota": {"M": -1}}}',
     '{"a": {"quota": {"M": true}}}', '{"a": {"quota": {"M": 0.333}}}', '{"a": {"pool": "x"}}', '{"a": {"pool": [5]}}',
     '{"a": {"quota": {"M": 1e300}}}'],
)  # fmt: skip
def test_what_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(VgpuError):
        quota.parse(text)


@pytest.mark.parametrize(
    ("label", "card", "model"),
    [
        ("M40", "Tesla T4", "M40"),
        ("", "NVIDIA A100-SXM4-80GB", "A100-SXM4"),
        ("", "Tesla T4", "Tesla T4"),
        ("", "NVIDIA A10", "A10"),
    ],
)
def test_a_cards_model(label: str, card: str, model: str) -> None:
    assert quota.model_of(label, card, frozenset({"A10", "A100", "A100-SXM4"})) == model
