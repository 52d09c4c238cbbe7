"""Which module may import which: a table of floors, the hook's light process, and which modules may use libraries.

Belongs here: rules about Python's imports, read from the sources. test_loaded_modules.py also starts interpreters to
see what a process loads. The rules for C are in test_c_names.py.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from c_circles import circles_among

CHECKOUT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())
HOOK_PYTHON = "/usr/bin/python3"

#: Packages from the top floor to the lowest. A module imports its own package and packages of lower floors. Packages
#: in one row do not import each other.
FLOORS = (
    ("vgpu.plugin",),
    ("vgpu.plugin.scheduler", "vgpu.plugin.release", "vgpu.plugin.dra"),
    ("vgpu.plugin.kubelet", "vgpu.plugin.cards", "vgpu.plugin.apiserver", "vgpu.plugin.exporter"),
    ("vgpu.plugin.kubelet.proto",),
    ("vgpu.node",),
    ("vgpu.node.ctl",),
    ("vgpu.node.doctor", "vgpu.node.selftest"),
    ("vgpu.node.daemon",),
    ("vgpu.node.runtimes",),
    ("vgpu.node.cards",),
    ("vgpu.node.driver",),
    ("vgpu.node.service",),
    ("vgpu.hook",),
    ("vgpu.hook.ledger",),
    ("vgpu.hook.request",),
    ("vgpu.hook.inject",),
    ("vgpu.hook.devices",),
    ("vgpu.hook.placement",),
    ("vgpu.hook.formats",),
    ("vgpu.hook.linux",),
    ("vgpu.config.dialects",),
    ("vgpu.config",),
)
FLOOR_OF = {package: number for number, row in enumerate(FLOORS) for package in row}

#: Of the node's other half the plugin uses these alone.
PLUGIN_USES_OF_NODE = ("vgpu.node.service", "vgpu.node.driver")
#: An installation writes what `vgpuctl cdi generate` writes.
RELEASE_USES_BESIDES = ("vgpu.node.runtimes",)
#: A verb of vgpuctl prints as the others do.
VERB_USES_BESIDES = ("vgpu.node.ctl",)
#: What vgpu.config keeps for programs: the YAML compiler and the writer of compiled settings.
ONLY_OUTSIDE_THE_HOOK = {"vgpu.config.compiler", "vgpu.config.compiled"}
#: Modules of the standard library that cost a start more than they bring, and every package from outside.
TOO_SLOW_FOR_THE_HOOK = {
    "dataclasses", "enum", "typing", "pathlib", "logging", "subprocess", "re", "json", "threading", "collections",
    "functools", "inspect", "shutil", "tempfile", "contextlib", "argparse",
}  # fmt: skip
USERS_OF_PYNVML = {"vgpu.node.driver.nvml", "vgpu.node.cards.nvml_probe"}


def sources() -> dict[str, Path]:
    """Dotted name -> file of every module of the three parts; a package goes by its own name."""
    found = {}
    for part in ("config", "hook", "plugin"):
        for path in sorted((CHECKOUT / part / "vgpu").rglob("*.py")):
            names = path.relative_to(CHECKOUT / part).with_suffix("").parts
            found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


SOURCES = sources()
PACKAGES = {name for name, path in SOURCES.items() if path.name == "__init__.py"}


def package_of(name: str) -> str:
    """The package that a module lies in; of a package, itself."""
    return name if name in PACKAGES else name.rpartition(".")[0]


@functools.cache
def imported(path: Path, types: bool = True) -> set[str]:
    """The modules that a file imports, in whatever scope: `from a import b` is a.b where that is a module, else a.

    Without `types`, what stands below `if TYPE_CHECKING:` is left out: it is never loaded.
    """
    names: set[str] = set()
    for node in _nodes(ast.parse(path.read_text(encoding="utf-8")), types):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            members = (f"{module}.{alias.name}" for alias in node.names)
            names.update(member if member in SOURCES else module for member in members)
    return names


def _nodes(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _nodes(node, types)


def may_import(importer: str, target: str) -> bool:
    """Whether a module of package `importer` may import from package `target`."""
    return importer == target or FLOOR_OF[target] > FLOOR_OF[importer]


def reached(start: str) -> set[str]:
    """Our modules that importing `start` loads, their packages with them."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in SOURCES:
            continue
        seen.add(name)
        waiting += imported(SOURCES[name], types=False)
        waiting += [".".join(name.split(".")[:size]) for size in range(2, name.count(".") + 1)]
    return seen


@pytest.mark.parametrize("name", SOURCES)
def test_a_module_imports_its_own_folder_and_lower_floors(name: str) -> None:
    package = package_of(name)
    assert package in FLOOR_OF, f"{name}: its package has no floor in FLOORS"
    ours = {package_of(target) for target in imported(SOURCES[name]) if target.partition(".")[0] == "vgpu"}
    assert not {target for target in ours if not may_import(package, target)}


def within_packages(sources: dict[str, Path]) -> dict[str, set[str]]:
    """Module -> the modules of its own package that it imports, also for types alone."""
    return {
        name: {target for target in imported(path) & sources.keys() if package_of(target) == package_of(name)}
        for name, path in sources.items()
    }


def test_modules_of_a_package_import_each_other_in_no_circle() -> None:
    assert not circles_among(within_packages(SOURCES))


def test_every_floor_has_modules() -> None:
    assert set(FLOOR_OF) == {package_of(name) for name in SOURCES}


def test_the_plugin_uses_only_service_and_driver_of_the_node() -> None:
    for name, path in SOURCES.items():
        if name.startswith("vgpu.plugin"):
            used = {target for target in imported(path) if target.startswith("vgpu.node")}
            allowed = PLUGIN_USES_OF_NODE + RELEASE_USES_BESIDES * name.startswith("vgpu.plugin.release")
            allowed += VERB_USES_BESIDES * (name == "vgpu.plugin.scheduler.overview")
            assert all(package_of(target) in allowed for target in used), name


def test_the_hooks_process_reaches_nothing_of_the_node() -> None:
    loaded = reached("vgpu.hook.main")
    assert "vgpu.hook.ledger.ledger" in loaded
    assert not {name for name in loaded if name.startswith(("vgpu.node", "vgpu.plugin"))}
    assert not loaded & ONLY_OUTSIDE_THE_HOOK


def test_every_module_of_the_hook_is_light() -> None:
    """Modules that others share with the hook obey the hook's rules too, as the hook may import any of them one day."""
    for name, path in SOURCES.items():
        if name.startswith("vgpu.hook"):
            tops = {target.partition(".")[0] for target in imported(path, types=False)}
            assert not tops & TOO_SLOW_FOR_THE_HOOK, name
            assert not imported(path) & ONLY_OUTSIDE_THE_HOOK, name


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 does not list its standard library")
def test_config_and_hook_import_the_standard_library_only() -> None:
    for name, path in SOURCES.items():
        if name.startswith(("vgpu.config", "vgpu.hook")):
            tops = {target.partition(".")[0] for target in imported(path)}
            allowed = {"yaml", "jsonschema"} if name == "vgpu.config.compiler" else set()
            assert tops - sys.stdlib_module_names - {"vgpu"} <= allowed, name


def test_pynvml_has_two_users() -> None:
    assert {name for name, path in SOURCES.items() if "pynvml" in imported(path)} == USERS_OF_PYNVML


def test_the_hooks_half_of_config_loads_nothing_slow() -> None:
    if not Path(HOOK_PYTHON).exists():
        pytest.skip(f"{HOOK_PYTHON} is missing")
    names = [name for name in SOURCES if name.startswith("vgpu.config") and name not in ONLY_OUTSIDE_THE_HOOK]
    assert len(names) > 8
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT / 'config')!r})\n"
        + "".join(f"import {name}\n" for name in names)
        + f"print([name for name in {sorted(TOO_SLOW_FOR_THE_HOOK)!r} if name in sys.modules])"
    )
    command = [HOOK_PYTHON, "-I", "-S", "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_no_directory_of_the_namespace_is_a_package() -> None:
    assert not [part for part in ("config", "hook", "plugin") if (CHECKOUT / part / "vgpu/__init__.py").exists()]


# The rules can fail


def test_imported_sees_what_it_should(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import os.path\ndef f():\n    from vgpu import plugin\n    from vgpu.config import errors, nothing\n"
    )
    assert imported(path) == {"os.path", "vgpu.plugin", "vgpu.config.errors", "vgpu.config"}


def test_circles_of_modules_are_found(tmp_path: Path) -> None:
    names = ["vgpu.node.ctl.set", "vgpu.node.ctl.status", "vgpu.node.daemon.lender"]
    paths = {name: tmp_path / f"{name}.py" for name in names}
    paths[names[0]].write_text(f"def f():\n    import {names[1]}\n")
    paths[names[1]].write_text(f"from vgpu.node.ctl import set\nimport {names[2]}\n")
    paths[names[2]].write_text(f"import {names[1]}\n")
    assert all(name in SOURCES for name in names)
    assert circles_among(within_packages(paths)) == [(names[0], names[1])]


@pytest.mark.parametrize(
    ("importer", "target", "allowed"),
    [
        ("vgpu.hook.ledger", "vgpu.hook.request", True),
        ("vgpu.hook.request", "vgpu.hook.ledger", False),
        ("vgpu.hook.linux", "vgpu.config", True),
        ("vgpu.config", "vgpu.hook.linux", False),
        ("vgpu.hook", "vgpu.node.service", False),
        ("vgpu.plugin.cards", "vgpu.plugin.kubelet", False),
        ("vgpu.plugin.kubelet", "vgpu.plugin.cards", False),
        ("vgpu.plugin.kubelet", "vgpu.plugin.kubelet", True),
    ],
)
def test_floors_are_read_as_they_are_written(importer: str, target: str, allowed: bool) -> None:
    assert may_import(importer, target) is allowed


def test_reached_follows_packages_and_late_imports() -> None:
    loaded = reached("vgpu.plugin.background")
    assert {"vgpu.plugin.apiserver.agent", "vgpu.plugin.kubelet.grant_gc", "vgpu.hook"} <= loaded
