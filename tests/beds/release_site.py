"""A node whose only installation of vgpu is a release: vgpu-release has put it there, and CDI calls its hook.

Belongs here: images of several versions, of this machine's files; the containerd that calls the hook, in a place where
the host has no Python; and a picture of the host's directories. Kubelet is its stand-in, as in pod_site.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import containerd_bed
import host_view
import nodes
import plugin_image
from containerd_bed import Containerd
from pod_site import GatedRuntime, PodSite, plugin_settings
from real_kubelet import Place

PYTHONS = ("/usr/bin/python3", "/usr/bin/python3.11")
RELEASE = str(Path(sys.executable).parent / "vgpu-release")


def image(root: Path, version: str) -> Path:
    """Make the root of an image, whose release is all of it, with a file that tells its version."""
    host_view.release_of_this_machine(root)
    return numbered(root, version)


def node_image(base: Path, tree: Path) -> Path:
    """Make the tree of an image that runs all containers of the DaemonSet, from `base`, a root file system."""
    release = image(tree.with_name(f"{tree.name}-release"), "0.1.0")
    plugin_image.make(base, tree)
    subprocess.run(["cp", "-a", f"{release}/usr", tree], check=True)
    for path in (release / "lib").rglob("*"):  # where lib is a link to usr/lib
        if not path.is_dir():
            shutil.copy2(path, tree / path.relative_to(release), follow_symlinks=False)
    return tree


def numbered(root: Path, version: str) -> Path:
    """Give an image another version."""
    (root / "usr/lib/vgpu/python/version").write_text(version)
    place = root / "usr/share/vgpu/release.json"
    place.unlink(missing_ok=True)
    files: list[dict[str, object]] = []
    for path in sorted(path for path in root.rglob("*") if path.is_symlink() or path.is_file()):
        name = str(path.relative_to(root))
        if path.is_symlink():
            files.append({"path": name, "target": os.readlink(path)})
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            files.append({"path": name, "mode": stat.S_IMODE(path.stat().st_mode), "sha256": digest})
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"version": 1, "release": version, "files": files}))
    return root


class ReleaseSite(PodSite):
    """`install` and `remove` are vgpu-release's; `host` is the directory of releases."""

    def __init__(self, directory: Path, version: str, image: Path) -> None:
        sockets = directory / "node/kubelet"
        node = nodes.SimulatedNode(directory / "node", "a100x2", **plugin_settings(sockets, **{"plugin.cdi": True}))
        node.take_inventory()
        state = Path(node.settings.state_dir)
        nothing = directory / "nothing"
        nothing.write_text("")
        shutil.copy2(node.config, state / "config.json")  # where a hook without --config looks
        hidden = [(nothing, Path(program)) for program in PYTHONS if Path(program).exists()]
        (directory / "place/lib/vgpu").mkdir(parents=True)
        self.place = Place(directory / "place", [(state, Path("/var/lib/vgpu")), *hidden])
        self.bed = Containerd(
            directory / "bed", containerd_bed.programs(version), node, patterns=(), prefix=self.place.prefix
        ).start(image)
        self.specifications = self.bed.directory / "cdi"
        (self.specifications / "vgpu.json").unlink()
        self.host = directory / "opt"
        super().__init__(node, GatedRuntime(self.bed, "plain"), sockets)

    def install(self, source: Path) -> subprocess.CompletedProcess[str]:
        return self.run_release("install", "--source", str(source), "--socket", str(self.bed.socket))

    def remove(self) -> subprocess.CompletedProcess[str]:
        return self.run_release("remove", "--config", str(self.node.config))

    def run_release(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As the DaemonSet's container does, which has a Python of its own."""
        command = [
            RELEASE, verb, "--directory", str(self.host), "--cdi-directory", str(self.specifications), *arguments
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def in_force(self) -> str:
        return os.readlink(self.host / "current").rpartition("-")[0]

    def end(self) -> None:
        super().end()
        self.bed.stop()
        self.place.end()


def picture(*directories: Path) -> dict[str, object]:
    """What lies below directories: the content of files, the targets of links, and modes."""
    found: dict[str, object] = {}
    for path in (path for directory in directories for path in directory.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        elif path.is_dir():
            found[str(path)] = stat.S_IMODE(path.stat().st_mode)
    return found
