"""`vgpuctl runtime` with real runtimes: configure, a share and a plain container, check, unconfigure.

The files of each runtime are to the byte as they were before. containerd is called over CRI as kubelet calls it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import docker_bed
import nodes
import podman_bed
import pytest
import suites
from container_site import GIB, INFO, copied, pairs
from cri_client import CriError
from daemons import wait_for
from runtime_clients import allocate

from vgpu.node.runtimes import verify

pytestmark = pytest.mark.root

MODES = ("handler", "default", "base-spec")
LOOK = "cudaprobe info; ls /dev; grep 'open files' /proc/self/limits"
SHARE = {"cores": "30", "memory": "1Gi"}


#: The machine's crun 1.8 refuses the versions of the specification that newer containerds and Docker write.
CRUN_LIBRARIES = (
    "libseccomp2", "libsystemd0", "libcap2", "libyajl2", "libgcrypt20", "liblzma5", "liblz4-1", "libzstd1",
    "libgpg-error0",
)  # fmt: skip


def newer_crun() -> str:
    return str(suites.with_libraries("trixie", "crun", "usr/bin/crun", CRUN_LIBRARIES))


@pytest.fixture
def bed(
    request: pytest.FixtureRequest, node: nodes.SimulatedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[containerd_bed.Unregistered]:
    version = getattr(request, "param", "1.6")
    programs = containerd_bed.programs(version)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    made = containerd_bed.Unregistered(tmp_path / "bed", programs, node)
    assert made.version.startswith(version)
    yield made
    made.stop()


def vgpuctl(node: nodes.SimulatedNode, *arguments: str, status: int = 0) -> str:
    """`vgpuctl runtime`, with the programs of the build."""
    places = ("--programs", str(node.hook.parent)) if arguments[0] == "configure" else ()
    done = node.vgpuctl("runtime", *arguments, *places, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def run(pod: containerd_bed.Pod, **fields: Any) -> str:
    container = pod.create(["sh", "-c", LOOK], **fields)
    pod.start(container)
    status, output = pod.wait(container)
    assert status == 0, output
    return output


def cells() -> list[Any]:
    """containerd 1.6 in every run, the others in the long one; the default handler is the same program, so long too."""
    short = {("1.6", "handler"), ("1.6", "base-spec")}
    marks = {
        cell: () if cell in short else (pytest.mark.long,) for cell in itertools.product(containerd_bed.SUITES, MODES)
    }
    return [pytest.param(*cell, id="-".join(cell), marks=mark) for cell, mark in marks.items()]


@pytest.mark.parametrize(("bed", "mode"), cells(), indirect=["bed"])
def test_containerd(bed: containerd_bed.Unregistered, mode: str, image: Path) -> None:
    configured_used_and_undone(bed, mode, image)


@pytest.mark.long
@pytest.mark.parametrize(("bed", "mode"), cells(), indirect=["bed"])
def test_containerd_with_crun(bed: containerd_bed.Unregistered, mode: str, image: Path) -> None:
    """The handler runc calls crun, which stays the program behind the shim."""
    bed.program = "/usr/bin/crun" if bed.version.startswith("1.6") else newer_crun()
    bed.prefix = podman_bed.V1_ONLY
    configured_used_and_undone(bed, mode, image)


def configured_used_and_undone(bed: containerd_bed.Unregistered, mode: str, image: Path) -> None:
    node, config = bed.node, bed.directory / "config.toml"

    def prepare(path: Path) -> None:
        words = ("configure", "--runtime", "containerd", "--config", str(path), "--mode", mode)
        vgpuctl(node, *words)
        assert "nothing changed" in vgpuctl(node, *words)

    bed.prepare = prepare
    bed.start(image)
    assert "a container with a share starts" in vgpuctl(node, "check", "--runtime", "containerd")
    pod = bed.pod("vgpu" if mode == "handler" else "")
    share = pairs(run(pod, annotations=allocate(node)["annotations"]))
    assert share["card0.total"] == str(GIB), "the annotations of the grants get through"
    plain = run(bed.pod(""), env={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert "nvidia" not in plain
    assert bed.process is not None
    limits = re.search(r"open files.*", Path(f"/proc/{bed.process.pid}/limits").read_text())
    assert limits is not None
    assert limits[0].split()[2:4] == pairs(plain)["Max"].split()[2:4], "a base specification sets no limit of its own"
    bed.remove_pods()
    vgpuctl(node, "unconfigure", "--runtime", "containerd")
    assert config.read_text() == bed.plain()
    assert not (bed.directory / "conf.d").exists()
    assert not (bed.directory / "vgpu-base.json").exists()
    assert files(Path(node.settings.state_dir) / "runtimes") == {}


OLD_RECIPES = {
    "a handler alone": '\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.vgpu]\n'
    'runtime_type = "io.containerd.runc.v2"\n',
    "an empty base specification": '\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    'runtime_type = "io.containerd.runc.v2"\nbase_runtime_spec = "{directory}/vgpu-base.json"\n',
}


@pytest.mark.parametrize("recipe", OLD_RECIPES.values(), ids=list(OLD_RECIPES))
def test_what_left_kubelet_without_a_runtime(
    bed: containerd_bed.Unregistered, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd 1.x drops its default handler for a file's first one, and reads no damaged base specification."""
    (bed.directory / "vgpu-base.json").touch()
    config = bed.directory / "config.toml"
    config.write_text(bed.plain() + recipe.replace("{directory}", str(bed.directory)))
    log = bed.directory / "log"
    with log.open("wb") as output:
        command = ["containerd", "--config", str(config)]
        bed.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    wait_for(lambda: "containerd successfully booted" in log.read_text(), what=log.read_text)
    assert re.search(r"failed to load plugin io.containerd.grpc.v1.cri|level=fatal.*cri", log.read_text())
    plugins = subprocess.run(
        ["ctr", "--address", str(bed.socket), "plugins", "ls"], capture_output=True, text=True, check=True
    ).stdout
    assert verify.failed_cri_plugins(plugins) == ["io.containerd.grpc.v1.cri"], "what vgpuctl runtime check looks for"


def test_a_containerd_that_was_not_restarted(bed: containerd_bed.Unregistered, image: Path) -> None:
    bed.prepare = lambda _: None
    bed.start(image)
    config = str(bed.directory / "config.toml")
    text = vgpuctl(bed.node, "configure", "--runtime", "containerd", "--config", config)
    assert "now run: systemctl restart containerd" in text
    os.utime(config, (time.time() + 60, time.time() + 60))
    text = vgpuctl(bed.node, "check", "--runtime", "containerd", status=1)
    assert "containerd runs since before" in text
    with pytest.raises(CriError, match='no runtime for "vgpu" is configured'):
        bed.pod("vgpu")
    bed.pods.clear()
    vgpuctl(bed.node, "unconfigure", "--runtime", "containerd")


@pytest.fixture
def podman(
    node: nodes.SimulatedNode, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[podman_bed.Podman]:
    """podman without hooks; the directory that containers.conf names is missing."""
    made = podman_bed.Podman(node, request.param)
    for path in made.hooks.iterdir():
        path.unlink()
    made.hooks.rmdir()
    script = tmp_path / "bin/podman"
    script.parent.mkdir()
    quoted = " ".join(f"'{word}'" for word in made.command).replace("'podman'", "/usr/bin/podman")
    script.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CONTAINERS_CONF", made.environment["CONTAINERS_CONF"])
    yield made
    made.cleanup()


@pytest.mark.parametrize("podman", ["runc", "crun"], indirect=True)
def test_podman(podman: podman_bed.Podman, base_trees: dict[str, Path], tmp_path: Path) -> None:
    node, tree, share = podman.node, copied(base_trees["debian"], tmp_path), SHARE
    assert "card0" not in podman.run(tree, *INFO, **share).stdout
    vgpuctl(node, "configure", "--runtime", "podman")
    done = podman.run(tree, *INFO, **share)
    assert pairs(done.stdout)["card0.total"] == str(GIB), done.stderr
    assert "nvidia" not in podman.run(tree, "ls", "/dev").stdout
    assert "a container with a share starts" in vgpuctl(node, "check", "--runtime", "podman")
    for path in podman.hooks.iterdir():
        path.write_text(path.read_text().replace(str(node.hook), "/nowhere/vgpu-hook"))
    done = podman.run(tree, "ls", "/dev", **share)
    assert "null" in done.stdout, "without the program podman starts a container all the same: WITHOUT_PROGRAM"
    assert "nvidia" not in done.stdout
    vgpuctl(node, "unconfigure", "--runtime", "podman")
    assert not podman.hooks.exists()
    assert files(Path(node.settings.state_dir) / "runtimes") == {}


RUNC, CRUN = "", "crun"
ANNOTATIONS = tuple(f"--annotation=vgpu.io/{key}={value}" for key, value in SHARE.items())


@pytest.fixture
def docker(
    node: nodes.SimulatedNode, request: pytest.FixtureRequest, base_trees: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[docker_bed.Docker]:  # fmt: skip
    """dockerd without vgpu. The parameter is its default runtime, or "" for Docker's own."""
    default = getattr(request, "param", RUNC)
    made = docker_bed.Docker(node)
    made.runtimes = {"default-runtime": default, "runtimes": {default: {"path": newer_crun()}}} if default else {}
    made.prefix = podman_bed.V1_ONLY if default else ()
    monkeypatch.setenv("PATH", f"{made.daemon}:{made.client.parent}:{os.environ['PATH']}")
    yield made.start(base_trees["debian"])
    made.stop()


def reload(docker: docker_bed.Docker, runtime: str) -> None:
    """What `systemctl reload docker` does."""
    assert docker.process is not None
    log = docker.directory / "log"
    before = len(log.read_text())
    docker.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "Reloaded configuration" in log.read_text()[before:], what=log.read_text)
    assert runtime in json.loads(docker.call("info", "--format", "{{json .Runtimes}}").stdout)


@pytest.mark.parametrize(
    "docker", [RUNC, pytest.param(CRUN, marks=pytest.mark.long)], indirect=True, ids=["runc", "crun"]
)
def test_docker_by_default(docker: docker_bed.Docker) -> None:
    """No container names a runtime. The default one of before is behind the shim."""
    node, config = docker.node, docker.directory / "daemon.json"
    before = config.read_bytes()
    default = json.loads(before).get("default-runtime", "runc")
    configure = ("configure", "--runtime", "docker", "--config", str(config), "--mode", "default")
    vgpuctl(node, *configure)
    assert "nothing changed" in vgpuctl(node, *configure)
    reload(docker, "vgpu")
    assert docker.call("info", "--format", "{{.DefaultRuntime}}").stdout == "vgpu\n"
    share = (*ANNOTATIONS, f"--volume={node.sim}:/run/vgpu-sim")
    places = ("run", "--rm", "--network=host")
    done = docker.call(*places, *share, docker_bed.IMAGE, *INFO)
    assert pairs(done.stdout)["card0.total"] == str(GIB), done.stderr
    done = docker.call(*places, docker_bed.IMAGE, "ls", "/dev")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout
    assert "a container with a share starts" in vgpuctl(node, "check", "--runtime", "docker")
    text = vgpuctl(node, "unconfigure", "--runtime", "docker")
    assert config.read_bytes() == before
    if default == "runc":  # which the file does not name: dockerd keeps vgpu after a reload
        assert "now run: systemctl restart docker" in text
        docker.restart()
    else:
        assert "now run: systemctl reload docker" in text
        reload(docker, default)
    assert docker.call("info", "--format", "{{.DefaultRuntime}}").stdout == f"{default}\n"
    done = docker.call(*places, *share, docker_bed.IMAGE, "ls", "/dev")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout, "nobody calls the hook any more"


def test_docker(docker: docker_bed.Docker) -> None:
    node, config = docker.node, docker.directory / "daemon.json"
    before = config.read_bytes()
    named = ("--runtime", "docker", "--config", str(config))
    vgpuctl(node, "configure", *named)
    reload(docker, "vgpu")
    done = docker.run(*INFO, options=("--rm", *ANNOTATIONS))
    assert pairs(done.stdout)["card0.total"] == str(GIB), done.stderr
    assert "nvidia" not in docker.run("ls", "/dev").stdout
    assert "a container with a share starts" in vgpuctl(node, "check", "--runtime", "docker")
    vgpuctl(node, "configure", *named, "--handler", "small", "--share", "cores=10", "--share", "memory=2Gi")
    reload(docker, "small")
    command = ("run", "--rm", "--network=host", f"--volume={node.sim}:/run/vgpu-sim", "--runtime=small")
    done = docker.call(*command, docker_bed.IMAGE, *INFO)
    assert done.returncode == 0, done.stderr
    assert pairs(done.stdout)["card0.total"] == str(2 * GIB), "for Docker before 24, which has no --annotation"
    assert "a container with a share starts" in vgpuctl(node, "check", "--runtime", "docker")
    vgpuctl(node, "unconfigure", "--runtime", "docker")
    assert config.read_bytes() == before
