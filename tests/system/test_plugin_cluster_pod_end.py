"""A card is free when its pod is gone, and only then: pod ends, rollovers, jobs, crash loops, restarts, a reboot.

The programs are those of test_plugin_cluster, and the settings are the defaults: a shorter `plugin.grant_grace` hides
for how long a grant outlives its pod.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import containerd_bed
import pytest
from cluster_site import Site
from daemons import wait_for
from pod_site import CORE, MEMORY

pytestmark = [pytest.mark.root, pytest.mark.long]

CARDS = {CORE: 200, MEMORY: 314}
API = {"with-api": "auto", "without-api": "never"}
READY = 5.0  #: seconds from the end of the last share's pod until a pod of whole cards runs
#: Seconds in which a Deployment's pods end after SIGTERM -> of its rollover.
ROLLOVERS = {0: 30.0, 2: 30.0}


@pytest.fixture(params=API.values(), ids=API)
def site(cluster: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The node, with and without API access. Each test leaves no pods to the next."""
    cluster.configure(CARDS, kubernetes__api=request.param)
    yield cluster
    cluster.delete_all()


def share(cores: int, units: int, command: str = "exec sleep 86400") -> dict[str, Any]:
    """A container with a share."""
    limits = {CORE: str(cores), MEMORY: str(units)}
    return {
        "name": "main", "image": containerd_bed.IMAGE, "resources": {"limits": limits}, "command": ["sh", "-c", command]
    }  # fmt: skip


def template(name: str, container: dict[str, Any], **fields: Any) -> dict[str, Any]:
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container], **fields}
    return {"metadata": {"labels": {"app": name}}, "spec": spec}


def problems(site: Site, name: str) -> list[str]:
    """The messages of the pod's failed starts."""
    return [event["message"] for event in site.events(name) if event["type"] == "Warning"]


def plain_start(site: Site) -> float:
    """The seconds that a pod without a card takes here and now."""
    start = time.monotonic()
    site.create("plain", {})
    site.phase("plain", "Running")
    took = time.monotonic() - start
    site.delete("plain")
    return took


# The end of a pod


@pytest.mark.parametrize("restart", ["Always", "Never"])
def test_whole_cards_run_at_once_when_the_shares_pods_are_gone(site: Site, restart: str) -> None:
    """One pod waits at the scheduler for the units, the next is made afterwards."""
    usual = plain_start(site)
    for name in ("waiting", "made-later"):
        for number in range(2):
            site.create(f"share{number}", {CORE: 60, MEMORY: 4})
            site.held(f"share{number}")
        if name == "waiting":
            site.create(name, {CORE: 200}, restartPolicy=restart)
        site.delete("share0", "share1")
        gone = time.monotonic()
        if name == "made-later":
            site.create(name, {CORE: 200}, restartPolicy=restart)
        site.phase(name, "Running", "Failed")
        took = time.monotonic() - gone
        print(f"{name} {restart}: {took:.1f} s, a pod without a card {usual:.1f} s")
        assert site.find_pod(name)["status"]["phase"] == "Running", problems(site, name)
        assert [text for text in problems(site, name) if "vgpu-hook" in text] == []
        assert took < READY + usual
        site.delete(name)


def test_whole_cards_run_when_the_shares_pods_have_ended(site: Site) -> None:
    """Pods that succeeded or failed stay as objects. kubelet has their units back, so the cards are free."""
    for name, code in (("well", 0), ("badly", 1)):
        command = ["sh", "-c", f"sleep 2; exit {code}"]
        site.create(name, {CORE: 60, MEMORY: 4}, command=command, restartPolicy="Never")
    site.phase("well", "Succeeded")
    site.phase("badly", "Failed")
    usual, ended = plain_start(site), time.monotonic()
    site.create("whole", {CORE: 200}, restartPolicy="Never")
    site.phase("whole", "Running", "Failed")
    took = time.monotonic() - ended
    print(f"{took:.1f} s, a pod without a card {usual:.1f} s")
    assert site.find_pod("whole")["status"]["phase"] == "Running", problems(site, "whole")
    assert took < READY + usual


@pytest.mark.parametrize("ending", ROLLOVERS)
def test_a_rollover_ends(site: Site, ending: int) -> None:
    """3 x 40 cores on two cards. A Deployment counts no pod that is ending, so for a moment there are five.

    kubelet admits the fifth on 20 free cores of each card. It starts when a pod that is ending has left its card.
    """
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "served"}}, "template": served_by("first", ending)}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"}, "spec": spec}
    site.cluster.apply(deployment)
    status = ["rollout", "status", "deployment/served", "--timeout=180s"]
    try:
        site.cluster.kubectl(*status)
        spec["template"] = served_by("second", ending)
        start = time.monotonic()
        site.cluster.apply(deployment)
        site.cluster.kubectl(*status)
        took = time.monotonic() - start
        print(f"rollover of pods that end in {ending} s: {took:.1f} s")
        assert took < ROLLOVERS[ending]
    finally:
        site.cluster.kubectl("delete", "deployment", "served", "--cascade=foreground", "--timeout=90s")


def served_by(version: str, ending: int) -> dict[str, Any]:
    command = f'echo {version}; trap "sleep {ending}; exit" TERM; sleep 86400 & wait'
    return template("served", share(40, 4, command), terminationGracePeriodSeconds=30)


def test_a_job_of_twenty_on_room_for_four(site: Site) -> None:
    """No pod of it fails, and no card holds more than two at once."""
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "many"},
        "spec": {
            "completions": 20, "parallelism": 20, "backoffLimit": 0,
            "template": template("many", share(50, 8, "cudaprobe info; sleep 2"), restartPolicy="Never"),
        },
    }  # fmt: skip
    start = time.monotonic()
    site.cluster.apply(job)
    try:
        wait_for(lambda: ended(site, "many"), 300, lambda: str(site.cluster.find("job", "many")["status"]))
        print(f"job: {time.monotonic() - start:.1f} s")
        status = site.cluster.find("job", "many")["status"]
        assert (status.get("succeeded"), status.get("failed")) == (20, None)
    finally:
        site.cluster.kubectl("delete", "job", "many", "--cascade=foreground", "--timeout=90s")


def ended(site: Site, job: str) -> bool:
    return bool(site.cluster.find("job", job)["status"].get("conditions"))


# A pod whose containers come back


def test_nobody_takes_the_share_of_a_pod_that_comes_back(site: Site) -> None:
    """A container that crashes again and again, restarts of kubelet and of the plugin, then a reboot of the node.

    Meanwhile other pods want the room: a Job's small pods one after the other, and one that fits nowhere.
    """
    crash = ["sh", "-c", "cudaprobe info; sleep 1; exit 1"]
    site.create("crashing", {CORE: 60, MEMORY: 4}, command=crash, restartPolicy="Always")
    site.create("steady", {CORE: 60, MEMORY: 4})
    places = {name: site.held(name) for name in ("crashing", "steady")}
    mine = {grant.id for grant in site.grants() if grant.holder}
    site.create("greedy", {CORE: 70, MEMORY: 4})  # its units are free, but no card has room for it
    for happening in (served, restart_kubelet, restart_plugin, restart_both, reboot):
        happening(site)
        before = restarts(site, "crashing")
        wait_for(lambda before=before: restarts(site, "crashing") > before, 400, lambda: site.what_happened("crashing"))
        assert site.held("steady") == places["steady"]
        assert site.held("crashing") == places["crashing"]
        assert mine <= {grant.id for grant in site.grants()}
        assert "greedy/main" not in site.claims()
    site.delete("crashing")
    assert [share[1:] for share in site.held("greedy")] == [(1024, 70)]


def restarts(site: Site, name: str) -> int:
    (status,) = site.find_pod(name)["status"]["containerStatuses"]
    return int(status["restartCount"])


def restart_kubelet(site: Site) -> None:
    site.kubelet.restart()
    served(site)


def restart_plugin(site: Site) -> None:
    site.plugin.kill()
    site.start_plugin()
    served(site)


def restart_both(site: Site) -> None:
    site.plugin.kill()
    site.kubelet.restart()
    site.start_plugin()
    served(site)


def reboot(site: Site) -> None:
    site.lose_power()
    site.boot()
    served(site)


def served(site: Site) -> None:
    wait_for(lambda: site.offered() == CARDS, 60, lambda: f"{site.offered()} {site.plugin.text()[-2000:]}")
