"""What vgpud counts of the runtimes' registrations of the hook, and when it looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config import cdi_device
from vgpu.config.settings import Settings
from vgpu.node.daemon.registrations import EVERY, Registrations

HOOKS = "usr/share/containers/oci/hooks.d/vgpu.json"


@pytest.mark.parametrize(
    ("program", "cdi", "defined", "expected"),
    [
        ("", False, False, {"working": 0, "broken": 0}),
        ("/usr/bin/vgpu-hook", False, False, {"working": 1, "broken": 0}),
        ("/usr/bin/vgpu-gone", False, False, {"working": 0, "broken": 1}),
        ("", True, False, {"working": 0, "broken": 1}),
        ("/usr/bin/vgpu-hook", True, True, {"working": 2, "broken": 0}),
    ],
)
def test_registrations_by_state(
    tmp_path: Path, program: str, cdi: bool, defined: bool, expected: dict[str, int]
) -> None:
    now = [1000.0]
    found = Registrations(Settings({"plugin.cdi": cdi}), str(tmp_path), lambda: now[0])
    for path, text in (
        ("usr/bin/vgpu-hook", ""),
        (HOOKS, f'{{"hook": {{"path": "{program}"}}}}' if program else "{}"),
        ("etc/cdi/vgpu.json", f'{{"kind": "{cdi_device.KIND}", "path": "/usr/bin/vgpu-hook"}}' if defined else "{}"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    found.look()
    assert found.counts == expected
    (tmp_path / HOOKS).write_text("{}")
    now[0] += EVERY - 1
    found.look()
    assert found.counts == expected, "it is not time to look again"
    now[0] += 1
    found.look()
    assert found.counts["working"] == int(defined)
