"""Dashboard, alert rules and monitors: queries of exported metrics, which a real Prometheus runs."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm
import pytest
import round_records
import yaml
from checkout import CHECKOUT
from daemons import wait_for
from prometheus_client.parser import text_string_to_metric_families

from vgpu.config.settings import Settings
from vgpu.plugin.exporter import families
from vgpu.plugin.exporter.server import Exporter
from vgpu.plugin.exporter.snapshot import of_record

MONITORING = CHECKOUT / "packaging/monitoring"
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
#: What promtool says about names that other projects chose.
COMPLAINTS = ['container_gpu_memory_total non-counter metrics should not have "_total" suffix']


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def for_everything(query: str) -> str:
    """A dashboard's query with all of its variables' values."""
    return re.sub(r"\$(node|namespace)\b", ".*", query)


def states() -> dict[str, Any]:
    return {"alive": lambda: (True, ""), "ready": lambda: (False, "no cards")}


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    made = round_records.record(cards=2, containers=3)
    made["violations"] = [{"container": made["containers"][0]["container"], "uuid": round_records.uuid_of(0)}]
    made["cards"][1]["fault"] = "fell off the bus"
    round_records.write(str(tmp_path), made)
    settings = Settings({"paths.run": str(tmp_path), "metrics.compat": ["gpu-manager", "hami", "gpu-fractioning"]})
    found = Exporter(settings, "127.0.0.1:0", states())
    yield found
    found.close()


def exposition(exporter: Exporter) -> str:
    with urllib.request.urlopen(f"http://{exporter.address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def exported(text: str) -> dict[str, set[str]]:
    """The labels of each exported series, by name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in rules())])
def test_a_query_is_of_exported_metrics_and_their_labels(exporter: Exporter, query: str) -> None:
    labels = exported(exposition(exporter))
    metrics = re.findall(r"\b(vgpu_\w+)(?:\{([^}]*)\})?", query)
    assert metrics
    for name, matchers in metrics:
        assert name in labels
        assert set(re.findall(r"(\w+)=~?\"", matchers)) <= labels[name]
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query))))
    assert all(grouped <= labels[name] for name, _ in metrics)


def test_texts_of_alerts_and_legends_name_labels_that_exist(exporter: Exporter) -> None:
    labels = exported(exposition(exporter))
    for rule in [rule for rule in rules() if "alert" in rule]:
        (name, *_) = re.findall(r"\bvgpu_\w+", rule["expr"])
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels[name], rule["alert"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            (name, *_) = re.findall(r"\bvgpu_\w+", target["expr"])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels[name], panel["title"]


def test_panels_do_not_overlap_and_ids_are_unique() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("way", ["node", "unit"])
def test_monitors_find_the_exporters_and_their_port(way: str) -> None:
    monitors = {"podMonitor": True, "serviceMonitor": True, "rules": True, "dashboard": True}
    values = {"monitors": monitors, "node": {"enabled": way == "node"}, "unit": {"enabled": way == "unit"}}
    rendered = [found for found in helm.objects(values=values) if found["metadata"]["name"] != "vgpu-config"]
    objects = {found["kind"]: found for found in rendered}
    pod = objects["DaemonSet"]["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    (port,) = [port for one in pod["spec"]["containers"] for port in one.get("ports", ())]
    assert objects["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels
    service, monitor = objects["Service"], objects["ServiceMonitor"]
    assert service["spec"]["selector"].items() <= labels
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port["name"]]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,), (found,) = monitor["spec"]["endpoints"], objects["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint == found
    assert endpoint["port"] == port["name"] == service["spec"]["ports"][0]["name"]
    assert endpoint["honorLabels"], "else pod and namespace would be the exporter's own"
    assert objects["PrometheusRule"]["spec"] == ALERTS
    assert json.loads(objects["ConfigMap"]["data"]["vgpu.json"]) == DASHBOARD


# With the distribution's Prometheus


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_promtool_complains_only_about_others_names(exporter: Exporter) -> None:
    command = [program("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=exposition(exporter), capture_output=True, text=True, check=False)
    assert [line for line in (done.stdout + done.stderr).splitlines() if line] == COMPLAINTS


def test_promtool_accepts_the_rules_and_the_dashboards_queries(tmp_path: Path) -> None:
    queries = [
        {"record": f"panel:query{number}", "expr": for_everything(query)}
        for number, query in enumerate(dashboard_queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": queries}]}), encoding="utf-8")
    command = [program("promtool"), "check", "rules", str(MONITORING / "alerts.yaml"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


#: What goes wrong in vgpud's record, and the alerts for it.
FAILURES: dict[str, tuple[Callable[[dict[str, Any]], None], set[str]]] = {
    "a card is lost": (lambda made: made["cards"][0].update(fault="lost"), {"VgpuCardUnhealthy"}),
    "a card has an Xid": (lambda made: made["cards"][1].update(fault="Xid 94"), {"VgpuCardUnhealthy"}),
    "the driver is gone": (
        lambda made: made["vgpud"].update(inventory={"state": "failed", "error": "not loaded"}),
        {"VgpuInventoryFailed"},
    ),
    "NVML hangs": (lambda made: made["vgpud"].update(health_known=False), {"VgpuCardHealthNotKnown"}),
    "the plugin is blind": (lambda made: made["plugin"].update(health_known=False), {"VgpuCardHealthNotKnown"}),
    "the plugin is away": (lambda made: made["plugin"].update(alive=False, ready=False), {"VgpuPluginNotReady"}),
    "the API server is away": (
        lambda made: made["plugin"].update(warnings=["the API server is away, trying again"]), {"VgpuPluginWarnings"}
    ),
    "the hook is gone": (
        lambda made: made["registrations"].update(working=1, broken=1), {"VgpuRuntimeNotRegistered"}
    ),
    "no runtime calls the hook": (lambda made: made["registrations"].update(working=0), {"VgpuRuntimeNotRegistered"}),
    "a claim is damaged": (lambda made: made["vgpud"].update(warnings=["claim.json: expected JSON"]), {"VgpuWarnings"}),
    "somebody computes without a claim": (
        lambda made: made["cards"][0].update(foreign=[{"pid": 1, "command": "x", "kind": "compute"}]),
        {"VgpuForeignProcesses"},
    ),
    "a container is beyond its limit": (
        lambda made: made.update(violations=[{"container": made["containers"][0]["container"],
                                              "uuid": round_records.uuid_of(0)}]),
        {"VgpuContainerBeyondLimit"},
    ),
    "a container reports too little": (
        lambda made: made["containers"][0]["cards"][0].update(doubted=True), {"VgpuContainerDoubted"}
    ),
}  # fmt: skip
MINUTES = 60


def healthy_record() -> dict[str, Any]:
    """A record without anything that an alert is for, with figures of this moment."""
    made = round_records.record(cards=2, containers=3)
    made["vgpud"].update(warnings=[], rounds=random.randrange(1000))
    made["plugin"] = {"alive": True, "ready": True, "health_known": True, "warnings": []}
    made["violation_counts"] = {"reported": 0, "killed": 0}
    for card in made["cards"]:
        card.update(utilization=random.randrange(101), memory_used=random.randrange(16) << 30)
    for container in made["containers"]:
        container["cards"][0].update(cores_used=100 * random.random(), lent=random.randrange(100))
    return made


def series_of(records: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The exported series of these rounds, as promtool's input."""
    found: dict[str, list[str]] = {}
    for at, made in enumerate(records):
        for family in families.of_snapshot(of_record(made), "1"):
            for sample in family.samples:
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
                values = found.setdefault(f"{sample.name}{{{labels}}}", [])
                values += ["_"] * (at - len(values)) + [repr(float(sample.value))]
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]


def test_alerts_fire_for_their_failures_and_none_on_a_healthy_node(tmp_path: Path) -> None:
    """By promtool's clock: a failure that lasts an hour, and 1,000 healthy rounds."""
    firing = 'ALERTS{alertstate="firing"}'
    tests = [{
        "interval": "15s", "input_series": series_of([healthy_record() for _ in range(1000)]),
        "promql_expr_test": [
            {"expr": f"count(count_over_time({firing}[5h]))", "eval_time": "249m", "exp_samples": []}
        ],
    }]  # fmt: skip
    for plant, alerts in FAILURES.values():
        made = healthy_record()
        plant(made)
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)]
        asked = {"expr": f"group by (alertname) ({firing})", "eval_time": f"{MINUTES}m", "exp_samples": samples}
        rounds = [healthy_record()] * 4 + [made] * 4 * MINUTES
        tests.append({"interval": "15s", "input_series": series_of(rounds), "promql_expr_test": [asked]})
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(MONITORING / "alerts.yaml")], "evaluation_interval": "15s",
                                "tests": tests}))  # fmt: skip
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    unprovoked = {rule["alert"] for rule in rules() if "alert" in rule} - set.union(
        *(one for _, one in FAILURES.values())
    )
    assert unprovoked == {"VgpuDaemonDown", "VgpuMemoryNearLimit", "VgpuStartsRefused"}


class Prometheus:
    """The distribution's Prometheus, which scrapes `target` each second."""

    def __init__(self, directory: Path, target: str) -> None:
        soon = [{key: value for key, value in rule.items() if key != "for"} for rule in rules()]
        at_once = {"groups": [{"name": "vgpu", "interval": "1s", "rules": soon}]}
        (directory / "rules.yaml").write_text(yaml.safe_dump(at_once), encoding="utf-8")
        job = {"job_name": "vgpu", "honor_labels": True, "static_configs": [{"targets": [target]}]}
        settings = {"global": {"scrape_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": [job]}
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program("prometheus"), f"--config.file={directory}/prometheus.yaml",
                 f"--storage.tsdb.path={directory}/data", f"--web.listen-address={self.address}"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer; None until there is one."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    def firing(self) -> set[str]:
        found = self.ask("alerts") or {"alerts": []}
        return {alert["labels"]["alertname"] for alert in found["alerts"] if alert["state"] == "firing"}


def test_prometheus_scrapes_the_exporter_and_evaluates_rules_and_panels(exporter: Exporter, tmp_path: Path) -> None:
    prometheus = Prometheus(tmp_path, exporter.address)
    try:
        wanted = {
            "VgpuContainerBeyondLimit", "VgpuCardUnhealthy", "VgpuCardHealthNotKnown", "VgpuPluginNotReady",
            "VgpuWarnings", "VgpuPluginWarnings",
        }  # fmt: skip
        wait_for(lambda: wanted <= prometheus.firing(), timeout=600, what=prometheus.log.read_text)
        assert prometheus.firing() == wanted
        for query in dashboard_queries():
            found = prometheus.ask("query", query=for_everything(query))
            assert found is not None, query
            if "rate(" not in query and "== 0)" not in query:
                assert found["result"], query
        (one,) = prometheus.ask("query", query='vgpu_container_ready{pod="web-1"}')["result"]
        assert one["metric"]["namespace"] == "team"
    finally:
        prometheus.stop()
