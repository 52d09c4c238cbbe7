"""The self-test on the machine's own card, with this checkout's libvcuda: all rows, by `--bare`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import BUILD

from vgpu.config import records
from vgpu.config.settings import Settings
from vgpu.node.selftest import report

NOT_APPLICABLE = 3  #: the exit status where nothing was judged


@pytest.mark.gpu
def test_what_is_promised_holds_on_this_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Settings({"paths.libvcuda": str(BUILD / "lib/vcuda")}, "node", "test")
    records.write(str(tmp_path / "config.json"), node.record(), 0o644)
    path = tmp_path / "report.json"
    command = [Path(sys.executable).with_name("vgpuctl"), "--config", tmp_path / "config.json", "selftest"]
    environment = {**os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "--bare", "--full", "--report", path],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == NOT_APPLICABLE and not path.exists():
        pytest.skip(f"needs a GPU: {done.stderr.strip()}")
    assert path.exists(), done.stderr
    made = report.read(str(path))
    with capsys.disabled():
        print(report.page(made))
    assert [row["id"] for row in made["rows"] if row["verdict"] in (report.FAIL, report.NOT_JUDGED)] == []
