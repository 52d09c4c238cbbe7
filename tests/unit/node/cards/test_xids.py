"""The groups of Xids: apart from each other, and what NVIDIA's own plugin ignores among them."""

from __future__ import annotations

import pytest

from vgpu.config.settings import DEFAULTS
from vgpu.node.cards import xids

NVIDIA_PLUGIN = {13, 31, 43, 45, 68, 109}  #: ignoredXids of k8s-device-plugin, internal/rm/health.go


def by_default() -> set[int]:
    texts = DEFAULTS["plugin.ignored_xids"]
    assert isinstance(texts, list)
    return {int(text) for text in texts if text.isdigit()} | (xids.HARMLESS if xids.CATALOG in texts else set())


def test_groups_do_not_overlap() -> None:
    assert not xids.HARMLESS & set(xids.RESET)
    assert not set(xids.NOTICES) & (xids.HARMLESS | set(xids.RESET))


def test_what_nvidias_plugin_ignores_is_ignored() -> None:
    assert by_default() >= NVIDIA_PLUGIN
    assert by_default() - xids.HARMLESS == {45, 109}  # the catalog judges 45 by its companions, and resets after 109


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158])
def test_what_the_catalog_resets_is_reset(number: int) -> None:
    assert number in xids.RESET
    assert number not in by_default()


@pytest.mark.parametrize("number", [1, 12, 54, 78, 142, *range(144, 151), 159, *range(162, 173), 4711])
def test_what_it_leaves_open_passes(number: int) -> None:
    assert number not in by_default() | set(xids.RESET)
