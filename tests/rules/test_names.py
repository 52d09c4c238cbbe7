"""Every module, file and command that documents and comments name exists.

Belongs here: reading names out of prose and looking for them in the tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

CHECKOUT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())
GENERATED = re.compile(r"_pb2\.pyi?$")
PARTS = ("config", "hook", "plugin")
#: Where a path in a comment may start: at the checkout, or at the root of a part that has its own include path.
ROOTS = ("", "libvcuda/src/", "libvcuda/sim/", "libvcuda/", "hook/gate/", "packaging/", "tests/", "docs/")
#: Folders of the checkout whose names cannot be anything else in running text.
FOLDERS = "config|hook|plugin|libvcuda|packaging|tests|docs"
C_FOLDERS = "hooks|compute|memory|shared|driver|base|cuda|nvml|state|smi|stand_ins|tools"
SUFFIXES = "py|pyi|c|h|def|md|yaml|json|toml|txt|sh|proto|service|path|map|in"

MODULE = re.compile(r"\bvgpu\.(?:config|hook|node|plugin)(?:\.\w+)+")
FILE = re.compile(rf"(?<![\w./<>~$}}-])((?:{FOLDERS}|{C_FOLDERS})/[\w./{{}},*-]*?\.(?:{SUFFIXES}))\b(?![\w/])")
BARE = re.compile(r"(?<![\w./<>~$}*%-])([a-z]\w+\.(?:c|h|py))\b(?![\w/(])")
#: Files of others that the tree speaks of.
FOREIGN = {"setup.py"}
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[\w-]*)?\)")
MAKE = re.compile(r"(?:^ {4}|`)make ((?:[a-z][\w-]*)(?: [a-z][\w-]*)*)", re.MULTILINE)
VERB = re.compile(r"(?:^ {4}|`)vgpuctl (?:--\w+(?:[= ][^\s`]+)? )*([a-z][a-z-]+)(?: ([a-z][a-z-]+))?", re.MULTILINE)


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return tuple(name for name in listed.splitlines() if (CHECKOUT / name).is_file())


@cache
def text_of(name: str) -> str:
    return (CHECKOUT / name).read_text(encoding="utf-8", errors="replace")


#: A docstring opens a file, or follows the colon of a class or function. Faster than to parse all files.
DOCSTRING = re.compile(r'(?:\A|:\n)\s*"""(.*?)"""', re.DOTALL)
COMMENT = re.compile(r"#(?!include).*")


@cache
def prose_of(name: str) -> str:
    """What people read of a file: of Python comments and docstrings, since its strings are paths of running nodes."""
    text = text_of(name)
    return "\n".join(COMMENT.findall(text) + DOCSTRING.findall(text)) if name.endswith(".py") else text


def documents() -> list[str]:
    return [name for name in tracked() if name.endswith(".md")]


def commented() -> list[str]:
    """Files whose comments, docstrings and messages are read: all text of the tree but documents and generated code."""
    suffixes = (".py", ".c", ".h", ".def", ".txt", ".sh", ".yaml", ".toml", ".json", ".service", ".proto", "Makefile")
    return [name for name in tracked() if name.endswith(suffixes) and not GENERATED.search(name)]


@cache
def modules() -> dict[str, str]:
    """Dotted name -> file."""
    found = {}
    for part in PARTS:
        for name in tracked():
            if name.startswith(f"{part}/vgpu/") and name.endswith(".py"):
                dotted = name[len(part) + 1 : -3].replace("/", ".")
                found[dotted.removesuffix(".__init__")] = name
    return found


@cache
def members(module: str) -> frozenset[str]:
    """What a module defines or imports at its top, and the members of its classes."""
    names: set[str] = set()
    tree = ast.parse(text_of(modules()[module]))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return frozenset(names)


def is_module_or_member(dotted: str) -> bool:
    """Whether `dotted` is a module, or a module and what is in it: vgpu.hook.ledger.lock.Lock."""
    names = dotted.split(".")
    for size in range(len(names), 1, -1):
        module = ".".join(names[:size])
        if module in modules():
            return size == len(names) or names[size] in members(module)
        if any(other.startswith(module + ".") for other in modules()) and size == len(names):
            return True
    return False


@cache
def known_paths() -> frozenset[str]:
    """All tracked files and their folders."""
    found = set(tracked())
    for name in tracked():
        parts = name.split("/")
        found.update("/".join(parts[:size]) for size in range(1, len(parts)))
    return frozenset(found)


def is_file(path: str) -> bool:
    """Whether `path` names files of the tree from one of ROOTS; {a,b} and * are the shell's."""
    for one in expanded(path):
        pattern = re.compile(re.escape(one).replace(r"\*", "[^/]*") + "$")
        if not any(root + one in known_paths() or ("*" in one and _any(root, pattern)) for root in ROOTS):
            return False
    return True


def _any(root: str, pattern: re.Pattern[str]) -> bool:
    return any(name.startswith(root) and pattern.match(name[len(root) :]) for name in known_paths())


def expanded(path: str) -> Iterator[str]:
    """The shell's braces: a/{b,c}.py is a/b.py and a/c.py."""
    match = re.search(r"\{([^{}]*)\}", path)
    if match is None:
        yield path
        return
    for choice in match[1].split(","):
        yield from expanded(path[: match.start()] + choice + path[match.end() :])


def verbs() -> dict[str, set[str]]:
    """vgpuctl's verbs, each with its own verbs, as the installed entry points bring them."""
    import click

    from vgpu.node.ctl.main import main as vgpuctl

    context = click.Context(vgpuctl)
    found = {}
    for name in vgpuctl.list_commands(context):
        command = vgpuctl.get_command(context, name)
        found[name] = set(command.list_commands(context)) if isinstance(command, click.Group) else set()
    return found


def wrong(found: Callable[[str], set[str]], names: list[str]) -> dict[str, set[str]]:
    """File -> what `found` found wrong in it, of those with anything wrong."""
    return {name: strange for name in names if (strange := found(name))}


def test_modules_that_are_named_exist() -> None:
    def strange(name: str) -> set[str]:
        text = prose_of(name) if name.startswith("tests/") else text_of(name)  # tests make up modules
        return {found for found in MODULE.findall(text) if not is_module_or_member(found)}

    assert not wrong(strange, [*documents(), *commented()])


def test_files_that_are_named_exist() -> None:
    def missing(name: str) -> set[str]:
        return {found for found in FILE.findall(prose_of(name)) if not is_file(found)}

    assert not wrong(missing, [*documents(), *commented()])


def test_files_that_are_named_without_their_folder_exist() -> None:
    """A bare `clock.c` is the name of some file of the tree."""
    basenames = {path.rpartition("/")[2] for path in tracked()}

    def missing(name: str) -> set[str]:
        lines = (line for line in prose_of(name).splitlines() if not line.startswith("#include"))
        return {found for line in lines for found in BARE.findall(line)} - basenames - FOREIGN

    assert not wrong(missing, [*documents(), *commented()])


def test_links_lead_somewhere() -> None:
    def missing(name: str) -> set[str]:
        folder = (CHECKOUT / name).parent
        return {link for link in LINK.findall(text_of(name)) if not (folder / link).exists()}

    assert not wrong(missing, documents())


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.MULTILINE))

    def missing(name: str) -> set[str]:
        return {word for line in MAKE.findall(text_of(name)) for word in line.split() if "=" not in word} - targets

    assert not wrong(missing, documents())


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    """No public repository and no index has vgpu. The one of Python might have another project of that name."""
    wrong = re.compile(r"(?:apt|apt-get|dnf|pip3?) install (?:-\S+ )*['\"]?vgpu")
    named = [name for name in tracked() if not name.startswith("tests/") and wrong.search(text_of(name))]
    assert named == ["docs/repository.md"], "where the reader has made one known"


def test_verbs_of_vgpuctl_exist() -> None:
    known = verbs()

    def missing(name: str) -> set[str]:
        named = VERB.findall(text_of(name))
        return {
            f"{verb} {below}"
            for verb, below in named
            if verb not in known or (below and known[verb] and below not in known[verb])
        }

    assert not wrong(missing, documents())


def test_keys_of_the_configuration_that_documents_name_exist() -> None:
    """A key in backticks, such as `driver.root`, is one of the default configuration's."""
    sections = yaml.safe_load(text_of("config/config.yaml")) or {}
    schema = text_of("config/vgpu/config/schema.json")
    names = set(re.findall(r'"(\w+)": \{', schema))
    assert set(sections) <= names
    for name in documents():
        for section, key in re.findall(r"`(\w+)\.(\w+)(?:: [^`]*)?`", text_of(name)):
            if section in sections:
                assert key in names, f"{name}: {section}.{key}"


# The rules can fail


@pytest.mark.parametrize(
    ("dotted", "exists"),
    [
        ("vgpu.hook.main", True),
        ("vgpu.hook.ledger", True),
        ("vgpu.hook.ledger.lock.Lock", True),
        ("vgpu.hook.ledger.lock.Nothing", False),
        ("vgpu.hook.promises", False),
    ],
)
def test_names_of_modules_are_looked_up(dotted: str, exists: bool) -> None:
    assert is_module_or_member(dotted) is exists


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see libvcuda/src/base/log.c, which", ["libvcuda/src/base/log.c"]),
        ("(base/log.h).", ["base/log.h"]),
        ("/usr/lib/vgpu/hook/main.py", []),
        ("docs/{a,b}.md", ["docs/{a,b}.md"]),
    ],
)
def test_names_of_files_are_found(text: str, found: list[str]) -> None:
    assert FILE.findall(text) == found


def test_files_are_looked_up() -> None:
    assert is_file("base/log.{c,h}")
    assert is_file("libvcuda/src/*/log.c")
    assert not is_file("base/gone.c")
