"""The limits file: a compiled program reads by the rule of its header while Python writes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.config import limits
from vgpu.config.limits import CardLimit

UUIDS = [f"GPU-{index:08x}-1111-2222-3333-444455556666" for index in range(limits.MAX_CARDS)]
#: Exits with 0 after 10,000 consistent copies of both kinds, with 1 on a mixture, and with 2 after a minute.
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
	for (time_t end = time(0) + 60; time(0) < end;) {
		if (!copy(live, &out))
			continue;
		if (mixed(&out))
			return 1;
		seen[out.cards[0].cores]++;
		if (CHECK && seen[10] > 10000 && seen[20] > 10000)
			return 0;
	}
	return 2;
}
"""


@pytest.mark.parametrize(("check", "status"), [(1, 0), (0, 1)], ids=["by-the-header", "without-the-counter"])
def test_concurrent_reader_never_sees_a_mixture(tmp_path: Path, check: int, status: int) -> None:
    """A reader that ignores the counter sees mixtures, so the test can fail."""
    if not shutil.which("cc"):
        pytest.skip("cc is missing")
    (tmp_path / "reader.c").write_text(READER)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", f"-DCHECK={check}", f"-I{CHECKOUT / 'libvcuda/include'}"]
    subprocess.run(["cc", *flags, "-o", "reader", "reader.c"], cwd=tmp_path, check=True)
    path = str(tmp_path / "limits")
    both = [[CardLimit(uuid, cores << 20, cores, cores) for uuid in UUIDS] for cores in (10, 20)]
    (tmp_path / "limits").write_bytes(limits.encode("c", both[0]))
    reader = subprocess.Popen([tmp_path / "reader", path])
    round_ = 0
    while reader.poll() is None:
        round_ += 1
        limits.update(path, "c", both[round_ % 2])
    assert reader.returncode == status
