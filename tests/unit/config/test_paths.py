"""The names on disk. They do not change, as running nodes have them, and no other module contains such a path."""

from __future__ import annotations

import re

import pytest
from checkout import CHECKOUT

from vgpu.config import paths
from vgpu.config.errors import VgpuError

RUN, STATE = "/run/vgpu", "/var/lib/vgpu"
GRANT = "0123456789abcdef" * 2
UID = "8a2c8a66-0b76-4d4c-b4a4-1b1d2e8a7c11"
LITERAL = re.compile(r"(run_dir|state_dir)(\}/|\)? *\+ *f?[\"']/)")


def test_the_names_on_disk() -> None:
    found = {
        paths.containers(RUN), paths.container(RUN, "c1"), paths.claim(RUN, "c1"), paths.limits(RUN, "c1"),
        paths.core_schedules(RUN, "c1"), paths.pods(RUN), paths.pod(RUN, UID), paths.pods_watched(RUN),
        paths.inventory(RUN), paths.driver_upgrade(RUN), paths.foreign(RUN), paths.health(RUN),
        paths.presence(RUN, "0a" * 16), paths.common_presence(RUN),
        paths.ledger_lock(RUN), paths.selftest(RUN),
        paths.hook_log(RUN), paths.vgpud_socket(RUN), paths.vgpud_lock(RUN), paths.plugin_lock(RUN),
        paths.plugin_state(RUN),
        paths.grants(STATE), paths.grant(STATE, GRANT), paths.device_tags(STATE),
        paths.context_sizes(STATE), paths.runtimes(STATE),
    }  # fmt: skip
    assert found == {
        "/run/vgpu/containers", "/run/vgpu/containers/c1", "/run/vgpu/containers/c1/claim.json",
        "/run/vgpu/containers/c1/limits", "/run/vgpu/containers/c1/cards", "/run/vgpu/pods",
        f"/run/vgpu/pods/{UID}.json", "/run/vgpu/pods/.watched", "/run/vgpu/inventory.json", "/run/vgpu/foreign.json",
        "/run/vgpu/driver-upgrade.json", "/run/vgpu/plugin.json",
        "/run/vgpu/presence", "/run/vgpu/selftest",
        "/run/vgpu/health.json", f"/run/vgpu/presence-{'0a' * 16}", "/run/vgpu/ledger.lock", "/run/vgpu/hook.log",
        "/run/vgpu/vgpud.sock", "/run/vgpu/vgpud.lock", "/run/vgpu/plugin.lock", "/var/lib/vgpu/grants",
        f"/var/lib/vgpu/grants/{GRANT}.json", "/var/lib/vgpu/card-tags.json", "/var/lib/vgpu/context-sizes.json",
        "/var/lib/vgpu/runtimes",
    }  # fmt: skip


@pytest.mark.parametrize(
    "made", [paths.container, paths.claim, paths.limits, paths.core_schedules, paths.pod, paths.grant]
)
def test_what_is_no_id_becomes_no_path(made) -> None:
    with pytest.raises(VgpuError, match="expected"):
        made(RUN, "../../etc")


def test_no_other_module_makes_such_a_path() -> None:
    parts = [path for part in ("config", "hook", "plugin") for path in (CHECKOUT / part / "vgpu").rglob("*.py")]
    assert len(parts) > 80
    found = [path for path in parts if LITERAL.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in found] == ["paths.py"]
