"""A release on a host that has no Python and no C library: a container gets its share by the Python of the release.

The release is made of this machine's files, and with --long of the image vgpu-node, by the list that is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import container_site
import host_view
import image_bed
import nodes
import pytest
from checkout import BUILD
from container_site import GIB
from host_view import CURRENT, HostView

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", params=["this machine's", pytest.param("the image's", marks=pytest.mark.long)])
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    if request.param == "this machine's":
        return host_view.release_of_this_machine(directory / "release")
    return host_view.release_of_image(image_bed.build(directory, "node")["node"], directory / "release")


@pytest.fixture
def host(release: Path, tmp_path: Path) -> HostView:
    (tmp_path / "seen").mkdir()
    return HostView(tmp_path / "host", release, tmp_path / "seen", BUILD / "lib")


@pytest.fixture
def site(
    host: HostView, base_trees: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[container_site.Site]:
    """A node whose inventory the release's vgpuctl takes on the host."""
    seen = tmp_path / "seen"
    node = nodes.SimulatedNode(seen / "node", "a100x2", **{"paths.libvcuda": f"{CURRENT}/usr/lib/vgpu/vcuda"})
    environment = {name: value for name, value in node.environment().items() if name.startswith("VGPU_SIM")}
    host.run(f"{CURRENT}/usr/bin/vgpuctl", "--config", str(node.config), "inventory", "refresh", **environment)
    made = container_site.Site(node, seen, base_trees)
    made.runtime.command[:0] = host.prefix
    yield made
    made.end()


def test_a_container_gets_its_share_on_a_host_without_python(host: HostView, site: container_site.Site) -> None:
    loaders = [path for path in host.root.rglob("ld-linux*") if host_view.DIRECTORY[1:] not in str(path)]
    assert (loaders, list(host.root.glob("usr/bin/*"))) == ([], [host.root / "usr/bin/busybox"])
    assert site.seen(host.hooked(site.share()))["card0.total"] == str(2 * GIB)
    assert site.node.claims() == {}


def test_vgpuctl_knows_that_it_is_of_a_release(host: HostView, site: container_site.Site) -> None:
    """The host has no file of the packages; the program is not in PATH."""
    vgpuctl = (f"{CURRENT}/usr/bin/vgpuctl", "--config", str(site.node.config))
    found = {one["check"]: one for one in json.loads(host.run(*vgpuctl, "doctor", "--output", "json"))}
    assert not [one for one in found.values() if one["status"] == "failure"]
    assert found["python"]["found"].startswith(f"{host_view.DIRECTORY}/1/usr/bin/vgpu-python 3.")
    assert found["hook"]["found"].startswith(f"{CURRENT}/usr/bin/vgpu-hook: ")
    assert re.fullmatch(r"\d+ steps planned", found["dry run"]["found"])
    assert "the pod of vgpu-node" in found["registration"]["do"] and "the pod of vgpu-node" in found["daemon"]["do"]
    plan = host.run(*vgpuctl, "explain", str(site.share().write()))
    assert f"mount {CURRENT}/usr/lib/vgpu/vcuda/libcuda.so.1 on " in plan
    refused = ("/usr/bin/busybox", "sh", "-c", '! "$@" 2>&1', "sh", *vgpuctl, "runtime")
    for verb in ("configure", "check"):
        line = host.run(*refused, verb, "--runtime", "containerd")
        assert f"found a release, {CURRENT}; runtimes call its hook by CDI" in line
    assert "written: /etc/cdi/vgpu.json" in host.run(*vgpuctl, "cdi", "generate")
    assert f'"path": "{CURRENT}/usr/bin/vgpu-hook"' in (host.root / "etc/cdi/vgpu.json").read_text()


def test_a_damaged_byte_code_file_is_one_line_that_says_what_to_do(host: HostView, site: container_site.Site) -> None:
    file = host.release() / "usr/lib/vgpu/hook.bytecode"
    file.write_bytes(file.read_bytes()[:-1])
    line = site.refused(host.hooked(site.share()))
    assert line.startswith(
        f"import of vgpu.hook.main from {host_view.DIRECTORY}/1/usr/lib/vgpu/hook.bytecode: expected"
    )
    assert line.endswith("; install this release of vgpu again: delete the pod of vgpu-node on this node")
