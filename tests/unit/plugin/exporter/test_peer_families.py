"""The metrics of other projects: names, labels and units are theirs."""

from __future__ import annotations

from typing import Any

import pytest
import round_records
from prometheus_client.parser import text_string_to_metric_families
from round_records import GIB, container, share, uuid_of

from vgpu.plugin.exporter import peer_families
from vgpu.plugin.exporter.exposition import text_of
from vgpu.plugin.exporter.snapshot import of_record

USED = 2 * GIB + GIB // 4  # held 2 GiB, of which the driver's half; the host found three quarters


def exported(project: str, **changes: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    made = round_records.record(cards=2, containers=0)
    made["containers"] = [container(0, [share(0, **changes), share(1, **changes)])]
    text = text_of(peer_families.of_snapshot(of_record(made), [project])).decode()
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_gpu_manager_counts_in_percent_and_mib() -> None:
    found = exported("gpu-manager")
    at = {"pod_name": "web-0", "namespace": "team", "node": "node-1", "container_name": "main"}
    assert found["container_gpu_utilization"] == [
        ({**at, "gpu": "gpu0"}, 22), ({**at, "gpu": "gpu1"}, 22), ({**at, "gpu": "total"}, 44),
    ]  # fmt: skip
    assert found["container_gpu_memory_total"][-1] == ({**at, "gpu_memory": "total"}, 2 * USED >> 20)
    assert found["container_request_gpu_utilization"] == [({**at, "req_of_gpu": "total"}, 0.5)]
    assert found["container_request_gpu_memory"] == [({**at, "req_of_gpu_memory": "total"}, 8192)]


def test_hami_counts_in_bytes_ratios_and_seconds() -> None:
    found = exported("hami")
    at = {"namespace": "team", "pod": "web-0", "container": "main", "vdevice_index": "1", "device_uuid": uuid_of(1)}
    for name, expected in {
        "hami_vgpu_memory_used_bytes": USED, "hami_vgpu_memory_limit_bytes": 4 * GIB,
        "hami_vgpu_memory_context_bytes": 3 * GIB // 4, "hami_vgpu_memory_buffer_bytes": 3 * GIB // 2,
        "hami_container_device_utilization_ratio": 0.22, "hami_container_last_kernel_elapsed_seconds": 0.25,
    }.items():  # fmt: skip
        assert found[name][1] == (at, expected), name
    card = {"node": "node-1", "device_index": "0", "device_uuid": uuid_of(0), "device_type": "Tesla T4"}
    assert found["hami_host_gpu_memory_used_bytes"][0] == (card, 5 * GIB)
    assert found["hami_host_gpu_utilization_ratio"][0] == (card, 0.4)


def test_gpu_fractioning_counts_by_pod() -> None:
    found = exported("gpu-fractioning")
    at = {
        "namespace": "team", "pod": "web-0", "pod_uuid": "00000000-0000-4000-8000-000000000000",
        "gpu_uuid": uuid_of(0), "gpu": "0",
    }  # fmt: skip
    assert found["gpu_sharing_gpu_memory_used_bytes"][0] == (at, USED)
    assert found["gpu_sharing_gpu_sm_utilization_percent"][0] == (at, 22)
    assert found["gpu_sharing_gpu_sm_utilization_percent_normalized"][0] == (at, 88)


@pytest.mark.parametrize("project", peer_families.PROJECTS)
def test_a_container_that_reports_nothing_stops_no_other_figure(project: str) -> None:
    assert exported(project, reported=None, cores_seen=None, cores_used=None, cores=None)
