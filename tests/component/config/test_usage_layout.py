"""The layout of the usage region, compared with the C header by a compiled program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vgpu.config import limits, usage

PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include "vgpu_usage.h"

#define NUMBER(name, value) printf("%s %llu\\n", name, (unsigned long long)(value))

int main(void)
{
    NUMBER("IDENTITY", VGPU_USAGE_IDENTITY);
    NUMBER("SLOTS", VGPU_USAGE_SLOTS);
    NUMBER("MAX_CARDS", VGPU_LIMITS_MAX_CARDS);
    NUMBER("SIZE", sizeof(struct vgpu_usage));
    NUMBER("CARD", sizeof(struct vgpu_usage_card));
    NUMBER("SLOT", sizeof(struct vgpu_usage_slot));
    NUMBER("CHARGE", sizeof(struct vgpu_usage_charge));
    NUMBER("TIME", sizeof(struct vgpu_usage_time));
    NUMBER("FLIGHT", sizeof(struct vgpu_usage_flight));
    NUMBER("identity", offsetof(struct vgpu_usage, identity));
    NUMBER("slots_seen", offsetof(struct vgpu_usage, slots_seen));
    NUMBER("cards", offsetof(struct vgpu_usage, cards));
    NUMBER("slots", offsetof(struct vgpu_usage, slots));
    NUMBER("charges", offsetof(struct vgpu_usage, charges));
    NUMBER("times", offsetof(struct vgpu_usage, times));
    NUMBER("flights", offsetof(struct vgpu_usage, flights));
    NUMBER("card.key", offsetof(struct vgpu_usage_card, key));
    NUMBER("card.context", offsetof(struct vgpu_usage_card, context));
    NUMBER("card.uuid", offsetof(struct vgpu_usage_card, uuid));
    NUMBER("slot.owner", offsetof(struct vgpu_usage_slot, owner));
    NUMBER("slot.namespaces", offsetof(struct vgpu_usage_slot, namespaces));
    NUMBER("PID_BITS", VGPU_USAGE_PID_BITS);
    NUMBER("REAPING", VGPU_USAGE_REAPING);
    NUMBER("charge.attempting", offsetof(struct vgpu_usage_charge, attempting));
    NUMBER("charge.reserved", offsetof(struct vgpu_usage_charge, reserved));
    NUMBER("overheads", offsetof(struct vgpu_usage, overheads));
    NUMBER("OVERHEAD_UNIT", VGPU_USAGE_OVERHEAD_UNIT);
    NUMBER("time.level", offsetof(struct vgpu_usage_time, level));
    NUMBER("TIME", sizeof(struct vgpu_usage_time));
    NUMBER("FLIGHT", sizeof(struct vgpu_usage_flight));
    NUMBER("times", offsetof(struct vgpu_usage, times));
    NUMBER("flights", offsetof(struct vgpu_usage, flights));
    NUMBER("time.used", offsetof(struct vgpu_usage_time, used));
    NUMBER("time.wanted", offsetof(struct vgpu_usage_time, wanted));
    NUMBER("time.waited", offsetof(struct vgpu_usage_time, waited));
    NUMBER("time.longest", offsetof(struct vgpu_usage_time, longest));
    NUMBER("time.throttled", offsetof(struct vgpu_usage_time, throttled));
    NUMBER("time.refusals", offsetof(struct vgpu_usage_time, refusals));
    NUMBER("time.waits", offsetof(struct vgpu_usage_time, waits));
    NUMBER("WAITS", VGPU_USAGE_WAITS);
    NUMBER("marks", offsetof(struct vgpu_usage, marks));
    NUMBER("COUNTS", VGPU_USAGE_COUNTS);
    NUMBER("LOCKS_REFUSED", VGPU_USAGE_LOCKS_REFUSED);
    printf("PATH %s\\n", VGPU_USAGE_PATH);
    return 0;
}
"""


@pytest.fixture(scope="module")
def header(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Sizes and offsets of the header, by the compiler."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    directory = tmp_path_factory.mktemp("usage")
    (directory / "usage.c").write_text(PROGRAM)
    include = repository / "libvcuda/include"
    command = ["cc", "-std=gnu11", "-Wall", "-Werror", f"-I{include}", "-o", "usage", "usage.c"]
    subprocess.run(command, cwd=directory, check=True)
    output = subprocess.run([directory / "usage"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("IDENTITY", usage.IDENTITY),
        ("SLOTS", usage.SLOTS),
        ("MAX_CARDS", limits.MAX_CARDS),
        ("SIZE", usage.SIZE),
        ("CARD", usage.CARD.size),
        ("SLOT", usage.SLOT.size),
        ("CHARGE", usage.CHARGE.size),
        ("TIME", usage.TIME.size),
        ("FLIGHT", usage.FLIGHT.size),
        ("identity", 0),
        ("slots_seen", 8),
        ("cards", usage.HEADER.size),
        ("slots", usage.HEADER.size + limits.MAX_CARDS * usage.CARD.size),
        ("charges", usage.CHARGES_OFFSET),
        ("times", usage.TIMES_OFFSET),
        ("flights", usage.FLIGHTS_OFFSET),
        ("card.key", 0),
        ("card.context", usage.CONTEXT_OFFSET),
        ("card.uuid", 8),
        ("slot.owner", 0),
        ("slot.namespaces", 8),
        ("PID_BITS", usage.PID_BITS),
        ("REAPING", usage.REAPING),
        ("charge.attempting", 0),
        ("charge.reserved", 8),
        ("overheads", usage.OVERHEADS_OFFSET),
        ("OVERHEAD_UNIT", usage.OVERHEAD_UNIT),
        ("time.level", 0),
        ("time.used", 64),
        ("time.wanted", 72),
        ("time.waited", 80),
        ("time.longest", 88),
        ("time.throttled", usage.COUNTS_OFFSET),
        ("time.refusals", usage.COUNTS_OFFSET + 8),
        ("time.waits", usage.COUNTS_OFFSET + 12),
        ("WAITS", len(usage.WAITS) + 1),
        ("marks", usage.MARKS_OFFSET),
        ("COUNTS", usage.MARK_COUNTS),
        ("LOCKS_REFUSED", usage.MARK_LOCKS_REFUSED),
        ("TIME", usage.TIME.size),
        ("FLIGHT", usage.FLIGHT.size),
        ("times", usage.TIMES_OFFSET),
        ("flights", usage.FLIGHTS_OFFSET),
        ("PATH", usage.PATH),
    ],
)
def test_header_and_module_agree(header: dict[str, str], name: str, value: object) -> None:
    assert header[name] == str(value)
