"""The card pages: the same layout as the C header's, live changes, and how a card is cut up among containers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from vgpu.config import cardpage
from vgpu.config.cardpage import Page
from vgpu.config.errors import VgpuError

UUIDS = [f"GPU-{index:08x}-1111-2222-3333-444455556666" for index in range(3)]
FIELDS = (
    ("vgpu_card_pages", ("magic", "version", "clock_offset", "page_count", "pages")),
    (
        "vgpu_card_page",
        (
            *("uuid", "sequence", "period", "phase_start", "phase_length"),
            *("lent_until", "lent_rate", "tenants", "share"),
        ),
    ),
)


@pytest.fixture(scope="module")
def header(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the compiler says of the header."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    directory = tmp_path_factory.mktemp("cardpage")
    rows = [
        f'printf("{type}.{field} %zu\\n", offsetof(struct {type}, {field}));'
        for type, fields in FIELDS
        for field in fields
    ]
    rows += [
        'printf("size %zu\\n", sizeof(struct vgpu_card_pages));',
        'printf("page_size %zu\\n", sizeof(struct vgpu_card_page));',
        'printf("magic %u\\nversion %u\\n", VGPU_CARDS_MAGIC, VGPU_CARDS_VERSION);',
        'puts("path " VGPU_CARDS_PATH);',
    ]
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "vgpu_card.h"', "int main(void) {", *rows, "}"]
    (directory / "card.c").write_text("\n".join(lines) + "\n")
    command = ["cc", "-std=gnu11", "-Wall", "-Werror", f"-I{repository / 'libvcuda/include'}", "-o", "card", "card.c"]
    subprocess.run(command, cwd=directory, check=True)
    output = subprocess.run([directory / "card"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines())


def test_layout(header: dict[str, str]) -> None:
    assert int(header["size"]) == cardpage.SIZE
    assert int(header["page_size"]) == cardpage.PAGE.size
    assert (int(header["magic"]), int(header["version"])) == (cardpage.MAGIC, cardpage.VERSION)
    assert header["path"] == cardpage.PATH
    assert int(header["vgpu_card_pages.pages"]) == cardpage.HEADER.size
    assert int(header["vgpu_card_page.sequence"]) == cardpage.SEQUENCE_OFFSET


def test_each_field_is_where_the_header_has_it(header: dict[str, str]) -> None:
    data = cardpage.encode([Page(UUIDS[0], 1, 2, 3, 4, 5, 6, 7)], clock_offset=-8)
    named = {
        "period": 1,
        "phase_start": 2,
        "phase_length": 3,
        "lent_until": 4,
        "lent_rate": 5,
        "tenants": 6,
        "share": 7,
    }
    for name, value in named.items():
        at = cardpage.HEADER.size + int(header[f"vgpu_card_page.{name}"])
        assert data[at] == value, name
    at = int(header["vgpu_card_pages.clock_offset"])
    assert int.from_bytes(data[at : at + 8], "little", signed=True) == -8


def test_round_trip() -> None:
    pages = [Page(uuid, 100, 10 * index, 10, index, 50, 3, 1000) for index, uuid in enumerate(UUIDS)]
    assert cardpage.decode(cardpage.encode(pages, 5)) == (pages, 5)


@pytest.mark.parametrize(
    "data", [b"", bytes(cardpage.SIZE), cardpage.encode([]) + b"\0"], ids=["empty", "zero", "long"]
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(VgpuError, match="card pages"):
        cardpage.decode(data)


def test_a_live_change_touches_one_card(tmp_path: Path) -> None:
    path = tmp_path / "cards"
    path.write_bytes(cardpage.encode([Page(uuid, 100, 0, 10) for uuid in UUIDS]))
    cardpage.update(str(path), Page(UUIDS[1], 200, 20, 30))
    pages, _ = cardpage.decode(path.read_bytes())
    assert pages == [Page(UUIDS[0], 100, 0, 10), Page(UUIDS[1], 200, 20, 30), Page(UUIDS[2], 100, 0, 10)]
    offset = cardpage.HEADER.size + cardpage.PAGE.size + cardpage.SEQUENCE_OFFSET
    assert cardpage.SEQUENCE.unpack_from(path.read_bytes(), offset) == (4,)


def test_a_card_that_is_not_there_cannot_change(tmp_path: Path) -> None:
    path = tmp_path / "cards"
    path.write_bytes(cardpage.encode([Page(UUIDS[0])]))
    with pytest.raises(VgpuError, match=re.escape(UUIDS[1])):
        cardpage.update(str(path), Page(UUIDS[1]))


@pytest.mark.parametrize("shares", [[50, 50], [10, 90], [1, 1, 98], [5, 5, 10, 10, 15, 15, 20, 20], [30, 20], [80, 80]])
def test_phases_follow_each_other_and_fit(shares: list[int]) -> None:
    pages = cardpage.schedule(UUIDS[0], shares)
    ends = [page.phase_start + page.phase_length for page in pages]
    assert [page.phase_start for page in pages] == [0, *ends[:-1]]
    assert ends[-1] <= pages[0].period <= cardpage.LONGEST_PERIOD_NS
    assert all(page.tenants == len(shares) for page in pages)


@pytest.mark.parametrize("shares", [[50, 50], [10, 90], [5, 5, 10, 10, 15, 15, 20, 20], [80, 80]])
def test_on_a_full_card_all_lose_the_same_part(shares: list[int]) -> None:
    pages = cardpage.schedule(UUIDS[0], shares)
    left = [page.share / share for page, share in zip(pages, shares)]
    assert max(left) == pytest.approx(min(left), rel=1e-3)
    assert sum(page.share for page in pages) == pytest.approx(1_000_000, rel=0.05)


def test_what_nobody_has_leaves_every_share_whole() -> None:
    pages = cardpage.schedule(UUIDS[0], [20, 30])
    assert [page.share for page in pages] == [200_000, 300_000]
    assert pages[1].phase_length * 2 == pytest.approx(pages[0].phase_length * 3, rel=0.01)


def test_alone_there_are_no_phases() -> None:
    assert cardpage.schedule(UUIDS[0], [30]) == [Page(UUIDS[0], tenants=1)]


def test_long_kernels_get_long_periods() -> None:
    assert cardpage.period_of([50, 50], 40_000_000) > cardpage.period_of([50, 50])
    assert cardpage.period_of([50, 50], 1 << 40) == cardpage.LONGEST_PERIOD_NS
