"""The layouts of the shared files, as Python and their C headers have them: a compiled program prints the headers'."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.config import core_schedule, limits, usage
from vgpu.config.core_schedule import CoreSchedule

INCLUDE = CHECKOUT / "libvcuda/include"
LIMITS, USAGE, CARDS = "vgpu_limits.h", "vgpu_usage.h", "vgpu_card.h"
PAGE = ("uuid", "sequence", "period", "lent_until", "lent_rate", "tenants", "share", "may_borrow", "reserved")
HEAD = ("magic", "version", "sequence", "card_count", "reserved0", "container")
CARD = (
    "uuid", "memory", "cores", "core_limit", "flags", "reserved0", "overhead", "overhead_until", "reserved",
)  # fmt: skip


def at(name: str, field: str) -> str:
    return f"offsetof(struct {name}, {field})"


def size(name: str) -> str:
    return f"sizeof(struct {name})"


#: C expression -> Python's number.
NUMBERS: dict[str, dict[str, int]] = {
    LIMITS: {
        "VGPU_LIMITS_MAGIC": limits.MAGIC, "VGPU_LIMITS_VERSION": limits.VERSION,
        "VGPU_LIMITS_MAX_CARDS": limits.MAX_CARDS, "VGPU_UNLIMITED": limits.UNLIMITED,
        "VGPU_CARD_OVERSUBSCRIBE": limits.OVERSUBSCRIBE,
        size("vgpu_limits"): limits.SIZE, size("vgpu_limits_card"): limits.CARD.size,
        at("vgpu_limits", "cards"): limits.HEADER.size, at("vgpu_limits", "sequence"): limits.SEQUENCE_OFFSET,
    },
    USAGE: {
        "VGPU_USAGE_IDENTITY": usage.IDENTITY, "VGPU_USAGE_SLOTS": usage.SLOTS,
        "VGPU_USAGE_SHARES": len(usage.SHARE_FILES), "VGPU_USAGE_PID_BITS": usage.PID_BITS,
        "VGPU_USAGE_REAPING": usage.REAPING, "VGPU_USAGE_OVERHEAD_UNIT": usage.OVERHEAD_UNIT,
        "VGPU_USAGE_EXPECTED": usage.EXPECTED,
        "VGPU_USAGE_WAITS": len(usage.WAITS) + 1, "VGPU_USAGE_COUNTS": usage.MARK_COUNTS,
        "VGPU_USAGE_LOCKS_REFUSED": usage.MARK_LOCKS_REFUSED,
        "VGPU_USAGE_LOCKS_SLOW": usage.MARK_LOCKS_SLOW,
        size("vgpu_usage"): usage.SIZE, size("vgpu_usage_card"): usage.CARD.size,
        size("vgpu_usage_slot"): usage.SLOT.size, size("vgpu_usage_charge"): usage.CHARGE.size,
        size("vgpu_usage_time"): usage.TIME.size, size("vgpu_usage_flight"): usage.FLIGHT.size,
        at("vgpu_usage", "identity"): 0, at("vgpu_usage", "slots_seen"): 8,
        at("vgpu_usage", "cards"): usage.HEADER.size,
        at("vgpu_usage", "slots"): usage.HEADER.size + limits.MAX_CARDS * usage.CARD.size,
        at("vgpu_usage", "charges"): usage.CHARGES_OFFSET, at("vgpu_usage", "times"): usage.TIMES_OFFSET,
        at("vgpu_usage", "flights"): usage.FLIGHTS_OFFSET, at("vgpu_usage", "overheads"): usage.OVERHEADS_OFFSET,
        at("vgpu_usage", "unlisted"): usage.UNLISTED_OFFSET, "VGPU_USAGE_UNLISTED_UNIT": usage.UNLISTED_UNIT,
        at("vgpu_usage", "change"): usage.CHANGE_OFFSET, "VGPU_USAGE_CHANGE_SHIFT": usage.CHANGE_SHIFT,
        at("vgpu_usage", "marks"): usage.MARKS_OFFSET, at("vgpu_usage_card", "key"): 0,
        at("vgpu_usage_card", "context"): usage.CONTEXT_OFFSET, at("vgpu_usage_card", "uuid"): 8,
        at("vgpu_usage_slot", "owner"): 0, at("vgpu_usage_slot", "namespaces"): 8,
        at("vgpu_usage_charge", "attempting"): 0, at("vgpu_usage_charge", "reserved"): 8,
        at("vgpu_usage_time", "level"): 0, at("vgpu_usage_time", "used"): 64, at("vgpu_usage_time", "wanted"): 72,
        at("vgpu_usage_time", "waited"): 80, at("vgpu_usage_time", "longest"): 88,
        at("vgpu_usage_time", "throttled"): usage.COUNTS_OFFSET,
        at("vgpu_usage_time", "refusals"): usage.COUNTS_OFFSET + 8,
        at("vgpu_usage_time", "waits"): usage.COUNTS_OFFSET + 12,
    },
    CARDS: {
        "VGPU_CARDS_MAGIC": core_schedule.MAGIC, "VGPU_CARDS_VERSION": core_schedule.VERSION,
        size("vgpu_card_pages"): core_schedule.SIZE, size("vgpu_card_page"): core_schedule.PAGE.size,
        at("vgpu_card_pages", "pages"): core_schedule.HEADER.size,
    },
}  # fmt: skip
TEXTS = {
    LIMITS: {
        "VGPU_PRIVATE_DIR": limits.PRIVATE_DIR, "VGPU_LIMITS_PATH": limits.LIMITS_PATH,
        "VGPU_USAGE_DIR": limits.USAGE_DIR, "VGPU_REAL_DIR": limits.REAL_DIR,
    },
    USAGE: {"VGPU_USAGE_PATH": usage.PATH},
    CARDS: {"VGPU_CARDS_PATH": core_schedule.PATH, "VGPU_PRESENCE_DIR": core_schedule.PRESENCE_DIR},
}  # fmt: skip


def printed(directory: Path, header: str, numbers: list[str], texts: list[str] | None = None) -> list[str]:
    """What the compiler makes of these expressions."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    lines = [f'printf("%llu\\n", (unsigned long long)({one}));' for one in numbers]
    lines += [f'printf("%s\\n", {one});' for one in texts or ()]
    program = [f'#include "{header}"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {", *lines, "}"]
    (directory / "layout.c").write_text("\n".join(program))
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-o", "layout", "layout.c"]
    subprocess.run(command, cwd=directory, check=True)
    return subprocess.run([directory / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("header", NUMBERS)
def test_header_and_module_agree(tmp_path: Path, header: str) -> None:
    numbers, texts = NUMBERS[header], TEXTS[header]
    found = printed(tmp_path, header, list(numbers), list(texts))
    assert dict(zip([*numbers, *texts], found)) == {**{key: str(one) for key, one in numbers.items()}, **texts}


@pytest.mark.parametrize(
    ("name", "fields", "form"),
    [("vgpu_limits", HEAD, limits.HEADER.format), ("vgpu_limits_card", CARD, limits.CARD.format)],
)
def test_each_member_of_the_limits_stands_where_python_packs_it(
    tmp_path: Path, name: str, fields: tuple[str, ...], form: str
) -> None:
    sizes = [f"sizeof(((struct {name} *)0)->{field})" for field in fields]
    found = [int(one) for one in printed(tmp_path, LIMITS, [*(at(name, field) for field in fields), *sizes])]
    assert sorted(zip(found[: len(fields)], found[len(fields) :])) == offsets(form)


def offsets(form: str) -> list[tuple[int, int]]:
    """(offset, size) of each member of a struct format. Padding is a member, like `reserved` in C."""
    at, found = 0, []
    for count, kind in re.findall(r"([0-9]*)([A-Za-z])", form):
        found.append((at, {"Q": 8, "I": 4}.get(kind) or int(count)))
        at += found[-1][1]
    return found


def test_every_constant_of_the_limits_is_compared() -> None:
    names = set(re.findall(r"#define (VGPU_\w+) ", (INCLUDE / LIMITS).read_text()))
    assert names <= {*NUMBERS[LIMITS], *TEXTS[LIMITS], "VGPU_USAGE_PATH"}, "compare the new constant too"


def test_each_field_of_a_core_schedule_stands_where_the_header_has_it(tmp_path: Path) -> None:
    head = [at("vgpu_card_pages", "clock_offset"), at("vgpu_card_pages", "page_count")]
    found = printed(tmp_path, CARDS, [*(at("vgpu_card_page", field) for field in PAGE), *head])
    *places, clock_offset, page_count = (int(one) for one in found)
    sizes = [16, 8, 8, 8, 4, 4, 4, 4, 72]
    assert places == [sum(sizes[:index]) for index in range(len(sizes))]
    first, second = (CoreSchedule(limits.uuid_text(bytes([one]) * 16), *range(one, one + 6)) for one in (100, 200))
    data = core_schedule.encode([first, second], -5)
    assert (struct.unpack_from("=q", data, clock_offset), struct.unpack_from("=I", data, page_count)) == ((-5,), (2,))
    for field, place in zip(PAGE, places):
        if field in CoreSchedule.__slots__ and field != "uuid":
            form = "=I" if field in ("lent_rate", "tenants", "share") else "=Q"
            begin = core_schedule.HEADER.size + core_schedule.PAGE.size
            assert struct.unpack_from(form, data, begin + place) == (getattr(second, field),), field
