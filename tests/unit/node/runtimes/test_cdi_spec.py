"""The CDI specification: what is in it, and its place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from checkout import CHECKOUT

from vgpu.config import cdi_device as device
from vgpu.node.runtimes import base_spec, cdi_spec, registry
from vgpu.node.runtimes.registration import Wish


def test_the_specification_is_the_one_of_the_package() -> None:
    """packaging/cdi has the same, for administrators who copy it by hand."""
    assert cdi_spec.text(Wish()) == (CHECKOUT / "packaging/cdi" / cdi_spec.FILE).read_text()


def test_its_device_adds_the_hook_and_nothing_else() -> None:
    """So a tenant who names the device gets nothing: the container's grants decide."""
    wish = Wish(programs="/opt/bin", settings="/opt/config.json")
    specification = json.loads(cdi_spec.text(wish))
    (one,) = specification["devices"]
    assert f"{specification['kind']}={one['name']}" == device.DEVICE
    assert list(one["containerEdits"]) == ["hooks"]
    found = {hook.pop("hookName"): hook for hook in one["containerEdits"]["hooks"]}
    assert found == {stage: base_spec.hook(wish, stage) for stage in base_spec.STAGES}
    assert "containerEdits" not in specification, "only containers for which the device is asked"


def test_it_is_written_and_removed_with_its_directory(tmp_path: Path, wish: Wish) -> None:
    wish = replace(wish, config=str(tmp_path / "etc/cdi"))
    registry.configure(cdi_spec.NAME, wish).execute()
    path = tmp_path / "etc/cdi" / cdi_spec.FILE
    assert (path.read_text(), path.stat().st_mode & 0o777) == (cdi_spec.text(wish), 0o644)
    assert not registry.configure(cdi_spec.NAME, wish).changes()
    registry.unconfigure(cdi_spec.NAME, wish.state_dir).execute()
    assert not path.parent.exists()


def test_no_directory_is_the_usual_one(wish: Wish) -> None:
    change = registry.configure(cdi_spec.NAME, replace(wish, config=""))
    assert [edit.path for edit in change.edits] == ["/etc/cdi/vgpu.json"]
