"""Each right of the node's pod on its host, taken away in turn: then a check that is named here fails.

The containers are the chart's, with the mounts and rights that kubelet gives them, run by runc on a host that is a
directory. kubelet, the runtime and the API server are stand-ins, the driver is simulated. Other rights of the pod:
capabilities in component/plugin/test_capabilities.py, those at the API server in test_plugin_cluster_node.py, and the
exporter's in test_images.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bundles
import grpc
import helm
import kubelet_api
import nodes
import pytest
import release_site
from daemons import Process, wait_for
from extender_process import Certificates
from fake_apiserver import TOKEN, FakeApiServer
from kubelet_devices import DeviceManager
from pod_site import CORE, short_directory

from vgpu.config import grants, inventory, paths, settings
from vgpu.config.claims import Claim
from vgpu.config.dialects import registration
from vgpu.config.grants import Grant
from vgpu.hook.linux import procfs
from vgpu.plugin.kubelet.proto import cri_pb2
from vgpu.plugin.release import capabilities

pytestmark = pytest.mark.root

NODE, UID = "n", "11111111-2222-3333-4444-555555555555"
RUN, STATE, SOCKETS = "/run/vgpu", "/var/lib/vgpu", "/var/lib/kubelet/device-plugins"
KERNEL = ("/proc", "/sys")
#: What a privileged container has, as far as it matters here.
CAPABILITIES = (*capabilities.VGPUD, "SYS_CHROOT", "SETPCAP")


class Host:
    """A host that has the simulated driver, and nothing of vgpu but what the containers bring."""

    def __init__(self, directory: Path, image: Path) -> None:
        self.directory, self.image, self.root = directory, image, directory / "h"
        for name in ("etc/cdi", "var/run/cdi", "run/nvidia", "run/containerd", "opt/vgpu", "proc", "sys"):
            (self.root / name).mkdir(parents=True)
        for path in (RUN, STATE, SOCKETS, "/var/lib/kubelet/pod-resources", str(directory)):
            os.makedirs(f"{self.root}{path}")
        self.node = nodes.SimulatedNode(directory / "node", "a100x2")
        for name in ("usr", "dev"):
            subprocess.run(["cp", "-a", self.node.driver / name, self.root], check=True)
        self.runtime = bundles.Runtime(directory / "runc")
        self.cri = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}
        self._cri = self._serve_cri()
        certificates = Certificates(directory / "pki")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*map(str, certificates.server))
        self.api = FakeApiServer(tls=tls)
        self.api.put_node(NODE)
        self.api.label_node(NODE, pool="small")
        values = {
            "driver": {"root": "/", "proc_root": str(self.node.driver / "proc")},
            "plugin": {"http": "", "grant_grace": 10},
            "profiles": [{"name": "small", "node_labels": {"pool": "small"}, "scaling": {"memory": 2}}],
        }
        objects = helm.objects(values={"settings": values, "exporter": {"enabled": False}})
        (self.spec,) = (one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet")
        (config,) = (one["data"] for one in objects if one["metadata"]["name"] == "vgpu-config")
        account = {"token": TOKEN, "ca.crt": certificates.authority.read_text(), "namespace": "vgpu-system"}
        for name, files in (("config", config), ("account", account)):
            (directory / name).mkdir()
            for file, text in files.items():
                (directory / name / file).write_text(text)

    def _serve_cri(self) -> grpc.Server:
        version = cri_pb2.VersionResponse(runtime_name="containerd", runtime_version="1.7")
        answers: dict[str, tuple[Any, Callable[[], Any]]] = {
            "Version": (cri_pb2.VersionRequest, lambda: version),
            "Status": (cri_pb2.StatusRequest, lambda: cri_pb2.StatusResponse(info={"config": json.dumps(self.cri)})),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                lambda request, context, answer=answer: answer(), kind.FromString, lambda made: made.SerializeToString()
            )
            for name, (kind, answer) in answers.items()
        }
        server = grpc.server(ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers),))
        assert server.add_insecure_port(f"unix://{self.root}/run/containerd/containerd.sock")
        server.start()
        return server

    def files(self) -> tuple[str, str]:
        """What the installer, the settings' container and vgpud have made for the others."""
        return f"{self.root}{STATE}/config.json", paths.inventory(f"{self.root}{RUN}")

    def end(self) -> None:
        self.runtime.cleanup()
        self.api.close()
        self._cri.stop(None).wait()

    def container(self, name: str) -> dict[str, Any]:
        kinds = ("initContainers", "containers")
        (found,) = (one for kind in kinds for one in self.spec[kind] if one["name"] == name)
        return dict(found)

    def rights(self, name: str) -> set[str]:
        """What may be taken away from a container: its mounts, and of the pod's what lets it reach the host."""
        one = self.container(name)
        more = {"privileged"} if one["securityContext"].get("privileged") else set()
        return {mount["name"] for mount in one["volumeMounts"]} | more

    def bundle(self, name: str, without: str) -> bundles.Bundle:
        """The container's bundle, as kubelet and the runtime make it, but for the right `without`."""
        one = self.container(name)
        made = bundles.Bundle(self.directory / "bundle", self.image)
        config = made.command(*one["command"]).config
        config["root"]["readonly"] = True
        seen = {
            "NODE_NAME": NODE, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.api.port),
            "VGPU_SIM_DIR": str(self.node.sim),
        }  # fmt: skip
        seen.update({item["name"]: item["value"] for item in one.get("env", ()) if "value" in item})
        config["process"]["env"] = ["PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in seen.items())]
        own = {"network"} if without == "hostPID" or not self.spec["hostPID"] else {"network", "pid"}
        config["linux"]["namespaces"] = [one for one in config["linux"]["namespaces"] if one["type"] not in own]
        context = one["securityContext"]
        added = context.get("capabilities", {}).get("add", [])
        self._privilege(config, added, privileged=bool(context.get("privileged") and without != "privileged"))
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        for mount in one["volumeMounts"]:
            if mount["name"] != without:
                host = volumes[mount["name"]].get("hostPath")
                source = Path(f"{self.root}{host['path']}") if host else self.directory / mount["name"]
                made.bind(source, mount["mountPath"], "ro" if mount.get("readOnly") else "rw")
        return self._simulated(made, name, without)

    def _privilege(self, config: dict[str, Any], added: list[str], privileged: bool) -> None:
        known = [f"CAP_{name}" for name in (CAPABILITIES if privileged else added)]
        config["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), known)
        if privileged:  # the runtime gives it the host's nodes, and lets it open all
            config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
            config["linux"]["devices"] = [
                {"path": f"/dev/{path.name}", "type": "c", "major": os.major(number), "minor": os.minor(number)}
                for path in (self.root / "dev").iterdir() if (number := path.stat().st_rdev)
            ]  # fmt: skip

    def _simulated(self, made: bundles.Bundle, name: str, without: str) -> bundles.Bundle:
        """What a real host needs no mount for: the kernel's file systems below its root, and the simulated driver."""
        if name == "vgpud" and without != "host":
            for path in (*KERNEL, str(self.directory / "node")):
                made.bind(Path(path), f"/host{path}", "rw")
        return made.bind(self.directory / "node", str(self.directory / "node"), "rw")

    def run(self, name: str, without: str = "") -> subprocess.CompletedProcess[str]:
        return self.runtime.run(self.bundle(name, without))

    @contextmanager
    def running(self, name: str, without: str) -> Iterator[tuple[str, Process]]:
        """(id, process) of a container that goes on."""
        container = self.runtime.new_id()
        process = Process(self.directory / "log")
        process.log.unlink(missing_ok=True)
        bundle = self.bundle(name, without).write()
        process.launch([*self.runtime.command, "run", "--bundle", str(bundle), container])
        try:
            yield container, process
        finally:
            self.runtime.delete(container)
            process.kill()


# The checks: whether a container without one right does its work. `good` or `bad` shows which, whatever comes first.


NEVER = "(?!)"  #: matches nothing


def comes(process: Process, good: Callable[[], object], bad: str) -> bool:
    def seen() -> str:
        if good():
            return "good"
        return "bad" if not process.alive or re.search(bad, process.text()) else ""

    return bool(wait_for(seen, 120, process.text) == "good")


def installs(host: Host, without: str) -> bool:
    host.cri = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}
    return puts(host, without, "etc/cdi/vgpu.json")


def installs_where_the_runtime_looks(host: Host, without: str) -> bool:
    host.cri = {"enableCDI": True, "cdiSpecDirs": ["/var/run/cdi"]}
    return puts(host, without, "var/run/cdi/vgpu.json")


def puts(host: Host, without: str, path: str) -> bool:
    file = host.root / path
    file.unlink(missing_ok=True)
    return host.run("install", without).returncode == 0 and file.exists()


def says_why_not(host: Host, without: str) -> bool:
    host.cri = {"enableCDI": False}
    host.api.events.clear()
    assert host.run("install", without).returncode == 1
    return [event["reason"] for event in host.api.events] == ["VgpuNotInstalled"]


def compiles(host: Host, without: str) -> bool:
    file = Path(f"{host.root}{STATE}/config.json")
    file.unlink(missing_ok=True)
    return host.run("settings", without).returncode == 0 and file.exists()


def chooses_by_the_nodes_labels(host: Host, without: str) -> bool:
    return compiles(host, without) and settings.read(f"{host.root}{STATE}/config.json").number("scaling.memory") == 2


def takes_the_inventory(host: Host, without: str) -> bool:
    file = Path(paths.inventory(f"{host.root}{RUN}"))
    file.unlink(missing_ok=True)
    with host.running("vgpud", without) as (_, process):
        return comes(process, file.exists, "inventory: .*NVML|no usable card")


def is_alive_to_kubelet(host: Host, without: str) -> bool:
    probe = host.container("vgpud")["livenessProbe"]["exec"]["command"]
    record = Path(paths.round_record(f"{host.root}{RUN}"))
    record.unlink(missing_ok=True)
    with host.running("vgpud", without) as (container, process):
        assert comes(process, record.exists, NEVER)
        return host.runtime.call("exec", container, *probe).returncode == 0


@contextmanager
def plugin(host: Host, without: str) -> Iterator[tuple[Process, Kubelet]]:
    """The plugin's container beside its kubelet."""
    kubelet = Kubelet(host)
    try:
        with host.running("device-plugin", without) as (_, process):
            yield process, kubelet
    finally:
        kubelet.stop()


class Kubelet(DeviceManager):
    """It lists one pod, which has no device. `lists` counts how often somebody asked for that."""

    def __init__(self, host: Host) -> None:
        super().__init__(Path(f"{host.root}{SOCKETS}"), set)
        self.lists = 0
        self._pods = kubelet_api.Server(
            Path(f"{host.root}/var/lib/kubelet/pod-resources/kubelet.sock"), "v1.PodResourcesLister",
            {"List": ("v1.ListPodResourcesRequest", self._list)},
        )  # fmt: skip
        self.start()

    def _list(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.lists += 1
        listed = kubelet_api.message("v1.ListPodResourcesResponse")()
        listed.pod_resources.add(name="network-x7d9k", namespace="kube-system")
        return listed

    def offers(self, cores: int) -> bool:
        return bool(self.allocatable().get(CORE) == cores)

    def stop(self) -> None:
        super().stop()
        self._pods.stop()


def offers_cards(host: Host, without: str) -> bool:
    with plugin(host, without) as (process, kubelet):
        return comes(process, lambda: kubelet.offers(200), "no kubelet at")


def shows_the_cards_on_the_node(host: Host, without: str) -> bool:
    host.api.put_node(NODE)
    with plugin(host, without) as (process, _):
        return comes(process, lambda: registration.OWN in host.api.annotations(NODE), "no access to the API server")


def ends_grants_of_the_dead_only(host: Host, without: str) -> bool:
    """kubelet lists neither. The claim's process is this test's, by the host's pid."""
    state = f"{host.root}{STATE}"
    uuid = str(host.node.read_cards()[0]["uuid"])
    living, dead = (grants.new_id(), grants.new_id())
    for number, one in enumerate((living, dead)):
        holder = grants.Holder(f"{number}{UID[1:]}", "c")
        grants.write(
            state, Grant(one, "cores", 1, 1.0, devices={uuid: f"{number}-{number}"}, holder=holder, cards=[uuid])
        )
    claim = Claim("living", os.getpid(), procfs.start_time(os.getpid()), [], True, None, [living], "", 1.0)
    path = Path(paths.claim(f"{host.root}{RUN}", "living"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(claim.record()))
    left = {name: Path(paths.grant(state, name)) for name in (living, dead)}
    try:
        with plugin(host, without) as (process, kubelet):
            if not comes(process, lambda: not left[dead].exists(), "no grant ends for now"):
                return False
            lists = kubelet.lists
            wait_for(lambda: kubelet.lists > lists + 1, 60, process.text)  # the round that ended it is over
            return left[living].exists()
    finally:
        shutil.rmtree(path.parent)
        for file in left.values():
            file.unlink(missing_ok=True)


def sees_faults(host: Host, without: str) -> bool:
    """vgpud does, by NVML; it starts before the event and outlives it."""
    (card, *_) = inventory.read(f"{host.root}{RUN}").cards
    record = Path(paths.health(f"{host.root}{RUN}"))
    record.unlink(missing_ok=True)
    with host.running("vgpud", without) as (_, process):

        def fails() -> bool:
            nodes.simctl().inject_event(str(host.node.sim), card.index, "xid", 79)
            return record.exists() and "Xid 79" in record.read_text()

        try:
            return comes(process, fails, NEVER)
        finally:
            process.stop()
            record.unlink(missing_ok=True)


#: container -> right -> the check that fails without it. hostPID is the pod's, and the plugin's reason for it is tried.
CHECKS: dict[str, dict[str, Callable[[Host, str], bool]]] = {
    "install": {
        "release": installs, "runtime": installs, "cdi-0": installs, "cdi-1": installs_where_the_runtime_looks,
        "account": says_why_not,
    },
    "settings": {"config": compiles, "settings": compiles, "account": chooses_by_the_nodes_labels},
    "vgpud": {"host": takes_the_inventory, "privileged": takes_the_inventory, "run": is_alive_to_kubelet},
    "device-plugin": {
        "device-plugins": offers_cards, "state": offers_cards, "run": offers_cards,
        "pod-resources": ends_grants_of_the_dead_only, "hostPID": ends_grants_of_the_dead_only,
        "account": shows_the_cards_on_the_node,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def made(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """With the release, the settings and an inventory, which come of the containers themselves."""
    image = release_site.node_image(base_trees["debian"], tmp_path_factory.mktemp("image") / "node")
    directory = short_directory()
    found = Host(directory, image)
    try:
        assert installs(found, "")
        assert compiles(found, "")
        assert takes_the_inventory(found, "")
        yield found
    finally:
        found.end()
        shutil.rmtree(directory)


@pytest.fixture
def host(made: Host) -> Iterator[Host]:
    """As it was before another test."""
    kept = {path: path.read_text() for path in map(Path, made.files())}
    yield made
    for path, text in kept.items():
        path.write_text(text)


def test_every_right_has_a_check(host: Host) -> None:
    assert host.spec["hostPID"] is True
    assert {name: {*found} - {"hostPID"} for name, found in CHECKS.items()} == {
        name: host.rights(name) for name in CHECKS
    }


#: They wait for something that does not happen.
SLOW = ("hostPID", ends_grants_of_the_dead_only)
ALL = dict.fromkeys(check for found in CHECKS.values() for check in found.values())


def case(*words: object) -> object:
    return pytest.param(*words, marks=[pytest.mark.long] if words[-1] in SLOW else [])


def test_vgpud_sees_faults_of_cards(host: Host) -> None:
    """With its rights, on the release's own Python: NVML's events come to a process that vgpud has forked."""
    assert sees_faults(host, "")


@pytest.mark.sample(4)
@pytest.mark.parametrize("check", [case(check) for check in ALL])
def test_with_all_rights(host: Host, check: Callable[[Host, str], bool]) -> None:
    assert check(host, "")


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "right"), [case(name, right) for name, found in CHECKS.items() for right in found])
def test_without_the_right(host: Host, name: str, right: str) -> None:
    assert not CHECKS[name][right](host, right)
