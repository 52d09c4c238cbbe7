"""The DRA driver at a real API server: slices, claims, further pods, rights, garbage collection, gates that are off.

The server is Kubernetes 1.20's, with resource.k8s.io/v1 as custom resources made from the Go types of 1.36, and with a
patch for what it lacks (beds/kubernetes_programs.py). Nothing in the server checks the claims' own rules.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api_rights
import cluster_site
import helm
import kubernetes_types
import pytest
from cluster_site import ACCOUNT, NAMESPACE, SECRETS
from daemons import wait_for
from dra_control import GATED
from dra_kubelet import Call
from dra_scheduler import Allocator
from dra_site import API, DRIVER, SETTINGS, Instance
from real_kubelet import NODE

from vgpu.config import prepared

pytestmark = [pytest.mark.root, pytest.mark.long]

KINDS = (
    "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DeviceClass",
)  # fmt: skip
GROUP = "resource.k8s.io"


class Site(cluster_site.Site):
    """A cluster without kubelet and runtime, and the plugin with its own account's rights."""

    def start(self) -> Site:
        self.cluster.start()
        self.define()
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.objects = [
            one for one in helm.objects(values={"dra": {"enabled": True, "parts": True}}) if one["kind"] in KINDS
        ]
        for kind in KINDS:
            found = [one for one in self.objects if one["kind"] == kind]
            if found:
                self.cluster.apply(*found)
        self.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.kubelet_directory = self.directory / "s"  # a socket's path has 107 characters at most
        self.kubelet_directory.symlink_to(self.place.lib / "kubelet")
        secrets = self.directory / "run" / SECRETS
        secrets.mkdir(parents=True)
        (secrets / "token").write_text(self.cluster.account(ACCOUNT, NAMESPACE))
        (secrets / "ca.crt").write_text(self.cluster.ca.read_text())
        (secrets / "namespace").write_text(NAMESPACE)
        return self

    def define(self, *dropped: str) -> None:
        """The kinds of the group. `dropped`: fields that the server does not keep, as with a gate off."""
        made = kubernetes_types.definitions(dropped)
        self.cluster.apply(*made)
        names = [f"crd/{one['metadata']['name']}" for one in made]
        self.cluster.kubectl("wait", "--for=condition=established", "--timeout=300s", *names)

    def begin(self) -> Instance:
        """Start the plugin anew."""
        self.plugin.kill()
        usual = {**cluster_site.USUAL, **SETTINGS, "kubernetes.cdi_dir": str(self.directory / "cdi")}
        del usual["kubernetes.register"]
        sockets = {"plugin.socket_dir": "/var/lib/kubelet/device-plugins"}
        self.node.change_settings(**{**usual, **sockets})
        self.instance = Instance(self.node)
        self.instance.endpoint = self.kubelet_directory / self.instance.endpoint.relative_to("/var/lib/kubelet")
        self.plugin.start(**cluster_site.ENVIRONMENT, POD_UID=self.instance.uid)
        return self.instance

    def slices(self) -> list[Any]:
        return json.loads(self.cluster.kubectl("get", "resourceslices", "-o", "json"))["items"]  # type: ignore[no-any-return]

    def published(self) -> list[Any]:
        """Devices, and their counters."""
        return wait_for(lambda: (found := self.slices())[1:] and found, 600, self.plugin.text)  # type: ignore[no-any-return]

    def pod(self, name: str, claim: str) -> str:
        """A pod that names the claim, and that no scheduler binds. Returns its uid."""
        spec = {
            "schedulerName": "none", "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        }  # fmt: skip
        pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        made = self.cluster.kubectl("create", "--raw", "/api/v1/namespaces/default/pods", "-f", "-", given=pod)
        return str(json.loads(made)["metadata"]["uid"])

    def allocate(self, claim: str, *pods: str) -> Any:
        """Write what a scheduler writes, as it does: by the status subresource."""
        found = self.cluster.find("resourceclaim", claim)
        status = found.get("status", {})
        if "allocation" not in status:
            classes = {one["metadata"]["name"]: one for one in self.objects if one["kind"] == "DeviceClass"}
            status["allocation"] = Allocator(self.slices(), classes, []).allocate(found)
        status["reservedFor"] = [{"resource": "pods", "name": f"p{uid[:4]}", "uid": uid} for uid in pods]
        path = f"/apis/{GROUP}/v1/namespaces/default/resourceclaims/{claim}/status"
        return json.loads(
            self.cluster.kubectl("replace", "--raw", path, "-f", "-", given=json.dumps({**found, "status": status}))
        )

    def call(self, method: str, claim: Any) -> dict[str, Any]:
        metadata = claim["metadata"]
        key = (metadata["namespace"], metadata["name"], metadata["uid"])
        answer, error = self.instance.serve(Call(f"v1.DRAPlugin/Node{method}Resources", self.instance, (key,)))
        assert answer is not None, error
        return answer["claims"][metadata["uid"]]  # type: ignore[no-any-return]

    def records(self) -> list[prepared.PreparedClaim]:
        return prepared.read_all(self.node.settings.state_dir)[0]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:
        made = Site(Path(name), Path(), ())
        try:
            yield made.start()
        finally:
            made.plugin.kill()
            made.cluster.end()
            made.place.end()


def test_slices_claims_and_further_pods_with_exactly_the_rights_needed(site: Site) -> None:
    site.begin()
    made, counters = site.published()
    assert kubernetes_types.errors([made, counters]) == ["", ""]
    site.cluster.kubectl("delete", "resourceslice", made["metadata"]["name"])
    made, _ = site.published()
    path = "/spec/devices/0/capacity/cores/value"
    patch = json.dumps([{"op": "replace", "path": path, "value": "400"}])
    site.cluster.kubectl("patch", "resourceslice", made["metadata"]["name"], "--type=json", "-p", patch)
    wait_for(lambda: site.slices() and site.slices()[0]["spec"]["devices"] == made["spec"]["devices"], 600)

    stray = {**made, "metadata": {"name": "stray"}}
    site.cluster.kubectl("create", "-f", "-", given=json.dumps(stray))
    wait_for(lambda: "stray" not in [one["metadata"]["name"] for one in site.slices()], 600)

    request = {"deviceClassName": DRIVER, "capacity": {"requests": {"cores": "30", "memory": "8Gi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    first = site.pod("first", "shared")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "first", "uid": first}
    metadata = {"name": "shared", "ownerReferences": [owner]}
    site.cluster.apply({"apiVersion": API[6:], "kind": "ResourceClaim", "metadata": metadata, "spec": spec})
    claim = site.allocate("shared", first)
    site.cluster.bind("first")
    assert kubernetes_types.errors([claim]) == [""]
    assert site.call("Prepare", claim)["devices"][0]["cdi_device_ids"] == [
        f"vgpu.io/claim={claim['metadata']['uid']}-0"
    ]
    assert [one.pods for one in site.records()] == [[first]]

    second = site.pod("second", "shared")
    site.allocate("shared", first, second)  # the scheduler reserves first, and binds then
    site.cluster.bind("second")
    wait_for(lambda: [one.pods for one in site.records()] == [[first, second]], 600, site.plugin.text)
    assert api_rights.refused(site.cluster.requests(ACCOUNT, NAMESPACE)) == set()
    granted = {one for one in api_rights.granted(site.objects, ACCOUNT, NAMESPACE) if one[1].startswith(GROUP)}
    assert api_rights.unused(granted, site.cluster.requests(ACCOUNT, NAMESPACE)) == set()

    site.cluster.kubectl("delete", "pod", "first", "second", "--force", "--grace-period=0")
    wait_for(lambda: not site.cluster.find("resourceclaim", "shared"), 600)  # the garbage collector
    assert "error" not in site.call("Unprepare", claim)
    assert site.records() == []


@pytest.mark.parametrize("gate", GATED)
def test_a_gate_that_is_off_is_named(site: Site, gate: str) -> None:
    """Nothing is published; but where only DeviceClasses lose a field, claims by their names go on."""
    site.plugin.kill()
    site.cluster.kubectl("delete", "resourceslices", "--all")
    site.define(*GATED[gate])
    site.begin()
    wait_for(lambda: gate in site.plugin.text(), 600, site.plugin.text)
    assert bool(site.slices()) == (gate == "DRAExtendedResource")
