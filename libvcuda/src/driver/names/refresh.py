#!/usr/bin/env python3
"""`refresh.py FILE...`: renew the lists of names, which are facts, from drivers' libraries and published wheels.

Belongs here: names. libcuda.txt and libnvidia-ml.txt say which release of the driver exports which name. The simulator
exports what its release does; libvcuda exports jumps for the functions of all releases. A driver's library
(libcuda.so.<version>, libnvidia-ml.so.<version>) gives all that it exports. The wheels nvidia-cuda-cupti (callback ids)
and cuda-bindings, which may be newer than any driver here, give functions. The script keeps nothing else of a file. It
never removes a name: an old driver's function stays, for programs that were built against it.

    apt-get download libcuda1 libnvidia-ml1 && dpkg -x ... && ./refresh.py .../lib{cuda,nvidia-ml}.so.*.*
    pip download --no-deps nvidia-cuda-cupti cuda-bindings && ./refresh.py *.whl
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = ("libcuda", "libnvidia-ml")
HEAD = "# <name> <first release with it, or none> [until <first release without it>] [object]; refresh.py writes this\n"
SOURCES = (
    ("cupti_driver_cbid.h", r"CUPTI_DRIVER_TRACE_CBID_(cu[A-Z]\w*)"),
    ("bindings/cydriver.pxd", r"(?m)^cdef \w+ (cu[A-Z]\w*)\("),
)
NOT_ON_LINUX = re.compile(r"D3D|WGL")

#: (name, whether it is data) -> the releases with it. In the file each has an interval of the releases there.
Names = dict[tuple[str, bool], set[int]]


def of_wheel(wheel: Path) -> set[str]:
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            for ending, pattern in SOURCES:
                if member.endswith(ending):
                    found.update(re.findall(pattern, archive.read(member).decode()))
    return {name for name in found if not NOT_ON_LINUX.search(name)}


def of_driver(library: Path) -> set[tuple[str, bool]]:
    """What it exports: (name, whether it is data)."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {(line.split()[0].partition("@")[0], line.split()[1] not in "TWi") for line in symbols.splitlines()}


def read(text: str) -> Names:
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    known = sorted({int(word) for row in rows for word in row[1:] if word.isdigit()})
    found: Names = {}
    for name, since, *rest in rows:
        first = known[-1] + 1 if since == "none" else int(since)
        end = int(rest[1]) if "until" in rest else known[-1] + 1
        found[name, "object" in rest] = {release for release in known if first <= release < end}
    return found


def record(names: Names, release: int, exported: set[tuple[str, bool]]) -> None:
    """`release` exports these names and no other."""
    for key in {*names, *exported}:
        names[key] = names.get(key, set()) - {release} | ({release} if key in exported else set())


def written(names: Names) -> str:
    known = sorted(set().union(*names.values()))
    rows = (f"{name} {interval(name, names[name, data], known)}" + " object" * data for name, data in sorted(names))
    return HEAD + "".join(f"{row}\n" for row in rows)


def interval(name: str, releases: set[int], known: list[int]) -> str:
    if not releases:
        return "none"
    inside = [release for release in known if min(releases) <= release <= max(releases)]
    if set(inside) != releases:
        raise SystemExit(f"{name}: expected in one row of releases, found in {sorted(releases)} of {known}")
    later = known[known.index(inside[-1]) + 1 :]
    return f"{inside[0]} until {later[0]}" if later else str(inside[0])


def main(arguments: list[str]) -> int:
    lists = {library: read((HERE / f"{library}.txt").read_text()) for library in LIBRARIES}
    before = {library: len(names) for library, names in lists.items()}
    for path in map(Path, arguments):
        library, _, version = path.name.partition(".so.")
        if library in lists:
            record(lists[library], int(version.partition(".")[0]), of_driver(path))
        else:
            for name in of_wheel(path):
                lists["libcuda"].setdefault((name, False), set())
    for library, names in lists.items():
        (HERE / f"{library}.txt").write_text(written(names))
        print(f"{library}.txt: {before[library]} names, {len(names) - before[library]} new")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
