"""A planted fault is what its record says, and is found again after the code around it has moved."""

from __future__ import annotations

import c_operators
import pytest
import sites

SOURCE = """\
#define MOST 3
static int left(int used, int size)
{
\tif (used > size && size) /* if (a) b; */
\t\treturn 0;
\tlog_line(LOG_INFO, "%d > %d",
\t\t used, size);
\tcount(used);
\treturn size - used;
}
"""
FAULTS = {
    ("comparison", "if (used >= size && size) /* if (a) b; */"),
    ("arithmetic", "if (used > size || size) /* if (a) b; */"),
    ("condition", "if (!(used > size && size)) /* if (a) b; */"),
    ("return", "return 1;"),
    ("constant", "return 1;"),
    ("statement", ";"),
    ("arithmetic", "return size + used;"),
    ("return", "return 0;"),
}


def described(source: str) -> list[sites.Identity]:
    found = list(c_operators.sites(source))
    return [sites.describe(site, found, source.splitlines(), "left.c") for site in found]


def test_the_faults_of_a_function() -> None:
    assert {(one["operator"], one["becomes"]) for one in described(SOURCE)} == FAULTS


MOVED = "static void other(void)\n{\n\treturn size - used;\n}\n\n" + SOURCE


@pytest.mark.parametrize("now", [SOURCE, MOVED, SOURCE.replace("left(", "room("), SOURCE.replace("count(", "add(")])
def test_a_fault_is_found_again(now: str) -> None:
    wanted = next(one for one in described(SOURCE) if one["becomes"] == "return size + used;")
    place = sites.find(wanted, {"other.c": "", "moved.c": now}, lambda file: list(c_operators.sites(now)))
    assert place is not None and place[0] == "moved.c"
    assert place[1].mutated() == "size + used".join(now.rsplit("size - used", 1))


def test_a_fault_whose_line_is_gone_is_not_found() -> None:
    now = SOURCE.replace("size - used", "size")
    wanted = next(one for one in described(SOURCE) if one["becomes"] == "return size + used;")
    assert sites.find(wanted, {"left.c": now}, lambda file: list(c_operators.sites(now))) is None
