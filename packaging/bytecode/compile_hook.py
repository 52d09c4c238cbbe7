"""compile_hook.py [--check] SOURCES FILE: writes one file with the byte code of all modules that the hook's process
imports. With --check it writes nothing, and its exit status is 1 if FILE is not what it would write.

Belongs here: collecting, compiling and writing the modules. finder.py imports them from FILE. The gate's start program
(hook/gate/interpreter.c) reads FILE instead of some fifty sources. Run this program with the gate's own interpreter:
`/usr/bin/python3 -I -S compile_hook.py /usr/lib/vgpu/python /usr/lib/vgpu/hook.bytecode`. SOURCES is a list of roots,
separated by colons, as in VGPU_PYTHON_PATH. A rename puts FILE in place, so a start finds either the last file or this
one.

FILE contains the interpreter's magic number (4 bytes), the SipHash of the rest (8 bytes), then the marshal data of a
pair: the code of finder.py and the table that finder.py describes. A change of this form needs another name of FILE,
because during an upgrade the new gate reads the last version's file. The table's form is finder.py's own affair.

The code is that of the sources without what costs each start time and does nothing there: docstrings, and the import of
`__future__`, which the compiler obeys instead. Modules that a process loads together, a *group*, are marshal data of
their own: a process unpacks the groups that it needs, and the modules of a group share their names.
"""

from __future__ import annotations
import __future__

import _imp
import ast
import contextlib
import importlib
import marshal
import os
import sys
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER, find_spec
from types import CodeType, ModuleType

PACKAGE = "vgpu"
ENTRY = "vgpu.hook.main"
FINDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "finder.py")
HASH_KEY = 1  #: the same as in the start program

Table = tuple["dict[str, tuple[str, bool, int | None]]", "list[bytes]"]  #: see finder.py


def main(arguments: list[str]) -> None:
    only_check = arguments[:1] == ["--check"]
    if len(arguments) != 2 + only_check:
        sys.exit("usage: compile_hook.py [--check] SOURCES FILE")
    sources, path = arguments[-2:]
    sys.dont_write_bytecode = True
    sys.path[:0] = sources.split(":")
    try:
        if not only_check:
            replace(path, content(table()))
        elif recorded(path) != (finder(), read(table())):
            sys.exit(f"{path}: expected the byte code of {sources} for this Python, found other; compile it again")
    except OSError as error:
        sys.exit(f"compile_hook.py: {path}: {error}")


def table() -> Table:
    """An entry for each module that ENTRY imports, and for each module that their functions import when they run."""
    entries: dict[str, tuple[str, bool, int | None]] = {}
    packed = []
    for number, group in enumerate(groups()):
        codes = {}
        for module in (sys.modules[name] for name in group):
            tree, path = source_of(module)
            flags = without_what_does_nothing(tree)
            if tree.body:
                codes[module.__name__] = compile(tree, path, "exec", flags, dont_inherit=True)
            entries[module.__name__] = path, hasattr(module, "__path__"), number if tree.body else None
        packed.append(marshal.dumps(codes))
    return entries, packed


def groups() -> list[list[str]]:
    """The modules that ENTRY imports, then what each import in a function adds, in the order of these imports."""
    importlib.import_module(ENTRY)
    found = [loaded()]
    for group in found:  # it grows
        for name in group:
            for imported in imported_by_functions(source_of(sys.modules[name])[0]):
                if imported.startswith(f"{PACKAGE}.") and find_spec(imported):
                    importlib.import_module(imported)
                known = {one for group in found for one in group}
                found += [added] if (added := [one for one in loaded() if one not in known]) else []
    return found


def loaded() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == PACKAGE]


def source_of(module: ModuleType) -> tuple[ast.Module, str]:
    """The module's source, and its path, "" for a namespace."""
    path = module.__spec__.origin if module.__spec__ else None
    if path is None:
        return ast.Module([], []), ""
    with open(path, "rb") as stream:
        return ast.parse(stream.read()), path


def without_what_does_nothing(tree: ast.Module) -> int:
    """Remove docstrings and imports of `__future__` from `tree`; the compiler's flags for the latter."""
    flags = 0
    for node in [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]:
        for alias in node.names:
            flags |= getattr(__future__, alias.name).compiler_flag
        tree.body.remove(node)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            node.body[:1] = [] if len(node.body) > 1 or node is tree else [ast.copy_location(ast.Pass(), node.body[0])]
    return flags


def imported_by_functions(tree: ast.Module) -> Iterator[str]:
    """Names of the modules that the functions in `tree` import, in the order in which the source has them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    nodes = [node for function in functions for node in ast.walk(function)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == PACKAGE:
            yield node.module
            if hasattr(importlib.import_module(node.module), "__path__"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def content(made: Table) -> bytes:
    data = marshal.dumps((finder(), made))
    return MAGIC_NUMBER + _imp.source_hash(HASH_KEY, data) + data


def finder() -> CodeType:
    with open(FINDER, "rb") as stream:
        return compile(stream.read(), FINDER, "exec", dont_inherit=True)


def read(made: Table) -> tuple[object, list[object]]:
    """The same with code objects, which compare by value."""
    entries, packed = made
    return entries, [marshal.loads(group) for group in packed]  # noqa: S302 - as below


def recorded(path: str) -> object:
    """The pair in the file at `path`, as `read` has it, or None if the gate would not use the file."""
    with open(path, "rb") as stream:
        magic, hashed, data = stream.read(4), stream.read(8), stream.read()
    usable = magic == MAGIC_NUMBER and hashed == _imp.source_hash(HASH_KEY, data)
    if not usable:
        return None
    code, made = marshal.loads(data)  # noqa: S302 - the file is root's, as the gate verifies, too
    return code, read(made)


def replace(path: str, data: bytes) -> None:
    """Write `data` to the disk under another name, then rename that file to `path`."""
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


if __name__ == "__main__":
    main(sys.argv[1:])
