"""The check of SELinux: whether vgpu's policy module is loaded, and what the kernel has denied since then.

Belongs here: what the policy store and the audit log say. Does not belong here: the labels of mounts
(vgpu.hook.linux.selinux), and the module itself (packaging/selinux).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from vgpu.config import records
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding

NAME = "SELinux"
ENFORCE = "/sys/fs/selinux/enforce"
STORES = "/var/lib/selinux/*/active/modules"
AUDIT_LOG = "/var/log/audit/audit.log"
MAX_LOG = 1 << 20  #: bytes of the log's end that are read
MAX_SHOWN = 300  #: characters of a denial
RESTORE = "restorecon -iR /run/vgpu /var/lib/vgpu /dev"
LOAD = "semodule -X 200 -i /usr/share/selinux/packages/vgpu.cil"
DENIED = re.compile(r"^type=AVC msg=audit\((\d+)\.\d+:\d+\): avc: +denied .*(?:vgpu|nvidia|libcuda).*$", re.MULTILINE)


def selinux(context: CheckContext) -> Iterator[Finding]:
    try:
        enforcing = records.read_bounded(context.path(ENFORCE), 16).strip() == b"1"
    except FileNotFoundError:
        yield Finding(NAME, OK, "this kernel runs without it")
        return
    mode, bad = ("enforcing", FAILURE) if enforcing else ("permissive", WARNING)
    loaded, disabled = (glob.glob(context.path(f"{STORES}/{kind}/vgpu")) for kind in ("[0-9]*", "disabled"))
    if disabled or not loaded:
        found = f"{mode}, and the module vgpu is {'disabled' if disabled else 'not loaded'}"
        do = "run: semodule -e vgpu" if disabled else f"run: {LOAD} && {RESTORE}; the rpm package vgpu has the file"
        yield Finding(NAME, bad, found, "the module vgpu, without which containers cannot open their card", do)
        return
    denials = _denials(context, max(_booted(context), *(os.stat(path).st_mtime for path in loaded)))
    if not denials:
        yield Finding(NAME, OK, f"{mode}; the module vgpu is loaded")
        return
    found = (
        f"{mode}; denied {len(denials)} times since the policy was last built, the last time: {denials[-1][:MAX_SHOWN]}"
    )
    do = f"run: {RESTORE}; what is denied after that is missing in the module: ausearch -m AVC | audit2allow shows it"
    yield Finding(NAME, bad, found, "no denial that names vgpu or the driver's files", do)


def _booted(context: CheckContext) -> float:
    lines = records.read_bounded(f"{context.proc}/stat", MAX_LOG).splitlines()
    return float(next((line.split()[1] for line in lines if line.startswith(b"btime ")), 0))


def _denials(context: CheckContext, since: float) -> list[str]:
    try:
        with open(context.path(AUDIT_LOG), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG))
            text = log.read(MAX_LOG).decode("utf-8", "replace")
    except FileNotFoundError:
        return []  # no auditd: the kernel's own log may have lost them
    return [match.group() for match in DENIED.finditer(text) if int(match.group(1)) >= since]
