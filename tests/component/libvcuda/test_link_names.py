"""Linking in the container: `-lcuda` and `-lnvidia-ml` find every function that a driver has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import recorded_drivers
from checkout import BUILD

LINKERS = [name for name in ("bfd", "gold", "lld", "mold") if shutil.which(f"ld.{name}")]
API = re.compile(r"(cu|nvml)[A-Z]\w*")


def functions(release: str, name: str) -> list[str]:
    return list(filter(API.fullmatch, recorded_drivers.exports(name, release)))


def link(directory: Path, name: str, names: list[str], linker: str) -> str:
    """Links a program that takes the address of each function. Returns what the linker says."""
    declared = "".join(f"extern void {function}(void);\n" for function in names)
    table = ",\n".join(names)
    source = directory / "all.c"
    source.write_text(f"{declared}void *table[] = {{{table}}};\nint main(void) {{ return !table[0]; }}\n")
    (directory / f"{name}.so").unlink(missing_ok=True)
    (directory / f"{name}.so").symlink_to(BUILD / f"lib/vcuda/{name}.so.1")
    command = ["gcc", f"-fuse-ld={linker}", source, "-o", directory / "all", f"-L{directory}", f"-l{name[3:]}"]
    command += ["-Wl,--unresolved-symbols=ignore-in-shared-libs"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


@pytest.mark.parametrize("name", ["libcuda", "libnvidia-ml"])
@pytest.mark.parametrize("linker", LINKERS)
def test_all_functions_of_all_drivers_link(tmp_path: Path, name: str, linker: str) -> None:
    names = sorted({function for release in recorded_drivers.RELEASES for function in functions(release, name)})
    assert link(tmp_path, name, names, linker) == ""


def test_the_function_that_starts_nvml_links(tmp_path: Path) -> None:
    assert link(tmp_path, "libnvidia-ml", ["nvmlInit", "nvmlInit_v2", "nvmlShutdown"], LINKERS[0]) == ""
