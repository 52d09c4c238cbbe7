"""`vgpuctl doctor` on fixture trees: each check right, wrong and absent; the table, the JSON and the status."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import region_reading
from doctor_tree import HOOK, UUIDS, Tree, look, only

from vgpu.config import inventory as inventories
from vgpu.config import paths, records
from vgpu.config.claims import Claim
from vgpu.config.limits import CardLimit
from vgpu.hook.linux import staleness
from vgpu.node.ctl import doctor as verb
from vgpu.node.daemon import reader
from vgpu.node.doctor import coexistence, host, node, runtimes
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, Finding


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(reader, "each", region_reading.each)
    return Tree(tmp_path)


# The node's own parts


def test_settings(tree: Tree) -> None:
    assert only(node.settings, tree.context).status == OK
    source = tree.write("config.yaml", "standalone: {enabled: false}\n")
    records.write(tree.config, {**tree.settings.record(), "source": str(source)})
    assert only(node.settings, tree.context) == Finding(
        "settings", WARNING, f"{tree.config} differs from {source}",
        "the settings of the configuration file to be in force",
        "run: vgpuctl config apply",
    )  # fmt: skip
    source.write_text("standalone: {enabled: 7}\n")
    assert "config.yaml:1" in only(node.settings, tree.context).found
    tree.write("config.json", "{")
    assert only(node.settings, tree.context).status == FAILURE
    (tree.path / "config.json").unlink()
    assert only(node.settings, tree.context).do == "run: vgpuctl config apply"


def test_driver_and_inventory(tree: Tree) -> None:
    assert only(node.driver, tree.context).status == FAILURE
    assert only(node.inventory, tree.context).do == inventories.DO
    tree.driver()
    tree.inventory()
    assert only(node.driver, tree.context).found == "550.54.15"
    assert only(node.inventory, tree.context).status == OK
    tree.inventory(str(tree.path / "gone.so"))
    assert "gone.so" in only(node.inventory, tree.context).found
    tree.inventory(cards=0)
    assert only(node.inventory, tree.context).found == "no usable card"
    tree.driver("560.35.03")
    assert only(node.inventory, tree.context).expected == "one of the loaded driver 560.35.03"


@pytest.mark.parametrize(
    ("size", "status", "text"),
    [
        (0, OK, "T4: size not known"),
        (324 << 20, OK, "T4: 324 MiB (seen by a test); a share needs more, so at least 2 units of 256 MiB"),
        (256 << 20, OK, "at least 2 units of 256 MiB"),
        ((1 << 30) - 1, OK, "at least 4 units of 256 MiB"),
        (1 << 30, WARNING, "T4: 1024 MiB (seen by a test)"),
    ],
)
def test_contexts(tree: Tree, size: int, status: str, text: str) -> None:
    assert only(node.contexts, tree.context).status == OK, "the check `inventory` says why there is none"
    tree.inventory(cards=2)
    found = inventories.read(tree.settings.run_dir)
    for card in found.cards:
        card.context, card.context_source = size, "seen by a test" if size else ""
    records.write(paths.inventory(tree.settings.run_dir), found.record())
    finding = only(node.contexts, tree.context)
    assert (finding.status, text in finding.found) == (status, True), finding.found
    if status == WARNING:
        assert "give shares of this card more than 1024 MiB" in finding.do


def test_nodes_without_any_driver(tree: Tree) -> None:
    assert "major 195" in only(node.nodes, tree.context).expected
    tree.write("proc/devices", "Character devices:\n195 nvidia\n")
    assert only(node.uvm, tree.context).do == "run: nvidia-modprobe -u -c=0"
    tree.write("proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n")
    assert "dev/nvidia-uvm: No such file" in only(node.uvm, tree.context).found
    tree.write("dev/nvidia-uvm", "")
    assert "-rw-r--r--" in only(node.uvm, tree.context).found


def test_a_hook_that_others_may_write_is_none(tree: Tree) -> None:
    tree.write("bin/vgpu-hook", HOOK.format("true"), 0o777)
    assert "only root can write" in only(node.hook, replace(tree.context, real=True)).expected


def test_daemon_that_does_not_run(tree: Tree) -> None:
    found = only(node.daemon, tree.context)
    assert found.status == WARNING
    assert "systemctl start vgpud" in found.do


# The host


@pytest.mark.parametrize(
    ("mounts", "text"),
    [
        ("30 20 0:27 / /cgroup rw - cgroup2 cgroup2 rw\n", "v2, no systemd: cgroupfs"),
        ("30 20 0:27 / /cgroup rw - cgroup cgroup rw,devices\n", "v1, no systemd: cgroupfs"),
        (
            "30 20 0:27 / /cgroup rw - cgroup cgroup rw,devices\n31 20 0:28 / /other rw - cgroup2 cgroup2 rw\n",
            "v1 and v2 (hybrid), no systemd: cgroupfs",
        ),
    ],
)
def test_cgroups(tree: Tree, mounts: str, text: str) -> None:
    tree.write("proc/self/mountinfo", mounts)
    assert look(host.cgroups, tree.context) == [(OK, text)]
    (tree.path / "run/systemd/system").mkdir(parents=True)
    assert "systemd" in look(host.cgroups, tree.context)[0][1]
    (tree.path / "cgroup").rmdir()
    assert only(host.cgroups, tree.context).status == FAILURE


def test_no_cgroups(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", "30 20 0:27 / /proc rw - proc proc rw\n")
    assert only(host.cgroups, tree.context).found == "no hierarchy with devices"


def test_kernel(tree: Tree) -> None:
    assert only(host.kernel, tree.context).status == OK


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("1\n", "fs.leases-enable is 1: processes may take leases on files; those of containers do not reach"),
        ("0\n", "fs.leases-enable is 0: no process can take a lease"),
        (None, "this kernel has no leases"),
    ],
)
def test_leases_are_reported_and_never_set(tree: Tree, value: str | None, found: str) -> None:
    if value is not None:
        tree.write("proc/sys/fs/leases-enable", value)
    finding = only(host.leases, tree.context)
    assert finding.status == OK
    assert finding.found.startswith(found)
    if value is not None:
        assert (tree.path / "proc/sys/fs/leases-enable").read_text() == value


def test_files_that_no_overlay_can_have_are_a_warning(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("proc/sys/fs/leases-enable", "1\n")
    monkeypatch.setattr(host, "_without_overlay", lambda _: ["no overlay of /usr/lib (Invalid argument): so"])
    finding = only(host.leases, tree.context)
    assert finding.status == WARNING
    assert "no overlay of /usr/lib" in finding.found
    assert "set fs.leases-enable to 0 if nothing here uses leases" in finding.do
    assert not host.has_call("no such call", 9999)


# Registration


@pytest.fixture
def hook_there(tree: Tree) -> Tree:
    tree.write("usr/bin/vgpu-hook", "", 0o755)
    tree.write("usr/bin/vgpu-runtime", "", 0o755)
    return tree


HOOKS_D = '{"version": "1.0.0", "hook": {"path": "/usr/bin/vgpu-hook"}, "when": {}, "stages": ["prestart"]}'
SPEC = '{"hooks": {"prestart": [{"path": "/usr/bin/vgpu-hook"}], "poststop": [{"path": "/usr/bin/vgpu-hook"}]}}'
V1_7 = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
WAYS = {
    "hooks.d": ({"etc/containers/oci/hooks.d/vgpu.json": HOOKS_D}, "podman and CRI-O"),
    "another hooks.d": (
        {"etc/containers/containers.conf": '[engine]\nhooks_dir = ["/opt/hooks"]\n', "opt/hooks/x.json": HOOKS_D},
        "/opt/hooks/x.json",
    ),
    "base_runtime_spec": (
        {"etc/containerd/config.toml": f'{V1_7}]\n  base_runtime_spec = "/etc/spec.json"\n', "etc/spec.json": SPEC},
        "base_runtime_spec",
    ),
    "BinaryName": (
        {"etc/containerd/conf.d/v.toml": f'{V1_7}.options]\n BinaryName = "/usr/bin/vgpu-runtime"\n'},
        "BinaryName",
    ),
    "docker": (
        {"etc/docker/daemon.json": '{"runtimes": {"vgpu": {"path": "/usr/bin/vgpu-runtime"}}}'},
        "docker (/etc/docker/daemon.json: runtime vgpu)",
    ),
    "CRI-O": (
        {"etc/crio/crio.conf.d/v.conf": '[crio.runtime.runtimes.vgpu]\nruntime_path = "/usr/bin/vgpu-runtime"\n'},
        "CRI-O",
    ),
    "CDI": ({"etc/cdi/vgpu.yaml": 'cdiVersion: "0.5.0"\nkind: "vgpu.io/gpu"\n'}, "CDI (/etc/cdi/vgpu.yaml)"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), WAYS.values(), ids=WAYS)
def test_each_way_of_registration(hook_there: Tree, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        hook_there.write(name, text)
    found = only(runtimes.runtime_configuration, hook_there.context)
    assert (found.status, expected in found.found) == (OK, True), found
    (hook_there.path / "usr/bin/vgpu-hook").unlink()
    (hook_there.path / "usr/bin/vgpu-runtime").unlink()
    if "CDI" not in expected:
        assert only(runtimes.runtime_configuration, hook_there.context).status == FAILURE


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"hook": 5}', '{"hook": {"path": 5}}', "\udcff", '"' * 1000])
def test_registered_with_none(hook_there: Tree, garbage: str) -> None:
    for name in (
        "etc/containers/oci/hooks.d/a.json",
        "etc/docker/daemon.json",
        "etc/containerd/config.toml",
        "etc/cdi/a.json",
    ):
        path = hook_there.write(name, "")
        path.write_bytes(garbage.encode("utf-8", "surrogateescape"))
    hook_there.write("etc/containerd/conf.d/a.toml", '# BinaryName = "/usr/bin/vgpu-runtime"\n')
    found = only(runtimes.runtime_configuration, hook_there.context)
    assert (found.status, found.found) == (WARNING, "no runtime is configured to call the hook")
    assert look(runtimes.nvidia, hook_there.context) == []


NVIDIA = {
    "docker": ("etc/docker/daemon.json", '{"default-runtime": "nvidia"}', "docker"),
    "docker by another name": (
        "etc/docker/daemon.json",
        '{"default-runtime": "g", "runtimes": {"g": {"path": "/usr/bin/nvidia-container-runtime"}}}', "docker",
    ),
    "containerd": (
        "etc/containerd/config.toml",
        '[plugins."io.containerd.cri.v1.runtime".containerd]\n default_runtime_name = "nvidia"\n',
        "default_runtime_name",
    ),
    "CRI-O": ("etc/crio/crio.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n', "default_runtime"),
    "its hook": (
        "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
        '{"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}', "oci-nvidia-hook.json",
    ),
    "CDI": ("etc/cdi/nvidia.yaml", "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "/etc/cdi/nvidia.yaml"),
    "its environment": (
        "etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\n", "NVIDIA_VISIBLE_DEVICES",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), NVIDIA.values(), ids=NVIDIA)
def test_nvidias_own_mechanisms(tree: Tree, name: str, text: str, expected: str) -> None:
    tree.write(name, text)
    found = only(runtimes.nvidia, tree.context)
    assert (found.status, expected in found.found) == (WARNING, True), found


def test_nvidias_environment_may_be_closed(tree: Tree) -> None:
    name = "etc/nvidia-container-runtime/config.toml"
    tree.write(name, "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    assert look(runtimes.nvidia, tree.context) == []


# Others on the cards


def test_containers_that_see_what_is_not_theirs(tree: Tree) -> None:
    tree.inventory()
    tree.process(1, "init", "host", ("nvidia0", "nvidia1"))
    tree.process(10, "daemon", "host", ("nvidia0", "nvidia1"))
    tree.process(2, "kthreadd", "boot", ("nvidia0", "nvidia1"), flags=0x208040)
    tree.process(20, "holder", "share", ("nvidia0", "nvidiactl"))
    tree.process(30, "plain", "other", ("null",))
    card = CardLimit(UUIDS[0], 1 << 30, 20, 20)
    os.makedirs(paths.container(tree.settings.run_dir, "c"))
    claim = Claim("c", 20, 77, [card], False, None, [], "/b", 1.0)
    records.write(paths.claim(tree.settings.run_dir, "c"), claim.record())
    assert [status for status, _ in look(coexistence.containers, tree.context)] == [OK]
    tree.write("proc/20/root/dev/nvidia1", "")
    tree.process(40, "privileged", "third", ("nvidia0", "nvidia1"))
    assert look(coexistence.containers, tree.context) == [
        (WARNING, "container c: process 20 (holder) sees nvidia1"),
        (WARNING, "a container that holds no card: process 40 (privileged) sees nvidia0, nvidia1"),
    ]


def test_a_container_that_blocks_the_look_is_named(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "each", region_reading.silent)
    tree.inventory()
    tree.process(1, "init", "host")
    tree.process(40, "hostile", "third")
    assert look(coexistence.containers, tree.context) == [
        (WARNING, "a container that holds no card: process 40 (hostile) does not let the host read /dev")
    ]


def test_a_containers_links_lead_nowhere(tree: Tree, tmp_path: Path) -> None:
    """Its /dev may be a link, which is followed within its own root only."""
    tree.inventory()
    tree.process(1, "init", "host")
    tree.process(50, "sly", "other")
    (tree.path / "proc/50/root/dev").rmdir()
    (tree.path / "proc/50/root/dev").symlink_to(tmp_path / "dev")
    tree.write("dev/nvidia0", "")
    assert [status for status, _ in look(coexistence.containers, tree.context)] == [OK]


def test_programs_that_hold_nodes_open(tree: Tree) -> None:
    assert only(coexistence.holders, tree.context).found == "no other program has a card's node open"
    tree.process(60, "nvidia-persiste", "host", fds=("/dev/nvidia1", "/dev/nvidia0", "/dev/nvidiactl", "/etc/passwd"))
    found = only(coexistence.holders, tree.context)
    assert (found.status, found.found) == (OK, "without a claim: nvidia-persiste: 60 (nvidia0, nvidia1)")


def test_strangers_are_not_asked_for_without_an_inventory(tree: Tree) -> None:
    assert only(coexistence.foreign_users, tree.context).status == WARNING


# The verb


def test_status_is_0_without_failures(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.driver()
    monkeypatch.setattr(verb, "CHECKS", {"driver": node.driver, "registration": runtimes.runtime_configuration})
    assert tree.call().exit_code == 0
    assert staleness.driver_version(str(tree.path / "proc")) == "550.54.15"


def test_the_same_advice_for_several_findings_stands_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("containers", WARNING, f"process {pid}", "only its own nodes", "stop it") for pid in (1, 2)]
    monkeypatch.setattr(
        verb, "diagnose", lambda _: [*found, Finding("daemon", WARNING, "none", "an answer", "stop it")]
    )
    lines = tree.call().output.splitlines()
    assert lines.count("containers, warning: expected only its own nodes; stop it") == 1
    assert lines.count("daemon, warning: expected an answer; stop it") == 1
    assert sum("process" in line for line in lines) == 2
