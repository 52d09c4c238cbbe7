"""The exporter's own metrics: names and values, odd names, figures that are missing, damaged records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import round_records
from checkout import CHECKOUT
from prometheus_client.parser import text_string_to_metric_families
from round_records import GIB, card, container, reported, share, uuid_of

from vgpu.config import rounds
from vgpu.config.settings import Settings
from vgpu.plugin.exporter import peer_families
from vgpu.plugin.exporter.exposition import text_of
from vgpu.plugin.exporter.families import of_snapshot
from vgpu.plugin.exporter.server import Answers
from vgpu.plugin.exporter.snapshot import of_record

Samples = dict[str, list[tuple[dict[str, str], float]]]


def samples(text: bytes) -> Samples:
    """The samples of an exposition, as Prometheus' own parser reads it; a series that repeats fails."""
    found: Samples = {}
    seen = set()
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen, key
            seen.add(key)
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def exported(made: dict[str, Any]) -> Samples:
    return samples(text_of(of_snapshot(of_record(made), "0.1.0")))


def value(found: Samples, name: str, **labels: str) -> float:
    (one,) = [number for at, number in found[name] if labels.items() <= at.items()]
    return one


def test_a_container_has_its_limits_its_reports_and_its_names() -> None:
    found = exported(round_records.record())
    at = {
        "node": "node-1", "namespace": "team", "pod": "web-0", "container": "main", "card": "0", "uuid": uuid_of(0),
    }  # fmt: skip
    assert found["vgpu_container_memory_limit_bytes"] == [(at, 4 * GIB)]
    for name, expected in {
        "vgpu_container_core_share_ratio": 0.25, "vgpu_container_core_limit_ratio": 0.5,
        "vgpu_container_utilization_ratio": 0.22, "vgpu_container_lent_seconds_total": 1.5,
        "vgpu_container_reported_borrowed_seconds_total": 0.5, "vgpu_container_reported_core_seconds_total": 7,
        "vgpu_container_reported_throttled_seconds_total": 3, "vgpu_container_reported_out_of_memory_total": 4,
        "vgpu_container_memory_measured_bytes": 9 * GIB // 4, "vgpu_container_violation": 0,
        "vgpu_container_reported_wait_seconds_count": 11,
    }.items():  # fmt: skip
        assert value(found, name, pod="web-0") == expected, name
    assert value(found, "vgpu_container_reported_wait_seconds_bucket", le="0.01") == 8
    assert value(found, "vgpu_card_memory_bytes", model="Tesla T4", bus_id="0000:00:00.0") == 16 * GIB
    assert value(found, "vgpu_hook_duration_seconds_bucket", le="+Inf") == 12
    assert value(found, "vgpu_hook_refusals_total", step="allocation") == 2
    assert value(found, "vgpu_vgpud_up") == 1


def test_memory_in_use_is_what_the_programs_see() -> None:
    """libvcuda adds the host's figure of the driver's memory, less what the programs have booked of it."""
    made = round_records.record(containers=0)
    made["containers"] = [
        container(0, [share(0, memory_driver=3 * GIB, reported=reported(memory=5 * GIB, allocated=4 * GIB))]),
        container(1, [share(0, memory_driver=0, reported=reported(memory=5 * GIB, allocated=4 * GIB))]),
    ]
    found = exported(made)
    assert value(found, "vgpu_container_reported_memory_used_bytes", pod="web-0") == 7 * GIB
    assert value(found, "vgpu_container_reported_memory_bytes", pod="web-0", kind="driver") == 3 * GIB
    assert value(found, "vgpu_container_reported_memory_used_bytes", pod="web-1") == 5 * GIB


def test_containers_with_one_budget_have_the_series_of_it_once() -> None:
    made = round_records.record(containers=2)
    made["containers"][1]["counted"] = False
    found = exported(made)
    names = {name for name in found for at, _ in found[name] if "uuid" in at and at.get("pod") == "web-1"}
    assert names == {"vgpu_container_violation", "vgpu_container_lock_flood"}


def test_names_with_quotes_newlines_and_backslashes_stay_what_they_are() -> None:
    odd = 'a"b\\n\n{}, \u00e9\u2028'
    found = exported(round_records.record() | {
        "containers": [container(0, [share(0)], pod=odd)], "cards": [card(0, name=odd)],
    })  # fmt: skip
    assert value(found, "vgpu_container_ready", pod=odd) == 1
    assert value(found, "vgpu_card_healthy", model=odd) == 1


def test_two_cards_of_one_name_and_two_lives_of_one_container_give_no_series_twice() -> None:
    made = round_records.record(cards=2, containers=0)
    made["containers"] = [
        container(0, [share(0), share(1)]), container(0, [share(1)], container="b" * 64, created=1_700_000_001.0),
    ]  # fmt: skip
    found = exported(made)
    assert len(found["vgpu_card_memory_bytes"]) == 2
    assert [at["container_id"] for at, _ in found["vgpu_container_info"]] == ["b" * 64], "the younger life counts"


@pytest.mark.parametrize("junk", [None, True, "x", [1, {}], {"bounds": [1], "buckets": [1], "sum": 1}])
def test_figures_of_any_form_leave_the_others(junk: object) -> None:
    def spoiled(one: dict[str, Any], *keys: str) -> dict[str, Any]:
        return {key: junk if key in keys else old for key, old in one.items()}

    for key in share(0):
        made = round_records.record(containers=2)
        made["containers"][0]["cards"][0] = spoiled(share(0), key)
        assert value(exported(made), "vgpu_container_memory_limit_bytes", pod="web-1") == 4 * GIB, key
    for key in reported():
        made = round_records.record(containers=2)
        made["containers"][0]["cards"][0]["reported"] = spoiled(reported(), key)
        assert value(exported(made), "vgpu_container_reported_core_seconds_total", pod="web-1") == 7, key
    for key in container(0, []):
        made = round_records.record(containers=2)
        made["containers"][0] = spoiled(made["containers"][0], key)
        assert value(exported(made), "vgpu_container_ready", pod="web-1") == 1, key
    for key in round_records.record():
        made = spoiled(round_records.record(), key)
        assert value(exported(made), "vgpu_vgpud_up") == 1, key
    for key in card(0):
        made = round_records.record(cards=2)
        made["cards"][0] = spoiled(card(0), key)
        assert value(exported(made), "vgpu_card_memory_bytes", uuid=uuid_of(1)) == 16 * GIB, key


def test_a_card_without_nvml_and_a_container_without_a_region_have_no_series_for_them() -> None:
    made = round_records.record(cards=2, containers=2)
    made["cards"][0] |= {"memory_used": None, "utilization": None}
    made["containers"][0]["cards"][0] |= {"reported": None, "memory_limit": None, "cores_seen": None}
    found = exported(made)
    assert [at["card"] for at, _ in found["vgpu_card_memory_used_bytes"]] == ["1"]
    assert [at["pod"] for at, _ in found["vgpu_container_memory_limit_bytes"]] == ["web-1"]
    assert {at["pod"] for name in found if "_reported_" in name for at, _ in found[name]} == {"web-1"}


# The record's file


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    return Answers(Settings({"paths.run": str(tmp_path)}))


def test_a_scrape_shows_the_last_round_and_none_of_the_dead(answers: Answers, tmp_path: Path) -> None:
    round_records.write(str(tmp_path), round_records.record(containers=3))
    assert len(samples(answers.metrics())["vgpu_container_info"]) == 3
    round_records.write(str(tmp_path), round_records.record(containers=1))
    assert len(samples(answers.metrics())["vgpu_container_info"]) == 1
    rounds.remove(str(tmp_path))
    found = samples(answers.metrics())
    assert value(found, "vgpu_vgpud_up") == 0
    assert not [name for name in found if "container" in name or "card" in name]


def test_without_vgpud_the_node_has_the_name_that_kubernetes_knows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu-8")
    found = samples(Answers(Settings({"paths.run": str(tmp_path)}, "vm")).metrics())
    assert found["vgpu_vgpud_up"] == [({"node": "gpu-8"}, 0.0)]


@pytest.mark.parametrize("change", [{"taken": 1.0}, {"taken": 1e12}, {"boot_id": "another"}, {"taken": "x"}])
def test_a_round_of_before_shows_no_containers(answers: Answers, tmp_path: Path, change: dict[str, Any]) -> None:
    round_records.write(str(tmp_path), round_records.record(**change))
    found = samples(answers.metrics())
    assert value(found, "vgpu_vgpud_up") == 0
    assert "vgpu_container_info" not in found


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"[" * 100_000, b'{"version": 2}', b"\xff\xfe", b'{"version": 1}'])
def test_garbage_in_the_record_is_no_error_of_a_scrape(answers: Answers, tmp_path: Path, data: bytes) -> None:
    round_records.write(str(tmp_path), round_records.record())
    Path(tmp_path, "metrics/round.json").write_bytes(data)
    assert value(samples(answers.metrics()), "vgpu_vgpud_up") == 0
    assert json.loads(answers.usage()) == {"usage": {}}
    assert b"<html" in answers.page()


def test_the_plugins_state_is_shown_and_none_of_a_plugin_that_is_not_there(answers: Answers, tmp_path: Path) -> None:
    round_records.write(str(tmp_path), round_records.record())
    found = samples(answers.metrics())
    assert (value(found, "vgpu_plugin_alive"), value(found, "vgpu_plugin_ready")) == (1, 0)
    assert sorted(value for _, value in found["vgpu_card_health_known"]) == [0, 1]
    round_records.write(str(tmp_path), round_records.record(plugin={}))
    found = samples(answers.metrics())
    assert "vgpu_plugin_alive" not in found
    assert [labels["program"] for labels, _ in found["vgpu_card_health_known"]] == ["vgpud"]


def test_series_and_memory_do_not_grow_while_containers_come_and_go(answers: Answers, tmp_path: Path) -> None:
    """200 containers; the benchmark has 20,000."""
    sizes = set()
    for number in range(0, 200, 20):
        made = round_records.record(cards=2)
        made["containers"] = [container(number + at, [share(at % 2)]) for at in range(20)]
        round_records.write(str(tmp_path), made)
        sizes.add(answers.metrics().count(b"\n"))
    assert len(sizes) == 1


def test_each_metric_has_a_row_in_the_documents() -> None:
    text = (CHECKOUT / "docs/metrics.md").read_text(encoding="utf-8")
    made = round_records.record()
    families = [
        *of_snapshot(of_record(made), "1"),
        *peer_families.of_snapshot(of_record(made), list(peer_families.PROJECTS)),
    ]
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    assert not {name for name in names if f"`{name}`" not in text}
    documented = set(re.findall(r"`(vgpu_[a-z_]+)`", text))
    assert documented <= names
