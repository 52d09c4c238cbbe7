"""C sources read as text: which functions a file defines, which it calls, and what it includes. No compiler is needed.

Belongs here: the reader, for the rules in tests/rules. Not the rules, nor anything about one folder of sources.

What the reader does not see: functions that macros define, and calls through pointers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMMENTS = re.compile(r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.DOTALL | re.VERBOSE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+([<"])([^>"]+)[>"]', re.MULTILINE)
_HEAD = re.compile(r"(\w+)\s*(?:\([^()]*\))?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*$")
_CALL = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(")


@dataclass(frozen=True)
class Function:
    """A definition: where it is, and whether only its own file can call it."""

    file: str  # relative to the folder that was read
    name: str
    is_static: bool

    @property
    def folder(self) -> str:
        return folder_of(self.file)

    @property
    def stem(self) -> str:
        return Path(self.file).stem

    @property
    def is_shared(self) -> bool:
        """Other files can call it: it is not static, or stands in a header."""
        return not self.is_static or self.file.endswith(".h")


def folder_of(file: str) -> str:
    return file.rpartition("/")[0]


def sources(root: Path) -> Iterator[tuple[str, str]]:
    """Path below `root` and text of every .c and .h file."""
    for path in sorted(root.rglob("*.[ch]")):
        yield str(path.relative_to(root)), path.read_text()


def functions_in(text: str, file: str) -> Iterator[Function]:
    """The functions that a file defines, but for those that macros define."""
    for head, _ in _blocks(text):
        found = _HEAD.search(head)  # an initializer's head ends with `=`
        if found and found[1] not in ("__attribute__", "__asm__"):
            yield Function(file, found[1], bool(re.search(r"\bstatic\b", head)))


def calls_in(text: str) -> set[str]:
    """Every name before a parenthesis within a function's body or a macro: calls, macros, and words like `if`.

    A call through a structure's member (`real.cuInit(0)`) is none of the function of that name.
    """
    directives = _DIRECTIVE.findall(_COMMENTS.sub(" ", text))
    macros = [each for each in directives if each.lstrip(" \t#").startswith("define")]
    bodies = [body for _, body in _blocks(text)]
    return {name for part in bodies + macros for name in _CALL.findall(part)}


def includes_of(text: str) -> list[tuple[str, str]]:
    """Each included header after the sign before it, `<` or `"`."""
    return [(found[1], found[2]) for found in _INCLUDE.finditer(text)]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """What stands before each `{` outside all braces, since the last `;` or `}` there, and what its braces enclose."""
    depth, start, opened, head = 0, 0, 0, ""
    code = _DIRECTIVE.sub(" ", _COMMENTS.sub(" ", text))
    for at, character in enumerate(code):
        if character == "{":
            if not depth:
                head, opened = code[start:at], at
            depth += 1
        elif character == "}":
            depth -= 1
            start = at + 1
            if not depth:
                yield head, code[opened:at]
        elif character == ";" and not depth:
            start = at + 1
