"""Registering again with other options: the first registration goes, and its undo still leads to the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vgpu.node.runtimes import cdi_spec, registry
from vgpu.node.runtimes.registered_files import Record
from vgpu.node.runtimes.registration import RUNTIMES, Wish


def test_every_runtime_has_a_registration() -> None:
    assert tuple(registry.KINDS) == (*RUNTIMES, cdi_spec.NAME)


def test_a_file_of_the_first_registration_that_the_second_has_not_is_removed(wish: Wish, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    registry.configure("podman", replace(wish, config=str(first))).execute()
    change = registry.configure("podman", replace(wish, config=str(second)))
    assert {edit.path for edit in change.edits if edit.after is None} == {f"{first}/{n}" for n in change_names(change)}
    change.execute()
    assert not first.exists()
    assert sorted(path.name for path in second.iterdir()) == sorted(change_names(change))
    assert Record.read(wish.state_dir, "podman").options["config"] == str(second)
    registry.unconfigure("podman", wish.state_dir).execute()
    assert not second.exists()


def change_names(change: registry.Change) -> set[str]:
    return {Path(edit.path).name for edit in change.edits}


def test_the_undo_of_nothing_is_nothing(wish: Wish) -> None:
    for runtime in RUNTIMES:
        assert not registry.unconfigure(runtime, wish.state_dir).changes()
