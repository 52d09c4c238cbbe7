"""The screen of `vgpuctl top`: its size, its bars, and names of tenants in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import region_reading
from ctl_node import GIB, Node

from vgpu.config.inventory import Card
from vgpu.config.request import Request
from vgpu.node.ctl import snapshot
from vgpu.node.ctl.snapshot import Share, Snapshot
from vgpu.node.ctl.top_screen import View, draw
from vgpu.node.daemon import reader

POD = "a-namespace/a-pod-with-a-long-name-0123456789/the-container"


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """One container that uses half of its two limits."""
    monkeypatch.setattr(reader, "each", region_reading.each)
    node = Node(tmp_path, "top")
    node.hold("f" * 64, Request(1, 30, 2 * GIB, 50), name=POD)
    made = snapshot.take(node.settings)
    return dataclasses.replace(made, shares=[with_use(row, 25.0, GIB) for row in made.shares])


def with_use(row: Share, cores: float, memory: int) -> Share:
    return dataclasses.replace(row, cores_used=cores, cores_lent=5, memory_used=memory)


def lines(found: Snapshot, view: View, count: int = 1) -> list[str]:
    """The screen with the container `count` times."""
    return draw(found, found.shares * count, view).split("\n")


def row_of(screen: list[str]) -> str:
    """The container's line."""
    (line,) = (line for line in screen if "of 30 %" in line)
    return line


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 130, 200, 500])
def test_every_line_fits_the_width(found: Snapshot, width: int) -> None:
    assert max(map(len, lines(found, View(width, 24, footer="keys " * 50)))) <= width


@pytest.mark.parametrize("height", [14, 20, 24, 60])
@pytest.mark.parametrize("containers", [0, 1, 5, 200])
@pytest.mark.parametrize("cards", [1, 2, 16])
def test_the_screen_fits_the_height_and_counts_what_it_leaves_out(
    found: Snapshot, height: int, containers: int, cards: int
) -> None:
    many: list[Card] = (found.cards * 8)[:cards]
    screen = lines(dataclasses.replace(found, cards=many), View(80, height, footer="keys"), containers)
    assert len(screen) <= height
    assert screen[-1] == "keys"
    shown = sum("of 30 %" in line for line in screen)
    assert shown == containers or f"and {containers - shown} more container" in "\n".join(screen)
    of_cards = sum("of 100 %" in line for line in screen)
    assert of_cards == cards or f"and {cards - of_cards} more card" in "\n".join(screen)


def test_80_columns_have_name_card_bars_and_figures(found: Snapshot) -> None:
    line = row_of(lines(found, View(80)))
    assert line.startswith("a-namespace/")
    assert line.endswith("1 GiB of 2 GiB")
    assert "25 of 30 %" in line
    assert "█" in line
    assert "░" in line


def test_200_columns_have_pid_limit_state_and_id_too(found: Snapshot) -> None:
    screen = lines(found, View(200))
    line = row_of(screen)
    assert POD in line
    assert line.split()[0] == str(found.shares[0].claim.pid)
    assert line.endswith("50 %  5 %  running ffffffffffff")
    assert "30 %, 2 GiB, by 1" in "\n".join(screen)


def test_a_bar_is_as_full_as_the_use_of_its_limit(found: Snapshot) -> None:
    line = row_of(lines(found, View(200)))
    assert abs(line.count("█") - line.count("░")) <= 2, "25 of at most 50 percent, and 1 of 2 GiB"
    full = dataclasses.replace(found, shares=[with_use(found.shares[0], 80.0, 9 * GIB)])
    assert "░" not in row_of(lines(full, View(200)))


def test_a_terminal_without_block_characters_has_ascii_bars(found: Snapshot) -> None:
    text = draw(found, found.shares, View(80, blocks=False))
    assert text.isascii()
    assert "#" in row_of(text.split("\n"))


def test_colour_is_only_where_it_is_asked_for(found: Snapshot) -> None:
    assert "\x1b" not in draw(found, found.shares, View(80, footer="keys"))
    assert "\x1b[" in draw(found, found.shares, View(80, colour=True))


def test_a_tenants_name_has_no_control_characters_and_no_markup(found: Snapshot) -> None:
    (share,) = found.shares
    found.shares[0] = dataclasses.replace(share, name="[red]\x1b[2J\n:smile:")
    text = draw(found, found.shares, View(200))
    assert "\x1b" not in text
    assert "[red]\\x1b[2J\\x0a:smile:" in text


def test_a_whole_card_has_no_figures(found: Snapshot, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    node = Node(tmp_path / "other", "top")
    node.hold("big", Request(1, 100, 0))
    made = snapshot.take(node.settings)
    text = draw(made, made.shares, View(200))
    assert "whole card" in text
    assert "whole, by 1" in text
    assert "█" not in text


def test_warnings_are_lines_of_the_screen(found: Snapshot) -> None:
    screen = lines(dataclasses.replace(found, warnings=["one " * 100, "two", "three"]), View(80, 24, footer="keys"))
    assert sum(line.startswith("warning: ") for line in screen) == 2
    assert max(map(len, screen)) <= 80
