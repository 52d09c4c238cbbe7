#!/usr/bin/env python3
"""`refresh.py FILE...`: renew the lists of names, which are facts, from drivers' libraries and published wheels.

Belongs here: names. A driver's library (libcuda.so.<version>, libnvidia-ml.so.<version>) gives sim/drivers/<version>,
all that it exports, which the simulator exports too. cuda_driver.txt and nvml.txt are the functions for which libvcuda
exports jumps: those of all drivers, and those of the wheels nvidia-cuda-cupti (callback ids) and cuda-bindings, which
may be newer. The script keeps nothing else of a file. It only adds to the two lists: an old driver's function stays,
for programs that were built against it.

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
DRIVERS = HERE.parents[2] / "sim/drivers"
LISTS = {"libcuda": "cuda_driver.txt", "libnvidia-ml": "nvml.txt"}
#: A debugger looks up cudbg... by its own reading of the driver's file, so libvcuda exports no jumps for these names.
JUMPS = re.compile(r"(cu|nvml)[A-Z]\w*")
SOURCES = (
    ("cupti_driver_cbid.h", r"CUPTI_DRIVER_TRACE_CBID_(cu[A-Z]\w*)"),
    ("bindings/cydriver.pxd", r"(?m)^cdef \w+ (cu[A-Z]\w*)\("),
)
NOT_ON_LINUX = re.compile(r"D3D|WGL")


def of_wheel(wheel: Path) -> set[str]:
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            for ending, pattern in SOURCES:
                if member.endswith(ending):
                    found.update(re.findall(pattern, archive.read(member).decode()))
    return {name for name in found if not NOT_ON_LINUX.search(name)}


def of_driver(library: Path) -> set[str]:
    """The functions that libvcuda passes on. Writes the driver's list: a name each line, `object` behind data."""
    name, _, version = library.name.partition(".so.")
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", library], check=True, capture_output=True, text=True
    ).stdout
    kinds = {line.split()[0].partition("@")[0]: line.split()[1] for line in symbols.splitlines()}
    directory = DRIVERS / version
    directory.mkdir(parents=True, exist_ok=True)
    rows = [symbol if kind in "TWi" else f"{symbol} object" for symbol, kind in sorted(kinds.items())]
    (directory / f"{name}.txt").write_text("".join(f"{row}\n" for row in rows))
    return {symbol for symbol, kind in kinds.items() if kind in "TWi" and JUMPS.fullmatch(symbol)}


def main(arguments: list[str]) -> int:
    new: dict[str, set[str]] = {library: set() for library in LISTS}
    for path in map(Path, arguments):
        library = path.name.partition(".so.")[0]
        if library in LISTS:
            new[library] |= of_driver(path)
        else:
            new["libcuda"] |= of_wheel(path)
    for library, file in LISTS.items():
        path = HERE / file
        known = set(path.read_text().split()) if path.exists() else set()
        path.write_text("".join(f"{name}\n" for name in sorted(known | new[library])))
        print(f"{file}: {len(known)} names, {len(new[library] - known)} new")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
