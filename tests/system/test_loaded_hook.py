"""The modules that a start and a stop load, by the kind of the container. Each costs time at every start.

A module that joins a list has to run in that kind of start. docs/benchmarks.md has how many there are.
"""

from __future__ import annotations

import uuid

import bundles
import pytest
from checkout import CHECKOUT
from container_site import GIB, SHARE, Site

pytestmark = pytest.mark.root

#: What is slow to import, or not needed.
SLOW = {
    "dataclasses", "enum", "typing", "pathlib", "logging", "subprocess", "re", "json", "threading", "collections",
    "functools", "inspect", "shutil", "tempfile", "socket", "_socket", "contextlib", "ctypes", "types", "importlib",
}  # fmt: skip

STOP = """
config.claims config.core_schedule config.errors config.fields config.grants config.leases config.limits config.paths
config.records config.request config.settings hook.hooklog hook.ledger.container_directory hook.ledger.core_schedules
hook.ledger.living_claims hook.ledger.lock hook.linux.procfs hook.linux.staleness hook.main hook.request.oci_state
hook.stop
"""
START = """
config.claims config.core_schedule config.errors config.fields config.foreign config.grants config.inventory
config.health config.leases config.limits config.paths config.records config.request config.settings
hook.devices.allow hook.devices.bpf_program hook.devices.cgroup_v2 hook.devices.rules hook.formats.elf
hook.formats.ldcache hook.hooklog hook.inject.execute hook.inject.inspect hook.inject.library_search
hook.inject.limiter_files hook.inject.mounts hook.inject.operations hook.inject.overlay hook.inject.plan
hook.ledger.container_directory hook.ledger.core_schedules hook.ledger.ledger hook.ledger.living_claims
hook.ledger.lock hook.ledger.presence hook.ledger.totals hook.linux.bpf hook.linux.cgroup hook.linux.libc
hook.linux.mountinfo hook.linux.procfs hook.linux.rootfs hook.linux.staleness hook.linux.syscalls hook.linux.undo
hook.main hook.placement.allocation hook.placement.placement hook.request.authorization hook.request.identity
hook.request.oci_state hook.request.resolve_grants hook.start
"""
POD = "config.pods hook.request.pod_record"
#: Of CRI-O all annotations of a pod reach the hook, not only those that vgpu's settings of containerd name.
ANNOTATED = "config.annotations config.dialects.placements config.standalone hook.request.ignored_annotations"
OUTSIDE = "config.annotations config.standalone hook.request.ignored_annotations hook.request.outside_kubernetes"

CONTAINERD = {
    "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-uid": "{uid}",
    "io.kubernetes.cri.container-name": "main", "io.kubernetes.cri.sandbox-namespace": "default",
}  # fmt: skip
CRIO = {
    "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.pod.uid": "{uid}",
    "io.kubernetes.container.name": "main", "kubernetes.io/config.seen": "2026-11-28T00:00:00Z",
}  # fmt: skip
CASES = {
    "a share on containerd": (CONTAINERD, {"cores": 30, "memory": 2 * GIB}, START + POD),
    "a share on CRI-O": (CRIO, {"cores": 30, "memory": 2 * GIB}, START + POD + " " + ANNOTATED),
    "a whole card": (CONTAINERD, {"cores": 100}, START + POD),
    "a share outside Kubernetes": ({}, {}, START + OUTSIDE),
}


class Observed:
    """A bundle whose hook writes what it has loaded."""

    def __init__(self, site: Site, bundle: bundles.Bundle) -> None:
        self.bundle = bundle.hooks(site.node)
        self.files = {stage: bundle.path / f"loaded-{stage}" for stage in ("prestart", "poststop")}
        for stage, file in self.files.items():
            hook = self.bundle.config["hooks"][stage][0]
            roots = ":".join(str(CHECKOUT / root) for root in ("config", "hook"))
            command = ["/usr/bin/python3", "-I", "-S", str(CHECKOUT / "tests/beds/loaded_hook.py"), str(file), roots]
            hook.update(path=command[0], args=[*command, *hook["args"][1:]])

    def loaded(self, stage: str) -> set[str]:
        """The modules of vgpu. None of the others is slow."""
        ours, others = (set(line.split()) for line in self.files[stage].read_text().splitlines())
        assert not others & SLOW
        return {name.removeprefix("vgpu.") for name in ours}


def bundle_of(site: Site, cgroup: str, annotations: dict[str, str], amounts: dict[str, int]) -> bundles.Bundle:
    if not annotations:
        return site.plain_bundle(None, **SHARE)
    uid, made = str(uuid.uuid4()), site.plain_bundle()
    made.config["linux"]["cgroupsPath"] = f"{bundles.pod_cgroup(cgroup, uid)}/main"
    grants = {f"vgpu.io/grant-{name}": site.node.grant(name, amount) for name, amount in amounts.items()}
    made.config["annotations"] = {**{key: value.format(uid=uid) for key, value in annotations.items()}, **grants}
    return made


@pytest.mark.parametrize("site", ["runc-v2"], indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_a_container_loads_what_its_start_and_stop_run(site: Site, cgroup: str, case: str) -> None:
    annotations, amounts, expected = CASES[case]
    observed = Observed(site, bundle_of(site, cgroup, annotations, amounts))
    neighbour = site.create(site.share(cores="10", memory="1Gi")) if amounts.get("cores") != 100 else ""
    for _ in range(2):  # the second time it is a restart
        site.output(observed.bundle, "true")
        assert observed.loaded("prestart") == set(expected.split())
        assert observed.loaded("poststop") == set(STOP.split())
    assert neighbour in site.node.held() or not neighbour
