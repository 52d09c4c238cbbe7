"""The proof's own parts: its result, the specification for ctr, and the wish of a record."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_subprocess import FakeProcess

from vgpu.config import standalone
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.runtimes import verify
from vgpu.node.runtimes.registered_files import Record
from vgpu.node.runtimes.registration import Wish
from vgpu.node.runtimes.verify import FAILURE, OK, PROVEN, UNPROVEN, WARNING, WRONG, Proof, Site


@pytest.mark.parametrize(
    ("statuses", "result"), [((OK,), PROVEN), ((OK, WARNING), UNPROVEN), ((WARNING, FAILURE, OK), WRONG)]
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
    wish = Wish(config=str(path))
    assert verify.docker_host(wish) == []
    path.write_text(json.dumps({"hosts": hosts}))
    assert verify.docker_host(wish) == options


OPEN = Settings({"standalone.requests": "annotations", "standalone.key": "/nowhere"})
SHARE = {"vgpu.io/cores": "1", "vgpu.io/memory": "64Mi"}


@pytest.mark.parametrize(
    ("requests", "word", "has_key", "plain"),
    [
        ("key", "", True, False), ("annotations", "", True, False), ("annotations", "", False, True),
        ("key", "any", False, True), ("key", "any", True, False), ("annotations", "key", True, False),
    ],
)  # fmt: skip
def test_the_proof_asks_by_the_nodes_key(
    wish: Wish, tmp_path: Path, requests: str, word: str, has_key: bool, plain: bool
) -> None:
    path = str(tmp_path / "key")
    node = Settings({"standalone.requests": requests, "standalone.key": path})
    if has_key:
        standalone.write_key(path, "a" * 32)
    found = Site(replace(wish, standalone=word), Record(""), node, "").request
    assert found == (SHARE if plain else {f"vgpu.io/request-{'a' * 32}": "cores=1+memory=64Mi"})


def test_without_a_key_that_is_needed_the_proof_says_how_to_make_one(wish: Wish, tmp_path: Path) -> None:
    with pytest.raises(VgpuError, match="vgpuctl request --make-key"):
        _ = Site(wish, Record(""), Settings({"standalone.key": str(tmp_path / "key")}), "").request


@pytest.fixture
def site(wish: Wish, tmp_path: Path) -> Site:
    directory = tmp_path / "check"
    directory.mkdir()
    return Site(wish, Record(""), OPEN, str(directory))


def test_a_specification_of_the_handlers_base(tmp_path: Path) -> None:
    base = {"ociVersion": "1.0.2", "process": {"env": ["A=b"]}, "linux": {}, "hooks": {"poststop": [{"path": "/x"}]}}
    (tmp_path / "base.json").write_text(json.dumps(base))
    made = verify.specification({"base_runtime_spec": str(tmp_path / "base.json")}, "/r", ["/p"], "name", SHARE)
    assert made["hooks"] == base["hooks"]
    assert made["process"] == {"env": ["A=b"], "args": ["/p"], "terminal": False, "cwd": "/"}
    assert (made["root"], made["annotations"]) == ({"path": "/r"}, SHARE)


def test_the_root_file_system_has_one_program(site: Site) -> None:
    Path(site.wish.hook).write_text("program")
    verify._make_rootfs(site)
    files = [name for _, _, names in os.walk(site.rootfs) for name in names]
    assert files == ["vgpu-hook"]


def test_the_wish_comes_back_from_its_record(wish: Wish) -> None:
    wish = replace(wish, mode="default", name="x", share=(("cores", "1"),), settings="/s.json", standalone="any")
    options = json.loads(json.dumps(wish.options()))
    assert verify.wish_of(Record("", [], options), wish.state_dir, "/other.json") == wish


OLD = """TYPE                  ID       PLATFORMS      STATUS
io.containerd.snapshotter.v1    btrfs    linux/amd64    error
io.containerd.grpc.v1           cri      linux/amd64    {old}
io.containerd.cri.v1            runtime  linux/amd64    {new}
"""


def test_a_cri_plugin_that_did_not_start_is_found() -> None:
    assert verify.failed_cri_plugins(OLD.format(old="ok", new="ok")) == []
    assert verify.failed_cri_plugins(OLD.format(old="error", new="ok")) == ["io.containerd.grpc.v1.cri"]
    assert verify.failed_cri_plugins(OLD.format(old="ok", new="error")) == ["io.containerd.cri.v1.runtime"]
    assert verify.failed_cri_plugins("") == []


# The clients' commands


def test_podmans_commands(site: Site, fp: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify.shutil, "which", lambda name: f"/usr/bin/{name}")
    begin = ["podman", "run", "--rm", "--network=none"]
    end = ["--rootfs", site.rootfs, *verify.PROGRAM]
    fp.register([*begin, *end])
    fp.register([*begin, "--annotation=vgpu.io/cores=1", "--annotation=vgpu.io/memory=64Mi", *end], returncode=126)
    with verify._podman(Proof(), site) as command:
        assert command is not None
        assert [command(share).returncode for share in (False, True)] == [0, 126]


DUMP = """version = 3
[grpc]
address = "/run/other.sock"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.vgpu]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.vgpu.options]
BinaryName = "/usr/bin/vgpu-runtime"
"""


def test_containerds_commands(site: Site, fp: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first container runs by the handler's program; the second one hangs, and nothing of it is left."""
    monkeypatch.setattr(verify.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(verify, "_daemon_start", lambda address: 1.0 if address == "/run/other.sock" else None)
    spec = {"ociVersion": "1.0.2", "process": {}, "root": {}, "mounts": [], "linux": {}}
    names = [f"vgpu-check-{os.getpid()}-{kind}" for kind in ("plain", "share")]
    client = ["ctr", "--address", "/run/other.sock", "--namespace", "vgpu-check"]

    def hang(_: object) -> None:
        raise subprocess.TimeoutExpired(client, verify.TIMEOUT)

    def started(name: str) -> list[str]:
        options = ["--runc-binary", "/usr/bin/vgpu-runtime", "--config", f"{site.directory}/{name}.json"]
        return [*client, "run", "--rm", "--null-io", *options, name]

    fp.register(["containerd", "--config", site.wish.config, "config", "dump"], stdout=DUMP)
    fp.register([*client, "plugins", "ls"], stdout=OLD.format(old="ok", new="error"))
    fp.register(["ctr", "oci", "spec"], stdout=json.dumps(spec), occurrences=2)
    fp.register(started(names[0]))
    fp.register(started(names[1]), callback=hang)
    cleared = [["tasks", "rm", "--force", names[1]], ["containers", "rm", names[1]]]
    for words in (*cleared, ["namespaces", "remove", "vgpu-check"]):
        fp.register([*client, *words])
    found = Proof()
    with verify._containerd(found, site) as command:
        assert command is not None
        assert [command(share).returncode for share in (False, True)] == [0, verify.TIMED_OUT]
    assert [status for status, _ in found.steps] == [FAILURE], "the CRI plugin that did not start"
    for words in cleared:
        assert fp.call_count([*client, *words]) == 1


def test_a_docker_that_imports_nothing(site: Site, fp: FakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify.shutil, "which", lambda name: f"/usr/bin/{name}")
    os.makedirs(site.rootfs)
    archive = f"{site.directory}/rootfs.tar"
    fp.register(["docker", "version"])
    fp.register(["docker", "import", archive, fp.any()], returncode=1, stderr="Error: no space left on device\n")
    found = Proof()
    with verify._docker(found, site) as command:
        assert command is None
    assert found.steps == [(WARNING, "docker import gives no image: Error: no space left on device")]
