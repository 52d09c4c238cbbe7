"""`vgpuctl ps`: which containers it lists, and where their names come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import region_reading
from ctl_node import GIB, Node, uuid_of

from vgpu.config.request import Request
from vgpu.node.daemon import reader


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(reader, "each", region_reading.each)
    return Node(tmp_path, "ps")


def test_nobody_holds_a_card(node: Node) -> None:
    assert node.json() == {"containers": [], "warnings": []}
    assert node.call().exit_code == 0


def test_a_container_of_a_pod_and_another(node: Node) -> None:
    node.hold("one", Request(1, 30, 2 * GIB, 50), name="lab/train-0/main")
    node.hold("two", Request(1, 20, GIB))
    one, two = node.json()["containers"]
    assert (one["namespace"], one["pod"], one["name"]) == ("lab", "train-0", "main")
    assert (two["namespace"], two["pod"], two["name"]) == ("", "", "")
    assert (one["pid"], one["container"], one["card"], one["uuid"]) == (os.getpid(), "one", 0, uuid_of(0))
    assert (one["cores"], one["core_limit"], one["memory_limit"]) == (30, 50, 2 * GIB)
    assert (one["cores_used"], one["memory_used"]) == (None, None)
    assert os.getpid() in one["processes"]
    text = node.call().stdout
    for word in ("lab", "train-0", "main", "2 GiB", "running"):
        assert word in text


def test_a_line_for_each_card(node: Node) -> None:
    node.hold("one", Request(2, 30, GIB))
    assert [row["card"] for row in node.json()["containers"]] == [0, 1]
    assert [row["card"] for row in node.json("--card", "1")["containers"]] == [1]
    assert [row["card"] for row in node.json("--card", uuid_of(0), "--card", "1")["containers"]] == [0, 1]
    assert node.json("--card", "7")["containers"] == []


def test_a_container_that_has_ended_is_listed_on_demand(node: Node) -> None:
    node.hold("one", Request(1, 30, GIB))
    node.change("one", start_time=1)
    assert node.json()["containers"] == []
    (row,) = node.json("--all")["containers"]
    assert (row["state"], row["processes"]) == ("stopped", [])


def test_a_whole_card_has_no_limit(node: Node) -> None:
    node.hold("big", Request(1, 100, 0))
    (row,) = node.json()["containers"]
    assert (row["memory_limit"], row["memory_used"]) == ("whole card", None)


def test_damage_is_a_warning(node: Node) -> None:
    node.hold("one", Request(1, 30, GIB))
    (node.path / "run/containers/one/claim.json").write_bytes(b"garbage")
    done = node.call("--output", "json")
    assert done.stderr.startswith("warning: ")
    assert done.exit_code == 0


def test_a_narrow_terminal_keeps_pod_card_and_use(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.hold("f" * 64, Request(1, 30, 2 * GIB, 50), name="lab/train-0/main")
    monkeypatch.setenv("COLUMNS", "80")
    lines = node.call().stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "train-0" in text
    assert "memory" in text
    assert "--wide also shows: uuid" in text
