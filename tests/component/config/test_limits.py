"""The limits file and its C header. A compiled program compares the layout, and reads while Python writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.config import limits
from vgpu.config.limits import CardLimit

INCLUDE = CHECKOUT / "libvcuda/include"
UUIDS = [f"GPU-{index:08x}-1111-2222-3333-444455556666" for index in range(limits.MAX_CARDS + 1)]

LAYOUT = r"""
#include <stddef.h>
#include <stdio.h>
#include "vgpu_limits.h"
#define NUMBER(name, value) printf(#name " %llu\n", (unsigned long long)(value))
#define FIELD(type, field) \
	printf(#type "." #field " %zu %zu\n", offsetof(struct type, field), sizeof(((struct type *)0)->field))
int main(void)
{
	NUMBER(magic, VGPU_LIMITS_MAGIC);
	NUMBER(version, VGPU_LIMITS_VERSION);
	NUMBER(max_cards, VGPU_LIMITS_MAX_CARDS);
	NUMBER(unlimited, VGPU_UNLIMITED);
	NUMBER(oversubscribe, VGPU_CARD_OVERSUBSCRIBE);
	NUMBER(size, sizeof(struct vgpu_limits));
	NUMBER(card_size, sizeof(struct vgpu_limits_card));
	printf("paths " VGPU_PRIVATE_DIR " " VGPU_LIMITS_PATH " " VGPU_USAGE_DIR " " VGPU_REAL_DIR "\n");
	FIELD(vgpu_limits, magic);
	FIELD(vgpu_limits, version);
	FIELD(vgpu_limits, sequence);
	FIELD(vgpu_limits, card_count);
	FIELD(vgpu_limits, reserved0);
	FIELD(vgpu_limits, container);
	FIELD(vgpu_limits, cards);
	FIELD(vgpu_limits_card, uuid);
	FIELD(vgpu_limits_card, memory);
	FIELD(vgpu_limits_card, cores);
	FIELD(vgpu_limits_card, core_limit);
	FIELD(vgpu_limits_card, flags);
	FIELD(vgpu_limits_card, reserved0);
	FIELD(vgpu_limits_card, overhead);
	FIELD(vgpu_limits_card, overhead_until);
	FIELD(vgpu_limits_card, reserved);
	return 0;
}
"""

#: Reads by the rule of vgpu_limits.h. Exits with 0 after some consistent copies of both kinds, 1 on a mixture, 2 if
#: it gets none.
READER = r"""
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "vgpu_limits.h"

static int copy(const volatile struct vgpu_limits *live, struct vgpu_limits *out)
{
	uint64_t before = __atomic_load_n(&live->sequence, __ATOMIC_ACQUIRE);
	if (before & CHECK)
		return 0;
	memcpy(out, (const void *)live, sizeof *out);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return !CHECK || __atomic_load_n(&live->sequence, __ATOMIC_RELAXED) == before;
}

static int mixed(const struct vgpu_limits *copy)
{
	for (unsigned i = 0; i < copy->card_count; i++)
		if (copy->cards[i].memory != copy->cards[0].memory || copy->cards[i].cores != copy->cards[0].cores)
			return 1;
	return copy->card_count != 32 || copy->cards[0].memory != (uint64_t)copy->cards[0].cores << 20;
}

int main(int argc, char **argv)
{
	static struct vgpu_limits out;
	long seen[101] = {0};
	int fd = open(argv[argc - 1], O_RDONLY);
	const volatile struct vgpu_limits *live = mmap(0, sizeof *live, PROT_READ, MAP_SHARED, fd, 0);
	struct timespec now, start;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		if (copy(live, &out)) {
			if (mixed(&out))
				return 1;
			seen[out.cards[0].cores]++;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec < 3);
	return seen[10] > 100 && seen[20] > 100 ? 0 : 2;
}
"""


def compiled(directory: Path, name: str, text: str, *flags: str) -> str:
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    (directory / f"{name}.c").write_text(text)
    command = [
        "cc",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        *flags,
        "-I",
        INCLUDE,
        "-o",
        directory / name,
        directory / f"{name}.c",
    ]
    subprocess.run(command, check=True)
    return str(directory / name)


def test_layout_is_the_headers(tmp_path: Path) -> None:
    lines = subprocess.run([compiled(tmp_path, "layout", LAYOUT)], capture_output=True, text=True, check=True).stdout
    found = {line.split()[0]: line.split()[1:] for line in lines.splitlines()}
    assert {name: int(found.pop(name)[0]) for name in list(found) if "." not in name and name != "paths"} == {
        "magic": limits.MAGIC,
        "version": limits.VERSION,
        "max_cards": limits.MAX_CARDS,
        "unlimited": limits.UNLIMITED,
        "oversubscribe": limits.OVERSUBSCRIBE,
        "size": limits.SIZE,
        "card_size": limits.CARD.size,
    }
    assert found.pop("paths") == [limits.PRIVATE_DIR, limits.LIMITS_PATH, limits.USAGE_DIR, limits.REAL_DIR]
    fields = {name: (int(offset), int(size)) for name, (offset, size) in found.items()}
    assert fields.pop("vgpu_limits.cards") == (limits.HEADER.size, limits.MAX_CARDS * limits.CARD.size)
    assert fields["vgpu_limits.sequence"] == (limits.SEQUENCE_OFFSET, limits.SEQUENCE.size)
    for name, layout in (("vgpu_limits", limits.HEADER), ("vgpu_limits_card", limits.CARD)):
        mine = [(offset, size) for key, (offset, size) in fields.items() if key.startswith(f"{name}.")]
        assert sorted(mine) == offsets(layout.format), name


def offsets(form: str) -> list[tuple[int, int]]:
    """(offset, size) of each member of a struct format. Padding is a member, like `reserved` in C."""
    sizes = {"Q": 8, "I": 4}
    at, found = 0, []
    for count, kind in re.findall(r"([0-9]*)([A-Za-z])", form):
        size = sizes.get(kind) or int(count)
        found.append((at, size))
        at += size
    return found


def test_every_header_constant_is_compared() -> None:
    names = set(re.findall(r"#define (VGPU_\w+) ", (INCLUDE / "vgpu_limits.h").read_text()))
    assert {name for name in names if name not in LAYOUT} <= {"VGPU_USAGE_PATH"}, "compare the new constant too"


@pytest.mark.parametrize(("check", "status"), [(1, 0), (0, 1)], ids=["by-the-header", "without-the-counter"])
def test_concurrent_reader_never_sees_a_mixture(tmp_path: Path, check: int, status: int) -> None:
    """A reader that ignores the counter sees mixtures, so the test can fail."""
    program = compiled(tmp_path, "reader", READER, f"-DCHECK={check}")
    path = str(tmp_path / "limits")
    both = [[CardLimit(uuid, cores << 20, cores, cores) for uuid in UUIDS[:32]] for cores in (10, 20)]
    (tmp_path / "limits").write_bytes(limits.encode("c", both[0]))
    reader = subprocess.Popen([program, path])
    round_ = 0
    while reader.poll() is None:
        round_ += 1
        limits.update(path, "c", both[round_ % 2])
    assert reader.returncode == status
