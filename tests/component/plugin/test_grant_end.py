"""A card is free when its pod is gone: the plugin as a process, the ledger, and the stand-in kubelet.

Containers are plain processes that claim their grants at the ledger as the hook does. A failed start fails the test.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nodes
import pytest
from daemons import wait_for
from fake_apiserver import FakeApiServer
from kubelet import Container, Kubelet, Pod, Spec
from kubelet_devices import Options
from kubelet_runtimes import StartError
from plugin_inputs import make_cards, write_inventory
from plugin_process import Plugin

from vgpu.config import grants, inventory
from vgpu.config.errors import VgpuError
from vgpu.config.grants import ENVIRONMENT, Holder
from vgpu.config.request import Wishes
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux import procfs
from vgpu.hook.request.resolve_grants import WantedGrants

CORES, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
NODE = "testnode"
CARD = "GPU-00000000-0000-0000-0000-000000000001"
SOON = 120.0  #: seconds
MUCH_LATER = 600  #: seconds of plugin.grant_grace: no grant ends by it in these tests


class LedgerRuntime:
    """Containers are `sleep`s. A start takes some tenths of a second before the claim, as a sandbox does."""

    def __init__(self, node: nodes.Node) -> None:
        self.node = node
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def sandbox(self, spec: Spec) -> dict[str, Any]:
        time.sleep(0.5)
        return {"spec": spec, "containers": []}

    def start(self, sandbox: dict[str, Any], container: Container, options: Options) -> str:
        spec, name = sandbox["spec"], uuid.uuid4().hex
        process = subprocess.Popen(container.command)
        start = Start(
            name, process.pid, procfs.start_time(process.pid), "/b", Holder(spec.uid, container.name),
            f"{spec.namespace}/{spec.name}/{container.name}", time.time(),
        )  # fmt: skip
        ids = {kind: options.envs[key] for kind, key in ENVIRONMENT.items() if key in options.envs}
        try:
            self.ledger().claim(start, WantedGrants(ids, 0, Wishes()))
        except VgpuError as error:
            process.kill()
            process.wait()
            raise StartError(str(error)) from error
        self.processes[name] = process
        sandbox["containers"].append(name)
        return name

    def ledger(self) -> Ledger:
        return Ledger(self.node.settings, inventory.read(self.node.settings.run_dir).cards)

    def exit_code(self, sandbox: dict[str, Any], container: str) -> int | None:
        return self.processes[container].poll()

    def output(self, sandbox: dict[str, Any], container: str) -> str:
        return ""

    def stop(self, sandbox: dict[str, Any]) -> None:
        for name in sandbox["containers"]:
            self.processes[name].kill()
            self.processes[name].wait()
            self.ledger().release(name)

    def remove(self, sandbox: dict[str, Any]) -> None:
        self.stop(sandbox)

    def lose(self, sandbox: dict[str, Any] | None) -> None:
        if sandbox is not None:
            self.remove(sandbox)


class Site:
    """A node of one card. With `api`, the plugin follows an API server, which gets each pod."""

    def __init__(self, path: Path, api: bool, **settings: object) -> None:
        self.server = FakeApiServer()
        self.server.put_node(NODE)
        values: dict[str, object] = {
            "driver.proc_root": str(path / "proc"),
            "plugin.socket_dir": str(path / "device-plugins"),
            "plugin.pod_resources_socket": str(path / "pod-resources/kubelet.sock"),
            "plugin.grant_grace": MUCH_LATER,
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "always" if api else "never",
            "kubernetes.kubeconfig": self.server.kubeconfig(path / "kubeconfig"),
        }
        self.node = nodes.Node(path, **{**values, **settings})
        cards = make_cards(1)
        cards[0].uuid = CARD
        write_inventory(self.node.settings, cards)
        self.runtime = LedgerRuntime(self.node)
        self.kubelet = Kubelet(path, self.runtime, backoff=0.2, backoff_limit=0.5).start()
        self.plugin = Plugin(self.node).start(NODE_NAME=NODE)
        self.kubelet.ready(CORES, MEMORY)
        if api:
            wait_for(self.server.watching)

    def run(self, limits: dict[str, int]) -> Pod:
        spec = Spec([Container("main", limits)], restart="Never")
        self.server.put_pod(spec.name, NODE, spec.uid, {"main": dict(limits)})
        return self.kubelet.run(spec)

    def running(self, limits: dict[str, int]) -> Pod:
        """A pod that runs after its first try."""
        pod = self.run(limits)
        wait_for(lambda: pod.running or pod.events, SOON, lambda: f"{pod.events} {self.plugin.text()}")
        assert pod.events == [], self.plugin.text()
        return pod

    def delete(self, pod: Pod) -> None:
        self.kubelet.delete(pod)
        self.server.remove_pod(pod.spec.name)

    def grants(self) -> set[str]:
        """The pods that have grants, by uid."""
        found = grants.read_all(self.node.settings.state_dir)[0]
        return {grant.holder.pod_uid if grant.holder else "" for grant in found}

    def end(self) -> None:
        self.plugin.kill()
        self.kubelet.end()
        self.server.close()


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(api: bool, **settings: object) -> Site:
        made.append(Site(tmp_path, api, **settings))
        return made[-1]

    yield make
    for site in made:
        site.end()


SHARE, WHOLE = {CORES: 40, MEMORY: 8}, {CORES: 100}


@pytest.mark.parametrize("api", [True, False], ids=["api", "kubelet alone"])
def test_a_whole_card_runs_after_the_last_share_has_gone(make_site: Callable[..., Site], api: bool) -> None:
    """A whole card takes no ids of memory, so the share's memory is freed by its pod's end alone."""
    site = make_site(api)
    for _ in range(2):
        shares = [site.running(SHARE), site.running(SHARE)]
        for share in shares:
            site.delete(share)
        site.delete(site.running(WHOLE))


def test_with_an_api_server_grants_go_with_the_pod_without_a_further_allocation(make_site: Callable[..., Site]) -> None:
    site = make_site(api=True)
    kept, gone = site.running(SHARE), site.running(SHARE)
    site.delete(gone)
    wait_for(lambda: site.grants() == {kept.uid}, SOON, site.plugin.text)
    wait_for(lambda: "gone from the API server" in site.plugin.text(), what=site.plugin.text)


def test_a_rollover_on_a_full_card_ends(make_site: Callable[..., Site]) -> None:
    """The new pod is admitted as soon as kubelet has freed the old one's ids, and has one try."""
    site = make_site(api=False)
    pods = [site.running({CORES: 50, MEMORY: 20}), site.running({CORES: 50, MEMORY: 20})]
    for _ in range(3):
        site.delete(pods.pop(0))
        pods.append(site.running({CORES: 50, MEMORY: 20}))


@pytest.mark.parametrize("api", [pytest.param(True, marks=pytest.mark.long), False], ids=["api", "kubelet alone"])
def test_a_crash_loop_keeps_its_share_over_restarts_of_kubelet_and_plugin(
    make_site: Callable[..., Site], api: bool
) -> None:
    """Between its lives other pods come and go, kubelet and the plugin are killed, and nobody gets its part."""
    site = make_site(api, **{"plugin.grant_grace": 1})
    looping = Spec([Container("main", {CORES: 60, MEMORY: 30}, ["sleep", "0.05"])], restart="Always")
    site.server.put_pod(looping.name, NODE, looping.uid, {"main": {CORES: 60, MEMORY: 30}})
    pod = site.kubelet.run(looping)
    wait_for(lambda: pod.statuses["main"].started > 1, SOON, lambda: str(pod.events))
    for number in range(3):
        site.delete(site.running(SHARE))
        if number == 0:
            site.plugin.kill()
            site.plugin.start(NODE_NAME=NODE)
        if number == 1:
            site.kubelet.stop()
            site.kubelet.start()
        site.kubelet.ready(CORES, MEMORY)
        site.kubelet.resume()  # else the pod would fail: kubelet admits it again before the plugin has registered
        time.sleep(1.2)  # longer than the grace
        assert pod.uid in site.grants(), site.plugin.text()
    lives = pod.statuses["main"].started
    wait_for(lambda: pod.statuses["main"].started > lives, SOON, lambda: str(pod.events))
    assert [event for event in pod.events if "grant" in event] == []


def test_a_pod_deleted_by_force_keeps_its_share_while_its_container_lives(make_site: Callable[..., Site]) -> None:
    site = make_site(api=True)
    ghost = site.running(SHARE)
    (name,) = ghost.sandbox["containers"]
    assert ghost.worker is not None
    with site.kubelet._admission:
        site.kubelet.pods.pop(ghost.uid)
    ghost.worker.stop()
    site.server.remove_pod(ghost.spec.name)
    time.sleep(2.5)
    assert site.grants() == {ghost.uid}
    os.kill(site.runtime.processes[name].pid, 9)
    site.runtime.processes[name].wait()
    wait_for(lambda: site.grants() == set(), SOON, site.plugin.text)
    site.running(WHOLE)
