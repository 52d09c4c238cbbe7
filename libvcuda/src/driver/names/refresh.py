#!/usr/bin/env python3
"""`refresh.py WHEEL...`: renew cuda_driver.txt and nvml.txt, the functions for which libvcuda exports jumps.

Belongs here: names, which are facts, from published wheels: nvidia-cuda-cupti (callback ids: every exported version and
stream variant), cuda-bindings (newest functions), nvidia-ml-py. The script keeps none of their text. It only adds
names: an old driver's function stays, for programs that were built against it.

    pip download --no-deps nvidia-cuda-cupti cuda-bindings nvidia-ml-py && ./refresh.py *.whl
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = {
    "cuda_driver.txt": (
        ("cupti_driver_cbid.h", r"CUPTI_DRIVER_TRACE_CBID_(cu[A-Z]\w*)"),
        ("bindings/cydriver.pxd", r"(?m)^cdef \w+ (cu[A-Z]\w*)\("),
    ),
    "nvml.txt": (("pynvml.py", r"_nvmlGetFunctionPointer\(\"(nvml[A-Z]\w*)\"\)"),),
}
NOT_ON_LINUX = re.compile(r"D3D|WGL")


def earlier_versions(name: str) -> set[str]:
    """For nvmlX_v3 also nvmlX_v2 and nvmlX, which pynvml does not use."""
    base, version, number = name.rpartition("_v")
    if not version or not number.isdigit():
        return {name}
    return {base, *(f"{base}_v{older}" for older in range(2, int(number) + 1))}


def names(wheels: list[Path], sources: tuple[tuple[str, str], ...]) -> set[str]:
    found: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                for ending, pattern in sources:
                    if member.endswith(ending):
                        found.update(re.findall(pattern, archive.read(member).decode()))
    nvml = {older for name in found if name.startswith("nvml") for older in earlier_versions(name)}
    return {name for name in found | nvml if not NOT_ON_LINUX.search(name)}


def main(arguments: list[str]) -> int:
    for file, sources in SOURCES.items():
        path = HERE / file
        known = set(path.read_text().split()) if path.exists() else set()
        new = names([Path(argument) for argument in arguments], sources)
        path.write_text("".join(f"{name}\n" for name in sorted(known | new)))
        print(f"{file}: {len(known)} names, {len(new - known)} new")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
