"""Usage: gpu-manager's JSON."""

from __future__ import annotations

import json

import round_records
from round_records import container, share

from vgpu.plugin.exporter import usage
from vgpu.plugin.exporter.snapshot import of_record


def test_the_json_has_gpu_managers_shape() -> None:
    found = json.loads(json.dumps(usage.as_json(of_record(round_records.record()))))
    ((uid, pod),) = found["usage"].items()
    assert uid == "00000000-0000-4000-8000-000000000000"
    assert pod == {
        "project": "team", "user": "", "cluster": "", "spec": {"main": {"gpu": 0.25, "mem": 4096.0}},
        "stat": {"main": {"dev": [{
            "id": "0000:00:00.0", "card_idx": "0", "gpu": 22.0, "mem": 2304.0, "pids": [1000], "device_mem": 16384.0,
        }]}},
    }  # fmt: skip


def test_a_container_outside_kubernetes_stands_under_its_id() -> None:
    made = round_records.record(containers=0)
    made["containers"] = [container(0, [share(0)], pod_uid="", pod="", namespace="", container_name="c1")]
    found = usage.as_json(of_record(made))["usage"]
    assert isinstance(found, dict)
    assert list(found) == [made["containers"][0]["container"]]
