"""Prepared resource claims of Kubernetes. `<state>/claims/<claim uid>.json`, readable by root only.

Belongs here: the record and its checks. The DRA driver (vgpu.plugin.dra) writes it when kubelet prepares a claim, and
removes it when kubelet unprepares the claim. The hook gives a container what the record says, if the container's pod is
one of those for which the claim is reserved. Not here: how a claim is read from the API server, and its CDI file.
"""

from __future__ import annotations

import os

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.config.request import LOW_PRIORITY, MAX_PRIORITY, MAX_SIZE, WHOLE_CARD

VERSION = 1
DRIVER = "gpu.vgpu.io"  #: the driver's name, and that of its DeviceClass
HOOK = "/usr/bin/vgpu-hook"  #: the hook's program on hosts with packages, for CDI files
KIND = "vgpu.io/claim"  #: of the CDI devices
MAX_RESULTS = 32  #: of a claim, by Kubernetes' API
DAMAGED = ".damaged"  #: the end of the name of a record that was set aside
_DO = "delete the pods of the claim; they are prepared anew"


class Result:
    """What the scheduler allocated of one card: `cores` percent and `memory` bytes; `whole`: the card without limits.

    `request` is the claim's request, without the name of a subrequest. `number` counts the claim's results of this
    driver from 0. `share_id` is the scheduler's id of the share. `core_limit` (percent, 0 for the share itself) and
    `priority` are of its configuration.
    """

    __slots__ = (
        "card", "core_limit", "cores", "device", "memory", "number", "pool", "priority", "request", "share_id", "whole",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        request: str,
        pool: str,
        device: str,
        card: str,
        cores: int,
        memory: int,
        whole: bool,
        share_id: str = "",
        core_limit: int = 0,
        priority: int = LOW_PRIORITY,
    ) -> None:
        self.number = number
        self.request = request
        self.pool = pool
        self.device = device
        self.card = card
        self.cores = cores
        self.memory = memory
        self.whole = whole
        self.share_id = share_id
        self.core_limit = core_limit
        self.priority = priority

    def record(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def label(self) -> str:
        return f"{self.device}: {'whole' if self.whole else f'{self.cores} cores, {self.memory >> 20} MiB'}"


class PreparedClaim:
    """A prepared claim. `pods` are the uids of the pods for which it is reserved. `boot_id` is that of its preparation:
    kubelet prepares a claim anew after a reboot, and no container starts on a record of an earlier boot.
    """

    __slots__ = ("boot_id", "name", "namespace", "pods", "results", "uid")

    def __init__(
        self, uid: str, namespace: str, name: str, boot_id: str, pods: list[str], results: list[Result]
    ) -> None:
        self.uid = uid
        self.namespace = namespace
        self.name = name
        self.boot_id = boot_id
        self.pods = pods
        self.results = results

    def record(self) -> dict[str, object]:
        return {
            "version": VERSION, "uid": self.uid, "namespace": self.namespace, "name": self.name,
            "boot_id": self.boot_id, "pods": self.pods, "results": [result.record() for result in self.results],
        }  # fmt: skip

    def label(self) -> str:
        """The claim's name in messages."""
        return f"claim {self.namespace}/{self.name}"

    def ids(self) -> list[str]:
        """The ids of its results, as CDI devices and the hook's arguments have them."""
        return [result_id(self.uid, result.number) for result in self.results]


def result_id(uid: str, number: int) -> str:
    return f"{uid}-{number}"


def split_id(text: str) -> tuple[str, int]:
    """(claim uid, number) of a result's id; VgpuError for another text."""
    uid, dash, digits = text.rpartition("-")
    sound = dash and paths.is_pod_uid(uid) and digits.isascii() and digits.isdigit() and len(digits) <= 2
    if not sound or int(digits) >= MAX_RESULTS:
        raise VgpuError("--prepared", expected="<claim uid>-<number>", found=text)
    return uid, int(digits)


def write(state_dir: str, claim: PreparedClaim) -> None:
    """Store the record durably. This makes the directory, for root only, when it is missing."""
    os.makedirs(paths.prepared_claims(state_dir), mode=0o700, exist_ok=True)
    records.write(paths.prepared_claim(state_dir, claim.uid), claim.record())


def read(state_dir: str, uid: str) -> PreparedClaim:
    """The record; FileNotFoundError when there is none, VgpuError when it is damaged."""
    path = paths.prepared_claim(state_dir, uid)
    claim = from_record(records.read(path, _DO), path)
    if claim.uid != uid:
        raise VgpuError(path, expected=f"claim {uid}", found=f"claim {claim.uid}", do=_DO)
    return claim


def read_all(state_dir: str) -> tuple[list[PreparedClaim], dict[str, VgpuError]]:
    """(claims, claim uid -> what is wrong with a record). Such a record never hides the others.

    Where OSError is the cause, the record could not be read this time, and may be sound.
    """
    found: list[PreparedClaim] = []
    damaged: dict[str, VgpuError] = {}
    try:
        names = sorted(os.listdir(paths.prepared_claims(state_dir)))
    except FileNotFoundError:
        return [], {}
    except OSError as error:
        path = paths.prepared_claims(state_dir)
        raise VgpuError(path, expected="the directory of prepared claims", found=error.strerror) from error
    for name in names:
        uid, _, suffix = name.partition(".")
        if suffix != "json" or not paths.is_pod_uid(uid):
            continue  # the temporary file of a write that is not complete, or a record that was set aside
        try:
            found.append(read(state_dir, uid))
        except FileNotFoundError:
            continue  # removed since the listing
        except VgpuError as error:
            damaged[uid] = error
    return found, damaged


def from_record(record: dict[str, object], source: str) -> PreparedClaim:
    """The claim in `record`; a VgpuError names `source` and the wrong field."""
    fields = Fields(record, source, _DO)
    fields.version(VERSION)
    if not paths.is_pod_uid(fields.text("uid")):
        raise fields.wrong("uid", "a claim's uid")
    if not all(map(paths.is_pod_uid, fields.texts("pods"))):
        raise fields.wrong("pods", "uids of pods")
    results = [_result(item) for item in fields.objects("results")]
    if len({result.number for result in results}) != len(results) or not 0 < len(results) <= MAX_RESULTS:
        raise fields.wrong("results", f"1 to {MAX_RESULTS} results with different numbers")
    return PreparedClaim(
        fields.text("uid"), fields.text("namespace"), fields.text("name"), fields.text("boot_id"),
        fields.texts("pods"), results,
    )  # fmt: skip


def _result(fields: Fields) -> Result:
    """Records of earlier versions have no configuration."""
    configured = "core_limit" in fields.record
    return Result(
        fields.whole("number", 0, MAX_RESULTS - 1), fields.text("request"), fields.text("pool"),
        fields.text("device"), fields.text("card", empty=False), fields.whole("cores", 1, WHOLE_CARD),
        fields.whole("memory", 1, MAX_SIZE), fields.flag("whole"), fields.text("share_id"),
        fields.whole("core_limit", 0, WHOLE_CARD) if configured else 0,
        fields.whole("priority", 0, MAX_PRIORITY) if configured else LOW_PRIORITY,
    )  # fmt: skip
