"""Copies of libvcuda that cannot be made or must not be used: a line says why, and there is no copy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import BUILD

from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Library, LimiterCopy
from vgpu.node.driver import library_copies
from vgpu.node.driver.hide_symbols import Image

PACKAGED = BUILD / "lib/vcuda"
VERSION = "550.163.01"
DRIVER = BUILD / f"lib/drivers/{VERSION}"


class Maker:
    """Makes copies below `state`, of the libraries in `package`, for the driver's libraries in `driver`."""

    def __init__(self, path: Path) -> None:
        self.state = path / "state"
        self.package, self.driver = PACKAGED, DRIVER
        self.notes: list[str] = []

    def make(self) -> list[LimiterCopy]:
        self.notes.clear()
        libraries = [
            Library(f"{self.driver}/{stem}.so.{VERSION}", f"{stem}.so.{VERSION}", f"{stem}.so.1", "compute")
            for stem in ("libcuda", "libnvidia-ml")
        ]
        return library_copies.make(str(self.package), str(self.state), libraries, VERSION, self.notes.append)

    def refused(self, *words: str) -> None:
        """No copy of libcuda, for a reason with these words, and no file of the attempt."""
        found = self.make()[0]
        assert found.path == "" and found.hidden >= 0
        for word in words:
            assert word in found.reason and word in self.notes[0]
        assert not [path for path in self.state.rglob("*") if path.is_file() and path.name.startswith((".", "libcuda"))]


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    if not DRIVER.is_dir():
        pytest.skip(f"{DRIVER} is missing: run `make build`")
    return Maker(tmp_path)


@pytest.fixture
def mounted(maker: Maker) -> Iterator[Maker]:
    """The state directory is a file system that tests mount again with other options."""
    maker.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", maker.state], check=True)
    yield maker
    subprocess.run(["umount", maker.state], check=True)


def test_a_directory_for_each_driver_and_build(maker: Maker) -> None:
    cuda, nvml = maker.make()
    assert maker.notes == []
    assert cuda.path == f"{maker.state}/vcuda/{VERSION}-{cuda.build_id}/libcuda.so.1"
    assert Path(nvml.path).parent == Path(cuda.path).parent
    assert library_copies.digest(cuda.path) == cuda.digest
    assert (cuda.hidden, nvml.hidden) > (50, 50)


@pytest.mark.root
@pytest.mark.parametrize(("option", "words"), [("ro", "Read-only file system"), ("noexec", "failed to map segment")])
def test_a_state_directory_that_takes_no_library(mounted: Maker, option: str, words: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", mounted.state], check=True)
    mounted.refused(words)
    subprocess.run(["mount", "-o", "remount,rw,exec", mounted.state], check=True)
    assert mounted.make()[0].path and mounted.notes == []


@pytest.mark.root
def test_a_full_state_directory(mounted: Maker) -> None:
    subprocess.run(["mount", "-o", "remount,size=64k", mounted.state], check=True)
    mounted.refused("No space left")


def test_a_driver_whose_symbols_were_misread_hides_nothing(maker: Maker, tmp_path: Path) -> None:
    """Without its section headers the list of names is empty. Hiding all names would undo all limits."""
    maker.driver = tmp_path / "driver"
    shutil.copytree(DRIVER, maker.driver)
    library = maker.driver / f"libcuda.so.{VERSION}"
    data = bytearray(library.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:62] = bytes(2)  # e_shnum
    library.write_bytes(data)
    maker.refused("cuInit")


def test_a_driver_that_is_not_what_its_list_says(maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that loads both libraries decides, not the table that this program read."""
    monkeypatch.setattr(library_copies.elf_symbols, "exported_functions", lambda path: ["cuInit", "nvmlInit_v2"])
    maker.refused("a difference", "cuArrayCreate")


def test_a_copy_that_cannot_be_loaded(maker: Maker, tmp_path: Path) -> None:
    maker.driver = tmp_path / "driver"
    shutil.copytree(DRIVER, maker.driver)
    library = maker.driver / f"libcuda.so.{VERSION}"
    data = library.read_bytes()
    assert b"libc.so.6\0" in data
    library.write_bytes(data.replace(b"libc.so.6\0", b"libx.so.6\0"))
    maker.refused("libx.so.6")


def test_a_damaged_package(maker: Maker, tmp_path: Path) -> None:
    maker.package = tmp_path / "package"
    shutil.copytree(PACKAGED, maker.package)
    (maker.package / "libcuda.so.1").write_bytes(b"\x7fELF\2\1garbage")
    assert maker.make() == [] and "expected" in maker.notes[0]


def test_no_package(maker: Maker, tmp_path: Path) -> None:
    maker.package = tmp_path
    assert maker.make() == [] and maker.notes == []


def test_a_driver_that_has_all_names_gets_the_packaged_library(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*Image((PACKAGED / "libcuda.so.1").read_bytes(), "").exports(), "nvmlInit_v2"}
    names |= set(Image((PACKAGED / "libnvidia-ml.so.1").read_bytes(), "").exports())
    monkeypatch.setattr(library_copies.elf_symbols, "exported_functions", lambda path: sorted(names))
    assert [(copy.path, copy.reason, copy.hidden) for copy in maker.make()] == [("", "", 0)] * 2
    assert maker.notes == []


def test_a_name_that_the_library_itself_relocates_by_is_not_hidden(tmp_path: Path) -> None:
    source = tmp_path / "library.c"
    source.write_text("int own(void) { return 1; }\nint (*pointer)(void) = own;\n")
    library = tmp_path / "library.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(VgpuError, match=r"no relocation by a name .* own"):
        Image(library.read_bytes(), "library").hide({"own"})


@pytest.mark.parametrize("cut", [0, 3, 64, 4096, 60000])
def test_a_library_that_was_cut_off_is_one_line(cut: int) -> None:
    data = (PACKAGED / "libcuda.so.1").read_bytes()
    with pytest.raises(VgpuError):
        Image(data[:cut], "library").hide({"cuInit"})
