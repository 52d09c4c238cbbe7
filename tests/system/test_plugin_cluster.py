"""The plugin in a cluster: Kubernetes 1.20's own API server, controllers, scheduler and kubelet; containerd; the hook.

Only the cards are simulated. The plugin has the service account of its manifest and no other rights. Missing programs
are compiled first, so this runs with --long only. Tests of other projects' schedulers are in
test_plugin_cluster_dialects.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import daemons
import docs_commands
import nodes
import pytest
from cluster_site import ACCOUNT, OFFERED, Site, documents
from container_site import MIB
from daemons import wait_for
from pod_site import CORE, EXAMPLES, MEMORY, SHIPPED, WHOLE
from real_kubelet import NODE

from vgpu.hook.request import pod_record

pytestmark = [pytest.mark.root, pytest.mark.long]

CARDS = {CORE: 200, MEMORY: 314}
SMI = "/usr/local/nvidia/bin/nvidia-smi"


@pytest.fixture
def site(cluster: Site) -> Iterator[Site]:
    """Each test leaves no pods to the next."""
    yield cluster
    cluster.delete_all()


# The quick start


def test_the_quick_starts_commands(site: Site, tmp_path: Path) -> None:
    """The blocks of the page that need a cluster, typed with its kubectl and this checkout's vgpuctl."""
    site.configure(CARDS)
    programs = {"kubectl": site.cluster.kubectl_command(), "vgpuctl": site.node.vgpuctl_command()}
    for name, command in programs.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (tmp_path / name).chmod(0o755)
    blocks = docs_commands.blocks("docs/start-kubernetes-packages.md")
    typed = "\n".join(block.text for block in blocks if block.kind == "sh" and block.reason())
    environment = {**site.node.environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = typed.replace("IMAGE", containerd_bed.IMAGE)
    done = subprocess.run(["sh", "-ec", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + site.what_happened("share")
    assert re.search(r"0MiB / +8192MiB", done.stdout), done.stdout
    assert re.search(r"\w{12} \(default/share/main\), card \d: cores 30 -> 50, core limit 30 -> 50", done.stdout)


# The shipped pods


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_pods(site: Site, name: str) -> None:
    """They are created as in their files, scheduled by the node's resources, run, and see only their shares."""
    settings, expected = SHIPPED[name]
    site.configure(OFFERED[settings.get("resources.core_name", settings.get("resources.mode", ""))], **settings)
    site.cluster.kubectl("apply", "-f", str(EXAMPLES / f"{name}.yaml"))
    (document,) = documents(EXAMPLES / f"{name}.yaml")
    pod = document["metadata"]["name"]
    scheduler = document["spec"].get("schedulerName", "default-scheduler")
    assert site.phase(pod, "Running")["spec"]["nodeName"] == NODE
    assert scheduler in site.reporters(pod)
    for container, cards in expected.items():
        held = [(min(mib, WHOLE // MIB), cores) for _, mib, cores in site.held(pod, container)]
        assert held == [card[:2] for card in cards]  # a whole card has no limit
        claim = site.claims()[f"{pod}/{container}"]
        assert [card.core_limit for card in claim.cards] == [card[2] for card in cards]
        sees(site, pod, container, document, [mib for mib, _, _ in cards])


def sees(site: Site, pod: str, container: str, document: dict[str, Any], cards: list[int]) -> None:
    """Assert that nvidia-smi in the container shows these cards' memory and no other."""
    query = [SMI, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = site.cluster.kubectl("exec", pod, "-c", container, "--", *query)
    assert [int(line) for line in answer.split()] == cards
    command = next(item for item in document["spec"]["containers"] if item["name"] == container).get("command", [])
    if command[:1] == [SMI]:
        assert "pid" in site.wait_for_log(pod, "# gpu", container)


# Faults


def test_the_api_server_dies_and_comes_back(site: Site) -> None:
    """The plugin grants without it, and afterwards processes earlier and later events."""
    site.configure(CARDS)
    site.create("before", {CORE: 30, MEMORY: 4})
    (card, mib, cores) = site.held("before")[0]
    assert (mib, cores) == (1024, 30)
    first = site.claims()["before/main"]
    told = site.plugin.text().count("plugin: the API server is away")
    site.cluster.api.kill()
    wait_for(lambda: site.plugin.text().count("plugin: the API server is away") > told, 120, site.plugin.text)
    wait_for(lambda: not pod_record.watched(site.node.settings.run_dir), 60, site.plugin.text)
    static = {"name": "main", "command": ["sleep", "86400"], "resources": {"limits": {CORE: "20", MEMORY: "3"}}}
    manifest = site.kubelet.manifest("meanwhile", [static], terminationGracePeriodSeconds=0)
    try:
        assert [share[1:] for share in site.held(f"meanwhile-{NODE}")] == [(768, 20)]
        life = site.claims()["before/main"].container
        assert site.bed.client is not None
        site.bed.client.call("StopContainer", container_id=life, timeout=0)
        wait_for(lambda: site.claims().get("before/main", first).container != life, 60, site.plugin.text)
        assert site.held("before") == [(card, mib, cores)]
        site.cluster.api.start()
        site.cluster.ready()
        other = next(uuid for uuid in site.cards if uuid != card)
        placed = {"vgpu.io/placement": f"main={other}", "vgpu.io/placement-node": NODE}
        wait_for(lambda: pod_record.watched(site.node.settings.run_dir), 90, site.plugin.text)
        site.create("after", {CORE: 40, MEMORY: 5}, metadata={"annotations": placed})
        assert site.held("after") == [(other, 1280, 40)]
        wait_for(
            lambda: site.cluster.annotations("pod", "after").get("vgpu.io/assigned") == "true", 60, site.plugin.text
        )
        site.delete("before")
        wait_for(lambda: site.claimed() == [20, 40, 768 * MIB, 1280 * MIB], 60, lambda: str(site.claimed()))
    finally:
        manifest.unlink()


@pytest.mark.parametrize(
    ("limits", "words"), [({CORE: 150, MEMORY: 4}, "150"), ({CORE: 30, MEMORY: 161}, "MiB")], ids=["cores", "memory"]
)
def test_an_impossible_request_is_reported(site: Site, limits: dict[str, int], words: str) -> None:
    site.configure(CARDS)
    name = f"odd-{words.lower()}"  # a name of its own, as events are found by the name
    site.create(name, limits)
    status = site.phase(name, "Failed")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert words in status["message"]
    assert status["message"] in site.cluster.kubectl("describe", "pod", name)
    (event,) = site.events(name, "UnexpectedAdmissionError")
    assert words in event["message"]


def test_a_failed_start_is_the_end_of_a_pod_that_never_starts_again(site: Site) -> None:
    """kubelet does not retry such a pod. A card that is full at the moment ends it, with the hook's reason."""
    site.configure(CARDS)
    for name in ("one", "two"):
        site.create(name, {CORE: 60, MEMORY: 4})
        site.held(name)
    site.create("once", {CORE: 70, MEMORY: 4}, restartPolicy="Never")
    (status,) = site.phase("once", "Failed")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["reason"] == "StartError"
    assert "40 cores free of 100" in status["state"]["terminated"]["message"]


# What happens on the cards


def test_incidents_are_events_on_the_pod_once(site: Site) -> None:
    """Refused memory, a driver library of the pod's own, and a lost card. The plugin has its manifest's rights only."""
    site.configure(CARDS)
    vgpud = daemons.Daemon(site.node).start().ready()
    card = 0
    try:
        limits = {CORE: 20, MEMORY: 4}
        site.create("full", limits, command=["sh", "-c", "sleep 10; cudaprobe alloc 2000; sleep 86400"])
        past = "export LD_LIBRARY_PATH=/usr/local/vgpu/driver; cudaprobe hold 1500 /end; sleep 86400"
        site.create("past", limits, command=["sh", "-c", past])
        ((uuid, _, _),) = site.held("past")
        card = site.cards.index(uuid)
        wait_for(lambda: site.events("full", "OutOfCardMemory"), 120, lambda: site.what_happened("full") + vgpud.text())
        wait_for(lambda: site.events("past", "MemoryLimitExceeded"), 120, lambda: site.what_happened("past"))
        described = site.cluster.kubectl("describe", "pod", "past")
        assert re.search(r"container main holds 1\d\d\d MiB of card GPU-\S+, and its limit is 1024 MiB", described)
        nodes.simctl().inject_event(str(site.node.sim), card, "lost", 0)
        wait_for(lambda: site.events("past", "CardFault"), 120, lambda: site.what_happened("past"))
        site.plugin.kill()
        site.start_plugin()
        time.sleep(40)  # two rounds of the plugin
        reasons = [event["reason"] for event in site.events("past") if event["source"].get("component") == ACCOUNT]
        assert sorted(reasons) == ["CardFault", "MemoryLimitExceeded"]
        assert site.events("full", "MemoryLimitExceeded") == []
    finally:
        nodes.simctl().inject_event(str(site.node.sim), card, "back", 0)
        vgpud.stop()
        wait_for(lambda: site.offered() == CARDS, 120, site.plugin.text)
