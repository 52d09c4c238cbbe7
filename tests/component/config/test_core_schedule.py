"""The layout of the core schedule, compared with the C header by a compiled program."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from vgpu.config import core_schedule, limits
from vgpu.config.core_schedule import CoreSchedule

UUIDS = [f"GPU-{index:08x}-1111-2222-3333-444455556666" for index in range(limits.MAX_CARDS + 1)]
FIELDS = (
    "uuid", "sequence", "period", "lent_until", "lent_rate", "tenants", "share", "may_borrow", "reserved",
)  # fmt: skip
PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include "vgpu_card.h"
int main(void)
{
    printf("numbers %u %u %zu %zu %zu\\n", VGPU_CARDS_MAGIC, VGPU_CARDS_VERSION, sizeof(struct vgpu_card_pages),
           sizeof(struct vgpu_card_page), offsetof(struct vgpu_card_pages, pages));
    printf("head %zu %zu\\n", offsetof(struct vgpu_card_pages, clock_offset),
           offsetof(struct vgpu_card_pages, page_count));
    printf("paths %s %s\\n", VGPU_CARDS_PATH, VGPU_PRESENCE_PATH);
FIELDS
    return 0;
}
"""


@pytest.fixture(scope="module")
def header(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Sizes and offsets of the header, by the compiler."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    directory = tmp_path_factory.mktemp("card")
    lines = [f'    printf("{name} %zu\\n", offsetof(struct vgpu_card_page, {name}));' for name in FIELDS]
    (directory / "card.c").write_text(PROGRAM.replace("FIELDS", "\n".join(lines)))
    include = repository / "libvcuda/include"
    command = ["cc", "-std=gnu11", "-Wall", "-Werror", f"-I{include}", "-o", "card", "card.c"]
    subprocess.run(command, cwd=directory, check=True)
    output = subprocess.run([directory / "card"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0]: line.split()[1:] for line in output.splitlines()}


def test_layout_is_the_headers(header: dict[str, list[str]]) -> None:
    numbers = [
        core_schedule.MAGIC,
        core_schedule.VERSION,
        core_schedule.SIZE,
        core_schedule.PAGE.size,
        core_schedule.HEADER.size,
    ]
    assert header["numbers"] == [str(number) for number in numbers]
    assert header["paths"] == [core_schedule.PATH, core_schedule.PRESENCE_PATH]
    sizes = [16, 8, 8, 8, 4, 4, 4, 4, 72]
    assert [int(header[name][0]) for name in FIELDS] == [sum(sizes[:index]) for index in range(len(sizes))]
    data = core_schedule.encode([CoreSchedule(UUIDS[0])], -5)
    clock_offset, page_count = (int(text) for text in header["head"])
    assert struct.unpack_from("=q", data, clock_offset) == (-5,)
    assert struct.unpack_from("=I", data, page_count) == (1,)


def page(index: int, seed: int = 0) -> CoreSchedule:
    """A schedule whose fields all differ."""
    return CoreSchedule(UUIDS[index], *(seed + number for number in range(1, 7)))


def test_each_field_stands_where_the_header_has_it(header: dict[str, list[str]]) -> None:
    data = core_schedule.encode([page(0, 100), page(1, 200)])
    made = page(1, 200)
    for name in FIELDS:
        if name in ("uuid", "sequence", "reserved0", "reserved"):
            continue
        form = "=I" if name in ("lent_rate", "tenants", "share") else "=Q"
        at = core_schedule.HEADER.size + core_schedule.PAGE.size + int(header[name][0])
        assert struct.unpack_from(form, data, at) == (getattr(made, name),), name
