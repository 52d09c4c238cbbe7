"""What a context takes: which figure counts, the record, and what is said of a share that is too small."""

from __future__ import annotations

from pathlib import Path

import cards
import pytest

from vgpu.config import context_sizes, inventory, paths, records
from vgpu.config.context_sizes import MIB, Seen
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Card, Inventory

REPORTED = "NVIDIA GeForce RTX 3090"


def card(name: str = "NVIDIA A100-SXM4-80GB", context: int = 0) -> Card:
    return cards.card(uuid="GPU-1", name=name, context=context, context_source="seen" if context else "")


def test_what_the_node_has_seen_counts_more_than_a_report() -> None:
    size, source = context_sizes.size_of(REPORTED, {})
    assert size == 256 * MIB
    assert source.startswith("reported: github.com/")
    seen = {REPORTED: Seen(270 * MIB, "550.54.15")}
    assert context_sizes.size_of(REPORTED, seen) == (270 * MIB, "seen on this node with driver 550.54.15")


def test_a_model_that_nobody_knows_stays_unknown() -> None:
    assert context_sizes.size_of("NVIDIA A100-SXM4-80GB", {REPORTED: Seen(1, "")}) == (0, "")
    one = card()
    context_sizes.fill([one], {})
    assert (one.context, one.context_source) == (0, "")
    assert context_sizes.too_small([one], [1]) == []


def test_the_record(tmp_path: Path) -> None:
    assert context_sizes.read(str(tmp_path)) == {}
    path = paths.context_sizes(str(tmp_path))
    records.write(path, context_sizes.record({"T4": Seen(120 * MIB, "550")}))
    found = context_sizes.read(str(tmp_path))
    assert (found["T4"].size, found["T4"].driver) == (120 * MIB, "550")
    for damage in ("{", '{"version": 2}', '{"version": 1, "models": [{"name": "T4", "size": 0, "driver": ""}]}'):
        Path(path).write_text(damage)
        with pytest.raises(VgpuError, match="context-sizes"):
            context_sizes.read(str(tmp_path))
        assert context_sizes.read_or_none(str(tmp_path))[0] == {}


def test_a_share_below_a_context_is_named_with_both_figures() -> None:
    cards = [card(context=324 * MIB - 1), card(context=100 * MIB)]
    (line,) = context_sizes.too_small(cards, [256 * MIB, 100 * MIB])
    assert "a share of 256 MiB is smaller than a CUDA context there, 324 MiB (seen)" in line


def test_an_inventory_of_an_older_vgpu_has_no_context() -> None:
    record = Inventory("550", "", 1.0, [], [], [], [card(context=5)]).record()
    (now,) = inventory.from_record(record, "f").cards
    assert (now.context, now.context_source) == (5, "seen")
    (old,) = record["cards"]  # type: ignore[misc]
    del old["context"], old["context_source"]  # type: ignore[has-type]
    (then,) = inventory.from_record(record, "f").cards
    assert (then.context, then.context_source) == (0, "")
