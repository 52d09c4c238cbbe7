"""Backups, atomic writing and the undo, also of files that somebody edited since."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import edits, registry
from vgpu.node.runtimes.edits import OWN, TOML, Assignment, Draft, Record
from vgpu.node.runtimes.registration import Wish

DAEMON = '{\n\t"debug" :true, "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}} }'


@pytest.fixture
def docker(wish: Wish) -> Wish:
    path = Path(wish.config).with_name("daemon.json")
    path.parent.mkdir()
    path.write_text(DAEMON)
    return replace(wish, config=str(path))


def configure(wish: Wish) -> registry.Change:
    change = registry.configure("docker", wish)
    change.execute()
    return change


def unconfigure(wish: Wish) -> None:
    registry.unconfigure("docker", wish.state_dir).execute()


def test_the_undo_restores_bytes_mode_and_owner(docker: Wish) -> None:
    os.chmod(docker.config, 0o604)
    if os.geteuid() == 0:
        os.chown(docker.config, 12, 34)
    before = os.stat(docker.config)
    change = configure(docker)
    (backup,) = change.backups()
    assert Path(backup).read_text() == DAEMON
    assert os.stat(backup).st_mode & 0o777 == 0o600
    assert os.stat(docker.config)[:1] + os.stat(docker.config)[4:6] == before[:1] + before[4:6]
    unconfigure(docker)
    assert Path(docker.config).read_text() == DAEMON
    assert os.stat(docker.config)[:1] + os.stat(docker.config)[4:6] == before[:1] + before[4:6]
    assert os.listdir(f"{docker.state_dir}/runtimes") == []


def test_a_plan_and_its_diff_change_nothing(docker: Wish) -> None:
    change = registry.configure("docker", docker)
    assert "+" in change.diff()
    assert Path(docker.config).read_text() == DAEMON
    assert os.listdir(f"{docker.state_dir}/runtimes") == []


def test_what_others_wrote_since_stays(docker: Wish) -> None:
    configure(replace(docker, mode="default"))
    text = Path(docker.config).read_text()
    Path(docker.config).write_text(text.replace('"debug" :true', '"debug" :false, "ipv6":  true'))
    again = registry.configure("docker", replace(docker, mode="default"))
    assert not again.changes(), "an edit elsewhere in the file is no reason to write"
    unconfigure(docker)
    expected = DAEMON.replace('"debug" :true', '"debug" :false, "ipv6":  true')
    assert Path(docker.config).read_text() == expected


def test_a_value_that_others_wrote_in_place_of_ours_stays(docker: Wish) -> None:
    configure(replace(docker, mode="default"))
    text = Path(docker.config).read_text()
    Path(docker.config).write_text(text.replace('"default-runtime": "vgpu"', '"default-runtime": "nvidia"'))
    unconfigure(docker)
    assert json.loads(Path(docker.config).read_text()) == {**json.loads(DAEMON), "default-runtime": "nvidia"}


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_configurations_is_undone(docker: Wish, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        name, mode = rng.choice(("vgpu", "small", "x.y")), rng.choice(("handler", "default"))
        share = (("cores", "10"),) if rng.random() < 0.5 else ()
        configure(replace(docker, name=name, mode=mode, share=share))
        found = json.loads(Path(docker.config).read_text())
        assert set(found["runtimes"]) == {"nvidia", name}
    unconfigure(docker)
    assert Path(docker.config).read_text() == DAEMON


def test_a_file_that_was_not_there_is_removed_with_its_directory(docker: Wish) -> None:
    wish = replace(docker, config=docker.config.replace("daemon.json", "new/er/daemon.json"))
    configure(wish)
    assert json.loads(Path(wish.config).read_text())["runtimes"]
    unconfigure(wish)
    assert not Path(wish.config).parent.parent.exists()


def test_a_link_is_not_replaced(docker: Wish) -> None:
    os.rename(docker.config, docker.config + ".real")
    os.symlink(docker.config + ".real", docker.config)
    with pytest.raises(VgpuError, match=r"found a symbolic link to .*daemon\.json\.real; --config "):
        registry.configure("docker", docker)
    os.unlink(docker.config)
    os.mkdir(docker.config)
    with pytest.raises(VgpuError, match="expected a regular file"):
        registry.configure("docker", docker)


def test_an_error_leaves_all_files_as_they_were(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "new/b"
    first.write_text("one\n")
    record = Record(str(tmp_path / "runtimes/x.json"))
    os.mkdir(tmp_path / "runtimes")
    drafts = [Draft(str(first), "two\n", OWN), Draft(str(second), "three\n", OWN)]

    def refuse() -> None:
        assert first.read_text() == "two\n"
        assert second.read_text() == "three\n"
        raise VgpuError("refused")

    with pytest.raises(VgpuError, match="refused"):
        edits.apply(record, edits.plan(record, drafts), {}, refuse)
    assert first.read_text() == "one\n"
    assert not second.parent.exists()
    assert os.listdir(tmp_path / "runtimes") == []


def test_a_toml_file_edited_since_loses_only_our_part(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "runtimes")
    path = tmp_path / "c.toml"
    path.write_text("version = 2\n[a]\nx = 'old' # why\n")
    record = Record(str(tmp_path / "runtimes/x.json"))
    from vgpu.node.runtimes import toml_text

    text = toml_text.assign(path.read_text(), ("a", "x"), "new", "f")
    draft = Draft(str(path), toml_text.append(text, "[b]\n"), TOML, assigned=(Assignment(("a", "x"), "new", "old"),))
    edits.apply(record, edits.plan(record, [draft]), {}, lambda: None)
    path.write_text("# added\n" + path.read_text() + "[c]\ny = 1\n")
    record = Record.read(str(tmp_path), "x")
    edits.apply(record, edits.plan(record, []), {}, lambda: None)
    assert path.read_text() == '# added\nversion = 2\n[a]\nx = "old" # why\n[c]\ny = 1\n'


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "runtimes")
    (tmp_path / "runtimes/docker.json").write_text('{"files": 1}')
    with pytest.raises(VgpuError, match="a record of a registration"):
        Record.read(str(tmp_path), "docker")
