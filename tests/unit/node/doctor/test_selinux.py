from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config.settings import Settings
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding
from vgpu.node.doctor.selinux import selinux

BOOTED, LOADED = 1_700_000_000, 1_700_001_000
#: Lines as auditd writes them: of a container that reads limits, of the driver's library, and of something else.
LIMITS = (
    'type=AVC msg=audit({}.123:456): avc:  denied  {{ read }} for  pid=7 comm="python3" name="limits" dev="tmpfs" '
    "scontext=system_u:system_r:container_t:s0:c1,c2 tcontext=system_u:object_r:vgpu_run_t:s0 tclass=file "
    "permissive=0\n"
)
LIBRARY = LIMITS.replace('"limits"', '"libcuda.so.550.54.15"').replace("vgpu_run_t", "var_lib_t")
OTHER = LIMITS.replace("vgpu_run_t", "shadow_t")
GRANTED = LIMITS.replace("denied ", "granted")


def findings(
    root: Path, mode: str = "1", log: str | None = None, place: str = "targeted/active/modules/200/vgpu"
) -> list[Finding]:
    files = {
        "sys/fs/selinux/enforce": mode,
        "proc/stat": f"cpu 1 2 3\nbtime {BOOTED}\n",
        "var/log/audit/audit.log": log,
    }
    for name, text in files.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    if place:
        (root / "var/lib/selinux" / place).mkdir(parents=True)
        os.utime(root / "var/lib/selinux" / place, (LOADED, LOADED))
    return list(selinux(CheckContext("", Settings(), str(root), str(root / "proc"))))


def test_a_kernel_without_selinux(tmp_path: Path) -> None:
    (found,) = selinux(CheckContext("", Settings(), str(tmp_path), str(tmp_path)))
    assert (found.status, found.found) == (OK, "this kernel runs without it")


@pytest.mark.parametrize(("mode", "status"), [("1", FAILURE), ("0", WARNING)], ids=["enforcing", "permissive"])
@pytest.mark.parametrize(
    ("place", "found", "do"),
    [
        ("", "not loaded", "semodule -X 200 -i /usr/share/selinux/packages/vgpu.cil"),
        ("targeted/active/modules/200/vgpux", "not loaded", "semodule -X 200 -i"),
        ("targeted/active/modules/disabled/vgpu", "disabled", "semodule -e vgpu"),
    ],
    ids=["none", "another's", "disabled"],
)
def test_a_missing_module(tmp_path: Path, mode: str, status: str, place: str, found: str, do: str) -> None:
    (finding,) = findings(tmp_path, mode, log=LIMITS.format(LOADED + 1), place=place)
    assert finding.status == status
    assert found in finding.found
    assert do in finding.do


@pytest.mark.parametrize(
    ("log", "count"),
    [
        (None, 0),
        (OTHER.format(LOADED + 1), 0),
        (GRANTED.format(LOADED + 1), 0),
        (LIMITS.format(LOADED - 1), 0),
        (LIMITS.format(LOADED + 1), 1),
        (OTHER.format(LOADED + 1) + LIBRARY.format(LOADED + 1) + LIMITS.format(LOADED + 2), 2),
        ("x" * (1 << 20) + "\n" + LIMITS.format(LOADED + 3), 1),
    ],
    ids=["no log", "another's", "granted", "before the module", "limits", "libcuda", "a long log"],
)
@pytest.mark.parametrize(("mode", "status"), [("1", FAILURE), ("0", WARNING)], ids=["enforcing", "permissive"])
def test_denials(tmp_path: Path, mode: str, status: str, log: str | None, count: int) -> None:
    (finding,) = findings(tmp_path, mode, log)
    assert finding.status == (status if count else OK)
    if count:
        assert f"denied {count} times" in finding.found
        assert 'name="limits"' in finding.found, "the last one"
        assert "restorecon -iR /run/vgpu /var/lib/vgpu /dev" in finding.do
