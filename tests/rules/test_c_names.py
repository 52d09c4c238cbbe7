"""Names and floors of the C sources.

A component is a folder of C sources that are linked together. In each, a function that other files can call has its
file's stem as its prefix. A static function's name is unique within a folder. A file includes headers of its own folder
and of lower floors, and calls functions of them, nothing else. Files of one folder do not call each other in a
circle. Names of the driver's own interface need no prefix where a component implements it.

Belongs here: the rules for C. c_sources.py reads the sources, c_circles.py finds circles, and test_imports.py has
Python's rules.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from c_circles import circles
from c_sources import Function, calls_in, folder_of, functions_in, includes_of, sources

CHECKOUT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())

# What is in capitals is a macro that makes a function's head.
DRIVER_NAME = re.compile(r"(?:cu|nvml)[A-Z]\w*|[A-Z_]+")


@dataclass(frozen=True)
class Component:
    """Folders of C that are linked together."""

    root: str  # in the checkout; includes are relative to it
    floors: dict[str, int] = field(default_factory=lambda: {"": 0})  # folder -> its height; siblings have one height
    prefixes: dict[str, str] = field(default_factory=dict)  # folder -> what stands before the stem
    drivers: tuple[str, ...] = ()  # folders that implement the driver's interface, whose names are not ours
    free: tuple[str, ...] = ()  # headers that every folder may include: interfaces, and what the build generates
    include: tuple[str, ...] = ()  # folders of the checkout whose headers are free, too
    circles: tuple[tuple[str, ...], ...] = ()  # the circles that are still there, each as its files in order


LIBVCUDA = Component(
    "libvcuda/src",
    floors={"base": 0, "driver": 1, "shared": 2, "memory": 3, "compute": 3, "hooks": 4},
    drivers=("hooks",),
    free=("trampolines.def",),
    include=("libvcuda/include",),
)
CUDA = [f"cuda/{folder}" for folder in ("base", "memory", "code", "graph", "work", "gexec", "entry")]  # bottom first
SIMULATOR = Component(
    "libvcuda/sim",
    floors={"state": 0, "nvml": 1, "smi": 1, "stand_ins": 1, **{folder: at for at, folder in enumerate(CUDA, 1)}},
    prefixes={"state": "sim_", "nvml": "sim_nvml_", "smi": "smi_", **dict.fromkeys(CUDA, "sim_")},
    drivers=("nvml", "stand_ins", *CUDA),
    # NVML's ABI, which nvidia-smi speaks and the simulated library implements; and what the build generates.
    free=("nvml/types.h", "other_names.def"),
    include=("libvcuda/include",),
)
GATE = Component("hook/gate")
SELFTEST = Component("libvcuda/selftest", include=("libvcuda/include",))
COMPONENTS = (LIBVCUDA, SIMULATOR, GATE, SELFTEST)


# ---- the rules ----


def prefix_of(component: Component, file: str, repeated: Iterable[str]) -> str:
    path = Path(file)
    before = component.prefixes.get(folder_of(file), "")
    if not before and path.stem in repeated:
        return f"{path.parent.name}_{path.stem}"
    return before + path.stem


def prefixes(component: Component, files: Iterable[str]) -> dict[str, str]:
    """File -> its prefix. A stem that stands in two folders has its folder's name before it."""
    folders: dict[str, set[str]] = defaultdict(set)
    for file in files:
        folders[component.prefixes.get(folder_of(file), "") + Path(file).stem].add(folder_of(file))
    repeated = {name for name, where in folders.items() if len(where) > 1}
    return {file: prefix_of(component, file, repeated) for file in files}


def is_excepted(component: Component, function: Function) -> bool:
    is_drivers = function.folder in component.drivers and bool(DRIVER_NAME.fullmatch(function.name))
    return is_drivers or (function.name == "main" and not function.is_static)


def foreign_prefixes(component: Component, functions: Iterable[Function], files: Iterable[str]) -> list[str]:
    """Shared functions whose name does not begin with their file's prefix, or begins with another file's longer one."""
    of_file = prefixes(component, files)
    wrong = []
    for function in functions:
        if not function.is_shared or is_excepted(component, function):
            continue
        own = of_file[function.file]
        longest = max(
            (each for each in set(of_file.values()) if f"{function.name}_".startswith(f"{each}_")), key=len, default=""
        )
        if longest != own:
            wrong.append(f"{component.root}/{function.file}: {function.name}: expected {own}_...")
    return wrong


def repeated_statics(component: Component, functions: Iterable[Function]) -> list[str]:
    """Names of static functions that stand in two files of one folder."""
    files: dict[tuple[str, str], set[str]] = defaultdict(set)
    for function in functions:
        if function.is_static:
            files[function.folder, function.name].add(function.file)
    return [
        f"{component.root}/{folder}: {name} is static in {', '.join(sorted(where))}"
        for (folder, name), where in sorted(files.items())
        if len(where) > 1
    ]


def is_above(component: Component, folder: str, other: str) -> bool:
    """Whether `other` is a folder that `folder` may not use: a higher floor or a sibling."""
    return other != folder and component.floors.get(other, 99) >= component.floors[folder]


def forbidden_includes(component: Component, root: Path) -> list[str]:
    """Includes of a higher floor or of a sibling, of what is not there, and folders without a floor."""
    checkout = Path(str(root)[: -len(component.root)])
    known = {file for file, _ in sources(root)}
    known |= {str(path.relative_to(root)) for path in root.rglob("*.def")}
    free = {*component.free, *(path.name for folder in component.include for path in (checkout / folder).glob("*.h"))}
    wrong = []
    for file, text in sources(root):
        folder, where = folder_of(file), f"{component.root}/{file}"
        if folder not in component.floors:
            wrong.append(f"{where}: its folder has no floor")
            continue
        for sign, header in includes_of(text):
            if sign == "<":
                if header in known | free:
                    wrong.append(f"{where}: includes <{header}>, which is ours")
            elif header in free:
                continue
            elif header not in known:
                wrong.append(f"{where}: includes {header}, which is not in {component.root}")
            elif is_above(component, folder, folder_of(header)):
                wrong.append(f"{where}: {folder} includes {header}")
    return wrong


def forbidden_calls(component: Component, functions: Iterable[Function], texts: Iterable[tuple[str, str]]) -> list[str]:
    """Calls of a higher floor or of a sibling: a declaration in a lower header would hide them from the includes."""
    homes: dict[str, set[str]] = defaultdict(set)
    for function in functions:
        if function.is_shared:
            homes[function.name].add(function.folder)
    return [
        f"{component.root}/{file}: {folder_of(file)} calls {name} of {', '.join(sorted(homes[name]))}"
        for file, text in texts
        if folder_of(file) in component.floors
        for name in sorted(calls_in(text) & homes.keys())
        if all(is_above(component, folder_of(file), home) for home in homes[name])
    ]


def broken(component: Component, checkout: Path) -> list[str]:
    root = checkout / component.root
    texts = list(sources(root))
    functions = [function for file, text in texts for function in functions_in(text, file)]
    return [
        *foreign_prefixes(component, functions, [file for file, _ in texts]),
        *repeated_statics(component, functions),
        *forbidden_includes(component, root),
        *forbidden_calls(component, functions, texts),
    ]


# ---- the tree ----


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.root)
def test_sources_keep_the_rules(component: Component) -> None:
    assert not broken(component, CHECKOUT)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.root)
def test_files_of_a_folder_call_each_other_in_no_circle(component: Component) -> None:
    """A circle that is gone leaves the exceptions, too."""
    assert circles(CHECKOUT / component.root) == sorted(component.circles)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.root)
def test_every_floor_has_sources(component: Component) -> None:
    assert {folder_of(file) for file, _ in sources(CHECKOUT / component.root)} == set(component.floors)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.root)
def test_the_reader_finds_every_function(component: Component) -> None:
    """A reader that found nothing would find nothing wrong: a body's brace stands alone at a line's beginning."""
    for file, text in sources(CHECKOUT / component.root):
        bodies = len(re.findall(r"^\{$", text, re.MULTILINE))
        assert len(list(functions_in(text, file))) == bodies, file


# ---- the rules can fail ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int f(void)\n{\n}\n", [("f", False)]),
        ("static void *f(int (*g)(int), int a[2])\n{ if (a) { } }\n", [("f", True)]),
        ("static inline bool f(void)\n{\n}\n", [("f", True)]),
        ("__attribute__((destructor)) static void f(void)\n{\n}\n", [("f", True)]),
        ("int f(void);\nstruct s { int a; };\nint g(void)\n{\n}\n", [("g", False)]),
        ("MACRO(cuInit, int)\nMACRO(cuX, int)\nstatic int f(void)\n{\n}\n", [("f", True)]),
        ("static const struct s table[] = {{f(1)}, {2}};\n", []),
        ('#define M(x) \\\n\tint x(void) \\\n\t{ \\\n\t}\n/* int f(void) { } */\nconst char *s = "f() {";\n', []),
    ],
)
def test_functions_are_read_from_text(text: str, expected: list[tuple[str, bool]]) -> None:
    assert [(function.name, function.is_static) for function in functions_in(text, "a/b.c")] == expected


def test_calls_are_read_from_text() -> None:
    function = 'int f(int);\nint g(void)\n{\n\tputs("no()"); /* not(this) */\n\treturn f(h (1));\n}\n'
    text = function + "#define M(x) \\\n\tk(x)\nstruct s table[] = {1};\nint n(void);\n"
    assert calls_in(text) == {"puts", "f", "h", "M", "k"}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / LIBVCUDA.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def function(name: str, kind: str = "int", body: str = "") -> str:
    return f"{kind} {name}(void)\n{{\n{body}}}\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"memory/pools.c": function("pools_trim")}, ""),
        ({"memory/pools.c": function("trim_pools")}, "trim_pools: expected pools_..."),
        ({"memory/pools.h": function("trim", "static inline int")}, "trim: expected pools_..."),
        ({"hooks/copy.c": function("cuMemcpy")}, ""),
        ({"memory/pools.c": function("cuMemcpy")}, "cuMemcpy: expected pools_..."),
        ({"shared/usage.c": function("usage_slots"), "shared/usage_slots.c": ""}, "usage_slots: expected usage_..."),
        ({"hooks/launch.c": function("cuLaunch"), "compute/launch.c": function("compute_launch_begin")}, ""),
        ({"hooks/launch.c": "", "compute/launch.c": function("launch_begin")}, "expected compute_launch_..."),
        ({"base/a.c": function("f", "static int"), "base/b.c": function("f", "static int")}, "in base/a.c, base/b.c"),
        ({"base/a.c": function("f", "static int"), "driver/b.c": function("f", "static int")}, ""),
        ({"memory/a.c": '#include "shared/usage.h"\n', "shared/usage.h": ""}, ""),
        ({"memory/a.c": '#include "compute/batch.h"\n', "compute/batch.h": ""}, "memory includes compute/batch.h"),
        ({"base/a.c": '#include "driver/clock.h"\n', "driver/clock.h": ""}, "base includes driver/clock.h"),
        ({"base/a.c": '#include "log.h"\n', "base/log.h": ""}, "includes log.h, which is not in"),
        ({"base/a.c": "#include <driver/clock.h>\n", "driver/clock.h": ""}, "includes <driver/clock.h>, which is ours"),
        ({"base/a.c": "#include <stdio.h>\n"}, ""),
        ({"base/a.c": function("a", body="b();"), "driver/b.c": function("b")}, "base calls b of driver"),
        ({"driver/b.c": function("b", body="a();"), "base/a.c": function("a")}, ""),
        ({"cellar/a.c": ""}, "its folder has no floor"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_found(tmp_path: Path, files: dict[str, str], found: str) -> None:
    wrong = broken(LIBVCUDA, tree(tmp_path, files))
    assert len(wrong) == (found != ""), wrong
    assert found in "".join(wrong)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"base/a.c": function("a", body="b();"), "base/b.c": function("b")}, []),
        ({"base/a.c": function("a", body="b();"), "base/b.c": function("b", body="a();")}, [("base/a", "base/b")]),
        ({"base/a.c": function("a", body="real.b();"), "base/b.c": function("b", body="a();")}, []),
        ({"base/a.c": "static " + function("a", body="b();"), "base/b.c": function("b", body="a();")}, []),
        ({"base/a.c": function("a", body="b();"), "memory/b.c": function("b", body="a();")}, []),
        (
            {
                "base/a.c": function("a", body="b();"),
                "base/b.h": "static inline " + function("b", body="c();"),
                "base/c.c": function("c", body="a();"),
                "base/d.c": function("d", body="a();"),
            },
            [("base/a", "base/b", "base/c")],
        ),
        ({"base/a.c": function("a", body="a_x();"), "base/a.h": "static inline " + function("a_x", body="a();")}, []),
    ],
)
def test_circles_are_found(tmp_path: Path, files: dict[str, str], found: list[tuple[str, ...]]) -> None:
    assert circles(tree(tmp_path, files) / LIBVCUDA.root) == found
