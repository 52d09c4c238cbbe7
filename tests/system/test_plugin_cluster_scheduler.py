"""The scheduler extender in a real cluster: Kubernetes 1.20's own scheduler asks it, kubelet and the hook follow it.

kube-scheduler asks as the chart's scheduler does, with the addresses and certificates of this cluster, and the extender
has the rights of its manifest and no others. The node has two cards. Only these are simulated. The chart's whole
configuration of kube-scheduler is of version v1, which 1.20 does not know.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import helm
import pytest
import real_cluster
import yaml
from checkout import CHECKOUT
from cluster_site import NAMESPACE, OFFERED, Site, documents
from daemons import wait_for
from extender_process import Certificates
from pod_site import CORE, EXAMPLES, MEMORY, SHIPPED
from real_cluster import Server
from real_kubelet import NODE

from vgpu.config.dialects import placements

pytestmark = [pytest.mark.root, pytest.mark.long]

KUBERNETES = CHECKOUT / "packaging/kubernetes"
CONFIGURATION = KUBERNETES / "chart/files/scheduler/default-scheduler-v1beta1.yaml"
ACCOUNT = "vgpu-scheduler-extender"
LEASE = f"lease/{ACCOUNT}"
ADDRESS = "127.0.0.1:3456"
SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
SOON = 2.0  #: seconds from the end of a pod's object until the pod that waits for its room is bound
SLOWER = 1.0  #: seconds by which rollovers and Jobs may be slower than without the extender, in the median


class Extender:
    """One replica at ADDRESS, beside the API server."""

    def __init__(self, site: Site, certificates: Certificates) -> None:
        self.site = site
        self.log = site.directory / "extender.log"
        self.certificates = certificates
        self.server: Server | None = None
        self.stanza: dict[str, Any] = {}  #: of kube-scheduler's configuration

    def start(self, *options: str) -> Extender:
        self.end()
        command = [
            sys.executable, "-m", "vgpu.plugin.scheduler.command", f"--address={ADDRESS}",
            f"--kubeconfig={self.site.cluster.directory}/{ACCOUNT}.kubeconfig",
            f"--lease={NAMESPACE}/{ACCOUNT}", "--client-names=system:kube-scheduler",
            *self.certificates.options(), *options,
        ]  # fmt: skip
        self.server = Server(self.site.place, self.log, command).start()
        return self

    def ready(self, seconds: float = 60) -> Extender:
        wait_for(lambda: self.ask("/readyz") == "ok\n", seconds, self.text)
        return self

    def ask(self, path: str, body: Any = None) -> str:
        """The answer to a request with the scheduler's certificate, "" where there is none."""
        certificate, key = self.certificates.client
        script = (
            "import ssl, sys, urllib.request as r\n"
            f"context = ssl.create_default_context(cafile={str(self.certificates.authority)!r})\n"
            f"context.load_cert_chain({str(certificate)!r}, {str(key)!r})\n"
            "data = sys.stdin.buffer.read() or None\n"
            f"print(r.urlopen(r.Request('https://{ADDRESS}{path}', data), context=context).read().decode(), end='')"
        )
        command = [*self.site.place.prefix, sys.executable, "-c", script]
        given = "" if body is None else json.dumps(body)
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False).stdout

    def alive(self) -> bool:
        return self.server is not None and self.server.alive

    def text(self) -> str:
        return self.server.text() if self.server is not None else ""

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.server is not None and self.server.process is not None:
            if self.alive():
                os.kill(self.server.process.pid, number)
            self.server.process.wait(60)
            self.server = None


@pytest.fixture(scope="module")
def extender(cluster: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extender]:
    """The extender, its rights, and kube-scheduler's configuration with it."""
    certificates = Certificates(tmp_path_factory.mktemp("pki"))
    shipped_objects = documents(KUBERNETES / "scheduler/objects.yaml")
    cluster.cluster.apply(*(one for one in shipped_objects if one["kind"] != "Deployment"))
    cluster.cluster.account(ACCOUNT, NAMESPACE)
    made = Extender(cluster, certificates)
    certificate, key = certificates.client
    files = {"certFile": str(certificate), "keyFile": str(key), "caFile": str(certificates.authority)}
    here = {"urlPrefix": f"https://{ADDRESS}/scheduler", "tlsConfig": files}
    asks = {**rendered_stanza(), **here}
    (shipped,) = yaml.safe_load(CONFIGURATION.read_text())["extenders"]
    assert {**shipped, **here} == asks, "the file for the cluster's own scheduler asks the same"
    made.stanza = asks
    configure_scheduler(cluster, asks)
    yield made
    made.end()


def rendered(kind: str, name: str) -> dict[str, Any]:
    objects = helm.objects(values={"extender": {"enabled": True}})
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return dict(found)


def rendered_stanza() -> dict[str, Any]:
    """What the chart's scheduler knows of the extender."""
    (found,) = yaml.safe_load(rendered("ConfigMap", "vgpu-gpu-scheduler")["data"]["config.yaml"])["extenders"]
    return dict(found)


def rendered_options() -> list[str]:
    """The options of the extender's pod, but for the files and the address that are this cluster's."""
    (container,) = rendered("Deployment", ACCOUNT)["spec"]["template"]["spec"]["containers"]
    own = ("--address=", "--tls-", "--client-ca-file=")
    return [option for option in container["command"][1:] if not option.startswith(own)]


def configure_scheduler(site: Site, *extenders: dict[str, Any], usual_backoff: bool = False) -> None:
    """With the usual back-off a pod that was refused waits for 1 s, 2, 4, 8, and then 10 s each time."""
    path = site.cluster.directory / "scheduler.json"
    found = json.loads(path.read_text())
    backoff = {} if usual_backoff else real_cluster.BACKOFF
    kept = {key: value for key, value in found.items() if key not in real_cluster.BACKOFF}
    site.cluster.scheduler.kill()
    path.write_text(json.dumps({**kept, **backoff, "percentageOfNodesToScore": 100, "extenders": extenders}))
    site.cluster.scheduler.start()


@pytest.fixture
def site(cluster: Site, extender: Extender) -> Iterator[Site]:
    """Each test leaves no pods to the next."""
    del extender
    yield cluster
    cluster.cluster.kubectl("delete", "replicasets", "--all", "--timeout=90s")
    cluster.delete_all()


def known(site: Site) -> None:
    """Wait until the node's annotations say what it has now."""
    wait_for(lambda: "vgpu.io/node-cards" in site.cluster.annotations("node", NODE), 60, site.plugin.text)


def chosen(pod: dict[str, Any]) -> dict[str, list[str]]:
    """Container -> the cards that the extender wrote on the pod."""
    annotations = pod["metadata"]["annotations"]
    if placements.HAMI in annotations:
        segments = annotations[placements.HAMI].split(";")
        names = [one["name"] for one in pod["spec"]["containers"]]
        return {name: [card.split(",")[0] for card in text.split(":") if card] for name, text in zip(names, segments)}
    parts = [part.partition("=") for part in annotations[placements.OWN].split(";")]
    return {name: [card.split(":")[0] for card in cards.split(",")] for name, _, cards in parts}


def ends_on_its_cards(site: Site, name: str) -> list[str]:
    """Assert that each container of a running pod holds the cards that were chosen; returns them."""
    pod = site.phase(name, "Running", seconds=180)
    found = chosen(pod)
    assert found
    for container, cards in found.items():
        assert sorted(uuid for uuid, _, _ in site.held(name, container)) == sorted(cards)
    return [card for cards in found.values() for card in cards]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_pods_end_on_the_card_that_was_chosen(site: Site, extender: Extender, path: Path) -> None:
    """These are the pods that users of gpu-manager and of the 4paradigm plugin know from those projects' pages."""
    (document,) = documents(path)
    settings = SHIPPED[path.stem][0]
    site.configure(OFFERED[settings.get("resources.core_name", settings.get("resources.mode", ""))], **settings)
    known(site)
    extender.start("--bind").ready()
    site.cluster.kubectl("apply", "-f", str(path))
    assert ends_on_its_cards(site, document["metadata"]["name"])


def replicas(site: Site, name: str, count: int, cores: int) -> None:
    limits = {CORE: str(cores), MEMORY: "4"}
    container = {
        "name": "main", "image": containerd_bed.IMAGE, "command": ["sleep", "86400"], "resources": {"limits": limits},
    }  # fmt: skip
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": count, "selector": selector, "template": template}
    site.cluster.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec})


def pods(site: Site, label: str) -> list[dict[str, Any]]:
    return json.loads(site.cluster.kubectl("get", "pods", "-l", f"app={label}", "-o", "json"))["items"]  # type: ignore[no-any-return]


def four_of_ten_run(site: Site, label: str) -> None:
    """Four run on their cards, two on each, and six wait; no pod has failed."""

    def running() -> list[dict[str, Any]]:
        return [pod for pod in pods(site, label) if pod["status"]["phase"] == "Running"]

    wait_for(lambda: len(running()) == 4, 180, lambda: site.cluster.kubectl("describe", "pods", check=False)[-3000:])
    every = pods(site, label)
    assert sorted(pod["status"]["phase"] for pod in every) == ["Pending"] * 6 + ["Running"] * 4
    assert sum(bool(pod["spec"].get("nodeName")) for pod in every) == 4
    cards = [card for pod in running() for card in ends_on_its_cards(site, pod["metadata"]["name"])]
    assert sorted(cards) == sorted(site.cards * 2)


def test_ten_replicas_at_once_on_room_for_four(site: Site, extender: Extender) -> None:
    """In sum the node has the units for five. The fifth finds no card, and the reason is in its events.

    The extender has the options of its pod in the chart.
    """
    site.configure(OFFERED[""])
    known(site)
    extender.start(*rendered_options()).ready(120)
    replicas(site, "ten", 10, 40)
    four_of_ten_run(site, "ten")
    waits = next(pod["metadata"]["name"] for pod in pods(site, "ten") if pod["status"]["phase"] == "Pending")
    wait_for(lambda: "no card fits 1 card, 40 cores" in site.cluster.kubectl("describe", "pod", waits), 60)


def test_the_extender_is_killed_again_and_again_while_pods_are_bound(site: Site, extender: Extender) -> None:
    site.configure(OFFERED[""])
    known(site)
    extender.start("--bind").ready()
    replicas(site, "killed", 10, 40)
    for count in range(1, 4):
        wait_for(lambda: sum(bool(pod["spec"].get("nodeName")) for pod in pods(site, "killed")) >= count, 120)  # noqa: B023
        extender.start("--bind").ready()
    four_of_ten_run(site, "killed")


def test_the_extender_is_killed_between_its_decision_and_the_binding(site: Site, extender: Extender) -> None:
    """Without the bind verb filter writes the decision. The next process decides about the pod afresh."""
    site.configure(OFFERED[""])
    known(site)
    site.cluster.scheduler.kill()
    try:
        extender.start().ready()
        site.create("decided", {CORE: 60, MEMORY: 4})
        body = {"Pod": site.find_pod("decided"), "Nodes": None, "NodeNames": [NODE]}
        answers: list[str] = []

        def fits() -> bool:  # a scheduler asks again, too, while the pods of the test before end
            answers.append(extender.ask("/scheduler/filter", body))
            return bool(json.loads(answers[-1])["NodeNames"] == [NODE])

        wait_for(fits, 60, lambda: answers[-1])
        assert chosen(site.find_pod("decided"))
        extender.end()
    finally:
        site.cluster.scheduler.start()
    for name in ("second", "third"):
        site.create(name, {CORE: 60, MEMORY: 4})
    extender.start("--bind").ready()
    names = ("decided", "second", "third")

    def running() -> list[str]:
        return [name for name in names if site.find_pod(name)["status"]["phase"] == "Running"]

    wait_for(lambda: len(running()) == 2, 180, lambda: site.what_happened("decided"))
    assert sorted(card for name in running() for card in ends_on_its_cards(site, name)) == sorted(site.cards)
    (waits,) = set(names) - set(running())
    assert site.find_pod(waits)["status"]["phase"] == "Pending"


def test_a_leader_that_loses_its_lease_binds_nothing_and_the_next_one_goes_on(site: Site, extender: Extender) -> None:
    site.configure(OFFERED[""])
    known(site)
    extender.start("--bind", "--leader-elect").ready()
    site.create("before", {CORE: 60, MEMORY: 4})
    first = ends_on_its_cards(site, "before")
    stolen = json.dumps({"spec": {"holderIdentity": "somebody-else"}})
    site.cluster.kubectl("patch", LEASE, "-n", NAMESPACE, "--type=merge", "-p", stolen)
    wait_for(lambda: not extender.alive(), 60, extender.text)
    assert "the lease could not be renewed" in extender.text()
    site.create("after", {CORE: 60, MEMORY: 4})
    wait_for(lambda: site.events("after", "FailedScheduling"), 60)
    assert not site.find_pod("after")["spec"].get("nodeName")
    extender.start("--bind", "--leader-elect").ready(120)  # when the thief's lease has not changed for its duration
    assert sorted(first + ends_on_its_cards(site, "after")) == sorted(site.cards)
    extender.end(signal.SIGTERM)


# How soon room is free


class PodEvents:
    """When, by this machine's clock, a watch of the API server showed what of which pod."""

    def __init__(self, site: Site) -> None:
        self.bound: dict[str, float] = {}
        self.refused: dict[str, float] = {}
        self.running: dict[str, float] = {}
        self.over: dict[str, float] = {}  #: deleted, succeeded or failed
        command = [*site.cluster.kubectl_command(), "get", "--raw", "/api/v1/namespaces/default/pods?watch=1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def __enter__(self) -> PodEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.thread.join()
        self.process.communicate()  # closes the pipe

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            now, event = time.monotonic(), json.loads(line)
            pod = event["object"]
            phase = pod["status"].get("phase")
            conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
            for known, holds in (
                (self.bound, pod["spec"].get("nodeName")),
                (self.refused, conditions.get("PodScheduled") == "False"),
                (self.running, phase == "Running"),
                (self.over, event["type"] == "DELETED" or phase in ("Succeeded", "Failed")),
            ):
                if holds:
                    known.setdefault(pod["metadata"]["name"], now)

    def name(self, known: dict[str, float], start: str, but: str = "") -> str:
        """Wait for a pod among the `known` whose name begins so."""
        return str(
            wait_for(lambda: next((one for one in list(known) if one.startswith(start) and one != but), ""), 180)
        )


def figures(what: str, times: list[float]) -> None:
    print(f"{what}, seed {SEED}, {len(times)} times: {[f'{one:.2f}' for one in times]}")
    print(f"  min {min(times):.2f} median {statistics.median(times):.2f} max {max(times):.2f} s")


@pytest.fixture
def waiting(site: Site, extender: Extender) -> Iterator[PodEvents]:
    """What happens to pods, with the options of the extender's pod in the chart and kube-scheduler's own back-off."""
    site.configure(OFFERED[""])
    known(site)
    extender.start(*rendered_options()).ready(120)
    configure_scheduler(site, extender.stanza, usual_backoff=True)
    with PodEvents(site) as events:
        yield events
    configure_scheduler(site, extender.stanza)


def share(cores: int) -> dict[str, int]:
    return {CORE: cores, MEMORY: 4} if cores < 100 else {CORE: cores}


def test_room_is_free_at_once(site: Site, waiting: PodEvents) -> None:
    """Beside a pod with 60 cores of the other card, each pod waits for the end of the one before it.

    One with 60 cores waits for the extender, as in sum the node has the units, and one with 100 for kube-scheduler.
    """
    chance, took = random.Random(SEED), []
    for name in ("beside", "pod0"):
        site.create(name, share(60))
        site.held(name)
    for number in range(1, 21):
        old, new = f"pod{number - 1}", f"pod{number}"
        site.create(new, share(chance.choice((60, 60, 100))))
        waiting.name(waiting.refused, new)
        time.sleep(5 * chance.random())  # the rounds of all programs are anywhere
        site.cluster.kubectl("delete", "pod", old, "--grace-period=1", "--wait=false")
        waiting.name(waiting.bound, new)
        took.append(waiting.bound[new] - waiting.over[old])
        site.held(new)
    figures("the object's end to the binding", took)
    assert max(took) <= SOON


def test_a_pod_deleted_by_force_keeps_its_card_while_its_process_lives(
    site: Site, extender: Extender, waiting: PodEvents
) -> None:
    def holdings() -> str:
        return site.cluster.annotations("node", NODE)["vgpu.io/node-holdings"]

    for number in range(5):
        forced, waits = f"forced{number}", f"waits{number}"
        uid = site.create(forced, share(60))
        site.create(f"beside{number}", share(60))
        for name in (forced, f"beside{number}"):
            site.held(name)
        os.kill(site.kubelet.pid, signal.SIGSTOP)
        try:
            site.cluster.kubectl("delete", "pod", forced, "--force", "--grace-period=0")
            waiting.name(waiting.over, forced)
            site.create(waits, share(60))
            waiting.name(waiting.refused, waits)
            before = holdings()
            wait_for(lambda before=before: holdings() != before, 180)  # type: ignore[misc]  # each minute's sign of life
            assert uid in holdings()
            body = {"Pod": site.find_pod(waits), "Nodes": None, "NodeNames": [NODE]}
            answer = json.loads(extender.ask("/scheduler/filter", body))
            assert "no card fits" in answer["FailedNodes"][NODE], answer
            assert waits not in waiting.bound
            site.cluster.kubectl("delete", "pod", waits)
        finally:
            os.kill(site.kubelet.pid, signal.SIGCONT)
        site.delete_all()


def template(command: str, **fields: Any) -> dict[str, Any]:
    """Pods with a whole card."""
    container = {
        "name": "main", "image": containerd_bed.IMAGE, "command": ["sh", "-c", command], "env": [],
        "resources": {"limits": {CORE: "100"}},
    }  # fmt: skip
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **fields}
    return {"metadata": {"labels": {"app": "one"}}, "spec": spec}


def rollover(site: Site, events: PodEvents, name: str) -> float:
    """Seconds from the change of a Deployment with one replica, on the only card with room, until its new pod runs."""
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    pods = template("exec sleep 86400")
    spec = {
        "replicas": 1, "selector": {"matchLabels": {"app": "one"}}, "strategy": {"type": "Recreate"}, "template": pods,
    }  # fmt: skip
    site.cluster.apply({**made, "spec": spec})
    old = events.name(events.running, f"{name}-")
    pods["spec"]["containers"][0]["env"].append({"name": "NEW", "value": "1"})
    begin = time.monotonic()
    site.cluster.apply({**made, "spec": spec})
    new = events.name(events.running, f"{name}-", but=old)
    site.cluster.kubectl("delete", "deployment", name)
    events.name(events.over, new)
    return events.running[new] - begin


def succession(site: Site, events: PodEvents, name: str) -> float:
    """Seconds from the end of a Job's pod until that of the next Job runs, which waits for the card."""
    for part, seconds, seen in ((f"{name}a", 6, events.running), (f"{name}b", 1, events.refused)):
        spec = {"template": template(f"sleep {seconds}", restartPolicy="OnFailure")}
        site.cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part}, "spec": spec})
        events.name(seen, f"{part}-")
    old, new = (events.name(events.over, f"{name}{part}-") for part in "ab")
    site.cluster.kubectl("delete", "job", f"{name}a", f"{name}b")
    return events.running[new] - events.over[old]


@pytest.mark.parametrize("way", [rollover, succession])
def test_pods_follow_each_other_as_fast_as_without_the_extender(
    site: Site, extender: Extender, waiting: PodEvents, way: Callable[[Site, PodEvents, str], float]
) -> None:
    site.create("beside", share(60))
    site.held("beside")
    middle = {}
    for name, extenders in (("with", (extender.stanza,)), ("without", ())):
        configure_scheduler(site, *extenders, usual_backoff=True)
        took = [way(site, waiting, f"{name}{number}") for number in range(10)]
        figures(f"{way.__name__} {name} the extender", took)
        middle[name] = statistics.median(took)
    assert middle["with"] <= middle["without"] + SLOWER
