"""The page: cards, who holds and who uses what, and names that never become markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
import round_records
from round_records import GIB, container, reported, share, uuid_of

from vgpu.plugin.exporter import page
from vgpu.plugin.exporter.snapshot import Snapshot, of_record

VOID = {"meta"}  #: elements without an end


class Page(HTMLParser):
    """`rows` are the texts of the tables' cells. Asserts that each element ends where it should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.widths: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.widths += [str(value) for name, value in attrs if name == "style" and tag in "ib"]
        self.open += [tag] if tag not in VOID else []
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def made(*containers: dict[str, object], **changes: object) -> Page:
    return Page(
        page.as_page(of_record({**round_records.record(containers=0), "containers": list(containers), **changes}))
    )


def row(shown: Page, name: str) -> list[str]:
    (found,) = [cells for cells in shown.rows if name in cells[0].replace("/", " ").split()]
    return found


ODD = "<script>alert(1)</script>\"'&\n\u202etxt"
PRINTED = "<script>alert(1)</script>\"'&\\n\\u202etxt"


def test_no_name_becomes_markup_and_each_is_legible() -> None:
    cards = [round_records.card(0, fault=ODD, name=ODD, bus_id=ODD)]
    shown = made(container(0, [share(0)], pod=ODD, namespace=ODD, container_name=ODD), cards=cards, node=ODD)
    assert "script" not in shown.tags
    assert shown.text.count(PRINTED) == 8, "node twice, card three times, container three times"
    assert shown.text.count("alert(1)") == 8


def test_a_card_and_a_share_of_it() -> None:
    shown = made(container(0, [share(0)]), cards=[round_records.card(0)])
    assert "Card 0: Tesla T4" in shown.text
    assert row(shown, "all") == ["all", "40 %, 75 % held", "5.0 of 16.0 GiB"]
    assert row(shown, "web-0")[1:] == ["22 % of 25 %", "2.2 of 4.0 GiB"]
    assert shown.widths[:4] == ["width:75.0%", "width:40.0%", "width:75.0%", "width:31.2%"]
    assert shown.widths[4:] == ["width:25.0%", "width:22.0%", "width:25.0%", "width:14.1%"], "parts of the card"


@pytest.mark.parametrize(
    ("changes", "tag"),
    [
        ({"lent": 30}, "lent up to 30 %"),
        ({"reported": reported(refusals=4)}, "4 refused allocations"),
        ({"reported": reported(refusals=1)}, "1 refused allocation"),
        ({"doubted": True}, "uses more than it reports"),
    ],
)
def test_what_is_special_about_a_container_is_in_words(changes: dict[str, object], tag: str) -> None:
    plain = {"lent": 0, "reported": reported(refusals=0)}
    assert row(made(container(0, [share(0, **{**plain, **changes})])), "web-0")[0] == f"team/web-0/main {tag}"
    assert row(made(container(0, [share(0, **plain)])), "web-0")[0] == "team/web-0/main "


def test_beyond_a_limit_the_page_has_nvmls_figure() -> None:
    one = container(0, [share(0, memory_measured=6 * GIB)])
    shown = made(one, violations=[{"container": one["container"], "uuid": uuid_of(0)}])
    assert "beyond its limit" in row(shown, "web-0")[0]
    assert row(shown, "web-0")[2] == "6.0 of 4.0 GiB"


def test_whole_cards_foreign_processes_and_figures_that_are_missing() -> None:
    whole = share(
        0, memory_limit=None, cores=100, reported=None, memory_measured=None, cores_seen=None, cores_used=None
    )
    card = round_records.card(0, exclusive=True, memory_used=None, foreign=[{}, {}])
    shown = made(container(0, [whole], exclusive=True), cards=[card])
    assert "2 foreign processes" in shown.text
    assert row(shown, "web-0")[1:] == ["? of 100 %", "? of 16.0 GiB"]
    assert "whole card" in row(shown, "web-0")[0]


def test_the_page_says_why_there_is_nothing() -> None:
    assert "hangs" in Page(page.as_page(Snapshot("node-1", "vgpud hangs"))).text
    assert "no cards" in Page(page.as_page(Snapshot("node-1"))).text
    assert "No container." in made(cards=[round_records.card(0)]).text
