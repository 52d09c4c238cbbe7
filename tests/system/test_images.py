"""The container images, built from Debian's packages without a registry, and run by podman as Kubernetes would.

Each container has the user of its image, no capability, and a root file system that it cannot write. What a program
needs of the node is mounted, and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import daemons
import image_bed
import nodes
import pytest
from checkout import CHECKOUT
from daemons import wait_for
from fake_apiserver import FakeApiServer
from image_bed import NAMES, VERSION, Container, ImageBed
from kubelet_devices import DeviceManager

pytestmark = pytest.mark.root

GROUP = 65532
CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def exporter_archive(directory: Path) -> Path:
    return image_bed.build(directory, "exporter")["exporter"]


@pytest.fixture(scope="module")
def bed(exporter_archive: Path) -> Iterator[ImageBed]:
    """podman with the exporter's image."""
    made = ImageBed()
    made.load(exporter_archive)
    yield made
    made.cleanup()


@pytest.fixture(scope="module")
def others(bed: ImageBed, directory: Path) -> dict[str, Path]:
    """The other images, which `bed` has besides."""
    built = image_bed.build(directory / "others", "node", "extender")
    for archive in built.values():
        bed.load(archive)
    return built


@pytest.fixture
def node() -> Iterator[nodes.SimulatedNode]:
    """Below a short path: a socket's is at most 107 characters long."""
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:
        directory = Path(name)
        made = nodes.SimulatedNode(
            directory, "a100x2",
            **{
                "metrics.group": GROUP, "metrics.listen": "", "plugin.http": "", "kubernetes.api": "never",
                "plugin.socket_dir": str(directory / "kubelet"),
                "plugin.pod_resources_socket": str(directory / "pod-resources/kubelet.sock"),
            },
        )  # fmt: skip
        made.take_inventory()
        yield made


def image(name: str) -> str:
    return f"localhost/{NAMES[name]}:{VERSION}"


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def answer(container: Container, url: str) -> tuple[int, str]:
    """(status, body) of an answer, as soon as somebody listens."""

    def found() -> tuple[int, str] | None:
        assert container.process.poll() is None, container.text()
        try:
            with urllib.request.urlopen(url, timeout=20) as got:
                return got.status, got.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return None

    return wait_for(found, 60, container.text)  # type: ignore[no-any-return]


def credentials(bed: ImageBed, container: Container) -> dict[str, str]:
    """Lines of the first process' /proc/<pid>/status."""
    pid = bed.call("inspect", "--format", "{{.State.Pid}}", container.name).stdout.strip()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def check_not_root(bed: ImageBed, container: Container) -> None:
    found = credentials(bed, container)
    assert {*found["Uid"].split(), *found["Gid"].split()} == {str(GROUP)}
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0
    assert found["NoNewPrivs"] == "1"


# The exporter


def start_exporter(bed: ImageBed, node: nodes.SimulatedNode, address: str) -> Container:
    """With the two mounts of its DaemonSet."""
    metrics, state = f"{node.settings.run_dir}/metrics", str(node.config)
    mounts = ("--network=host", f"--volume={metrics}:{metrics}", f"--volume={state}:/settings.json:ro")
    return bed.start(*mounts, image("exporter"), "vgpu-exporter", "--config", "/settings.json", "--listen", address)


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(node).start().ready()
    wait_for(lambda: os.path.exists(f"{node.settings.run_dir}/metrics/round.json"))
    yield made
    made.kill()


def test_the_exporter_answers_without_root(bed: ImageBed, node: nodes.SimulatedNode, daemon: daemons.Daemon) -> None:
    address = free_address()
    container = start_exporter(bed, node, address)
    status, body = answer(container, f"http://{address}/metrics")
    assert status == 200
    check_not_root(bed, container)
    assert re.search(r"^vgpu_vgpud_up(\{.*\})? 1(\.0)?$", body, re.M), body[:2000]
    assert set(re.findall(r'uuid="([^"]*)"', body)) == {str(card["uuid"]) for card in node.read_cards()}
    assert json.loads(answer(container, f"http://{address}/version")[1]) == {"version": VERSION}
    assert container.end() == 0, container.text()


def test_without_the_group_the_exporter_says_what_it_may_not_open(
    bed: ImageBed, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    daemon.kill()
    node.settings._values["metrics.group"] = 0
    node.write_settings()
    lock = Path(node.settings.run_dir, "metrics/exporter.lock")
    daemon.start().ready()
    wait_for(lambda: lock.stat().st_gid == 0, what=daemon.text)
    container = start_exporter(bed, node, free_address())
    expected = f"waiting: {lock}: expected a file to lock, found Permission denied"
    wait_for(lambda: expected in container.text(), 60, container.text)
    assert "metrics.group" in container.text()
    container.end()


# What is in an image


def members(archive: Path) -> dict[str, tarfile.TarInfo]:
    """path -> the entry of the image's one layer."""
    with tarfile.open(archive) as outer:
        index = json.load(outer.extractfile("index.json"))  # type: ignore[arg-type]
        (entry,) = index["manifests"]
        manifest = json.load(outer.extractfile(blob(entry["digest"])))  # type: ignore[arg-type]
        (layer,) = manifest["layers"]
        with tarfile.open(fileobj=outer.extractfile(blob(layer["digest"])), mode="r:*") as inner:
            return {member.name.strip("./"): member for member in inner}


def blob(name: str) -> str:
    return "blobs/" + name.replace(":", "/")


def digest(archive: Path) -> str:
    """Of the image. The archive's own entries have the time of the build."""
    with tarfile.open(archive) as outer:
        (entry,) = json.load(outer.extractfile("index.json"))["manifests"]  # type: ignore[arg-type]
        return str(entry["digest"])


def check_content(archive: Path) -> None:
    """Nothing to install with, no program that gives rights, nothing that others may write; and the bill."""
    found = members(archive)
    programs = {Path(name).name for name in found if Path(name).parent.name in ("bin", "sbin")}
    assert "python3" in programs
    assert not {"pip", "pip3", "dpkg", "apt", "apt-get", "perl", "openssl", "tar", "bash", "mount", "su"} & programs
    assert not any(name.startswith(("usr/share/man/", "usr/share/locale/", "var/cache/")) for name in found)
    writable = {name for name, one in found.items() if one.mode & 0o022 and not one.issym()}
    assert writable <= {"tmp", "var/tmp", "run/lock", "var/lock", "var/local", "var/mail", "var/log"}
    assert [name for name, one in found.items() if one.mode & 0o6000 and one.isfile()] == []
    assert {(one.uid, one.gid) for one in found.values() if one.isfile()} == {(0, 0)}
    assert not any(one.isdev() for one in found.values())
    assert "usr/share/vgpu/sbom.cdx.json" in found
    bill = json.loads(next(archive.parent.glob(f"{archive.name.split('-0')[0]}.cdx.json")).read_text())
    parts = {one["name"] for one in bill["components"]}
    records = {name.rpartition("/")[2] for name in found if name.startswith("var/lib/dpkg/status.d/")}
    metadata = {name.split("/")[-2] for name in found if re.search(r"usr/lib/vgpu/python/[^/]*/METADATA$", name)}
    assert {"libc6", "python3.11", "python3-aiohttp"} <= records <= parts
    wheels = {one["name"] for one in bill["components"] if not one["purl"].startswith("pkg:deb/")}
    assert len(metadata) == len(wheels) == len(parts - records)
    assert "vgpu" in wheels


def test_the_exporters_image_has_what_it_needs_and_its_bill(exporter_archive: Path) -> None:
    check_content(exporter_archive)


def test_every_library_that_a_file_needs_is_there(bed: ImageBed, exporter_archive: Path) -> None:
    check_libraries(bed, "exporter")


#: Loads every extension module of Python's own library and of the packages, which the linker resolves. libvcuda is for
#: containers that have a driver.
LOAD = """
import ctypes, pathlib, sys
found = [path for top in ("/usr/lib", "/lib") for path in pathlib.Path(top).rglob("*.so*")
         if path.is_file() and b"\\x7fELF" == path.open("rb").read(4) and path.parent.name != "vcuda"]
bad = []
for path in found:
    try:
        ctypes.CDLL(str(path), mode=0x101)
    except OSError as error:
        bad.append(str(error))
print(len(found), [text for text in bad if "cannot open shared object" in text])
"""


def check_libraries(bed: ImageBed, name: str) -> None:
    count, missing = bed.run(image(name), "python3", "-c", LOAD).strip().split(" ", 1)
    assert int(count) > 50
    assert missing == "[]"


# All of them


@pytest.mark.long
def test_every_image_has_what_it_needs(bed: ImageBed, others: dict[str, Path]) -> None:
    for name, archive in others.items():
        check_content(archive)
        check_libraries(bed, name)


@pytest.mark.long
def test_two_builds_give_the_same_image(exporter_archive: Path, tmp_path: Path) -> None:
    again = image_bed.build(tmp_path, "exporter")["exporter"]
    assert digest(again) == digest(exporter_archive)


@pytest.mark.long
def test_the_extender_answers_without_root(bed: ImageBed, others: dict[str, Path], tmp_path: Path) -> None:
    with FakeApiServer() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        os.chmod(kubeconfig, 0o644)
        address = free_address()
        container = bed.start(
            "--network=host", f"--volume={kubeconfig}:/kubeconfig:ro", image("extender"), "vgpu-scheduler-extender",
            "--kubeconfig=/kubeconfig", f"--address={address}",
        )  # fmt: skip
        assert answer(container, f"http://{address}/healthz")[0] == 200
        wait_for(lambda: answer(container, f"http://{address}/readyz")[0] == 200, 60, container.text)
        check_not_root(bed, container)
        assert container.end() == 0, container.text()


@pytest.mark.long
def test_the_plugin_serves_kubelet(bed: ImageBed, others: dict[str, Path], node: nodes.SimulatedNode) -> None:
    """As the DaemonSet starts it: a container compiles the settings, then the plugin has the host's pids."""
    source = node.directory / "config.yaml"
    paths = "\n".join(f"  {key}: {node.directory / key}" for key in ("state", "run"))
    mount = f"--volume={node.directory}:{node.directory}"
    compiled = node.directory / "compiled.json"
    source.write_text(f"paths:\n{paths}\n")
    bed.run(mount, image("node"), "vgpuctl", "--config", str(compiled), "config", "apply", str(source))
    assert json.loads(compiled.read_text())
    manager = DeviceManager(node.directory / "kubelet", set).start()
    try:
        container = bed.start(
            "--pid=host", "--network=host", mount, image("node"), "vgpu-device-plugin", "--config", str(node.config)
        )
        offered = {CORES: 200, MEMORY: 314}
        wait_for(lambda: manager.allocatable() == offered, 60, lambda: f"{manager.allocatable()} {container.text()}")
        assert credentials(bed, container)["Uid"].split() == ["0"] * 4
        assert container.end() == 0, container.text()
    finally:
        manager.stop()


def test_the_build_names_an_image_that_it_does_not_know() -> None:
    done = subprocess.run(
        [CHECKOUT / "packaging/image/build", "nothing"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "packaging/image/build: expected an image (node exporter extender), found nothing\n"
