"""vgpuctl: loading of verbs, errors as lines, and the verb `config`."""

from __future__ import annotations

import inspect
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cards import card, inventory, write_inventory
from checkout import CHECKOUT
from click.testing import CliRunner, Result

from vgpu.config import settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS
from vgpu.node.ctl import main as program
from vgpu.node.ctl.main import main
from vgpu.node.ctl.output import Bytes, print_table


def entry(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, value, program.GROUP)


CONFIG = entry("config", "vgpu.node.ctl.config:config")


@pytest.fixture(autouse=True)
def verbs(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """The entry points that vgpuctl finds, whether or not vgpu is installed here."""
    found = [CONFIG]
    monkeypatch.setattr(metadata, "entry_points", lambda group: list(found))
    for name in ("NODE_NAME", "VGPU_NODE_LABELS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return found


def runner() -> CliRunner:
    """One that keeps stderr apart, which click before 8.2 does on demand only."""
    apart: dict[str, Any] = {} if "mix_stderr" not in inspect.signature(CliRunner).parameters else {"mix_stderr": False}
    return CliRunner(**apart)


class Node:
    """A node's files below a directory, and vgpuctl for it."""

    def __init__(self, root: Path) -> None:
        self.source = root / "config.yaml"
        self.target = root / "state/config.json"

    def run(self, *arguments: str, **env: str) -> Result:
        return runner().invoke(main, ["--config", str(self.target), *arguments], env=env)

    def config(self, verb: str, text: str, *arguments: str, **env: str) -> Result:
        self.source.write_text(text)
        return self.run("config", verb, str(self.source), *arguments, **env)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


TEXT = "scaling: {memory: 2}\nnodes:\n  gpu-7: {scaling: {cores: 3}}\n"


def test_check_says_ok(node: Node) -> None:
    done = node.config("check", "", "--node", "gpu-7")
    assert (done.exit_code, done.stdout) == (0, f"{node.source}: ok for node gpu-7\n")
    assert not node.target.parent.exists()


UNCHECKED = "not checked: whether the list of devices is within kubelet's 4 MiB: "
SMALL_UNITS = "resources: {mode: vcuda, memory_unit: 1Mi}\n"


def test_check_counts_the_devices_of_this_node(node: Node) -> None:
    """The line is the device plugin's own."""
    text = f"paths: {{run: {node.source.parent}}}\n"
    write_cards(node.source.parent, 8, 141 << 30)
    done = node.config("check", text)
    assert (done.exit_code, done.stderr) == (0, "")
    done = node.config("check", text + SMALL_UNITS)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "vgpuctl: tencent.com/vcuda-memory: expected a list of devices within kubelet's 4 MiB,"
    )
    assert done.stderr.endswith("; set resources.memory_unit: 16Mi or more\n")
    assert node.config("check", text + SMALL_UNITS.replace("1Mi", "16Mi")).exit_code == 0


def test_check_says_when_it_cannot_count(node: Node) -> None:
    run = node.source.parent
    text = f"paths: {{run: {run}}}\n{SMALL_UNITS}"
    done = node.config("check", text)
    assert done.exit_code == 0
    assert (
        f"{UNCHECKED}{run}/inventory.json: expected this node's inventory, found no file; run: vgpuctl" in done.stderr
    )
    write_cards(run, 8, 141 << 30)
    assert (
        f"{UNCHECKED}the cards of node gpu-8 are not known here" in node.config("check", text, "--node", "gpu-8").stderr
    )
    assert node.config("check", text, NODE_NAME="GPU-8").exit_code == 1
    write_cards(run, 0, 0)
    assert f"{UNCHECKED}{run}/inventory.json: has no cards" in node.config("check", text).stderr
    (run / "inventory.json").write_text("{")
    assert f"{UNCHECKED}{run}/inventory.json: expected" in node.config("check", text).stderr


def test_check_finds_the_drivers_directories_on_the_node_itself(node: Node) -> None:
    missing = node.source.parent / "missing"
    text = f"driver:\n  root: {missing}\n"
    done = node.config("check", text)
    expected = f"driver.root ({node.source}:2): expected a directory of this node, found {missing}: no such directory"
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"vgpuctl: {expected}; correct the path, or mount the driver there"
    assert node.config("check", text, "--node", "another").exit_code == 0
    assert node.config("apply", text).exit_code == 0, "the driver may be mounted later"
    missing.write_text("")
    assert "found another file" not in node.config("check", text).stdout
    assert f"{missing}: another file" in node.config("check", text).stderr
    missing.unlink()
    missing.mkdir()
    assert node.config("check", text).exit_code == 0
    assert "driver.dev_root" in node.config("check", f"driver: {{dev_root: {missing}/dev}}\n").stderr


def test_check_apply_and_import_as_json(node: Node) -> None:
    done = node.config("check", "zzz: 1\nscaling: {cores: 0}\n", "--output", "json", "--node", "n")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["ok"], found["file"], found["node"]) == (1, False, str(node.source), "n")
    assert [line.partition(" expected")[0] for line in found["errors"]] == [
        f"{node.source}:1: zzz:", f"{node.source}:2: scaling.cores:",
    ]  # fmt: skip
    found = json.loads(node.config("check", "", "--output", "json", "--node", "n").stdout)
    assert (found["ok"], found["errors"], len(found["notes"])) == (True, [], 1)
    node.config("apply", "", "--node", "n")
    done = node.config("apply", TEXT, "--node", "n", "--output", "json")
    assert json.loads(done.stdout) == {
        "file": str(node.target), "written": True, "dry_run": False,
        "changed": [{"setting": "scaling.memory", "before": 1.0, "after": 2.0}],
        "notes": [done.stderr.removeprefix("vgpuctl: ").strip()],
    }  # fmt: skip
    peers = node.source.parent / "peers.json"
    peers.write_text('{"nodeconfig": [{"name": "a", "devicecorescaling": 2, "migstrategy": "none"}]}')
    found = json.loads(node.run("config", "import", str(peers), "--output", "json").stdout)
    assert found == {
        "file": str(peers), "into": None, "nodes": {"a": {"scaling": {"cores": 2.0}}},
        "left_out": ["migstrategy (a): resources.mig_strategy says how MIG instances are offered"],
    }  # fmt: skip


def write_cards(run: Path, count: int, memory: int) -> None:
    write_inventory(str(run), inventory([card(at, memory) for at in range(count)]))


def test_check_prints_a_line_per_error_and_no_traceback(node: Node) -> None:
    done = node.config("check", "zzz: 1\nscaling: {cores: 0}\n")
    assert done.exit_code == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert [line.partition(" expected")[0] for line in lines] == [
        f"vgpuctl: {node.source}:1: zzz:", f"vgpuctl: {node.source}:2: scaling.cores:",
    ]  # fmt: skip


def test_file_that_was_named_has_to_exist(node: Node) -> None:
    for verb in ("check", "show", "apply"):
        done = node.run("config", verb, f"{node.source}x")
        expected = f"vgpuctl: {node.source}x: expected a configuration file, found no such file; correct the path\n"
        assert (done.exit_code, done.stderr) == (1, expected)


def test_default_file_may_be_missing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SOURCE_PATH", str(node.source))
    done = node.run("config", "apply")
    assert done.exit_code == 0
    assert done.stderr == f"vgpuctl: {node.source}: no such file; the defaults are used\n"
    read = settings.read(str(node.target))
    assert {name: read[name] for name in DEFAULTS} == DEFAULTS


def test_show_as_a_table(node: Node) -> None:
    done = node.config("show", TEXT, "--node", "gpu-7")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert set(DEFAULTS) <= set(rows)
    assert rows["scaling.memory"] == f"2.0 {node.source}:1"
    assert rows["scaling.cores"] == f"3.0 {node.source}:3 (node gpu-7)"
    assert rows["placement.policy"] == "binpack default"
    assert rows["resources.memory_unit"] == "256Mi default"
    assert done.stderr == f"vgpuctl: {node.target}: not in force yet; run: vgpuctl config apply\n"


def test_show_as_json(node: Node) -> None:
    done = node.config("show", TEXT, "--output", "json", "--node", "gpu-7")
    rows = {row["setting"]: row for row in json.loads(done.stdout)}
    values = {**DEFAULTS, "scaling.memory": 2.0, "scaling.cores": 3.0}
    assert {name: row["value"] for name, row in rows.items()} == values
    assert rows["scaling.cores"] == {
        "setting": "scaling.cores", "value": 3.0, "origin": "node", "profile": None, "file": str(node.source),
        "line": 3,
    }  # fmt: skip
    assert [rows["driver.root"][name] for name in ("origin", "file", "line")] == ["default", None, None]


def test_show_as_yaml(node: Node) -> None:
    done = node.config("show", TEXT, "--output", "yaml", "--node", "gpu-7")
    assert yaml.safe_load(done.stdout)["scaling"] == {"cores": 3.0, "memory": 2.0, "virtual_memory": False}
    assert f"  cores: 3.0  # {node.source}:3 (node gpu-7)\n" in done.stdout


@pytest.mark.parametrize(("arguments", "env", "cores"), [
    (["--node", "gpu-7"], {}, 3.0),
    (["--node", "GPU-7"], {"NODE_NAME": "x"}, 3.0),
    ([], {"NODE_NAME": "gpu-7"}, 3.0),
    ([], {"NODE_NAME": "gpu-8"}, 1.0),
])  # fmt: skip
def test_node_by_option_else_environment(node: Node, arguments: list[str], env: dict[str, str], cores: float) -> None:
    assert node.config("apply", TEXT, *arguments, **env).exit_code == 0
    assert settings.read(str(node.target))["scaling.cores"] == cores


def test_node_by_the_hosts_name(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: type("Name", (), {"nodename": "gpu-7"}))
    assert node.config("apply", TEXT).exit_code == 0
    assert settings.read(str(node.target)).node == "gpu-7"


def test_no_override_for_this_node_is_noted(node: Node) -> None:
    assert "nodes: has gpu-7, but nothing for this node, gpu-8" in node.config("check", TEXT, "--node", "gpu-8").stderr


POOLS = "profiles:\n- {name: t4, node_labels: {pool: a}, scaling: {cores: 3}}\n"
APPLIES = "profile t4 applies to this node, n"


def test_the_profile_by_options_by_the_environment_and_as_recorded(node: Node) -> None:
    done = node.config("apply", POOLS, "--node", "n")
    assert (done.exit_code, node.target.exists()) == (1, False)
    assert "profiles: expected the node's labels, by which profiles are chosen, found none; name them" in done.stderr
    done = node.config("check", POOLS, "--node", "n")
    assert done.exit_code == 0 and "not checked: which profile applies to this node: profiles: expected" in done.stderr
    for arguments, env in ((("--label", "b=", "--label", "pool=a"), {}), ((), {"VGPU_NODE_LABELS": "b= pool=a"})):
        done = node.config("show", POOLS, "--node", "n", *arguments, "--output", "json", **env)
        rows = {row["setting"]: row for row in json.loads(done.stdout)}
        assert {"value": 3.0, "origin": "profile", "profile": "t4", "line": 2}.items() <= rows["scaling.cores"].items()
        assert APPLIES in done.stderr
    assert APPLIES in node.config("apply", POOLS, "--node", "n", "--label", "pool=a").stderr
    assert APPLIES in node.config("apply", POOLS + "scaling: {memory: 2}\n", "--node", "n").stderr, "as recorded"
    assert settings.read(str(node.target))["scaling.cores"] == 3.0
    other = POOLS.replace("pool: a", "zone: b")
    assert "found none; name them" in node.config("apply", other, "--node", "n").stderr, "nobody has said the zone"
    node.config("apply", POOLS, "--node", "n", "--label", "pool=c")
    assert settings.read(str(node.target))["scaling.cores"] == 1.0
    for wrong in ("pool", "=a"):
        assert node.config("check", POOLS, "--label", wrong).exit_code == 2
    assert node.config("check", POOLS, "--label", "pool=a", "--labels-from-api").exit_code == 2


def test_apply_prints_what_changes(node: Node) -> None:
    assert node.config("apply", "", "--node", "n").stdout.splitlines()[-1] == f"{node.target}: written"
    trial = node.config("apply", TEXT, "--node", "n", "--dry-run")
    assert trial.stdout == f"scaling.memory: 1.0 -> 2.0\n{node.target}: nothing written\n"
    assert settings.read(str(node.target))["scaling.memory"] == 1.0
    assert node.config("apply", TEXT, "--node", "n").stdout == f"scaling.memory: 1.0 -> 2.0\n{node.target}: written\n"
    assert node.config("apply", TEXT, "--node", "n").stdout == f"{node.target}: in force already\n"
    assert node.config("show", TEXT, "--node", "n").stderr.count("not in force") == 0


def test_broken_verbs_are_named_and_stop_no_other(
    node: Node, verbs: list[metadata.EntryPoint], monkeypatch, tmp_path: Path
) -> None:
    (tmp_path / "quits_at_import.py").write_text("raise SystemExit(5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    verbs += [entry("gone", "no_such_module:x"), entry("odd", "os:sep"), entry("quits", "quits_at_import:x")]
    assert node.config("check", "").exit_code == 0
    overview = node.run("--help")
    assert overview.exit_code == 0
    assert "config" in overview.stdout
    lines = overview.stderr.splitlines()
    assert lines[0].startswith(
        "vgpuctl: verb gone (no_such_module:x): expected a module to import, found ModuleNotFoundError"
    )
    assert (
        lines[1] == "vgpuctl: verb odd (os:sep): expected a click command, found str; "
        "repair or remove the package that brings it"
    )
    assert "verb quits" in lines[2]
    for name in ("gone", "odd", "quits"):
        called = node.run(name)
        assert (called.exit_code, len(called.stderr.splitlines())) == (1, 1)


def test_a_third_party_never_replaces_a_verb_of_vgpus_own(node: Node, verbs: list[metadata.EntryPoint]) -> None:
    verbs.insert(0, entry("config", "aaa:config"))
    done = node.config("check", "")
    assert done.exit_code == 0
    assert "verb config: expected one definition, found aaa:config; vgpu.node.ctl.config:config is used" in done.stderr


def test_entry_points_by_the_interface_of_python_3_9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda: {program.GROUP: (CONFIG, CONFIG), "other": ()})
    assert program.entry_points() == [CONFIG]


def test_without_any_verb_it_says_what_is_missing(node: Node, verbs: list[metadata.EntryPoint]) -> None:
    verbs.clear()
    done = node.run("config")
    assert done.exit_code == 1
    assert done.stderr.startswith("vgpuctl: entry points vgpu.ctl: expected vgpu's own verbs, found none; install vgpu")


def test_unknown_verb_is_a_usage_error(node: Node) -> None:
    done = node.run("confg")
    assert done.exit_code == 2
    assert "No such command" in done.stderr


ERRORS = [
    (VgpuError("a", expected="b", found="c", do="d"), "vgpuctl: a: expected b, found c; d\n"),
    (PermissionError(13, "Permission denied", "/x/\ny"), "vgpuctl: /x/\\x0ay: Permission denied\n"),
    (OSError("odd"), "vgpuctl: vgpuctl: odd\n"),
]


def test_the_overview_loads_no_verb_and_has_each_verbs_own_words(
    node: Node, verbs: list[metadata.EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (CHECKOUT / "pyproject.toml").read_text().split(f'[project.entry-points."{program.GROUP}"]', 1)[1]
    own = dict(re.findall(r'^(\w+) = "(vgpu\.[\w.]+:\w+)"$', text.split("\n[", 1)[0], re.MULTILINE))
    verbs[:] = [entry(name, value) for name, value in own.items()]
    words = {name: program.load(one).get_short_help_str(200) for name, one in zip(own, verbs)}
    assert len(words) >= 7
    assert words.items() <= program.SUMMARIES.items()
    monkeypatch.setattr(program, "load", lambda _: pytest.fail("a verb is loaded"))
    done = node.run("--help")
    assert done.exit_code == 0
    assert program.SUMMARIES["status"] in " ".join(done.stdout.split())


@pytest.mark.parametrize(("error", "line"), ERRORS)
def test_errors_of_a_verb_end_as_a_line(node: Node, verbs, monkeypatch, error: Exception, line: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)

    @click.command()
    def verb() -> None:
        raise error

    monkeypatch.setattr(program, "load", lambda _: verb)
    done = node.run("config")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", line)


def test_verbs_get_the_path_of_the_compiled_settings(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.pass_obj
    def verb(path: str) -> None:
        click.echo(path)

    monkeypatch.setattr(program, "load", lambda _: verb)
    assert node.run("config").stdout == f"{node.target}\n"
    assert runner().invoke(main, ["config"]).stdout == f"{settings.COMPILED_PATH}\n"


ROWS = [("a", Bytes(3 << 30), True, None, ["x", "y"]), ("b\nc", Bytes(1536 << 20), False, "", [])]
HEADERS = ("name", "free memory", "ok", "x", "l")


def test_print_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, HEADERS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "free", "memory", "ok", "x", "l"]
    assert [" ".join(line.split()) for line in lines[2:]] == ["a 3 GiB yes - x, y", "b c 1.5 GiB no - -"]


def test_print_table_as_json_keeps_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, HEADERS, "json")
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {"name": "a", "free_memory": 3 << 30, "ok": True, "x": None, "l": ["x", "y"]}


def test_print_table_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([], HEADERS)
    assert capsys.readouterr().out.splitlines()[0].startswith("name")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1 << 20, "1 MiB"), (5 << 40, "5 TiB"), (2000 << 40, "2000 TiB")],
)
def test_bytes(size: int, text: str) -> None:
    assert str(Bytes(size)) == text
