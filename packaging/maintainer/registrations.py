"""registrations.py: says which runtimes still call vgpu's hook, and how to undo that. Runs before a removal, by
deb's prerm and rpm's %preun.

Belongs here: the sentence for each place. The places are found by vgpuctl doctor's own check.
"""

from __future__ import annotations

import sys

sys.path.insert(0, "/usr/lib/vgpu/python")

from vgpu.config import settings
from vgpu.node.doctor import findings, runtimes

CDI = "CDI"
#: The beginning of a finding, and the runtimes' names for `vgpuctl runtime`.
NAMES = {"podman and CRI-O": "podman (or crio)", "CRI-O": "crio", "containerd": "containerd", "docker": "docker"}


def main() -> None:
    context = findings.CheckContext(settings.COMPILED_PATH, settings.Settings())
    for finding in runtimes.runtime_configuration(context):
        if finding.status != findings.WARNING:  # the check warns only if no runtime calls the hook
            print(sentence(finding.found.split(": /usr/", 1)[0]))


def sentence(place: str) -> str:
    kind = place.split(" (", 1)[0]
    undo = "remove that file"
    if kind in NAMES:
        undo = f"install vgpu again and run: vgpuctl runtime unconfigure --runtime {NAMES[kind]}"
    elif kind == CDI:
        undo = "install vgpu again and run: vgpuctl cdi remove; or remove that file"
    return f"vgpu: {place} still calls the hook, so containers will not start; to undo that, {undo}"


if __name__ == "__main__":
    main()
