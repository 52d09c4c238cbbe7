"""Finding the device cgroup in real texts of /proc: cgroup drivers, runtimes, namespaces, hybrids, nesting."""

from __future__ import annotations

import os

import pytest
from checkout import DATA

from vgpu.config.errors import VgpuError
from vgpu.hook.linux import cgroup

PROC = str(DATA / "proc")
POD = "0c9b1b2e-5a3c-4f5e-9d0b-1f6a2f0c7d11"
POD_ = POD.replace("-", "_")
ID = "3f7c2a9be0d14f6d8a51c0e7b2d94f3e6a1b8c5d7e9f0a2b4c6d8e0f1a3b5c7d"
SLICE = "/sys/fs/cgroup/kubepods.slice"


def directories(case: str, pid: int) -> list[tuple[int, str]]:
    with open(f"{PROC}/{case}/self/mountinfo") as file:
        mounts = cgroup.parse_mounts(file.read())
    found = cgroup.candidates(cgroup.memberships_of(pid, f"{PROC}/{case}"), mounts)
    return [(item.version, item.directory) for item in found]


@pytest.mark.parametrize(
    ("case", "pid", "version", "directory"),
    [
        ("v1-cgroupfs-containerd", 4711, 1, f"/sys/fs/cgroup/devices/kubepods/besteffort/pod{POD}/{ID}"),
        (
            "v1-systemd-docker", 4711, 1,
            "/sys/fs/cgroup/devices/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{POD_}.slice/docker-{ID}.scope",
        ),
        # containerd with systemd paths and a runc that was told nothing of systemd: the path is one odd name
        ("v1-colons", 4711, 1, f"/sys/fs/cgroup/devices/kubepods-besteffort-pod{POD_}.slice:cri-containerd:{ID}"),
        ("v1-nested-docker", 77, 1, f"/sys/fs/cgroup/devices/docker/{ID}"),
        ("v2-systemd-crio", 4711, 2,
         f"{SLICE}/kubepods-burstable.slice/kubepods-burstable-pod{POD_}.slice/crio-{ID}.scope"),
        ("v2-systemd-containerd", 4711, 2,
         f"{SLICE}/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_}.slice/cri-containerd-{ID}.scope"),
        ("v2-cgroupfs-containerd", 4711, 2, f"/sys/fs/cgroup/kubepods/pod{POD}/{ID}"),
        ("v2-crun-subgroup", 4711, 2, f"/sys/fs/cgroup/machine.slice/libpod-{ID}.scope/container"),
        ("v2-namespace", 77, 2, f"/sys/fs/cgroup/docker/{ID}"),
        ("v2-namespace-old-mount", 77, 2, f"/sys/fs/cgroup/docker-{ID}.scope"),
        ("hybrid", 4711, 1, "/sys/fs/cgroup/devices/demo"),
        ("hybrid-v2-only-mounted", 4711, 2, "/sys/fs/cgroup/demo"),
    ],
)  # fmt: skip
def test_the_directory_is_found(case: str, pid: int, version: int, directory: str) -> None:
    assert directories(case, pid) == [(version, directory)]


def test_a_cgroup_outside_of_our_namespace_is_not_guessed() -> None:
    assert directories("v2-namespace-outside", 77) == []
    with pytest.raises(VgpuError, match=r"run the hook in the host's cgroup namespace"):
        cgroup.device_cgroup(77, f"{PROC}/v2-namespace-outside")


def test_every_mount_of_the_hierarchy_is_a_candidate_and_its_name_is_unescaped() -> None:
    expected = [(1, "/sys/fs/cgroup old/dev\\ices/demo"), (1, "/cgroup/devices/demo")]
    assert directories("v1-odd-mounts", 4711) == expected


@pytest.mark.parametrize(
    ("case", "pid", "kubernetes"),
    [
        ("v1-cgroupfs-containerd", 4711, True),
        ("v1-systemd-docker", 4711, True),
        ("v1-colons", 4711, True),
        ("v2-systemd-crio", 4711, True),
        ("v2-crun-subgroup", 4711, False),
        ("hybrid", 4711, False),
    ],
)
def test_all_paths_of_a_process_identify_its_container(case: str, pid: int, kubernetes: bool) -> None:
    paths = cgroup.paths_of(pid, f"{PROC}/{case}")
    assert len(paths) == len(set(paths))
    assert any("kubepods" in path for path in paths) is kubernetes


def test_a_path_that_differs_by_controller_is_listed_once_each() -> None:
    assert cgroup.paths_of(4711, f"{PROC}/hybrid") == [
        "/", "/demo", "/process_api/7b9810d63f78a88d4c5198e82850f614/demo",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("root", "path", "directory"),
    [
        ("/", "/", "/m"),
        ("/", "/a/b", "/m/a/b"),
        ("/a", "/a", "/m"),
        ("/a", "/a/b", "/m/b"),
        ("/a", "/ab", None),
        ("/a/b", "/a", None),
        ("/", "/../a", None),
        ("/..", "/../a", "/m/a"),
        ("/..", "/../../a", None),
        ("/..", "/a", None),
    ],
)
def test_the_root_of_the_mount_is_subtracted(root: str, path: str, directory: str | None) -> None:
    assert cgroup.Mount(root, "/m", "cgroup2", ("rw",)).directory(path) == directory


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("/plain", "/plain"),
        (r"/a\040b\011c\012d\134e", "/a b\tc\nd\\e"),
        (r"/\303\244", "/ä"),
        (r"/end\04", r"/end\04"),
        (r"/\999", r"/\999"),
        (r"/\777", r"/\777"),
        ("/ä\\040b", "/ä b"),
    ],
)
def test_unescape(field: str, meant: str) -> None:
    assert cgroup.unescape(field) == meant


@pytest.mark.parametrize(
    "text", ["", "\n", "garbage", "x:devices:/a", "5:devices", "5:devices:relative", "\0:\0:\0", "::/"]
)
def test_lines_that_the_kernel_never_wrote_are_passed_over(text: str) -> None:
    assert cgroup.parse_cgroups(text) == []
    assert cgroup.parse_mounts(text) == []
    assert cgroup.parse_mounts(f"1 2 0:3 / - cgroup cgroup {text}") == []


def test_the_process_is_gone(tmp_path: object) -> None:
    with pytest.raises(VgpuError, match=r"/1/cgroup: cannot be read.*init is gone"):
        cgroup.device_cgroup(1, str(tmp_path))


def test_a_mount_that_a_later_one_hides_is_passed_over(tmp_path: object) -> None:
    base = str(tmp_path)
    mounts = [f"31 26 0:40 / {base}/{point} rw - cgroup cgroup rw,devices\n" for point in ("hidden", "seen")]
    for name in ("hidden/demo", "seen/demo", "proc/7", "proc/self"):
        os.makedirs(f"{base}/{name}")
    for name, text in (
        ("seen/demo/devices.allow", ""),
        ("proc/7/cgroup", "5:devices:/demo\n"),
        ("proc/self/mountinfo", "".join(mounts)),
    ):
        with open(f"{base}/{name}", "w") as file:
            file.write(text)
    found = cgroup.device_cgroup(7, f"{base}/proc")
    assert (found.version, found.path, found.directory) == (1, "/demo", f"{base}/seen/demo")


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/k.slice/k-podx.slice/cri-containerd-abc.scope", "/k.slice/k-podx.slice/cri-containerd-abc.scope"),
        ("/machine.slice/libpod-abc.scope/container", "/machine.slice/libpod-abc.scope"),
        ("/machine.slice/libpod-abc.scope/container/init.scope", "/machine.slice/libpod-abc.scope"),
        ("/init.scope", "/init.scope"),
        ("/system.slice/podman.service/libpod-payload-abc", "/system.slice/podman.service"),
        ("/system.slice/docker-o.scope/s.slice/docker-i.scope", "/system.slice/docker-o.scope/s.slice/docker-i.scope"),
        ("/system.slice/docker-o.scope/docker/inner", "/system.slice/docker-o.scope"),
        ("/kubepods/burstable/podx/abc", ""),
        ("/kubepods/burstable/podx/abc.scope", ""),
        ("/kubepods.slice/kubepods-podx.slice", ""),
        ("/kubepods-podx.slice:cri-containerd:abc", ""),
        ("/", ""),
    ],
)  # fmt: skip
def test_the_unit_of_a_path(path: str, unit: str) -> None:
    assert cgroup.unit_path(path) == unit


@pytest.mark.parametrize(
    ("path", "directory", "top", "levels"),
    [
        ("/m/x.scope/container", "/cg/m/x.scope/container", "/m/x.scope", ["/cg/m/x.scope/container", "/cg/m/x.scope"]),
        ("/m.slice/x.scope", "/cg/m.slice/x.scope", "/m.slice/x.scope", ["/cg/m.slice/x.scope"]),
        ("/a/b/c/d", "/cg/a/b/c/d", "/a/b", ["/cg/a/b/c/d", "/cg/a/b/c", "/cg/a/b"]),
        ("/a/b", "/cg/a/b", "", ["/cg/a/b"]),
        ("/m.slice/x.scope/container", "/cg", "/m.slice/x.scope", ["/cg"]),
        ("/m.slice/x.scope/container", "/cg/container", "/m.slice/x.scope", ["/cg/container"]),
    ],
)  # fmt: skip
def test_the_levels_up_to_the_unit(path: str, directory: str, top: str, levels: list[str]) -> None:
    """In the last two cases a mount shows only a lower part of the hierarchy."""
    assert cgroup.DeviceCgroup(2, path, directory).levels(top) == levels
