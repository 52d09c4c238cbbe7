"""Symbols and file names of libvcuda, for programs that look symbols up and for programs linked in the container."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from vcuda_boxes import Box, Compiled, SimBox

OURS = "/lib/vcuda/libcuda.so.1"
REAL = "/usr/local/vgpu/driver/libcuda.so.1"
LIMIT = 1 << 31


@pytest.mark.parametrize("how", ["local", "global"])
def test_a_name_newer_than_the_list_falls_through(awkward: Box, how: str) -> None:
    client = awkward.start(how)
    assert client.ask("symbol cuMemAlloc_v2")[0].endswith(OURS)
    assert client.ask("symbol cuMemcpyHtoD_v2")[0].endswith(OURS)  # a jump
    assert client.ask("symbol cuOnlyInTheDriver") == [REAL, "cuOnlyInTheDriver"]
    assert client.ask("symbol cuNoSuchThing") == ["none", "none"]
    expected = [REAL, "cuOnlyInTheDriver"] if how == "global" else ["none", "none"]
    assert client.ask("default cuOnlyInTheDriver") == expected


def test_a_jump_passes_arguments_and_results(awkward: Box) -> None:
    """The first call looks the function up, the second jumps directly, the third finds no function."""
    client = awkward.start()
    assert client.ask("jump cuParamSetf") == ["777", "777", "5"]
    assert client.ask("jump cuModuleEnumerateFunctions") == ["801", "801", "0"]


@pytest.mark.parametrize("options", [(), ("-shared", "-fPIC", "-Wl,--as-needed")])
def test_lcuda_in_the_container_links_and_runs(
    t4: SimBox, compiled: Compiled, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Like `gcc -lcuda` there: libcuda.so is a link to libvcuda. A library may use no hooked function."""
    t4.limit(LIMIT)
    link = tmp_path / "lib"
    link.mkdir()
    (link / "libcuda.so").symlink_to(f"{t4.libraries}/libcuda.so.1")
    if options:
        library = compiled("unhooked_library.c", *options, f"-L{link}", "-lcuda")
        dynamic = subprocess.run(["readelf", "-d", library], check=True, stdout=subprocess.PIPE, text=True).stdout
        assert "[libcuda.so.1]" in dynamic
        library = library.rename(tmp_path / "libunhooked.so")
        program = compiled("loads_library.c", "-ldl")
        arguments = [str(program), str(library)]
    else:
        arguments = [str(compiled("linked_client.c", f"-L{link}", "-lcuda", "-Wl,--allow-shlib-undefined"))]
    result = subprocess.run(
        t4.command(*arguments), env=t4.environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    assert result == (["0", "1"] if options else ["0", "0", str(LIMIT), "0"])


@pytest.mark.parametrize("name", ["libcuda.so", "libcuda.so.550.54.15"])
def test_other_names_of_the_library_are_libvcuda_too(t4: SimBox, tmp_path: Path, name: str) -> None:
    """As the hook places them: the file is mounted under the driver's version, with links to it."""
    t4.limit(LIMIT)
    directory = tmp_path / "lib"
    directory.mkdir()
    (directory / "libcuda.so.550.54.15").write_bytes((t4.libraries / "libcuda.so.1").read_bytes())
    for link in ("libcuda.so", "libcuda.so.1"):
        (directory / link).symlink_to("libcuda.so.550.54.15")
    t4.environment["LD_LIBRARY_PATH"] = str(directory)
    client = t4.start("local", library=name)
    client.ask("init")
    client.ask("open 0")
    assert client.numbers("total 0") == (0, LIMIT)
