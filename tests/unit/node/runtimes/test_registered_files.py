"""Backups, atomic writing and the undo, also of files that somebody edited since."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import nested_values, registered_files, registry, toml_text
from vgpu.node.runtimes.registered_files import OWN, TOML, Assignment, Draft, Record
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


@pytest.mark.parametrize("target", ["daemon.json.real", "elsewhere/daemon.json"])
def test_a_link_stays_and_its_target_is_edited(docker: Wish, target: str) -> None:
    real = Path(docker.config).with_name("daemon.json").parent / target
    real.parent.mkdir(exist_ok=True)
    os.rename(docker.config, real)
    os.symlink(target, docker.config)
    configure(docker)
    assert os.readlink(docker.config) == target
    assert "vgpu" in json.loads(real.read_text())["runtimes"]
    assert not registry.configure("docker", docker).changes()
    unconfigure(docker)
    assert os.readlink(docker.config) == target
    assert real.read_text() == DAEMON


def test_what_is_no_file_is_not_replaced(docker: Wish) -> None:
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
        registered_files.apply(record, registered_files.plan(record, drafts), {}, refuse)
    assert first.read_text() == "one\n"
    assert not second.parent.exists()
    assert os.listdir(tmp_path / "runtimes") == []


def test_a_toml_file_edited_since_loses_only_our_part(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "runtimes")
    path = tmp_path / "c.toml"
    path.write_text("version = 2\n[a]\nx = 'old' # why\n")
    record = Record(str(tmp_path / "runtimes/x.json"))
    text = toml_text.assign(path.read_text(), ("a", "x"), "new", "f")
    draft = Draft(str(path), toml_text.append(text, "[b]\n"), TOML, assigned=(Assignment(("a", "x"), "new", "old"),))
    registered_files.apply(record, registered_files.plan(record, [draft]), {}, lambda: None)
    path.write_text("# added\n" + path.read_text() + "[c]\ny = 1\n")
    record = Record.read(str(tmp_path), "x")
    registered_files.apply(record, registered_files.plan(record, []), {}, lambda: None)
    assert path.read_text() == "# added\nversion = 2\n[a]\nx = 'old' # why\n[c]\ny = 1\n"


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "runtimes")
    (tmp_path / "runtimes/docker.json").write_text('{"files": 1}')
    with pytest.raises(VgpuError, match="a record of a registration"):
        Record.read(str(tmp_path), "docker")


V2 = 'plugins."io.containerd.grpc.v1.cri".containerd'
FOREIGN = {
    "line ends of another system": f"version = 2\r\n[{V2}] # why\r\n\ta = 'x'\r\n# the end\r\n",
    "no line end at the end": f"version = 2\n[{V2}] # why\n\ta = 'x'\n# the end",
    "neither": f"version = 2\r\n[{V2}] # why\r\n\ta = 'x'\r\n# the end",
    "tabs and comments after tables": f"\t# top\n\tversion\t=\t2\n\n\n\t[{V2}]\n\t\ta\t=\t'x'\t# why\n\n# the end\n\n",
    "the version alone": "version = 2",
    "one comment": "# nothing",
}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    (tmp_path / "runtimes").mkdir()
    return tmp_path / "c.toml"


def draft(path: Path) -> Draft:
    """A block of tables, a line among the top ones, and a key in a table that exists."""
    record = Record.read(str(path.parent), "x")
    text = record.original(str(path)) or ""
    assigned = [Assignment(("imports",), ["/x/*.toml"])]
    changed = toml_text.assign(text, ("imports",), ["/x/*.toml"], "f")
    if "a" in text:
        keys = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "a")
        before = nested_values.look_up(toml_text.parse(text, "f"), keys)
        if before is not None:
            assigned.append(Assignment(keys, "new", before))
            changed = toml_text.assign(changed, keys, "new", "f")
    return Draft(str(path), toml_text.append(changed, "[b]\nz = 1\n"), TOML, assigned=tuple(assigned))


def write(path: Path) -> list[registered_files.Edit]:
    record = Record.read(str(path.parent), "x")
    planned = registered_files.plan(record, [draft(path)])
    registered_files.apply(record, planned, {}, lambda: None)
    return planned


def undo(path: Path) -> None:
    record = Record.read(str(path.parent), "x")
    registered_files.apply(record, registered_files.plan(record, []), {}, lambda: None)


@pytest.mark.parametrize("text", FOREIGN.values(), ids=list(FOREIGN))
def test_the_undo_to_the_byte_of_files_with_odd_forms(toml: Path, text: str) -> None:
    toml.write_bytes(text.encode())
    write(toml)
    assert not any(edit.changes() for edit in registered_files.plan(Record.read(str(toml.parent), "x"), [draft(toml)]))
    undo(toml)
    assert toml.read_bytes() == text.encode()


@pytest.mark.parametrize("text", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("place", ["above", "below"])
def test_what_others_wrote_above_or_below_is_no_reason_to_write_and_stays(toml: Path, text: str, place: str) -> None:
    toml.write_bytes(text.encode())
    write(toml)
    now = toml.read_bytes().decode()
    end = "\r\n" if "\r\n" in text else "\n"
    added = f"# mine{end}" if place == "above" else f"[debug]{end}  level = 'info'{end}"
    toml.write_bytes((added + now if place == "above" else now + ("" if now.endswith("\n") else end) + added).encode())
    assert not any(edit.changes() for edit in registered_files.plan(Record.read(str(toml.parent), "x"), [draft(toml)]))
    undo(toml)
    ended = text if text.endswith("\n") else text + end
    assert toml.read_bytes().decode() == (added + ended if place == "above" else ended + added)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_whenever_it_is_killed_the_undo_leads_back(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the node as it is before, between and after the two files is what a kill there leaves."""
    node, killed = tmp_path / "node", tmp_path / "killed"
    (node / "runtimes").mkdir(parents=True)
    (node / "a").write_text("one\n")
    record = Record.read(str(node), "x")
    drafts = [Draft(f"{node}/a", "one\ntwo\n", TOML), Draft(f"{node}/new/b", "three\n", OWN)]
    real, calls = registered_files._put, []

    def put(*arguments: object) -> None:
        if len(calls) == step:
            shutil.copytree(node, killed)
        calls.append(arguments)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(registered_files, "_put", put)
    registered_files.apply(
        record,
        registered_files.plan(record, drafts),
        {},
        lambda: None if step < 2 else put(f"{node}/a", "one\ntwo\n", None),
    )
    monkeypatch.setattr(registered_files, "_put", real)
    for path in (killed / "runtimes").iterdir():
        path.write_text(path.read_text().replace(str(node), str(killed)))
    record = Record.read(str(killed), "x")
    registered_files.apply(record, registered_files.plan(record, []), {}, lambda: None)
    assert (killed / "a").read_text() == "one\n"
    assert sorted(path.name for path in killed.rglob("*")) == ["a", "runtimes"]


def test_a_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file cannot be written, and the first one is as it was."""
    first, second = tmp_path / "a", tmp_path / "read-only"
    first.write_text("one\n")
    second.write_text("two\n")
    (tmp_path / "runtimes").mkdir()
    record = Record.read(str(tmp_path), "x")
    real = registered_files.records.write_bytes

    def refuse(path: str, data: bytes, *rest: object, **words: object) -> None:
        if os.path.basename(path) == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        real(path, data, *rest, **words)

    monkeypatch.setattr(registered_files.records, "write_bytes", refuse)
    drafts = [Draft(str(first), "1\n", OWN), Draft(str(second), "2\n", OWN)]
    line = f"^{second}: expected a file to write, found Read-only file system; all files are as they were$"
    with pytest.raises(VgpuError, match=line):
        registered_files.apply(record, registered_files.plan(record, drafts), {}, lambda: None)
    assert (first.read_text(), second.read_text()) == ("one\n", "two\n")
    assert os.listdir(tmp_path / "runtimes") == []
