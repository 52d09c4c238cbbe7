"""The DRA driver's work on disk for one claim, and what has to hold after it was killed at any system call of it.

Belongs here: prepare, unprepare and a start's restoring, as a process that fault_hook gives a fault; the rounds around
them. kubelet repeats a call that has failed, and a start of the driver comes first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vgpu.config import prepared
from vgpu.config.errors import VgpuError
from vgpu.config.prepared import PreparedClaim, Result
from vgpu.config.settings import Settings
from vgpu.plugin.dra.prepared_claims import PreparedClaims

if TYPE_CHECKING:
    from fault_bed import Fault, Outcome, Tools

UID, BOOT = "6f1c3c52-0000-4c53-9d3a-6f0f8f0f1a11", "8d5f7a3e-0000-4c53-9d3a-6f0f8f0f1a11"
CLAIM = PreparedClaim(UID, "default", "c", BOOT, ["p"], [Result(0, "gpu", "n", "d", "GPU-0", 30, 1 << 30, False)])


def work(settings: Settings, what: str) -> int:
    """Do it as the driver does. Returns 0, or 1 with a line, which kubelet gets as the answer."""
    claims = PreparedClaims(settings, BOOT, ["/usr/bin/vgpu-hook"])
    try:
        if what == "prepare":
            claims.write(CLAIM)
        elif what == "unprepare":
            claims.remove(UID)
        else:
            claims.restore()
    except (VgpuError, OSError) as error:
        print(f"driver: {error}", file=sys.stderr)
        return 1
    return 0


class DriverBed:
    """A node's directories of records and of CDI files below `directory`."""

    def __init__(self, directory: Path, tools: Tools) -> None:
        self.tools, self.cdi = tools, directory / "cdi"
        self.settings = Settings({"paths.state": f"{directory}/state", "kubernetes.cdi_dir": str(self.cdi)}, "n")
        self.config = directory / "config.json"
        self.config.write_text(prepared.records.encode(self.settings.record()))
        self.state = directory / "state"

    def run(self, what: str, fault: Fault | None = None) -> subprocess.CompletedProcess[bytes]:
        """In a process with the fault, or here without one."""
        if fault is None:
            return subprocess.CompletedProcess([], work(self.settings, what))
        command = self.tools.command(fault, "driver", str(self.config), what)
        return subprocess.run(command, capture_output=True, timeout=600, check=False)

    def before(self, what: str) -> None:
        """The state in which it is done: nothing, a prepared claim, or one whose CDI file and another's are wrong.

        No directory is left of the round before, because the first preparation makes them."""
        for directory in (self.state, self.cdi):
            shutil.rmtree(directory, ignore_errors=True)
        if what != "prepare":
            self.run("prepare")
        if what == "restore":
            (path,) = self.cdi.glob("*.json")
            path.rename(path.with_name(path.name.replace(UID[:8], "00000000")))

    def files(self) -> list[str]:
        """Those of claims, whatever is in them."""
        return sorted(path.name for top in (self.state, self.cdi) for path in top.rglob("*") if path.is_file())

    def round(self, what: str, fault: Fault) -> Outcome:
        """The work under the fault; then a start, and kubelet's repetition; at last the claim is unprepared."""
        from fault_bed import Outcome

        self.before(what)
        done = self.run(what, fault)
        problems = [] if self.tools.happened(fault) else ["the fault did not happen"]
        if done.returncode not in (0, 1, -9):
            problems.append(done.stderr.decode())
        again = [("restore", 0), *([] if what == "restore" else [(what, 0)])]
        problems += [f"{step} fails" for step, status in again if self.run(step).returncode != status]
        if what != "unprepare":
            expected = sorted((f"{UID}.json", f"vgpu.io-claim_{UID}.json"))
            problems += [] if self.files() == expected else [f"files: {self.files()}"]
            found, damaged = prepared.read_all(self.settings.state_dir)
            problems += [] if [one.uid for one in found] == [UID] and not damaged else ["the record is lost"]
        self.run("unprepare")
        problems += [f"left over: {self.files()}"] if self.files() else []
        return Outcome("killed" if done.returncode == -9 else "failed" if done.returncode else "done", "", problems)

    def sites(self, what: str) -> list[str]:
        from fault_bed import Fault

        self.before(what)
        assert self.run(what, Fault()).returncode == 0
        self.run("unprepare")
        return self.tools.sites()
