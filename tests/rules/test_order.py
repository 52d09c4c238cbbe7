"""The lists of files in docs/architecture.md stand in the order in which the files run.

Under the headings in HEADINGS each numbered list names files. A pair of files runs backwards if the later one uses the
earlier one. Each list may have MOST such pairs.

Belongs here: the lists, the pairs, and what counts as use. In C that is a call of a function that the other file
defines, also from a macro. A function that a header defines inline does not count: there the words of a record are
read and locked, and the way does not lead to another file. In Python it is a name that the other module defines and
that is used while the program runs, so not in an annotation. Calls through pointers and methods are not seen, and
neither is the gate's exec of Python.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from c_sources import calls_in, functions_in

CHECKOUT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())
DOCUMENT = "docs/architecture.md"
#: Heading -> how many numbered lists stand under it.
HEADINGS = {"The way of one allocation": 1, "The way of one launch": 2}
MOST = 3

ITEM = re.compile(r"(\d+)\. `([^`]+)`")
#: The folders where the packages of Python begin.
PARTS = ("config", "hook", "plugin")


@dataclass(frozen=True)
class Backwards:
    """The later file of a list uses the earlier one."""

    later: str
    earlier: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.later} -> {self.earlier}: {', '.join(self.names)}"


def lists(document: str, heading: str) -> list[list[str]]:
    """The numbered lists under a heading of the second level, each the files that its items begin with."""
    found: list[list[str]] = []
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    for line in section[1].splitlines() if section else ():
        item = ITEM.match(line)
        if item and item[1] == "1":
            found.append([])
        if item:
            found[-1].append(item[2])
    return found


# ---- what a file uses of others ----


def module_of(file: str) -> str:
    part, _, rest = file.partition("/")
    return (rest if part in PARTS else file)[: -len(".py")].replace("/", ".")


def used_of_python(text: str, modules: set[str]) -> dict[str, set[str]]:
    """Module -> the names of it that a module uses while the program runs. `modules` are those to look for."""
    tree = ast.parse(text)
    apart = {id(each) for node in ast.walk(tree) for part in _not_run(node) for each in ast.walk(part)}
    nodes = [node for node in ast.walk(tree) if id(node) not in apart]
    origin: dict[str, tuple[str, str]] = {}  # the name here -> the module, and the name there
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                home, name = (whole, alias.name) if whole in modules else (node.module, alias.name)
                if home in modules:
                    origin[alias.asname or alias.name] = (home, name)
    used: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in origin:
            home, name = origin[node.id]
            used.setdefault(home, set()).add(name)
    return used


def _not_run(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that only a type checker reads."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return [*node.body]
    parts = (getattr(node, "annotation", None), getattr(node, "returns", None))
    return [part for part in parts if isinstance(part, ast.AST)]


def uses(files: list[str], root: Path) -> dict[tuple[str, str], set[str]]:
    """(File, other file of the list) -> the names of the other that it uses."""
    texts = {file: (root / file).read_text() for file in files}
    modules = {module_of(file): file for file in files if file.endswith(".py")}
    defined = {
        file: {function.name for function in functions_in(text, file) if not function.is_static}
        for file, text in texts.items()
        if file.endswith(".c")
    }
    found: dict[tuple[str, str], set[str]] = {}
    for file, text in texts.items():
        if file.endswith(".py"):
            for module, names in used_of_python(text, set(modules)).items():
                found[file, modules[module]] = names
        else:
            calls = calls_in(text)
            for other, names in defined.items():
                if other != file and calls & names:
                    found[file, other] = calls & names
    return found


def backwards(files: list[str], root: Path) -> list[Backwards]:
    place = {file: number for number, file in enumerate(files)}
    return [
        Backwards(later, earlier, tuple(sorted(names)))
        for (later, earlier), names in sorted(uses(files, root).items())
        if place[earlier] < place[later]
    ]


# ---- the documents ----


def listed() -> list[tuple[str, list[str]]]:
    document = (CHECKOUT / DOCUMENT).read_text()
    return [
        (f"{heading}, list {number}", files)
        for heading in HEADINGS
        for number, files in enumerate(lists(document, heading), 1)
    ]


def test_the_document_has_the_lists() -> None:
    document = (CHECKOUT / DOCUMENT).read_text()
    assert {heading: len(lists(document, heading)) for heading in HEADINGS} == HEADINGS
    for name, files in listed():
        assert len(set(files)) == len(files) > 5, name
        assert not [file for file in files if not (CHECKOUT / file).is_file()], name


@pytest.mark.parametrize(("name", "files"), listed(), ids=[name for name, _ in listed()])
def test_files_of_one_list_form_a_chain(name: str, files: list[str]) -> None:
    """A reader that saw no use would see none backwards: most files use a later one, or are used by an earlier one."""
    forward = {(one, other) for one, other in uses(files, CHECKOUT) if files.index(one) < files.index(other)}
    assert len(forward) >= len(files) / 2, name


@pytest.mark.parametrize(("name", "files"), listed(), ids=[name for name, _ in listed()])
def test_a_list_runs_backwards_at_most_three_times(name: str, files: list[str]) -> None:
    found = backwards(files, CHECKOUT)
    print(f"{name}:", *found, sep="\n  ")
    assert len(found) <= MOST, "\n".join(map(str, found))


# ---- the rules can fail ----

C_TREE = {
    "a.c": "void a(void)\n{\n\tb();\n}\nstatic void hidden(void)\n{\n}\n",
    "b.c": "#define BACK(x) a(x)\nvoid b(void)\n{\n\tc(); /* a() */\n}\n",
    "c.c": "void c(void)\n{\n\thidden();\n}\nvoid later(void)\n{\n\tif (b())\n\t\ta();\n}\n",
}
PYTHON_TREE = {
    "hook/vgpu/one.py": "from vgpu import two\n\ndef one() -> None:\n    two.two()\n",
    "hook/vgpu/two.py": (
        "from typing import TYPE_CHECKING\nfrom vgpu.three import Three\n"
        "if TYPE_CHECKING:\n    from vgpu.one import one\n\ndef two(wanted: Three) -> None:\n    Three()\n"
    ),
    "hook/vgpu/three.py": (
        "from vgpu.one import one as first\nfrom vgpu.two import two\n\nclass Three:\n    def __init__(self, x: two):\n"
        "        first()\n"
    ),
}


def written(root: Path, tree: dict[str, str]) -> list[str]:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return list(tree)


def test_calls_of_c_that_run_backwards_are_found(tmp_path: Path) -> None:
    files = written(tmp_path, C_TREE)
    assert [str(each) for each in backwards(files, tmp_path)] == ["b.c -> a.c: a", "c.c -> a.c: a", "c.c -> b.c: b"]
    assert [str(each) for each in backwards(files[::-1], tmp_path)] == ["a.c -> b.c: b", "b.c -> c.c: c"]


def test_uses_of_python_that_run_backwards_are_found(tmp_path: Path) -> None:
    files = written(tmp_path, PYTHON_TREE)
    found = backwards(files, tmp_path)
    assert [str(each) for each in found] == ["hook/vgpu/three.py -> hook/vgpu/one.py: one"]
    turned = {(each.later, each.earlier) for each in backwards(files[::-1], tmp_path)}
    assert turned == {(files[0], files[1]), (files[1], files[2])}


def test_lists_are_read_from_a_document() -> None:
    way = "## Way\n\ntext\n\n1. `a.c`: one\n2. `b.c`: two\n\ntext `d.c`\n\n1. `c.c`\n\n"
    document = f"## Other\n\n1. `x`\n\n{way}## End\n\n1. `z`\n"
    assert lists(document, "Way") == [["a.c", "b.c"], ["c.c"]]
    assert lists(document, "Nowhere") == []
