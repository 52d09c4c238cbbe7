"""`vgpuctl runtime` through click: what it prints, what it runs, and its exit status."""

from __future__ import annotations

import errno
import json
import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pytest_subprocess import FakeProcess

from vgpu.config import records, settings, standalone
from vgpu.config.settings import Settings
from vgpu.node.ctl.runtime import runtime
from vgpu.node.doctor import cdi_devices as doctor_cdi
from vgpu.node.runtimes import registered_files, verify


class Node:
    """A node whose programs, settings and daemon.json are below one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.daemon = path / "daemon.json"
        self.settings = str(path / "config.json")
        values = {"paths.state": str(path / "state"), "paths.run": str(path / "run"),
                  "standalone.key": str(path / "standalone.key")}  # fmt: skip
        standalone.write_key(values["standalone.key"], "a" * 32)
        records.write(self.settings, Settings(values).record())
        (path / "bin").mkdir()
        for name in ("vgpu-hook", "vgpu-runtime"):
            (path / "bin" / name).touch(0o755)

    def call(self, verb: str, *arguments: str) -> Result:
        places = ["--config", str(self.daemon), "--programs", str(self.path / "bin")] if verb == "configure" else []
        return CliRunner().invoke(runtime, [verb, "--runtime", "docker", *places, *arguments], obj=self.settings)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    return Node(tmp_path)


def test_configure_says_what_it_did_and_what_to_run(node: Node) -> None:
    node.daemon.write_text("{}\n")
    done = node.call("configure")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == f"written: {node.daemon}"
    assert lines[1].startswith("backup: ")
    assert lines[2].startswith("applies to: containers that docker run --runtime vgpu creates")
    assert lines[-1] == "now run: systemctl reload docker"
    again = node.call("configure")
    assert again.output.splitlines()[0] == "docker: configured already; nothing changed"
    assert "now run" not in again.output
    undone = node.call("unconfigure")
    assert undone.output.splitlines() == [f"written: {node.daemon}", "now run: systemctl reload docker"]
    assert node.daemon.read_text() == "{}\n"
    assert node.call("unconfigure").output == "docker: not configured; nothing changed\n"


def test_the_undo_of_a_default_runtime_needs_more_than_a_reload(node: Node) -> None:
    """dockerd keeps its default runtime where a reloaded file names none any more."""
    assert node.call("configure", "--mode", "default").output.splitlines()[-1] == "now run: systemctl reload docker"
    assert node.call("configure").output.splitlines()[-1] == "now run: systemctl restart docker"
    assert node.call("unconfigure").output.splitlines()[-1] == "now run: systemctl reload docker"
    node.call("configure", "--mode", "default")
    assert node.call("unconfigure").output.splitlines()[-1] == "now run: systemctl restart docker"
    node.daemon.write_text('{"default-runtime": "runc"}')
    node.call("configure", "--mode", "default")
    assert node.call("unconfigure").output.splitlines()[-1] == "now run: systemctl reload docker"


def test_a_dry_run_prints_a_diff(node: Node) -> None:
    done = node.call("configure", "--dry-run")
    assert done.output.startswith(f"--- /dev/null\n+++ {node.daemon}\n@@ ")
    assert not node.daemon.exists()
    assert not (node.path / "state").exists()
    node.call("configure")
    assert node.call("configure", "--dry-run").output == "docker: nothing to change\n"
    text = node.daemon.read_text()
    assert node.call("unconfigure", "--dry-run").output.startswith(f"--- {node.daemon}\n+++ /dev/null\n")
    assert node.daemon.read_text() == text


def test_json_says_the_same(node: Node, fp: FakeProcess) -> None:
    node.daemon.write_text("{}\n")
    files = [{"path": str(node.daemon), "action": "written"}]
    planned = json.loads(node.call("configure", "--dry-run", "--output", "json").stdout)
    assert (planned["dry_run"], planned["changed"], planned["files"], planned["backups"]) == (True, True, files, [])
    assert planned["diff"] == node.call("configure", "--dry-run").output
    done = json.loads(node.call("configure", "--output", "json").stdout)
    assert (done["files"], done["diff"], done["restarted"]) == (files, planned["diff"], False)
    assert done["restart"] == ["systemctl", "reload", "docker"]
    assert [Path(path).read_text() for path in done["backups"]] == ["{}\n"]
    again = json.loads(node.call("configure", "--output", "json").stdout)
    assert (again["changed"], again["files"], again["diff"], again["restart"]) == (False, [], "", [])
    fp.register(["systemctl", "reload", "docker"])
    undone = json.loads(node.call("unconfigure", "--restart", "--output", "json").stdout)
    assert (undone["files"], undone["backups"], undone["restarted"]) == (files, [], True)


@pytest.mark.parametrize(("status", "exit_code"), [(0, 0), (1, 1)])
def test_the_daemon_is_reloaded_if_asked(node: Node, fp: FakeProcess, status: int, exit_code: int) -> None:
    fp.register(["systemctl", "reload", "docker"], returncode=status, stderr="Unit docker.service not found.")
    done = node.call("configure", "--restart")
    assert fp.call_count(["systemctl", "reload", "docker"]) == 1
    if exit_code == 0:
        assert done.output.splitlines()[-1] == "done: systemctl reload docker"
    else:
        assert "Unit docker.service not found." in str(done.exception)
        assert node.daemon.exists(), "the file is right, and the error says so"
        assert f"written: {node.daemon}" in done.output


def test_a_node_without_systemd(node: Node, fp: FakeProcess) -> None:
    def missing(_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "systemctl")

    fp.register(["systemctl", "reload", "docker"], callback=missing)
    done = node.call("configure", "--restart")
    assert "systemctl reload docker: expected a program, found No such file" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--share", "cores"), "--share: expected KEY=VALUE"),
        (("--share", "core=30", "--share", "memory=8Gi"), "found core; did you mean cores?"),
        (("--share", "cores=30", "--share", "core-limt=50"), "found core-limt; did you mean core-limit?"),
        (("--share", "cores=30"), "vgpu.io/memory: expected vgpu.io/memory beside vgpu.io/cores=30"),
        (("--share", "cores=30", "--share", "memory=lots"), "vgpu.io/memory: expected a size such as 2Gi"),
        (("--programs", "/nowhere"), "/nowhere/vgpu-hook: expected vgpu's program, found none"),
        (("--mode", "base-spec"), "--mode base-spec: expected handler or default"),
        (("--runtime", "podman", "--share", "cores=1"), "--share: expected --runtime docker"),
    ],
)
def test_what_is_refused(node: Node, arguments: tuple[str, ...], line: str) -> None:
    done = node.call("configure", *arguments)
    assert line in str(done.exception)
    assert not node.daemon.exists()


def test_only_root(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in ("configure", "unconfigure", "check"):
        assert str(node.call(verb).exception) == "vgpuctl runtime: expected root, found uid 1000; run as root"


def test_check_of_what_is_not_configured_or_damaged(node: Node) -> None:
    done = node.call("check", "--output", "json")
    assert done.exit_code == 1
    assert json.loads(done.output)["steps"][0][1].endswith("vgpuctl runtime configure --runtime docker")
    options = ["--mode", "default", "--share", "cores=30", "--share", "memory=8Gi", "--standalone", "any"]
    node.call("configure", *options)
    node.daemon.write_text("{}")
    done = node.call("check")
    assert done.exit_code == 1
    assert f"failure: {node.daemon} is not as configured" in done.output
    program, *words = shlex.split(done.output.split("is not as configured: ")[1].split(" (--dry-run")[0])
    assert (program, words[:3]) == ("vgpuctl", ["--config", node.settings, "runtime"])
    assert CliRunner().invoke(runtime, words[3:], obj=node.settings).exit_code == 0
    assert node.call("configure", *options).output.startswith("docker: configured already; nothing changed\n")


def test_check_without_a_runtime_proves_the_files_alone(node: Node) -> None:
    node.call("configure")
    done = node.call("check")
    assert done.exit_code == 3
    assert done.output.splitlines()[0] == f"ok: files: {node.daemon}"
    assert done.output.splitlines()[-1] == "not proven: no Docker answers here: no container was started"


def test_check_names_a_program_that_is_gone(node: Node) -> None:
    node.call("configure")
    (node.path / "bin/vgpu-runtime").unlink()
    done = node.call("check")
    assert done.exit_code == 1
    assert "vgpu-runtime: expected vgpu's program, found none" in done.output


# The containers of the proof


@pytest.mark.parametrize(
    ("plain", "share", "logged", "result"),
    [
        ((0, ""), (0, ""), "", verify.PROVEN),
        ((0, ""), (0, ""), None, verify.WRONG),
        ((1, "docker: Error: unknown runtime\nSee 'docker run --help'."), (0, ""), "", verify.WRONG),
        ((0, ""), (125, "x: stderr: vgpu-hook: allocation: no room"), None, verify.UNPROVEN),
        ((0, ""), (1, "crun: error executing hook"), "no room", verify.UNPROVEN),
        ((0, ""), (1, "no such image"), None, verify.WRONG),
    ],
)
def test_what_two_containers_prove(
    node: Node, fp: FakeProcess, monkeypatch: pytest.MonkeyPatch, plain: tuple[int, str], share: tuple[int, str],
    logged: str | None, result: str,
) -> None:  # fmt: skip
    node.call("configure")
    monkeypatch.setattr(verify.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "docker" else None)
    log = node.path / "run/hook.log"
    log.parent.mkdir()
    fp.register(["docker", "version"])
    fp.register(["docker", "import", fp.any()])
    fp.register(["docker", "run", "--help"], stdout="--annotation map")
    fp.register(["docker", "run", "--rm", fp.any()], returncode=plain[0], stderr=plain[1])
    fp.register(["docker", "run", "--rm", fp.any()], returncode=share[0], stderr=share[1])
    fp.register(["docker", "rmi", fp.any()])
    reads = iter(["", json.dumps({"stage": "createRuntime", "error": logged}) if logged is not None else ""])
    real = registered_files.read

    def read(path: str) -> str | None:
        return next(reads) if path == str(log) else real(path)

    monkeypatch.setattr(verify.registered_files, "read", read)
    done = node.call("check", "--output", "json")
    found = json.loads(done.output)
    assert found["result"] == result, found
    assert done.exit_code == {verify.PROVEN: 0, verify.WRONG: 1, verify.UNPROVEN: 3}[result]


# Beside CDI


def crio(node: Node, *arguments: str) -> Result:
    places = ["--config", str(node.path / "hooks.d"), "--programs", str(node.path / "bin")]
    return CliRunner().invoke(runtime, ["configure", "--runtime", "crio", *places, *arguments], obj=node.settings)


@pytest.fixture
def specifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CDI specifications that define vgpu's device, in the place of this machine's."""
    found: list[str] = []
    monkeypatch.setattr(doctor_cdi, "defined", lambda _: found)
    return found


@pytest.mark.parametrize("by", ["setting", "specification"])
def test_kubelets_runtime_is_not_registered_beside_cdi(node: Node, specifications: list[str], by: str) -> None:
    """Or each container with a share would start the hook twice. What decides is what is found, not what was typed."""
    if by == "setting":
        values = {**settings.read(node.settings)._values, "plugin.cdi": True}
        records.write(node.settings, Settings(values).record())
        why = "plugin.cdi: true"
    else:
        specifications.append("/etc/cdi/vgpu.json")
        why = "/etc/cdi/vgpu.json"
    for arguments in ((), ("--dry-run",)):
        refused = crio(node, *arguments)
        assert refused.exit_code == 1
        text = str(refused.exception)
        assert text.startswith(f"vgpuctl runtime configure: expected a node without CDI, found {why}")
        assert "vgpuctl cdi remove" in text and "--force" in text
        assert not (node.path / "hooks.d").exists()
    forced = crio(node, "--force")
    assert forced.exit_code == 0, forced.output
    assert list((node.path / "hooks.d").iterdir())


def test_other_runtimes_are_registered_beside_cdi(node: Node, specifications: list[str]) -> None:
    """podman's and Docker's containers are not kubelet's."""
    specifications.append("/etc/cdi/vgpu.json")
    assert node.call("configure").exit_code == 0


def test_without_cdi_nothing_is_asked(node: Node, specifications: list[str]) -> None:
    assert crio(node).exit_code == 0
