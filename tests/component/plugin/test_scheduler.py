"""vgpu-scheduler-extender as a process, with an API server over HTTP: requests, certificates, watches, and replicas."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm
import pytest
import yaml
from checkout import CHECKOUT
from click.testing import CliRunner
from daemons import wait_for
from extender_process import Certificates, ExtenderProcess
from fake_apiserver import FakeApiServer
from gpu_clusters import GIB, make_cards, node_object, pod_object, share, uid_of

from vgpu.config.dialects import placements, registration
from vgpu.plugin.scheduler import demand, overview
from vgpu.plugin.scheduler.command import parsed

OWN, OWN_NODE = placements.OWN, placements.OWN_NODE
QUOTAS = "/api/v1/namespaces/kube-system/configmaps/gpuquota"


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as api:
        for name in ("a", "b"):
            put_node(api, name)
        yield api


@pytest.fixture
def start(server: FakeApiServer, tmp_path: Path) -> Iterator[Callable[..., ExtenderProcess]]:
    """Starts a replica with options."""
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    running: list[ExtenderProcess] = []

    def begin(*options: str, **more: Any) -> ExtenderProcess:
        running.append(ExtenderProcess(kubeconfig, tmp_path / f"log{len(running)}", *options, **more))
        return running[-1]

    yield begin
    for one in running:
        one.kill()


def put_node(api: FakeApiServer, name: str, count: int = 1) -> None:
    api.put_node(name, **node_object(name, make_cards(name, count))["metadata"]["annotations"])


def put(api: FakeApiServer, name: str, cores: int = 60, **more: Any) -> Any:
    pod = pod_object(name, share(cores, GIB), **more)
    pod["metadata"].setdefault("annotations", {})
    api.put_whole_pod(pod)
    return pod


def asked(pod: Any, *names: str) -> Any:
    return {"Pod": pod, "Nodes": None, "NodeNames": list(names)}


def test_filter_bind_and_the_rest_over_http(server, start) -> None:
    extender = start("--bind").ready()
    pod, more = put(server, "p"), put(server, "q")
    for path in ("/scheduler/filter", "/scheduler/predicates"):
        assert extender.ask(path, asked(pod, "a", "b", "x"))[1]["NodeNames"] == ["a", "b"]
    scores = extender.ask("/scheduler/priorities", asked(pod, "a", "b"))[1]
    assert [one["Host"] for one in scores] == ["a", "b"]
    binding = {"PodName": "p", "PodNamespace": "default", "PodUID": uid_of("p"), "Node": "a"}
    assert extender.ask("/scheduler/bind", binding) == (200, {"Error": ""})
    assert [one["metadata"]["annotations"] for one in server.bindings] == [{OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"}]
    assert not server.patches
    found = extender.ask("/scheduler/filter", asked(more, "a", "b"))[1]
    assert (found["NodeNames"], list(found["FailedNodes"])) == (["b"], ["a"])
    assert extender.ask("/scheduler/dry-run", {"Pod": more})[1]["chosen"] == "b"
    assert extender.ask("/version")[0] == extender.ask("/healthz")[0] == 200
    metrics = extender.ask("/metrics")[1]
    assert 'vgpu_extender_requests_total{result="ok",verb="bind"} 1.0' in metrics
    assert "vgpu_extender_nodes 2.0" in metrics


def test_the_servers_address_overrides_the_kubeconfigs(server, tmp_path) -> None:
    kubeconfig = tmp_path / "elsewhere"
    text = Path(server.kubeconfig(tmp_path / "right")).read_text()
    address = str(yaml.safe_load(text)["clusters"][0]["cluster"]["server"])
    kubeconfig.write_text(text.replace(address, "http://127.0.0.1:1"))
    with ExtenderProcess(str(kubeconfig), tmp_path / "log", f"--master={address}") as extender:
        extender.ready()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/scheduler/filter", b"{", 400), ("/scheduler/filter", b"[]", 400), ("/scheduler/bind", b"{}", 400),
        ("/scheduler/preemption", b"5", 400), ("/scheduler/priorities", b"", 400), ("/scheduler/nothing", b"{}", 404),
        ("/version", b"{}", 405), ("/scheduler/filter", b"x" * (3 << 20), 413),
    ],
)  # fmt: skip
def test_bad_bodies_get_a_status_and_an_error(server, start, path: str, body: bytes, status: int) -> None:
    extender = start("--max-body-mib=2").ready()
    code, answer = extender.ask(path, body)
    assert (code, bool(answer["Error"])) == (status, True)


def test_only_a_certificate_of_the_authority_opens_the_verbs(server, start, tmp_path) -> None:
    certificates = Certificates(tmp_path / "pki")
    known = certificates.context(certificates.client)
    extender = start("--bind", *certificates.options(), context=known).ready()
    pod, nobody = put(server, "p"), certificates.context()
    assert extender.ask("/scheduler/filter", asked(pod, "a"))[0] == 200
    for path in ("/healthz", "/readyz", "/version"):
        assert extender.ask(path, context=nobody)[0] == 200
    for path in ("/scheduler/filter", "/scheduler/bind", "/scheduler/preemption", "/scheduler/dry-run"):
        assert extender.ask(path, asked(pod, "a"), context=nobody)[0] == 403
    assert extender.ask("/metrics", context=nobody)[0] == 403
    with pytest.raises(OSError, match=r"(?i)alert|reset|closed|certificate|eof"):
        extender.ask("/scheduler/filter", asked(pod, "a"), context=certificates.context(certificates.stranger()))


def test_a_certificate_of_another_name_is_refused(server, start, tmp_path) -> None:
    certificates = Certificates(tmp_path / "pki", client="somebody")
    known = certificates.context(certificates.client)
    extender = start(*certificates.options(), "--client-names=system:kube-scheduler", context=known).ready()
    assert extender.ask("/scheduler/filter", asked(put(server, "p"), "a"))[0] == 403


def test_the_state_follows_the_watches(server, start) -> None:
    extender = start("--bind").ready()
    pod = put(server, "p")
    put_node(server, "c")
    wait_for(lambda: extender.ask("/scheduler/filter", asked(pod, "c"))[1].get("NodeNames") == ["c"])
    put(server, "q", node="c", annotations={OWN: "c0=GPU-c-0:60:1024", OWN_NODE: "c"})
    wait_for(lambda: not extender.ask("/scheduler/filter", asked(pod, "c"))[1]["NodeNames"])
    server.remove_pod("q")
    wait_for(lambda: extender.ask("/scheduler/filter", asked(pod, "c"))[1]["NodeNames"])
    server.annotate_node("c", **{registration.HOLDINGS: registration.holdings({}, {"GPU-c-0": (100, 0)}, 1.0)})
    wait_for(lambda: not extender.ask("/scheduler/filter", asked(pod, "c"))[1]["NodeNames"])
    server.remove_node("c")
    wait_for(lambda: "no node" in extender.ask("/scheduler/filter", asked(pod, "c"))[1]["FailedNodes"]["c"])
    listed = [path for method, path in server.requests if path.startswith("/api/v1/pods") and "watch" not in path]
    assert len(listed) == 1


def test_a_broken_watch_and_410_never_say_that_it_fits(server, start) -> None:
    extender = start("--bind").ready()
    pod = put(server, "p")
    wait_for(lambda: extender.ask("/scheduler/filter", asked(pod, "a"))[1].get("NodeNames"))
    server.break_next("503", times=1000)
    server.hang_up()
    extender.ready(False)
    found = extender.ask("/scheduler/filter", asked(pod, "a"))
    assert found[0] == 200
    assert "is not current" in found[1]["Error"]
    assert not found[1].get("NodeNames")
    server.mend()
    server.forget_history()
    put(server, "q", node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"})
    extender.ready()
    assert not extender.ask("/scheduler/filter", asked(pod, "a"))[1]["NodeNames"]


def test_a_binding_that_the_server_refuses_is_an_error(server, start) -> None:
    extender = start("--bind").ready()
    put(server, "p")
    binding = {"PodName": "p", "PodNamespace": "default", "PodUID": uid_of("p"), "Node": "a"}
    server.forbidden.append(("POST", "/binding"))
    status, answer = extender.ask("/scheduler/bind", binding)
    assert status == 200
    assert "403" in answer["Error"]
    server.forbidden.clear()
    assert extender.ask("/scheduler/bind", binding) == (200, {"Error": ""})


def quotas(server: FakeApiServer, text: str) -> None:
    meta = {"name": "gpuquota", "namespace": "kube-system"}
    server.put_object(QUOTAS, {"kind": "ConfigMap", "metadata": meta, "data": {"gpu_quota": text}})


def test_quotas_are_followed_and_the_last_good_one_stays(server, start) -> None:
    extender = start("--bind").ready()
    pod = put(server, "p")

    def refused() -> bool:
        return "ExceedsGPUQuota" in json.dumps(extender.ask("/scheduler/filter", asked(pod, "a"))[1])

    assert not refused()
    quotas(server, '{"default": {"quota": {"T4": 0.5}}}')
    wait_for(refused)
    quotas(server, "{")
    wait_for(lambda: [one for one in server.events if one["reason"] == "QuotaUnreadable"])
    assert refused()
    quotas(server, '{"default": {"quota": {"T4": 1}}}')
    wait_for(lambda: not refused())


def test_without_any_good_quotas_nothing_is_decided(server, start) -> None:
    quotas(server, "{")
    extender = start()
    wait_for(lambda: "no quotas could be read" in extender.ask("/readyz")[1])
    assert "no quotas could be read" in extender.ask("/scheduler/filter", asked(put(server, "p"), "a"))[1]["Error"]
    quotas(server, "{}")
    extender.ready()


def test_of_two_replicas_the_leader_alone_is_ready_and_the_other_takes_over(server, start) -> None:
    first = start("--bind", "--leader-elect").ready()
    second = start("--bind", "--leader-elect")
    pod = put(server, "p")
    wait_for(lambda: "another replica leads" in second.ask("/readyz")[1])
    assert "another replica leads" in second.ask("/scheduler/filter", asked(pod, "a"))[1]["Error"]
    put(server, "q", node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"})
    first.end()  # gives the lease up
    second.ready()
    assert second.ask("/scheduler/filter", asked(pod, "a", "b"))[1]["NodeNames"] == ["b"]


def test_a_leader_that_is_told_to_end_does_what_is_under_way_and_then_gives_the_lease_up(server, start) -> None:
    """Otherwise the next leader could list before the binding is done, and give its room away."""
    leader = start("--bind", "--leader-elect").ready()
    put(server, "p")
    binding = {"PodName": "p", "PodNamespace": "default", "PodUID": uid_of("p"), "Node": "a"}
    server.delay = 1.0
    leases: list[int] = []  # how many bindings were done when the lease was written

    class Requests(list):  # type: ignore[type-arg]
        def append(self, request: Any) -> None:
            super().append(request)
            if request[0] == "PATCH" and "/leases/" in request[1]:
                leases.append(len(server.bindings))

    server.requests = Requests(server.requests)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(leader.ask("/scheduler/bind", binding)))
    asking.start()
    wait_for(lambda: any(path.endswith("/binding") for _, path in server.requests))
    leader.end()
    asking.join()
    assert answers == [(200, {"Error": ""})]
    assert leader.process.returncode == 0
    held = server.objects["/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/vgpu-scheduler-extender"]
    assert held["spec"]["holderIdentity"] == ""
    assert leases[-1] == 1


def test_a_leader_that_cannot_renew_ends(server, start) -> None:
    leader = start("--leader-elect").ready()
    server.break_next("503", "/leases", times=1000)
    wait_for(lambda: leader.process.poll() is not None)
    assert leader.process.returncode == 1
    assert "the lease could not be renewed" in leader.text()


def test_a_restart_between_decision_and_binding_gives_nothing_twice(server, start) -> None:
    """The predecessor's decisions have SETTLE seconds to be bound before the next process decides."""
    first = start().ready()
    pod = put(server, "p")
    assert first.ask("/scheduler/filter", asked(pod, "a"))[1]["NodeNames"] == ["a"]
    first.kill()
    second = start()
    other = put(server, "q")
    wait_for(lambda: "earlier process" in second.ask("/readyz")[1])
    assert "earlier process" in second.ask("/scheduler/filter", asked(other, "a"))[1]["Error"]
    put(server, "p", node="a", annotations={OWN: "c0=GPU-a-0:60:1024", OWN_NODE: "a"})
    second.ready()
    assert not second.ask("/scheduler/filter", asked(other, "a"))[1]["NodeNames"]


# Rights and manifests

OBJECTS = CHECKOUT / "packaging/kubernetes/scheduler/objects.yaml"
CONFIGURATION = CHECKOUT / "packaging/kubernetes/chart/files/scheduler"
CONFIGURATIONS = sorted(CONFIGURATION.glob("*-scheduler-v1*.yaml"))


def rights() -> set[tuple[str, str]]:
    """(verb, resource) of all rules."""
    documents = yaml.safe_load_all(OBJECTS.read_text())
    return {
        (verb, resource)
        for one in documents
        for rule in one.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def right_of(method: str, path: str) -> tuple[str, str]:
    """The right that a request asks for."""
    plain, _, query = path.partition("?")
    parts = plain.split("/")
    resource = next(
        part for part in reversed(parts) if part in ("binding", "pods", "nodes", "configmaps", "leases", "events")
    )
    named = parts[-1] != resource
    verb = {"POST": "create", "PATCH": "patch"}.get(method, "get" if named else "list")
    return "watch" if "watch=true" in query else verb, "pods/binding" if resource == "binding" else resource


def test_each_right_is_asked_for_and_no_other(server, start) -> None:
    by_filter = start("--leader-elect").ready()
    pod = put(server, "p")
    quotas(server, "{")
    wait_for(lambda: server.events)
    assert by_filter.ask("/scheduler/filter", asked(pod, "a"))[1]["NodeNames"] == ["a"]
    server.break_next("409", "/pods/p", method="PATCH")
    assert by_filter.ask("/scheduler/filter", asked(pod, "a"))[1]["NodeNames"] == ["a"]
    by_filter.end()
    quotas(server, "{}")
    by_bind = start("--bind", "--leader-elect").ready()
    put(server, "q")
    binding = {"PodName": "q", "PodNamespace": "default", "PodUID": uid_of("q"), "Node": "b"}
    assert by_bind.ask("/scheduler/bind", binding) == (200, {"Error": ""})
    assert {right_of(*one) for one in server.requests} == rights()


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=[path.name for path in CONFIGURATIONS])
def test_every_configuration_of_the_scheduler_names_what_the_extender_serves(path: Path) -> None:
    (extender,) = yaml.safe_load(path.read_text())["extenders"]
    check_extender(extender)
    assert yaml.safe_load(path.read_text())["percentageOfNodesToScore"] == 100
    assert yaml.safe_load(path.read_text())["apiVersion"].endswith(path.stem.rpartition("-")[2])


def test_the_policy_file_names_the_same() -> None:
    (extender,) = json.loads((CONFIGURATION / "policy.json").read_text())["extenders"]
    check_extender(extender)


def check_extender(extender: dict[str, Any]) -> None:
    assert len(CONFIGURATIONS) == 4
    verbs = [extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "bind", "preempt")]
    assert verbs == ["filter", "prioritize", "bind", "preemption"]
    ignored = {one["name"] for one in extender["managedResources"] if one["ignoredByScheduler"]}
    counted = {one["name"] for one in extender["managedResources"]} - ignored
    assert ignored == {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"}
    assert counted == {*(name for one in demand.DEFAULT_NAMES for name in (one.cores, one.memory)), demand.GPU}
    assert extender["tlsConfig"]


def test_the_deployment_has_two_replicas_that_elect_a_leader() -> None:
    objects = {one["kind"]: one for one in yaml.safe_load_all(OBJECTS.read_text())}
    deployment, service = objects["Deployment"], objects["Service"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = parsed(container["command"][1:])
    assert deployment["spec"]["replicas"] == 2
    assert options.leader_elect
    assert options.bind
    assert options.client_ca_file
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert service["spec"]["ports"][0]["port"] == int(options.address.rpartition(":")[2])


def test_the_charts_certificates_let_its_scheduler_in_and_nobody_else(server, start, tmp_path) -> None:
    """The server's certificate has the Service's name, which is not this process's address."""
    name = "vgpu-scheduler-extender"
    for one in helm.objects(values={"extender": {"enabled": True}}):
        if one["kind"] == "Secret":
            (tmp_path / one["metadata"]["name"]).mkdir()
            for key, text in one["data"].items():
                (tmp_path / one["metadata"]["name"] / key).write_bytes(base64.b64decode(text))
        if one["kind"] == "Deployment" and one["metadata"]["name"] == name:
            (container,) = one["spec"]["template"]["spec"]["containers"]
    own, client = tmp_path / name, tmp_path / f"{name}-client"
    named = ["-verify_hostname", f"{name}.vgpu-system.svc", own / "tls.crt"]
    subprocess.run(["openssl", "verify", "-CAfile", client / "ca.crt", *named], check=True, capture_output=True)
    nobody = ssl.create_default_context(cafile=str(client / "ca.crt"))
    nobody.check_hostname = False
    known = ssl.create_default_context(cafile=str(client / "ca.crt"))
    known.check_hostname = False
    known.load_cert_chain(client / "tls.crt", client / "tls.key")
    options = [one.replace("=/certificates", f"={own}") for one in container["command"] if "--address" not in one]
    extender = start(*options[1:], context=known).ready()
    assert extender.ask("/metrics")[0] == 200
    assert extender.ask("/metrics", context=nobody)[0] == 403


# vgpuctl cluster


def ctl(server: FakeApiServer, tmp_path: Path, *words: str) -> Any:
    arguments = ["--kubeconfig", server.kubeconfig(tmp_path / "k"), *words, "--output", "json"]
    done = CliRunner().invoke(overview.cluster, arguments, obj="/none")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


def test_the_whole_cluster_in_one_look(server: FakeApiServer, tmp_path: Path) -> None:
    put_node(server, "b", 3)
    made = node_object("c", make_cards("c", 2), reasons={make_cards("c", 2)[1].uuid: "Xid 79"})["metadata"][
        "annotations"
    ]
    server.put_node("c", **made)
    server.put_node("d")
    put(server, "p", 60, node="b")
    rows = {row["node"]: row for row in ctl(server, tmp_path)["nodes"]}
    sizes = {name: (row["cards"], row["free_cards"], row["largest"][0], row["free"][0]) for name, row in rows.items()}
    assert sizes == {"a": (1, 1, 100, 100), "b": (3, 2, 100, 240), "c": (2, 1, 100, 100), "d": (0, 0, 0, 0)}
    assert [line.partition(": ")[2] for line in rows["c"]["ill"]] == ["Xid 79"]
    assert registration.OWN in rows["d"]["problem"]


def test_why_a_pod_waits_is_said_in_the_extenders_words(
    server: FakeApiServer, start: Callable[..., ExtenderProcess], tmp_path: Path
) -> None:
    put(server, "holds", 60, node="a")
    put(server, "asks", 70)
    answer = ctl(server, tmp_path, "why", "asks")
    pod = server.get("/api/v1/namespaces/default/pods/asks")
    assert answer == start().ready().ask("/scheduler/dry-run", {"Pod": pod})[1]
    assert [answer["nodes"][name]["fits"] for name in ("a", "b")] == [False, True]
