"""The proof's own parts: its result, the specification for ctr, and the wish of a record."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vgpu.node.runtimes import proof
from vgpu.node.runtimes.edits import Record
from vgpu.node.runtimes.proof import FAILURE, OK, PROVEN, UNPROVEN, WARNING, WRONG, Proof, Site
from vgpu.node.runtimes.registration import Wish


@pytest.mark.parametrize(
    ("statuses", "result"),
    [((OK,), PROVEN), ((OK, WARNING), UNPROVEN), ((WARNING, FAILURE, OK), WRONG)],
)
def test_result(statuses: tuple[str, ...], result: str) -> None:
    assert Proof([(status, "") for status in statuses]).result == result


@pytest.mark.parametrize(
    ("hosts", "options"),
    [
        (["fd://", "unix:///run/d.sock"], ["--host", "unix:///run/d.sock"]),
        (["fd://"], []),
        (["tcp://0.0.0.0:2376"], []),
        ("unix:///x", []),
    ],
)
def test_the_socket_of_dockers_client(tmp_path: Path, hosts: object, options: list[str]) -> None:
    path = tmp_path / "daemon.json"
    assert proof._host(str(path)) == []
    path.write_text(json.dumps({"hosts": hosts}))
    assert proof._host(str(path)) == options


@pytest.fixture
def site(wish: Wish, tmp_path: Path) -> Site:
    directory = tmp_path / "check"
    directory.mkdir()
    return Site(wish, Record(""), str(tmp_path / "hook.log"), str(directory))


@pytest.mark.parametrize("share", [True, False])
def test_a_specification_of_the_handlers_base(site: Site, tmp_path: Path, share: bool) -> None:
    base = {"ociVersion": "1.0.2", "process": {"env": ["A=b"]}, "linux": {}, "hooks": {"poststop": [{"path": "/x"}]}}
    (tmp_path / "base.json").write_text(json.dumps(base))
    path = proof._spec(site, {"base_runtime_spec": str(tmp_path / "base.json")}, "name", share)
    made: dict[str, Any] = json.loads(Path(path).read_text())
    assert made["hooks"] == base["hooks"]
    assert made["process"] == {"env": ["A=b"], "args": proof.PROGRAM, "terminal": False, "cwd": "/"}
    assert made["annotations"] == ({"vgpu.io/cores": "1", "vgpu.io/memory": "64Mi"} if share else {})


def test_the_root_file_system_has_one_program(site: Site) -> None:
    Path(site.wish.hook).write_text("program")
    proof._make_rootfs(site)
    files = [name for _, _, names in os.walk(site.rootfs) for name in names]
    assert files == ["vgpu-hook"]


def test_the_wish_comes_back_from_its_record(wish: Wish) -> None:
    wish = replace(wish, mode="default", name="x", share=(("cores", "1"),), settings="/s.json")
    options = json.loads(json.dumps(wish.options()))
    assert proof.wish_of(Record("", [], options), wish.state_dir, "/other.json") == wish


OLD = """TYPE                  ID       PLATFORMS      STATUS
io.containerd.snapshotter.v1    btrfs    linux/amd64    error
io.containerd.grpc.v1           cri      linux/amd64    {old}
io.containerd.cri.v1            runtime  linux/amd64    {new}
"""


def test_a_cri_plugin_that_did_not_start_is_found() -> None:
    assert proof.failed_cri_plugins(OLD.format(old="ok", new="ok")) == []
    assert proof.failed_cri_plugins(OLD.format(old="error", new="ok")) == ["io.containerd.grpc.v1.cri"]
    assert proof.failed_cri_plugins(OLD.format(old="ok", new="error")) == ["io.containerd.cri.v1.runtime"]
    assert proof.failed_cri_plugins("") == []
