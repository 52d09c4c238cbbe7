"""Which files of libvcuda a share gets, by the inventory and the status of the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config.inventory import Inventory, LimiterCopy, from_record, identity
from vgpu.hook.inject import limiter_files

SONAME = "libcuda.so.1"


class Files:
    """A packaged library and a copy of it."""

    def __init__(self, path: Path) -> None:
        self.packaged = path / "package" / SONAME
        self.copy = path / "state" / SONAME
        for file in (self.packaged, self.copy):
            file.parent.mkdir()
            file.write_bytes(b"library")

    def inventory(self, **others: str) -> Inventory:
        values = {"packaged": identity(self.packaged.stat()), "path": str(self.copy), **others}
        copy = LimiterCopy(SONAME, values["packaged"], "ab", values["path"], "cd", 3, values.get("reason", ""))
        return Inventory("550.54.15", "", 0.0, [], [], [], [], [copy])

    def choose(self, inventory: Inventory) -> tuple[dict[str, str], tuple[str, ...]]:
        return limiter_files.choose(inventory, str(self.packaged.parent))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_copy_of_the_packaged_library_is_chosen(files: Files) -> None:
    assert files.choose(files.inventory()) == ({SONAME: str(files.copy)}, ())


def test_the_record_keeps_what_the_hook_needs(files: Files) -> None:
    record = files.inventory().record()
    assert from_record(record, "inventory").copies[0].path == str(files.copy)
    assert files.choose(from_record(record, "inventory")) == ({SONAME: str(files.copy)}, ())


def test_after_an_upgrade_or_downgrade_the_copy_stays_until_the_next_inventory(files: Files) -> None:
    """Another file of the same size and time: dpkg sets the time that the package has."""
    inventory, before = files.inventory(), files.packaged.stat()
    replaced = files.packaged.with_name("new")
    replaced.write_bytes(b"another")
    os.utime(replaced, ns=(before.st_atime_ns, before.st_mtime_ns))
    replaced.rename(files.packaged)
    chosen, (note,) = files.choose(inventory)
    assert chosen == {SONAME: str(files.copy)}
    assert "another one than when the inventory was taken; run: vgpuctl inventory refresh" in note


def test_a_lost_copy_is_not_chosen(files: Files) -> None:
    inventory = files.inventory()
    files.copy.unlink()
    chosen, (note,) = files.choose(inventory)
    assert chosen == {} and f"{files.copy}: No such file or directory" in note


def test_the_reason_for_which_there_is_no_copy_is_a_line(files: Files) -> None:
    chosen, (note,) = files.choose(files.inventory(path="", reason="Read-only file system"))
    assert chosen == {} and note.endswith("names that driver 550.54.15 lacks: Read-only file system")


def test_a_driver_that_has_all_names_needs_no_copy(files: Files) -> None:
    assert files.choose(files.inventory(path="")) == ({}, ())


def test_the_inventory_of_an_older_vgpu_has_no_copies(files: Files) -> None:
    record = files.inventory().record()
    del record["copies"]
    chosen, (note,) = files.choose(from_record(record, "inventory"))
    assert (
        chosen == {} and note == "the inventory has no copy of libvcuda for this driver; run: vgpuctl inventory refresh"
    )
