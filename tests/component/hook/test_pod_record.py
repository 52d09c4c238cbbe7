"""A pod's record that a thread writes while the hook waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pod_records import UID, Facts, pod

from vgpu.config import pods
from vgpu.hook.request import pod_record


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return Facts(tmp_path)


def test_a_record_that_comes_late_is_waited_for(facts: Facts) -> None:
    with facts.watched():
        late = threading.Timer(0.1, pods.write, (facts.run_dir, pod({})))
        late.start()
        found = pod_record.record_of(facts.run_dir, UID)
        late.join()
    assert found
    assert found.name == "p"


def test_annotations_that_nobody_passes_on() -> None:
    assert pod_record.not_known({"vgpu.io/grant-cores": "a", "x/y": "z"}) == [pod_record.NOT_KNOWN]
    assert pod_record.not_known({"hami.io/vgpu-node": "n"}) == []
