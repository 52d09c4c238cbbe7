"""The prepared claims of this node: their records and CDI files on disk.

Belongs here: writing both, in an order after which a start can restore what a killed process left; a damaged record is
set aside. Not here: what is in a record (vgpu.config.prepared), and when a claim is prepared (driver). Two instances of
the plugin may run during a rollout, so each change holds a lock on the directory. Runs as root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from vgpu.config import paths, prepared, records
from vgpu.config.errors import VgpuError
from vgpu.config.prepared import DAMAGED, KIND, PreparedClaim
from vgpu.config.settings import Settings
from vgpu.node.service.file_signature import Signature, signature

CDI_VERSION = "0.5.0"  #: the first version in which a device's name may begin with a digit, as a claim's uid may
STAGES = ("createRuntime", "poststop")
ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
TIMEOUT = 60  #: seconds
CDI_PREFIX, CDI_SUFFIX = "vgpu.io-claim_", ".json"

Listed = tuple[list[tuple[str, Signature]], list[str]]  #: the records, and the names of the CDI files


class PreparedClaims:
    """The records below `<state>/claims` and the CDI files of those of this boot. Several threads may use it."""

    def __init__(self, settings: Settings, boot_id: str, hook: list[str]) -> None:
        self.settings = settings
        self.boot_id = boot_id
        self.hook = hook  #: the hook's program, and its options before --prepared
        self._agreed: Listed | None = None  # as files and records were when they last agreed
        self.cdi_dir = settings.text("kubernetes.cdi_dir")

    def all(self) -> tuple[list[PreparedClaim], dict[str, VgpuError]]:
        """As prepared.read_all has it."""
        return prepared.read_all(self.settings.state_dir)

    def read(self, uid: str) -> PreparedClaim | None:
        """The record; None without one, or when it is damaged."""
        try:
            return prepared.read(self.settings.state_dir, uid)
        except (FileNotFoundError, VgpuError):
            return None

    def write(self, claim: PreparedClaim) -> None:
        """Store the record, then the CDI file anew: a reboot empties its directory."""
        with self._locked():
            prepared.write(self.settings.state_dir, claim)
            self._write_cdi(claim)

    def remove(self, uid: str) -> None:
        """Remove the CDI file, then the record. Nothing happens where there is neither."""
        with self._locked():
            _unlink(self._cdi_path(uid))
            _unlink(paths.prepared_claim(self.settings.state_dir, uid))

    def restore(self) -> list[str]:
        """Make CDI files and records agree; messages about what was wrong.

        A CDI file that is missing comes back, because kubelet does not prepare a claim again while its pod lives. One
        without a record of this boot goes. A damaged record is set aside; one that cannot be read stays, for the next
        round. Each round calls this: it reads the records only if a CDI file has come or gone, or a record was written.
        """
        if self._agreed == (self._records(), self._cdi_names()):
            return []
        notes = []
        with self._locked():
            listed = self._records()
            claims, damaged = self.all()
            unread = {uid for uid, error in damaged.items() if isinstance(error.__cause__, OSError)}
            notes += [str(damaged.pop(uid)) for uid in unread]
            for uid, error in damaged.items():
                path = paths.prepared_claim(self.settings.state_dir, uid)
                os.rename(path, path + DAMAGED)
                notes.append(f"{error}; set aside as {path}{DAMAGED}")
            present = {claim.uid for claim in claims if claim.boot_id == self.boot_id}
            for claim in claims:
                if claim.uid in present and not os.path.exists(self._cdi_path(claim.uid)):
                    self._write_cdi(claim)
            self._remove_temporary()
            for name in self._cdi_names():
                if name[len(CDI_PREFIX) : -len(CDI_SUFFIX)] not in present | unread:
                    _unlink(f"{self.cdi_dir}/{name}")
            agreed = sorted(f"{CDI_PREFIX}{uid}{CDI_SUFFIX}" for uid in present)
            self._agreed = None if unread else (listed, agreed)
        return notes

    def _remove_temporary(self) -> None:
        """Remove what killed writers left. All that live hold the lock while they write."""
        for directory, start in (
            (paths.prepared_claims(self.settings.state_dir), "."),
            (self.cdi_dir, f".{CDI_PREFIX}"),
        ):
            for name in _listdir(directory):
                if name.startswith(start) and name.endswith(".tmp"):
                    _unlink(f"{directory}/{name}")

    def _records(self) -> list[tuple[str, Signature]]:
        """The records' names, each with what changes when it is written."""
        directory = paths.prepared_claims(self.settings.state_dir)
        return [(name, signature(f"{directory}/{name}")) for name in sorted(_listdir(directory))]

    def _cdi_names(self) -> list[str]:
        names = sorted(_listdir(self.cdi_dir))
        return [name for name in names if name.startswith(CDI_PREFIX) and name.endswith(CDI_SUFFIX)]

    def _cdi_path(self, uid: str) -> str:
        return f"{self.cdi_dir}/{CDI_PREFIX}{uid}{CDI_SUFFIX}"

    def _write_cdi(self, claim: PreparedClaim) -> None:
        os.makedirs(self.cdi_dir, mode=0o755, exist_ok=True)
        records.write(self._cdi_path(claim.uid), cdi_spec(claim, self.hook), 0o644)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        directory = paths.prepared_claims(self.settings.state_dir)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def device_id(claim: PreparedClaim, number: int) -> str:
    """The CDI device of a result, as kubelet passes it to the runtime."""
    return f"{KIND}={prepared.result_id(claim.uid, number)}"


def cdi_spec(claim: PreparedClaim, hook: list[str]) -> dict[str, object]:
    """The CDI specification: for each result a device that adds the hook with the result's id in its arguments.

    A container can set variables, but not the arguments of its hooks. So nothing else says what it may have.
    """
    return {
        "cdiVersion": CDI_VERSION, "kind": KIND,
        "devices": [
            {"name": one, "containerEdits": {"hooks": [_hook(hook, stage, one) for stage in STAGES]}}
            for one in claim.ids()
        ],
    }  # fmt: skip


def _hook(hook: list[str], stage: str, result: str) -> dict[str, object]:
    arguments = [os.path.basename(hook[0]), *hook[1:], "--prepared", result, stage]
    return {"hookName": stage, "path": hook[0], "args": arguments, "env": ENVIRONMENT, "timeout": TIMEOUT}


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        records.sync_directory(os.path.dirname(path))
