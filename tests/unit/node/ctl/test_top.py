"""`vgpuctl top`: the order of the containers, the options, and what one screen has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import region_reading
from ctl_node import GIB, Node, uuid_of

from vgpu.config.request import Request
from vgpu.node.ctl import snapshot
from vgpu.node.ctl.snapshot import Snapshot
from vgpu.node.ctl.top import SORTS, Live, Order
from vgpu.node.daemon import reader


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(reader, "each", region_reading.each)
    return Node(tmp_path, "top")


def used(node: Node) -> Snapshot:
    """Three containers: `b` uses the most core time, `c` the most memory, and of `a` nothing is known."""
    node.hold("b", Request(1, 30, 2 * GIB, 50), name="lab/train-0/main")
    node.hold("a", Request(1, 20, GIB))
    node.hold("c", Request(1, 20, 4 * GIB))
    figures = {"a": (None, None), "b": (28.4, GIB), "c": (3.0, 3 * GIB)}
    found = snapshot.take(node.settings)
    rows = []
    for row in found.shares:
        cores, memory = figures[row.claim.container]
        rows.append(dataclasses.replace(row, cores_used=cores, memory_used=memory))
    return dataclasses.replace(found, shares=rows)


@pytest.mark.parametrize(
    ("sort", "order"), [("cores", "bca"), ("memory", "cba"), ("name", "acb"), ("card", "acb"), ("since", "bac")]
)
def test_the_order_and_its_reverse(node: Node, sort: str, order: str) -> None:
    shares = used(node).shares
    assert "".join(row.claim.container for row in Order(sort, False).applied(shares)) == order
    assert "".join(row.claim.container for row in Order(sort, True).applied(shares)) == order[::-1]


def test_keys_change_the_order() -> None:
    order = Order("cores", False)
    for key, sort in zip("cmnds", SORTS):
        order.press(key)
        assert order.sort == sort
    order.press("x")
    assert (order.sort, order.reverse) == ("since", False)
    order.press("r")
    assert order.reverse
    assert "sorted by since, reversed" in order.footer()


def test_the_use_of_a_card_is_the_sum_of_its_containers(node: Node) -> None:
    found = used(node)
    assert found.card_use(uuid_of(0)) == (31.4, 4 * GIB)
    assert found.card_use(uuid_of(1)) == (None, None)
    for claim in found.living.claims:
        claim.prepared = ["claim-0"]  # one budget, whose memory each of them shows
    oldest = min(found.living.claims, key=lambda claim: claim.created).container
    memory = {row.claim.container: row.memory_used for row in found.shares}
    assert found.card_use(uuid_of(0))[1] == memory[oldest]


def test_output_that_is_no_terminal_is_one_screen_without_colour(node: Node) -> None:
    used(node)
    done = node.call()
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    for word in ("lab/train-0/main", "Tesla T4", "- of 30 %", "- of 2 GiB"):
        assert word in done.stdout


def test_columns_of_the_environment_are_the_width(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    used(node)
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, node.call("--once").stdout.splitlines())) <= 60


def test_json_has_cards_and_containers_in_the_order(node: Node) -> None:
    used(node)
    found = node.json("--sort", "name")
    assert [row["container"] for row in found["containers"]] == ["a", "c", "b"]
    first = found["cards"][0]
    assert (first["cores_held"], first["memory_held"], first["memory_used"]) == (70, 7 * GIB, None)
    assert sorted(first["holders"]) == ["a", "c", "lab/train-0/main"]


class Terminal:
    """A terminal whose user presses `keys`, one each time. After the last one it is q."""

    def __init__(self, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys = list(keys)
        self.screens: list[str] = []
        monkeypatch.setattr("vgpu.node.ctl.top._write", self.screens.append)
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("LINES", "20")

    def key(self, _seconds: float) -> str:
        return self.keys.pop(0) if self.keys else "q"


def test_a_key_draws_the_screen_again_and_q_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    used(node)
    terminal = Terminal("xm", monkeypatch)
    Live(node.settings, Order("cores", False), 1000.0, terminal.key).run()
    assert ["sorted by cores" in screen for screen in terminal.screens] == [True, False]
    assert "sorted by memory" in terminal.screens[1]


def test_figures_that_cannot_be_read_leave_the_last_ones_and_the_reason(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(node)
    terminal = Terminal("x", monkeypatch)
    live = Live(node.settings, Order("cores", False), 1000.0, terminal.key)
    live.interval = -1.0  # the next figures are due at once
    (node.path / "run/inventory.json").unlink()

    def look(*_: object) -> Snapshot:
        live.interval = 1000.0
        return take(node.settings)

    take = snapshot.take
    monkeypatch.setattr(snapshot, "take", look)
    live.run()
    (screen,) = terminal.screens
    assert "error: " in screen
    assert "lab/train-0/main" in screen


@pytest.mark.parametrize("arguments", [("--sort", "size"), ("--interval", "0"), ("--interval", "x")])
def test_wrong_arguments(node: Node, arguments: tuple[str, str]) -> None:
    assert node.call(*arguments).exit_code == 2
