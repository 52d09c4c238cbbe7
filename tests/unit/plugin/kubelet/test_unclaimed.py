"""Shares that no hook has claimed: after a while the plugin's log names their containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from grants_node import Node, ids

from vgpu.config import grants
from vgpu.config.grants import Holder
from vgpu.plugin.kubelet.unclaimed import PATIENCE

TEXT = "no hook has claimed the shares of "


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def claimed(node: Node, grant_id: str) -> None:
    grant = grants.read(node.settings.state_dir, grant_id)
    grants.write(node.settings.state_dir, grants.changed(grant, holder=Holder("u1", "main")))


def test_a_container_without_the_hook_is_named(node: Node) -> None:
    node.grant(0, 9)
    node.grant(0, 9, resource="memory")
    node.kubelet.lists("web", core=ids(0, 9), memory=ids(0, 9))
    node.rounds(PATIENCE)
    assert TEXT not in node.log.getvalue(), "an image may be pulled"
    node.rounds(10 * PATIENCE)
    assert node.log.getvalue().count(TEXT) == 1, "once, while nothing changes"
    assert f"{TEXT}default/web/main for 120 s" in node.log.getvalue()


def test_all_of_them_are_named(node: Node) -> None:
    for pod, low in (("web", 0), ("job", 10)):
        node.grant(low, low + 9)
        node.kubelet.lists(pod, "c", core=ids(low, low + 9))
    node.rounds(PATIENCE + 10)
    assert f"{TEXT}default/job/c, default/web/c for" in node.log.getvalue()


def test_a_late_claim_ends_it(node: Node) -> None:
    grant = node.grant(0, 9)
    node.kubelet.lists("web", core=ids(0, 9))
    node.rounds(PATIENCE + 10)
    claimed(node, grant)
    node.rounds(10)
    assert f"over: {TEXT}" in node.log.getvalue()


def test_a_claim_in_time_is_no_finding(node: Node) -> None:
    grant = node.grant(0, 9)
    node.kubelet.lists("web", core=ids(0, 9))
    node.rounds(PATIENCE)
    claimed(node, grant)
    node.rounds(10 * PATIENCE)
    assert TEXT not in node.log.getvalue()


def test_a_pod_that_ended_before_its_start_is_no_finding(node: Node) -> None:
    """Its grant waits for its end, and its ids are another pod's."""
    node.grant(0, 9)
    node.kubelet.lists("old", core=ids(0, 9))
    node.rounds(PATIENCE - 20)
    del node.kubelet.pods["default", "old"]
    claimed(node, node.grant(0, 9))
    node.kubelet.lists("web", core=ids(0, 9))
    node.rounds(10 * PATIENCE)
    assert TEXT not in node.log.getvalue()
