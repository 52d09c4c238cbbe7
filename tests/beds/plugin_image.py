"""The device plugin's container image, like that of packaging/image, but from this machine's files. No registry.

Belongs here: a tree with Debian's Python, the two programs, and the packages that the plugin needs. The packages are
copied from the environment that the tests run in.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from pathlib import Path

import trees
from checkout import CHECKOUT

PYTHON = Path("/usr/bin/python3.11")  #: the version of the tests' Python, whose compiled packages it loads
LIBRARY = Path("/usr/lib/python3.11")
PACKAGES = (
    "annotated_types", "attr", "attrs", "certifi", "charset_normalizer", "click", "dateutil", "durationpy",
    "google", "grpc", "idna", "jsonschema", "jsonschema_specifications", "kubernetes", "oauthlib", "psutil", "pynvml",
    "pydantic", "pydantic_core", "referencing", "requests", "requests_oauthlib", "rpds", "six", "tabulate",
    "tomlkit", "typing_extensions", "typing_inspection", "urllib3", "websocket", "yaml",
)  # fmt: skip
PROGRAMS = {
    "vgpu-device-plugin": "vgpu.plugin.command:main", "vgpuctl": "vgpu.node.ctl.main:main",
    "vgpu-release": "vgpu.plugin.release.command:main",
}  # fmt: skip
PREFIX = "opt/vgpu"


def make(base: Path, tree: Path) -> Path:
    """Make `tree` from `base`, a root file system of the kind debian."""
    subprocess.run(["cp", "-a", base, tree], check=True)
    left_out = shutil.ignore_patterns("__pycache__", "test", "idlelib", "*.a", "tests")
    shutil.copytree(LIBRARY, tree / LIBRARY.relative_to("/"), ignore=left_out)
    shutil.copy2(PYTHON, tree / "usr/bin/python3")
    target = tree / PREFIX
    for name in PACKAGES:
        package(name, target, left_out)
    for part in ("config", "hook", "plugin"):
        shutil.copytree(CHECKOUT / part / "vgpu", target / "vgpu", ignore=left_out, dirs_exist_ok=True)
    metadata(target)
    libraries(tree, tree / LIBRARY.relative_to("/"), target)  # `base` may have links of other tests' containers
    for name, entry in PROGRAMS.items():
        module, _, function = entry.partition(":")
        script = (
            f'import sys\nsys.path.insert(0, "/{PREFIX}")\nfrom {module} import {function}\nsys.exit({function}())\n'
        )
        (tree / "usr/bin" / name).write_text(f"#!/usr/bin/python3\n{script}")
        (tree / "usr/bin" / name).chmod(0o755)
    return tree


def metadata(target: Path) -> None:
    """Copy vgpu's own metadata, by which vgpuctl finds its verbs."""
    installed = Path(str(importlib.metadata.distribution("vgpu").locate_file("")))
    for directory in installed.glob("vgpu-*.dist-info"):
        shutil.copytree(directory, target / directory.name)


def package(name: str, target: Path, left_out: object) -> None:
    """Copy a package or module of the tests' environment. A package that is missing there is not needed."""
    spec = importlib.util.find_spec(name)
    for place in (spec.submodule_search_locations or []) if spec else []:
        shutil.copytree(place, target / name, ignore=left_out, dirs_exist_ok=True)  # type: ignore[arg-type]
    if spec and spec.origin and not spec.submodule_search_locations:
        shutil.copy2(spec.origin, target / f"{name}.py")


def libraries(tree: Path, *directories: Path) -> None:
    """Copy the libraries that the interpreter and all extension modules of `directories` are linked with to `tree`."""
    modules = [str(path) for directory in directories for path in directory.rglob("*.so")]
    done = subprocess.run(["ldd", str(PYTHON), *modules], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        _, arrow, rest = line.partition(" => ")
        path = Path(rest.split(" ")[0]) if arrow else Path()
        copy = tree / "usr/lib" / trees.MULTIARCH / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_absolute() and not copy.exists():
            shutil.copy2(path, copy)
