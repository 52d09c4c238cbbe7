"""registrations.py: says which runtimes still call vgpu's hook, what that means, and how to undo it. Runs before a
removal, by deb's prerm and rpm's %preun.

Belongs here: the lines for each registration and for each other place. The places are found by vgpuctl doctor's own
check, the lines to take out by vgpuctl runtime unconfigure's own plan: a purge deletes the record that it needs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

sys.path.insert(0, "/usr/lib/vgpu/python")

from vgpu.config import settings
from vgpu.config.errors import VgpuError
from vgpu.node.doctor import findings, runtimes
from vgpu.node.runtimes import cdi_spec, registered_files, registry
from vgpu.node.runtimes.registered_files import Edit, Record
from vgpu.node.runtimes.registration import WITHOUT_PROGRAM

#: The beginning of a finding, and the runtimes' names for `vgpuctl runtime`.
NAMES = {"podman and CRI-O": "podman", "CRI-O": "crio", "containerd": "containerd", "docker": "docker", "CDI": "cdi"}


def main() -> None:
    try:
        node = settings.read_or_default(settings.COMPILED_PATH)
    except VgpuError:
        node = settings.Settings()
    for line in report(findings.CheckContext(settings.COMPILED_PATH, node)):
        print(f"vgpu: {line}")


def report(context: findings.CheckContext) -> Iterator[str]:
    state_dir = context.settings.state_dir
    written: set[str] = set()
    for name in registry.KINDS:
        try:
            record = Record.read(state_dir, name)
            written |= {item["path"] for item in record.files}
            yield from _registration(name, record, state_dir) if record.files else ()
        except VgpuError as error:
            yield str(error)
    for finding in runtimes.runtime_configuration(context):
        place = finding.found.split(": /usr/", 1)[0]
        kind, _, path = place.partition(" (")
        # The check warns only if no runtime calls the hook.
        if finding.status != findings.WARNING and path.partition(":")[0].rstrip(")") not in written:
            yield f"{place} still names a program of vgpu: {WITHOUT_PROGRAM[NAMES[kind]]}"
            yield "  to undo that, remove the file, or what names the program in it"


def _registration(name: str, record: Record, state_dir: str) -> Iterator[str]:
    verb = "vgpuctl cdi remove" if name == cdi_spec.NAME else f"vgpuctl runtime unconfigure --runtime {name}"
    yield f"{name} still calls the hook: {WITHOUT_PROGRAM[name]}"
    yield f"  to undo that, install vgpu again before a purge and run: {verb}; or by hand:"
    for edit in registered_files.plan(record, ()):
        if not edit.path.startswith(f"{state_dir}/"):
            yield from _by_hand(edit)
    if record.options.get("restart"):
        yield f"  then run: {shlex.join(record.options['restart'])}"


def _by_hand(edit: Edit) -> Iterator[str]:
    """A file to remove, or the lines that go and those that come instead, as in a patch."""
    if edit.after is None:
        yield f"  remove {edit.path}"
    elif edit.changes():
        yield f"  in {edit.path} take out the lines with - and put in those with +:"
        yield from (f"    {line}" for line in edit.diff().splitlines()[2:] if line[:1] in "+-")


if __name__ == "__main__":
    main()
