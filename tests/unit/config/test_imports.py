"""Who imports whom: the hook's process stays small, and imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
HOOK_PYTHON = "/usr/bin/python3"
ONLY_OUTSIDE_THE_HOOK = {"compiler", "compiled"}
#: Processes of their own, with click and the rest.
PROGRAMS = ("vgpu.node.ctl", "vgpu.node.daemon", "vgpu.node.doctor", "vgpu.node")
HEAVY = ("dataclasses", "enum", "typing", "pathlib", "logging", "subprocess", "re", "json")


def modules(part: str) -> dict[str, Path]:
    """Dotted name -> file of the modules below `part`/vgpu."""
    found = {}
    for path in sorted((CHECKOUT / part / "vgpu").rglob("*.py")):
        names = path.relative_to(CHECKOUT / part).with_suffix("").parts
        found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


def imported(path: Path) -> set[str]:
    """The absolute names that a file imports, in whatever scope; `from a import b` gives a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def in_hook(name: str) -> bool:
    return name.rpartition(".")[2] not in ONLY_OUTSIDE_THE_HOOK


def test_the_hooks_half_of_config_loads_nothing_heavy() -> None:
    if not Path(HOOK_PYTHON).exists():
        pytest.skip(f"{HOOK_PYTHON} is missing")
    names = [name for name in modules("config") if in_hook(name)]
    assert len(names) > 8
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT / 'config')!r})\n"
        + "".join(f"import {name}\n" for name in names)
        + f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    command = [HOOK_PYTHON, "-I", "-S", "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 does not list its standard library")
def test_config_imports_the_standard_library_only() -> None:
    for name, path in modules("config").items():
        allowed = {"yaml", "jsonschema"} if name == "vgpu.config.compiler" else set()
        tops = {other.partition(".")[0] for other in imported(path)}
        assert tops - sys.stdlib_module_names - {"vgpu"} <= allowed, name
        assert all(other.startswith("vgpu.config") for other in imported(path) if other.startswith("vgpu.")), name


def test_the_hooks_half_of_config_never_imports_the_compiler() -> None:
    outside = {f"vgpu.config.{name}" for name in ONLY_OUTSIDE_THE_HOOK}
    for name, path in modules("config").items():
        assert not (in_hook(name) and imported(path) & outside), name


def test_imports_go_one_way() -> None:
    for part in ("config", "hook"):
        for name, path in modules(part).items():
            assert not any(f"{other}.".startswith("vgpu.plugin.") for other in imported(path)), name
    for name, path in modules("hook").items():
        below = {other for other in imported(path) if other.startswith("vgpu.")}
        outer = ("vgpu.node",) if name.startswith(PROGRAMS) else ()
        assert all(other.startswith(("vgpu.config", "vgpu.hook", *outer)) for other in below), name
        outside = {f"vgpu.config.{other}" for other in ONLY_OUTSIDE_THE_HOOK}
        assert name.startswith(PROGRAMS) or not below & outside, name


def test_only_the_programs_beside_the_hook_use_packages() -> None:
    for name, path in modules("hook").items():
        tops = {other.partition(".")[0] for other in imported(path)}
        assert name.startswith(PROGRAMS) or not tops & {"click", "tabulate", "psutil"}, name
        assert name.startswith(PROGRAMS) or not any(other.startswith(PROGRAMS) for other in imported(path)), name


def test_no_directory_of_the_namespace_is_a_package() -> None:
    assert not [part for part in ("config", "hook", "plugin") if (CHECKOUT / part / "vgpu/__init__.py").exists()]


def test_imported_sees_what_it_should(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import os.path\ndef f():\n    from vgpu import plugin\n")
    assert imported(path) == {"os.path", "vgpu", "vgpu.plugin"}
