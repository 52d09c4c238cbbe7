"""What the hook reads from a pod's record, and when it waits for one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pod_records import UID, Facts, pod

from vgpu.config import paths, pods
from vgpu.config.errors import VgpuError
from vgpu.hook.request import pod_record
from vgpu.hook.request.resolve_grants import WantedGrants

A = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
HAMI = {"hami.io/vgpu-node": "n", "hami.io/vgpu-devices-allocated": f";{A},NVIDIA,3000,30:;;"}


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return Facts(tmp_path)


def keys(wanted: WantedGrants) -> list[tuple[str, str]]:
    return [(choice.key, card.uuid) for choice in wanted.choices for card in choice.cards]


def test_the_records_placement_of_this_very_container(facts: Facts) -> None:
    pods.write(facts.run_dir, pod(HAMI, init=("setup",)))
    wanted, notes = facts.complete()
    assert (keys(wanted), notes) == ([("hami.io/vgpu-devices-allocated", A)], [])
    assert wanted.limits == {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}
    wanted, notes = facts.complete(container="side")
    assert (keys(wanted), wanted.limits, notes) == ([], {}, [])


def test_wishes_come_from_the_record_where_the_runtime_passes_none(facts: Facts) -> None:
    annotations = {"nvidia.com/vcuda-core-limit": "80", "nvidia.com/use-gputype": "A100,T4"}
    pods.write(facts.run_dir, pod(annotations))
    wanted, _ = facts.complete({"nvidia.com/numa-bind": "true"})
    assert (wanted.core_limit, wanted.wishes.use_types, wanted.wishes.numa) == (80, ("a100", "t4"), True)


def test_priority_comes_from_an_annotation_or_else_the_spec(facts: Facts) -> None:
    def priority(annotations: dict[str, str], limits: dict[str, int]) -> int:
        record = pod(annotations)
        record.limits["main"] = limits
        pods.write(facts.run_dir, record)
        return facts.complete()[0].wishes.priority

    assert priority({}, {}) == 1
    assert priority({}, {"nvidia.com/priority": 0}) == 0
    assert priority({"nvidia.com/priority": "3"}, {"nvidia.com/priority": 0}) == 3


def test_without_a_record_the_runtimes_annotations_are_read(facts: Facts) -> None:
    wanted, notes = facts.complete({"vgpu.io/placement": f"main={A}", "vgpu.io/placement-node": "n"})
    assert (keys(wanted), wanted.limits, notes) == ([("vgpu.io/placement", A)], None, [])


def test_annotations_that_need_a_record_are_ignored_without_one(facts: Facts) -> None:
    wanted, notes = facts.complete(HAMI)
    assert keys(wanted) == []
    assert len(notes) == 1
    assert "the pod's record" in notes[0]
    assert facts.complete(HAMI, **{"kubernetes.dialects": []})[1] == []
    assert facts.complete({"nvidia.com/use-gputype": "T4"})[1] == []


def test_another_nodes_placement_is_refused(facts: Facts) -> None:
    pods.write(facts.run_dir, pod({**HAMI, "hami.io/vgpu-node": "elsewhere"}, init=("setup",)))
    with pytest.raises(VgpuError, match=r"hami.io/vgpu-node: expected this node, n, .*, found elsewhere"):
        facts.complete()
    assert keys(facts.complete(**{"kubernetes.dialects": ["vgpu"]})[0]) == []


def test_a_container_whose_name_the_runtime_does_not_pass(facts: Facts) -> None:
    pods.write(facts.run_dir, pod({"vgpu.io/placement": f"main={A}"}))
    wanted, notes = facts.complete(container="")
    assert (keys(wanted), wanted.limits) == ([], None)
    assert "container's name" in notes[0]
    pods.write(facts.run_dir, pod({"vgpu.io/placement": f"main={A}"}, containers=("main",)))
    wanted, notes = facts.complete(container="")  # a pod's only container is known anyhow
    assert (keys(wanted), notes) == ([("vgpu.io/placement", A)], [])
    assert wanted.limits == {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}


def test_a_damaged_record_is_named(facts: Facts) -> None:
    os.makedirs(paths.pods(facts.run_dir))
    Path(paths.pod(facts.run_dir, UID)).write_bytes(b"{")
    with pytest.raises(VgpuError, match=rf"{UID}\.json: .*restart vgpu-device-plugin"):
        facts.complete()


# Waiting


def test_the_hook_does_not_wait_without_a_watch(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    assert pod_record.record_of(facts.run_dir, UID) is None
    with facts.watched():
        pass
    assert Path(paths.pods_watched(facts.run_dir)).exists()
    assert pod_record.record_of(facts.run_dir, UID) is None
    with facts.watched():
        assert pod_record.record_of(facts.run_dir, "0123456789abcdef0123456789abcdef") is None  # a static pod's
        pods.write(facts.run_dir, pod({}))
        assert pod_record.record_of(facts.run_dir, UID)


def test_a_record_that_never_comes_is_given_up(facts: Facts) -> None:
    with facts.watched():
        assert pod_record.record_of(facts.run_dir, UID, timeout=0.05) is None


def test_waiting_ends_with_the_watch(facts: Facts) -> None:
    naps = []

    def nap(_: float) -> None:
        naps.append(1)
        watch.__exit__(None, None, None)

    watch = facts.watched()
    watch.__enter__()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", nap)
        assert pod_record.record_of(facts.run_dir, UID, timeout=1e6) is None
    assert len(naps) == 1


def test_checking_for_the_watch_does_not_take_its_lock(facts: Facts) -> None:
    with facts.watched():
        pass
    assert not pod_record.watched(facts.run_dir)
    with facts.watched():
        assert pod_record.watched(facts.run_dir)
        assert pod_record.watched(facts.run_dir)
