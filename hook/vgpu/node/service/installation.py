"""Which installation this program is of: the host's packages, or a release that vgpu-release has put on the host.

Belongs here: where the installation's programs lie, and the advice that depends on it. Does not belong here: installing
a release (vgpu.plugin.release), and starting a program by the release's own Python (hook/gate/release.c).
"""

from __future__ import annotations

import os
import shutil
import sys

PYTHON = "/usr/bin/vgpu-python"  #: in a release, the interpreter of its programs
PROGRAMS = "/usr/bin"
CURRENT = "current"  #: the link to the release in force, by which configurations name the hook
POD = "the pod of vgpu-node on this node"


def release() -> str:
    """The root of this program's release, by the name that configurations use if it is in force. "": a package's."""
    root = sys.executable[: -len(PYTHON)] if sys.executable.endswith(PYTHON) else ""
    current = os.path.join(os.path.dirname(root), CURRENT)
    return current if root and os.path.realpath(current) == os.path.realpath(root) else root


def programs() -> str:
    """The directory of the installation's hook."""
    found = None if release() else shutil.which("vgpu-hook")
    return os.path.dirname(found) if found else release() + PROGRAMS


def install_again() -> str:
    return f"delete {POD}: the next one installs the release again" if release() else "install vgpu again"


def start_vgpud() -> str:
    return f"look at {POD}" if release() else "start it (systemctl start vgpud)"


def log_of_vgpud() -> str:
    return "kubectl logs -c vgpud, of " + POD if release() else "journalctl -u vgpud"


def log_of_plugin() -> str:
    return "kubectl logs -c device-plugin, of " + POD if release() else "journalctl -u vgpu-device-plugin"
