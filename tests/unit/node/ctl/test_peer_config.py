"""`vgpuctl config import`: nodeConfig of gpu-manager's fork and of HAMi, from their documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from vgpu.config import compiler
from vgpu.config.errors import VgpuError
from vgpu.node.ctl import peer_config
from vgpu.node.ctl.config import config

FORK = """
{
    "nodeConfig": [
        {
            "name": "k8s01", ## the node
            "deviceMemoryScaling": 0.5, ## half of the memory
            "containerRuntimeEndpoint": "/var/run/containerd/containerd.sock", ## detected
            "cgroupDriver": "systemd" ## systemd, cgroupfs
        },{
            "name": "k8s02",
            "deviceMemoryScaling": 1,
            "cgroupDriver": "systemd"
        }
    ]
}
"""
FORK_MAP = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: gpu-manager-config\ndata:\n  config.json: |\n"
    + "\n".join("    " + line for line in FORK.splitlines())
)
HAMI = json.dumps(
    {
        "nodeconfig": [
            {
                "name": "node-a", "operatingmode": "hami-core", "devicememoryscaling": 1.8, "devicecorescaling": 2,
                "devicesplitcount": 10, "migstrategy": "none", "filterdevices": {"uuid": [], "index": [0]},
            }
        ]
    }
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "theirs.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(config, ["import", *arguments])


@pytest.mark.parametrize("text", [FORK, FORK_MAP])
def test_the_forks(source: Path, text: str) -> None:
    source.write_text(text)
    done = run(str(source))
    assert done.exit_code == 0
    assert yaml.safe_load(done.output) == {
        "nodes": {"k8s01": {"scaling": {"memory": 0.5}}, "k8s02": {"scaling": {"memory": 1.0}}}
    }
    assert "# Left out: cgroupDriver (k8s01, k8s02): vgpu reads it from each container's cgroup" in done.output
    assert "# Left out: containerRuntimeEndpoint (k8s01): the runtime calls the hook" in done.output


def test_hamis(source: Path) -> None:
    source.write_text(HAMI)
    done = run(str(source))
    assert yaml.safe_load(done.output) == {
        "nodes": {"node-a": {"scaling": {"memory": 1.8, "cores": 2.0}, "resources": {"split_count": 10}}}
    }
    for key in ("operatingmode", "migstrategy", "filterdevices"):
        assert f"# Left out: {key} (node-a): " in done.output
    assert "resources.mode: gpu" in done.output


def test_into_a_configuration_that_is_there(source: Path, tmp_path: Path) -> None:
    source.write_text(FORK)
    target = tmp_path / "config.yaml"
    target.write_text("# ours\nplacement:\n  policy: spread")
    done = run(str(source), "--into", str(target))
    assert done.exit_code == 0
    assert target.read_text().startswith("# ours\nplacement:\n  policy: spread\n\n# From theirs.json: 2 nodes.\n")
    made = compiler.compile_source(str(target), "k8s01").settings
    assert (made.number("scaling.memory"), made.text("placement.policy")) == (0.5, "spread")
    assert compiler.compile_source(str(target), "k8s02").settings.number("scaling.memory") == 1.0
    with pytest.raises(VgpuError, match="expected a file without a section nodes:"):
        peer_config.add("nodes:\n  x:\n", str(target), "n")


def test_into_a_new_configuration(source: Path, tmp_path: Path) -> None:
    source.write_text(HAMI)
    assert run(str(source), "--into", str(tmp_path / "new.yaml")).exit_code == 0
    assert compiler.compile_source(str(tmp_path / "new.yaml"), "node-a").settings["resources.split_count"] == 10


@pytest.mark.parametrize("scaling", ["0", "-1", "1e9"])
def test_what_would_be_wrong_is_not_written(source: Path, tmp_path: Path, scaling: str) -> None:
    source.write_text(FORK.replace("0.5", scaling))
    target = tmp_path / "config.yaml"
    target.write_text("# ours\n")
    done = run(str(source), "--into", str(target))
    assert isinstance(done.exception, VgpuError)
    assert str(target) in str(done.exception) or "entry 1" in str(done.exception)
    assert target.read_text() == "# ours\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a list under nodeConfig"),
        ("[]", "a list under nodeConfig"),
        ("5", "a list under nodeConfig"),
        ("{", "expected JSON or YAML"),
        ("\0", "expected JSON or YAML"),
        ('{"nodeConfig": {}}', "a list under nodeConfig"),
        ('{"nodeConfig": [5]}', "entry 1: expected a node's name"),
        ('{"nodeConfig": [{}]}', "entry 1: expected a node's name"),
        ('{"nodeConfig": [{"name": "a"}, {"name": "a"}]}', "entry 2: expected a node's name, once each"),
        ('{"nodeConfig": [{"name": "a", "deviceMemoryScaling": "x"}]}', r"entry 1 \(a\): deviceMemoryScaling"),
        ('{"nodeConfig": [{"name": "a", "deviceMemoryScaling": true}]}', "expected a number"),
        ('{"nodeconfig": [{"name": "a", "devicesplitcount": 1.5}]}', "expected a whole number"),
        ('{"data": {"config.json": 5}}', "a list under nodeConfig"),
        ('{"data": {"other": "x"}}', "a list under nodeConfig"),
    ],
)
def test_what_is_none_is_one_line(source: Path, text: str, words: str) -> None:
    source.write_text(text)
    with pytest.raises(VgpuError, match=words) as caught:
        peer_config.read(str(source))
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match="expected a file to read"):
        peer_config.read(str(tmp_path / "none"))


def test_keys_that_nobody_knows_are_named(source: Path) -> None:
    source.write_text('{"nodeConfig": [{"name": "a", "colour": "red"}]}')
    assert peer_config.notes(peer_config.read(str(source))) == ["colour (a): vgpu does not know this key"]
