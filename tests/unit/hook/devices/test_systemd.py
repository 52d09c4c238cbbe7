"""systemd's version strings. The calls to systemd are in tests/component/hook/test_systemd.py."""

from __future__ import annotations

import pytest

from vgpu.hook.devices import systemd


@pytest.mark.parametrize(
    ("text", "number"),
    [("247.3-7+deb11u5", 247), ("v259-1.fc44", 259), ("237", 237), ("", 0), ("~", 0), ("9" * 50, 999999), ("²", 0)],
)
def test_versions(text: str, number: int) -> None:
    assert systemd._version(text) == number
