"""Quotas of cards, per namespace and card model, in gpu-admission's format.

Belongs here: the ConfigMap's text -> Quotas, and what they say about a node. Pure. A namespace that the map leaves out
has no quota. Of a namespace with a quota, a model that its quota leaves out has none of that model. An empty pool, or
none, means all pools. Half a card counts as half a card: all sums are in percent of a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.request import WHOLE_CARD

KEY = "gpu_quota"
MODEL_LABEL, POOL_LABEL = "tkestack.io/gpu-model", "tkestack.io/gpu-pool"
EXCEEDED = "ExceedsGPUQuota"
MAX_CARDS = 10**6

Sums = dict[str, int]  #: by model, in percent of a card


class Quota(NamedTuple):
    """`cards` by model, in percent of a card; None where the namespace may have any number of any model."""

    cards: Sums | None
    pools: frozenset[str]


class Quotas:
    """The quotas of all namespaces that have one."""

    def __init__(self, of: dict[str, Quota] | None = None) -> None:
        self.of = of or {}

    def refusal(self, namespace: str, pool: str, used: Callable[[], Sums], asked: Sums) -> str:
        """Why `namespace` may not have `asked` on a node of `pool`; "" where it may."""
        quota = self.of.get(namespace)
        if quota is None:
            return ""
        if quota.pools and pool not in quota.pools:
            return f"{EXCEEDED}: pool {pool or 'none'} is not one of {', '.join(sorted(quota.pools))}"
        if quota.cards is None:
            return ""
        sums = used()
        for model, percent in asked.items():
            limit, has = quota.cards.get(model, 0), sums.get(model, 0)
            if has + percent > limit:
                return f"{EXCEEDED}: {model}: used {_cards(has)}, asked {_cards(percent)}, limit {_cards(limit)}"
        return ""

    def models(self, namespace: str) -> frozenset[str]:
        quota = self.of.get(namespace)
        return frozenset(quota.cards or ()) if quota is not None else frozenset()


def parse(text: str) -> Quotas:
    """The quotas in the ConfigMap's text; VgpuError for any other text."""
    record = records.decode_object(text.encode(), KEY)
    return Quotas({namespace: _quota(namespace, value) for namespace, value in record.items()})


def model_of(label: str, card: str, models: frozenset[str]) -> str:
    """A card's model: the node's label, else the longest of `models` in the card's name, else the name."""
    if label:
        return label
    named = [model for model in models if model.lower() in card.lower()]
    return max(named, key=lambda model: (len(model), model), default=card)


def _quota(namespace: str, value: Any) -> Quota:
    if not isinstance(value, dict):
        raise VgpuError(f"{KEY}: {namespace}", expected='{"quota": {...}, "pool": [...]}', found=str(value)[:100])
    cards, pools = value.get("quota"), value.get("pool") or []
    if not (cards is None or isinstance(cards, dict)):
        raise VgpuError(
            f"{KEY}: {namespace}: quota", expected="a number of cards for each model", found=str(cards)[:100]
        )
    if not isinstance(pools, list) or not all(isinstance(pool, str) for pool in pools):
        raise VgpuError(f"{KEY}: {namespace}: pool", expected="a list of names", found=str(pools)[:100])
    if cards is None:
        return Quota(None, frozenset(pools))
    sums = {model: _percent(f"{KEY}: {namespace}: {model}", number) for model, number in cards.items()}
    return Quota(sums, frozenset(pools))


def _percent(what: str, number: Any) -> int:
    right = isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number <= MAX_CARDS
    if not right or round(number * WHOLE_CARD, 6) % 1:
        raise VgpuError(what, expected="a number of cards with at most two decimals", found=str(number)[:100])
    percent: int = round(number * WHOLE_CARD)
    return percent


def _cards(percent: int) -> str:
    return f"{percent / WHOLE_CARD:g}"
