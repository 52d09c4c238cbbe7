"""`vgpuctl grant` through click: the hook accepts its grants, and it writes nothing else."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from host import Host

from vgpu.config import grants, paths
from vgpu.config.grants import Grant, Holder
from vgpu.config.request import Wishes
from vgpu.node.ctl.main import main

GIB = 1 << 30


class Node(Host):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write_settings()

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(self.config), "grant", *arguments])

    def refused(self, *arguments: str) -> str:
        done = self.call(*arguments)
        assert done.exit_code == 1, done.output
        assert done.stderr.startswith("vgpuctl: ")
        errors = [done.stderr.removeprefix("vgpuctl: ").rstrip("\n")]
        assert done.stdout == ("" if arguments[0] != "add" else json.dumps({"errors": errors}, indent=2) + "\n")
        assert done.stderr.count("\n") == 1
        return done.stderr

    def all(self) -> list[Grant]:
        found, damaged = grants.read_all(self.state_dir)
        assert damaged == []
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("options", "amounts", "described"),
    [
        (["--cores", "40", "--memory", "2Gi"], {"cores": 40, "memory": 2 * GIB}, "1 card, 40 cores and 2048 MiB"),
        (["--cores", "1", "--memory", "100Mi"], {"cores": 1, "memory": 100 << 20}, "1 card, 1 cores and 100 MiB"),
        (["--cores", "99", "--memory", "3000"], {"cores": 99, "memory": 3000 << 20}, "1 card, 99 cores and 3000 MiB"),
        (["--cores", "100"], {"cores": 100}, "1 card, whole"),
        (["--cores", "3200"], {"cores": 3200}, "32 cards, whole"),
        (["--cores", "200", "--memory", "1Gi"], {"cores": 200, "memory": GIB}, "2 cards, whole"),
    ],
)
def test_add(node: Node, options: list[str], amounts: dict[str, int], described: str) -> None:
    done = node.call("add", *options)
    assert done.exit_code == 0, done.output
    annotations = json.loads(done.stdout)
    assert set(annotations) == {f"vgpu.io/grant-{name}" for name in amounts}
    made = [grants.read(node.state_dir, grant_id) for grant_id in annotations.values()]
    assert {grant.resource: grant.amount for grant in made} == amounts
    assert len(set(annotations.values())) == len(amounts)
    assert grants.join(made, 0, Wishes()).describe() == described
    assert os.stat(f"{node.state_dir}/grants").st_mode & 0o777 == 0o700
    assert {os.stat(paths.grant(node.state_dir, grant.id)).st_mode & 0o777 for grant in made} == {0o600}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--cores and --memory"),
        (["--cores", "40"], "--cores and --memory"),
        (["--memory", "1Gi"], "--cores and --memory"),
        (["--cores", "150", "--memory", "1Gi"], "multiple of 100"),
        (["--cores", "0", "--memory", "1Gi"], "1 to 99"),
        (["--cores", "-100"], "1 to 99"),
        (["--cores", "3300"], "up to 3200"),
        (["--cores", "9" * 30], "up to 3200"),
        (["--cores", "40", "--memory", "1.5.5Gi"], "--memory"),
        (["--cores", "40", "--memory", "-1"], "--memory"),
        (["--cores", "40", "--memory", "2000Ti"], "TiB"),
        (["--cores", "40", "--memory", ""], "--memory"),
    ],
)
def test_add_refuses(node: Node, options: list[str], words: str) -> None:
    assert words in node.refused("add", *options)
    assert node.all() == []


def test_list(node: Node) -> None:
    bound = Grant("a" * 32, "memory", 2 * GIB, 1.0, holder=Holder("uid-1", "main"), cards=["GPU-1"])
    for grant in (bound, Grant("b" * 32, "cores", 40, 2.0)):
        grants.write(node.state_dir, grant)
    text = node.call("list").stdout
    for word in ("a" * 32, "2 GiB", "pod uid-1, container main", "GPU-1", "b" * 32, "40"):
        assert word in text
    first, second = json.loads(node.call("list", "--output", "json").stdout)
    assert (first["amount"], first["holder"], first["cards"]) == (2 * GIB, "pod uid-1, container main", ["GPU-1"])
    assert (second["resource"], second["holder"], second["cards"]) == ("cores", None, [])
    assert datetime.datetime.fromisoformat(first["created"]).timestamp() == 1
    assert datetime.datetime.fromisoformat(first["created"]).tzinfo is not None


def test_list_survives_damage(node: Node) -> None:
    grants.write(node.state_dir, Grant("b" * 32, "cores", 40, 2.0))
    Path(node.state_dir, "grants", "c" * 32 + ".json").write_text("{")
    Path(node.state_dir, "grants", ".x.json.1.tmp").write_text("{")
    done = node.call("list")
    assert done.exit_code == 0
    assert "b" * 32 in done.stdout
    assert done.stderr.startswith("warning: ")
    assert done.stderr.count("\n") == 1


def test_list_of_none(node: Node) -> None:
    done = node.call("list", "--output", "json")
    assert (done.exit_code, json.loads(done.stdout), done.stderr) == (0, [], "")


def test_remove(node: Node) -> None:
    for letter in "abc":
        grants.write(node.state_dir, Grant(letter * 32, "cores", 40, 2.0))
    assert node.call("remove", "a" * 32, "c" * 32).exit_code == 0
    assert [grant.id for grant in node.all()] == ["b" * 32]
    assert "expected a grant of this node" in node.refused("remove", "a" * 32)


def test_remove_ends_no_grant_if_one_of_them_does_not_exist(node: Node) -> None:
    grants.write(node.state_dir, Grant("b" * 32, "cores", 30, 1.0))
    assert "expected a grant of this node" in node.refused("remove", "b" * 32, "a" * 32)
    assert [item.id for item in node.all()] == ["b" * 32]


def test_remove_takes_what_a_narrow_table_shows_and_prints_the_whole_id(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = "a" * 31 + "1", "a" * 31 + "2"
    for grant_id in (one, other, "b" * 32):
        grants.write(node.state_dir, Grant(grant_id, "cores", 40, 2.0))
    monkeypatch.setenv("COLUMNS", "60")
    assert "b" * 13 not in node.call("list").stdout
    assert "b" * 32 in node.call("list", "--wide").stdout
    assert node.call("remove", "b" * 12).stdout == f"removed: {'b' * 32}\n"
    assert "that of 2" in node.refused("remove", "a" * 12)
    assert "that of 0" in node.refused("remove", "b" * 12)
    assert json.loads(node.call("remove", "--output", "json", one, other).stdout) == {"removed": [one, other]}


@pytest.mark.parametrize("grant_id", ["../../config", "x", "A" * 32, "", "a" * 11])
def test_remove_takes_ids_and_no_paths(node: Node, grant_id: str) -> None:
    assert "32 hexadecimal digits" in node.refused("remove", grant_id)
    assert os.path.exists(node.config)


def test_without_settings(tmp_path: Path, node: Node) -> None:
    os.unlink(node.config)
    for arguments in (["list"], ["add", "--cores", "100"], ["remove", "a" * 32]):
        assert "vgpuctl config apply" in node.refused(*arguments)
