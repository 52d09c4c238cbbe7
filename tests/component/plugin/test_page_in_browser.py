"""The page in a real browser without a screen: its elements, its layout in a wide and a narrow window, its policy."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
import round_records
from round_records import GIB, container, reported, share, uuid_of

from vgpu.config.settings import Settings
from vgpu.plugin.exporter.server import Exporter

pytestmark = [pytest.mark.long, pytest.mark.program("chromium")]  # which takes some 300 MB

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr",
)  # fmt: skip
NAMES = ("trainer", "infer", "<script>alert(1)</script>", "quo\"te's", "new\nline", "x" * 120, "\u202eodd", "whole")
#: Appended to a saved copy of the page: what the browser made of it.
MEASURE = """<script>
const rows = [...document.querySelectorAll("tbody tr")].map(row => ({
  name: row.querySelector("th").innerText,
  tight: [...row.querySelectorAll("th, .n")].some(cell => cell.scrollWidth > cell.clientWidth + 1 && cell.clientWidth),
  bars: [...row.querySelectorAll(".bar")].map(bar => ({width: bar.getBoundingClientRect().width,
    used: bar.querySelector("b").getBoundingClientRect().width,
    colour: getComputedStyle(bar.querySelector("b")).backgroundColor})),
}));
document.title = JSON.stringify({rows, page: document.documentElement.scrollWidth, window: innerWidth});
</script>"""


def browser(profile: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["chromium", *OPTIONS, f"--user-data-dir={profile}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    """A node with eight containers on two cards."""
    made = round_records.record(cards=2, containers=0)
    made["containers"] = [
        container(number, [share(0, memory_limit=(1 + number) * GIB)], pod=name)
        for number, name in enumerate(NAMES[:-1])
    ]
    whole = share(1, memory_limit=None, cores=100, cores_seen=97.0, reported=None, memory_measured=4 * GIB)
    made["containers"].append(container(7, [whole], pod=NAMES[-1], exclusive=True))
    made["containers"][0]["cards"][0]["reported"] = reported(refusals=4)
    made["violations"] = [{"container": made["containers"][1]["container"], "uuid": uuid_of(0)}]
    made["cards"][1]["fault"] = "Xid 79, fell off the bus; reset the card"
    round_records.write(str(tmp_path / "run"), made)
    found = Exporter(Settings({"paths.run": str(tmp_path / "run")}), "127.0.0.1:0")
    yield found
    found.close()


def test_the_page_in_the_browser(exporter: Exporter, tmp_path: Path) -> None:
    shown = browser(tmp_path / "profile", "--dump-dom", f"http://{exporter.address}/usage")
    assert "<h1>Cards of node-1</h1>" in shown.stdout
    assert "<script" not in shown.stdout
    text = unescape(re.sub(r"<[^>]*>", " ", shown.stdout))
    for name in (*NAMES[:4], "new\\nline", NAMES[5], "\\u202eodd", "whole"):
        assert f"team/{name}/main" in text
    assert "CONSOLE" not in shown.stderr, "neither errors nor what the page's policy refuses"


@pytest.mark.parametrize("width", [1400, 500])
def test_its_layout_in_a_window(exporter: Exporter, tmp_path: Path, width: int) -> None:
    profile, window = tmp_path / "profile", f"--window-size={width},1800"
    shown = browser(profile, "--dump-dom", f"http://{exporter.address}/usage").stdout
    copy = tmp_path / "page.html"
    copy.write_text(shown.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    measured = browser(profile, window, "--dump-dom", copy.as_uri()).stdout
    found = json.loads(unescape(re.findall(r"<title>(.*?)</title>", measured, re.DOTALL)[0]))
    assert found["page"] <= found["window"] == width, "nothing is beyond the window's edge"
    assert len(found["rows"]) == 2 + len(NAMES)
    for row in found["rows"]:
        assert not row["tight"], row
        assert min(bar["width"] for bar in row["bars"]) >= 60, row
        assert 0 < row["bars"][1]["used"] < row["bars"][1]["width"], row
    colours = [row["bars"][1]["colour"] for row in found["rows"]]
    assert [number for number, colour in enumerate(colours) if colour != colours[0]] == [2], "the one beyond its limit"
    picture = tmp_path / "page.png"
    browser(profile, window, f"--screenshot={picture}", f"http://{exporter.address}/usage")
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (width, 1800)
