"""daemon.json: a named runtime, the default runtime, and a share in the arguments."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_subprocess import FakeProcess

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import registration, registry
from vgpu.node.runtimes.registration import Wish

VALIDATE = ["dockerd", "--validate", "--config-file"]


def test_a_share_is_in_the_arguments(wish: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    share = (("cores", "30"), ("memory", "8Gi"))
    registry.configure("docker", replace(wish, name="small", share=share, settings="/etc/x.json")).execute()
    assert json.loads(Path(wish.config).read_text()) == {
        "runtimes": {
            "small": {
                "path": wish.shim,
                "runtimeArgs": ["--vgpu-config", "/etc/x.json", "--vgpu-annotation", "vgpu.io/cores=30",
                                "--vgpu-annotation", "vgpu.io/memory=8Gi"],
            }
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("runtime", "entry"),
    [
        ({"path": "{bin}/crun"}, {"path": "{shim}-crun"}),
        ({"path": "/opt/runc"}, {"path": "{shim}", "runtimeArgs": ["--vgpu-runtime", "/opt/runc"]}),
        (
            {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/opt/crun"}},
            {"path": "{shim}-crun", "runtimeArgs": ["--vgpu-runtime", "/opt/crun"]},
        ),
        ({"path": "/usr/bin/nvidia-container-runtime"}, {"path": "{shim}"}),
        (
            {"path": "/opt/runc", "runtimeArgs": ["--systemd-cgroup", "--criu", "/c"]},
            {"path": "{shim}", "runtimeArgs": ["--vgpu-runtime", "/opt/runc", "--systemd-cgroup", "--criu", "/c"]},
        ),
    ],
)
def test_the_default_runtime_stays_the_one_behind_the_shim(
    runtime: dict[str, Any], entry: dict[str, Any], wish: Wish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(registration, "DIRECTORIES", (wish.programs,))
    Path(wish.programs, "crun").touch(0o755)
    text = json.dumps({"default-runtime": "mine", "runtimes": {"mine": runtime}}).replace("{bin}", wish.programs)
    Path(wish.config).parent.mkdir()
    Path(wish.config).write_text(text)
    registry.configure("docker", replace(wish, mode="default")).execute()
    found = json.loads(Path(wish.config).read_text())
    assert found["default-runtime"] == "vgpu"
    assert found["runtimes"]["vgpu"] == json.loads(json.dumps(entry).replace("{shim}", wish.shim))
    registry.unconfigure("docker", wish.state_dir).execute()
    assert Path(wish.config).read_text() == text


@pytest.mark.parametrize(
    ("status", "stderr", "accepted"),
    [(0, "configuration OK", True), (125, "unknown flag: --validate", True), (1, "unable to configure: x", False)],
)
def test_dockerd_is_asked(
    status: int, stderr: str, accepted: bool, wish: Wish, fp: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dockerd before 23 knows no --validate."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    fp.register([*VALIDATE, wish.config], returncode=status, stderr=stderr)
    change = registry.configure("docker", wish)
    if accepted:
        change.execute()
        assert Path(wish.config).exists()
    else:
        with pytest.raises(VgpuError, match="unable to configure: x; the file is as before"):
            change.execute()
        assert not Path(wish.config).exists()


@pytest.mark.parametrize(
    ("runtime", "line"),
    [
        ({"runtimeType": "io.containerd.kata.v2"}, r"runtime mine: runtimeType: expected io.containerd.runc.v2"),
        ({"runtimeType": "io.containerd.runc.v2", "options": {"Root": "/r"}}, r"runtime mine: options.Root: expected"),
        (None, "default-runtime: expected a runtime of the file, or runc, found mine"),
    ],
)
def test_a_setting_that_the_shim_cannot_have_is_named(runtime: dict[str, Any] | None, line: str, wish: Wish) -> None:
    Path(wish.config).parent.mkdir()
    Path(wish.config).write_text(
        json.dumps({"default-runtime": "mine", "runtimes": {"mine": runtime} if runtime else {}})
    )
    with pytest.raises(VgpuError, match=line):
        registry.configure("docker", replace(wish, mode="default"))


def test_a_runtime_of_another_origin_is_kept(wish: Wish) -> None:
    Path(wish.config).parent.mkdir()
    Path(wish.config).write_text('{"runtimes": {"vgpu": {"path": "/x"}}}')
    with pytest.raises(VgpuError, match="runtime vgpu: expected none yet"):
        registry.configure("docker", wish)
    with pytest.raises(VgpuError, match="Docker has no base specification"):
        registry.configure("docker", replace(wish, mode="base-spec"))
