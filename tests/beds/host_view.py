"""A host without Python and without a C library, on which nothing of vgpu lies but a release.

Belongs here: releases, of the image vgpu-node or of this machine's files; a root file system with busybox and one of
them; and a bundle whose hook runs there, in a mount namespace in which this machine's kernel and some of its
directories are visible. The runtime itself stays outside of that root: it needs a C library.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import bundles
import plugin_image
import trees
from checkout import BUILD, CHECKOUT

DIRECTORY = "/opt/vgpu"
CURRENT = f"{DIRECTORY}/current"
PACKAGES = (
    "attr", "attrs", "click", "jsonschema", "jsonschema_specifications", "psutil", "pynvml", "referencing", "rpds",
    "tabulate", "tomlkit", "typing_extensions", "yaml",
)  # fmt: skip
GATE = {
    "VGPU_RELEASE": "ON", "VGPU_PYTHON": str(plugin_image.PYTHON), "VGPU_PYTHON_PATH": "/usr/lib/vgpu/python",
    "VGPU_BYTE_CODE": "/usr/lib/vgpu/hook.bytecode",
}  # fmt: skip
KERNEL = ("/proc", "/sys", "/dev", "/run")


def release_of_image(archive: Path, root: Path) -> Path:
    """Copy what an image's release.json names to `root`."""
    image = root.with_name("image")
    with tarfile.open(archive) as outer:
        index = json.load(outer.extractfile("index.json"))  # type: ignore[arg-type]
        manifest = json.load(outer.extractfile(_blob(index["manifests"][0]["digest"])))  # type: ignore[arg-type]
        with tarfile.open(fileobj=outer.extractfile(_blob(manifest["layers"][0]["digest"])), mode="r:*") as layer:
            layer.extractall(image)
    for file in json.loads((image / "usr/share/vgpu/release.json").read_text())["files"]:
        (root / file["path"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(image / file["path"], root / file["path"], follow_symlinks=False)
    shutil.rmtree(image)
    return root


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def release_of_this_machine(root: Path) -> Path:
    """Make a release of this machine's Python and the tests' packages."""
    left_out = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "ensurepip", "*.a")
    library, modules = plugin_image.LIBRARY, root / "usr/lib/vgpu/python"
    shutil.copytree(library, root / library.relative_to("/"), ignore=left_out)
    for part in ("config", "hook"):
        shutil.copytree(CHECKOUT / part / "vgpu", modules / "vgpu", ignore=left_out, dirs_exist_ok=True)
    plugin_image.metadata(modules)
    for name in PACKAGES:
        plugin_image.package(name, modules, left_out)
    shutil.copytree(BUILD / "lib/vcuda", root / "usr/lib/vgpu/vcuda")
    shutil.copy2(BUILD / "bin/vgpu-selftest", root / "usr/lib/vgpu")
    build = root.with_name(f"{root.name}-gate")
    settings = [f"-D{name}={value}" for name, value in GATE.items()]
    compiler = CHECKOUT / "packaging/bytecode/compile_hook.py"
    for command in (
        ["cmake", "-S", CHECKOUT / "hook/gate", "-B", build, *settings], ["cmake", "--build", build],
        [plugin_image.PYTHON, "-I", "-S", compiler, modules, root / "usr/lib/vgpu/hook.bytecode"],
    ):  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(build / "bin", root / "usr/bin", symlinks=True)
    shutil.copy2(plugin_image.PYTHON, root / "usr/bin")
    plugin_image.libraries(root, root)
    (root / "lib" / trees.MULTIARCH).mkdir(parents=True)
    loader = next(Path("/lib", trees.MULTIARCH).glob("ld-linux-*.so.?"))
    shutil.copy2(loader, root / "lib" / trees.MULTIARCH)
    return root


class HostView:
    """The host at `root`. A path below `visible` is there what it is here."""

    def __init__(self, root: Path, release: Path, *visible: Path) -> None:
        self.root = root
        directories = [*KERNEL, *map(str, visible)]
        for directory in ("usr/bin", "usr/lib", "etc", "tmp", DIRECTORY[1:], *(one[1:] for one in directories)):
            (root / directory).mkdir(parents=True, exist_ok=True)
        shutil.copy2(shutil.which("busybox") or "/bin/busybox", root / "usr/bin/busybox")
        subprocess.run(["cp", "-a", release, root / DIRECTORY[1:] / "1"], check=True)
        (root / CURRENT[1:]).symlink_to("1")
        script = "".join(f"mount --rbind {one} {root}{one}; " for one in directories)
        #: What a command behind it needs to see the host.
        self.prefix = ("unshare", "-m", "sh", "-ec", f'{script}exec "$@"', "sh")

    def release(self) -> Path:
        return self.root / CURRENT[1:]

    def run(self, *command: str, **environment: str) -> str:
        """The output of a program on the host."""
        done = subprocess.run(
            [*self.prefix, "chroot", self.root, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def hooked(self, bundle: bundles.Bundle) -> bundles.Bundle:
        """The bundle with its hooks as the release's, run on the host."""
        for stage in bundle.config["hooks"].values():
            for hook in stage:
                program = f"{CURRENT}/usr/bin/vgpu-hook"
                hook["args"] = ["chroot", str(self.root), program, *hook["args"][1:]]
                hook["path"] = "/usr/sbin/chroot"
        return bundle
