"""The built libraries and the self-test's program as files: exports, dependencies, and the glibc that they need."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import recorded_drivers
from checkout import BUILD, CHECKOUT

LIBRARIES = BUILD / "lib/vcuda"
SOURCE = CHECKOUT / "libvcuda/src"
PRODUCTS = [("libcuda.so.1", "cuda_table.h", "libcuda"), ("libnvidia-ml.so.1", "nvml_table.h", "libnvidia-ml")]
NAMES = [product[0] for product in PRODUCTS]
OLDEST_GLIBC = (2, 17)
SELFTEST = BUILD / "bin/vgpu-selftest"


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def listed(hooks: str) -> set[str]:
    """The first argument of every HOOK(...) in the list."""
    return set(re.findall(r"^\s*HOOK\((\w+)", (SOURCE / "driver" / hooks).read_text(), re.MULTILINE))


@pytest.mark.parametrize(("library", "hooks", "names"), PRODUCTS)
def test_exactly_the_hooks_and_the_known_names_are_exported(library: str, hooks: str, names: str) -> None:
    symbols = output("nm", "-D", "--defined-only", "--format=posix", str(LIBRARIES / library))
    assert listed(hooks)
    assert {line.split()[0] for line in symbols.splitlines()} == listed(hooks) | recorded_drivers.functions(names)


@pytest.mark.parametrize(("library", "hooks", "names"), PRODUCTS)
def test_the_list_for_programs_has_the_same_names(library: str, hooks: str, names: str) -> None:
    file = {"libcuda.so.1": "vcuda.json", "libnvidia-ml.so.1": "vcuda_nvml.json"}[library]
    content = json.loads((LIBRARIES / file).read_text())
    assert content == {"hooked": sorted(listed(hooks)), "known": sorted(recorded_drivers.functions(names))}


@pytest.mark.parametrize("library", NAMES)
def test_the_real_library_is_the_first_dependency_by_its_path(library: str) -> None:
    dynamic = output("readelf", "-dW", str(LIBRARIES / library))
    assert re.search(r"SONAME.*\[(.*)\]", dynamic).group(1) == library  # type: ignore[union-attr]
    assert re.findall(r"NEEDED.*\[(.*)\]", dynamic)[0] == f"/usr/local/vgpu/driver/{library}"
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    assert "BIND_NOW" in dynamic and "NODELETE" in dynamic


@pytest.mark.parametrize("file", [*(LIBRARIES / name for name in NAMES), SELFTEST], ids=lambda file: file.name)
def test_an_old_glibc_is_enough(file: Path) -> None:
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", output("objdump", "-T", str(file)))
    assert max((int(major), int(minor)) for major, minor in versions) <= OLDEST_GLIBC


def test_the_selftest_links_nothing_but_the_c_library() -> None:
    assert set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", str(SELFTEST)))) == {"libc.so.6", "libdl.so.2"}
