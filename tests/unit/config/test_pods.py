"""The records of pods: written and read back, readable by root only, and other files under their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import paths, pods, records
from vgpu.config.errors import VgpuError
from vgpu.config.pods import Pod

UID = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"


def pod(uid: str = UID) -> Pod:
    limits = {"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, "setup": {}}
    annotations = {"hami.io/vgpu-node": "n", "vgpu.io/placement": "a=b\nc"}
    return Pod(uid, "default", "p-0", "n", ["setup"], ["main", "side"], annotations, limits)


def test_there_and_back(tmp_path: Path) -> None:
    run = str(tmp_path)
    assert pods.uids(run) == []
    pods.write(run, pod())
    assert pods.read(run, UID).record() == pod().record()
    assert pods.read(run, UID).names() == ["setup", "main", "side"]
    assert os.stat(paths.pods(run)).st_mode & 0o777 == 0o700
    assert os.stat(paths.pod(run, UID)).st_mode & 0o777 == 0o600
    Path(paths.pods_watched(run)).touch()
    assert pods.uids(run) == [UID]
    pods.remove(run, UID)
    pods.remove(run, UID)
    assert pods.uids(run) == []
    with pytest.raises(FileNotFoundError):
        pods.read(run, UID)


@pytest.mark.parametrize("uid", ["", "..", "../x", "a/b", "a.b", "a_b", "x" * 65, "ä", "a\n", "\0"])
def test_what_is_no_uid_never_becomes_a_path(tmp_path: Path, uid: str) -> None:
    for act in (pods.read, pods.remove):
        with pytest.raises(VgpuError, match="pod uid: expected at most 64 letters, digits and -"):
            act(str(tmp_path), uid)
    with pytest.raises(VgpuError, match="pod uid"):
        pods.write(str(tmp_path), pod(uid))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "version: expected 1"),
        ({"uid": "../x"}, "uid: expected a pod's uid"),
        ({"uid": "other"}, "expected the record of pod 3f1c"),
        ({"containers": "main"}, "containers: expected a list"),
        ({"containers": [1]}, "containers: expected a list of texts"),
        ({"annotations": {"a": 1}}, "annotations: expected an object whose values are texts"),
        ({"limits": []}, "limits: expected an object"),
        ({"limits": {"main": 5}}, "main: expected an object"),
        ({"limits": {"main": {"nvidia.com/gpu": "1"}}}, "nvidia.com/gpu: expected a whole number"),
        ({"limits": {"main": {"nvidia.com/gpu": -1}}}, "nvidia.com/gpu: expected a whole number"),
    ],
)
def test_a_damaged_record_is_one_error(tmp_path: Path, change: dict[str, object], text: str) -> None:
    pods.write(str(tmp_path), pod())
    records.write(paths.pod(str(tmp_path), UID), {**pod().record(), **change})
    with pytest.raises(VgpuError, match=text) as caught:
        pods.read(str(tmp_path), UID)
    assert "restart vgpu-device-plugin" in str(caught.value)
