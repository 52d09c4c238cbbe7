"""The GPU operator's upgrade of the driver: the labels that forbid its use, and the record for vgpud."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config import driver_upgrade, paths
from vgpu.config.errors import VgpuError

STATE = "nvidia.com/gpu-driver-upgrade-state"
#: All values of NVIDIA's k8s-operator-libs, and whether the driver may be used.
STATES = {
    "": True, "upgrade-required": True, "cordon-required": False, "wait-for-jobs-required": False,
    "pod-deletion-required": False, "drain-required": False, "node-maintenance-required": False,
    "post-maintenance-required": False, "pod-restart-required": False, "validation-required": False,
    "uncordon-required": True, "upgrade-done": True, "upgrade-failed": False, "of-a-later-operator": False,
}  # fmt: skip


@pytest.mark.parametrize(("state", "usable"), STATES.items())
def test_the_states_in_which_the_driver_may_be_used(state: str, usable: bool) -> None:
    text = "" if usable else f"the GPU operator upgrades the driver: {STATE}={state}"
    assert driver_upgrade.reason({STATE: state, "other": "drain-required"}) == text


@pytest.mark.parametrize(
    ("labels", "paused"),
    [
        ({}, ""),
        ({"nvidia.com/gpu.deploy.dcgm": "true", "nvidia.com/gpu.deploy.driver": "pre-installed"}, ""),
        ({"nvidia.com/gpu.deploy.mig-manager": "paused-for-mig-change"}, ""),
        ({"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade", STATE: "upgrade-done"}, "dcgm"),
        ({"nvidia.com/gpu.deploy.client": "mine_paused-for-driver-upgrade"}, "client"),
        ({"example.com/gpu.deploy.client": "paused-for-driver-upgrade"}, ""),
    ],
)
def test_the_driver_managers_own_pause(labels: dict[str, str], paused: str) -> None:
    assert (f"gpu.deploy.{paused}=" in driver_upgrade.reason(labels)) is bool(paused)
    assert bool(driver_upgrade.reason(labels)) is bool(paused)


def test_the_record_counts_in_its_boot_and_for_a_while(tmp_path: Path) -> None:
    run = str(tmp_path)
    assert driver_upgrade.read(run, "boot", 50.0) == ""
    driver_upgrade.write(run, "because", "boot", 100.0)
    cases = [("boot", 100.0), ("boot", 400.0), ("boot", 400.1), ("boot", 99.9), ("another", 100.0)]
    assert [driver_upgrade.read(run, *case) for case in cases] == ["because", "because", "", "", ""]
    for damaged in ("", "{}", '{"version": 1, "boot_id": "boot", "written": 100, "reason": ""}'):
        Path(paths.driver_upgrade(run)).write_text(damaged)
        with pytest.raises(VgpuError, match=r"driver-upgrade\.json.*; remove /"):
            driver_upgrade.read(run, "boot", 100.0)
