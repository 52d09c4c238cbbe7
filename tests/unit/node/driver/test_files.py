"""The driver's files below its root: links that leave the root lead nowhere."""

from __future__ import annotations

from pathlib import Path

from vgpu.node.driver import files


def test_links_that_leave_the_root_or_loop_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("../../../../etc/passwd")
    (tmp_path / "b").symlink_to("/b")
    (tmp_path / "c").symlink_to("/d/./../file")
    (tmp_path / "d").mkdir()
    (tmp_path / "file").touch()
    assert files.resolve(str(tmp_path), "a") == ""
    assert files.resolve(str(tmp_path), "b") == ""
    assert files.resolve(str(tmp_path), "/c") == f"{tmp_path}/file"
    assert files.resolve(str(tmp_path), "/") == str(tmp_path)
    assert files.resolve("/", "/") == "/"
