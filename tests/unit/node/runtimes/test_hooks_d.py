"""The two files of podman and CRI-O, and the directory that they lie in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import hooks_d, registry
from vgpu.node.runtimes.registration import Wish


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default directory, which is missing."""
    path = tmp_path / "usr/share/oci/hooks.d"
    monkeypatch.setattr(hooks_d, "DIRECTORY", str(path))
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    for name in ("CONTAINERS_CONF", "CRIO_CONF"):
        monkeypatch.setattr(hooks_d, name, (str(tmp_path / f"{name}.conf"),))
    return path


def test_the_files_are_those_of_the_package(directory: Path) -> None:
    """packaging/hooks.d has the same two, for administrators who copy them by hand."""
    for name, stage in hooks_d.FILES.items():
        shipped = (CHECKOUT / "packaging/hooks.d" / name).read_text()
        assert json.loads(hooks_d.text(Wish(), stage)) == json.loads(shipped)


@pytest.mark.parametrize("runtime", ["podman", "crio"])
def test_the_directory_is_made_and_removed(runtime: str, directory: Path, wish: Wish) -> None:
    wish = replace(wish, config="")
    registry.configure(runtime, wish).execute()
    assert sorted(path.name for path in directory.iterdir()) == sorted(hooks_d.FILES)
    assert not registry.configure(runtime, wish).changes()
    registry.unconfigure(runtime, wish.state_dir).execute()
    assert not directory.parent.exists()


@pytest.mark.parametrize(
    ("runtime", "file", "text"),
    [
        ("podman", "CONTAINERS_CONF", '[engine]\nhooks_dir = ["/etc/a", "{mine}"]\n'),
        ("crio", "CRIO_CONF", '[crio.runtime]\nhooks_dir = [\n  "/etc/a",\n  "{mine}", # last\n]\n'),
    ],
)
def test_the_configured_directory_counts(
    runtime: str, file: str, text: str, directory: Path, wish: Wish, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    (tmp_path / f"{file}.conf").write_text(text.replace("{mine}", str(mine)))
    registry.configure(runtime, replace(wish, config="")).execute()
    assert (mine / "vgpu.json").exists()
    assert not directory.exists()


@pytest.mark.parametrize(("first", "second"), [("podman", "crio"), ("crio", "podman")])
def test_podman_and_crio_share_their_files(first: str, second: str, directory: Path, wish: Wish) -> None:
    wish = replace(wish, config="")
    for runtime in (first, second):
        registry.configure(runtime, wish).execute()
    change = registry.unconfigure(first, wish.state_dir)
    change.execute()
    assert len(change.kept) == 2
    assert (directory / "vgpu.json").exists()
    registry.unconfigure(second, wish.state_dir).execute()
    assert not directory.exists()


def test_files_that_were_copied_by_hand_come_back(directory: Path, wish: Wish) -> None:
    directory.mkdir(parents=True)
    (directory / "vgpu.json").write_text("{}\n")
    wish = replace(wish, config="")
    registry.configure("podman", wish).execute()
    registry.unconfigure("podman", wish.state_dir).execute()
    assert (directory / "vgpu.json").read_text() == "{}\n"
    assert [path.name for path in directory.iterdir()] == ["vgpu.json"]


def test_they_have_no_mode(directory: Path, wish: Wish) -> None:
    with pytest.raises(VgpuError, match="podman and CRI-O choose by annotation"):
        registry.configure("podman", replace(wish, mode="default"))
