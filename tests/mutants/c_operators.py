"""Faults in C: comparisons, constants, conditions, arithmetic, statements and return values of function bodies.

Belongs here: the operators, and what of a source they leave alone: comments, strings, messages, directives and
declarations. Headers are left alone too. Not planting and running (sample.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from sites import Site

SWAPS = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "arithmetic": {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+=",
                   "&&": "||", "||": "&&", "|": "&", "&": "|", "<<": ">>", ">>": "<<"},
}  # fmt: skip
SYMBOL = re.compile(r"->|<<=|>>=|[-+*/%|&]=|\+\+|--|&&|\|\||<<|>>|[<>=!]=|[-+*/%<>|&]")
OPERAND = re.compile(r"[\w)\]] ")  #: what stands before a binary operator, by the format of the sources
NUMBER = re.compile(r"(?<![\w.\"])(\d+)(?=[uUlL]*\b)(?![\w.]*\.)")
CONDITION = re.compile(r"\b(?:if|while) \(")
STATEMENT = re.compile(
    r"(?m)(?<=[;{}):e\0\n]\n)\t+((?!return\b|break\b|continue\b|goto\b|case\b|else\b|do\b|if\b|for\b|while\b)[\w*(][^;{}]*;)$"
)
DECLARATION = re.compile(r"(?:(?:const|static|struct|enum|unsigned)\s+)*\w+\s+\**\w+\s*(?:\[[^]]*\]\s*)*(?:=|;|,)")
RETURN = re.compile(r"\breturn ([^;]+);")
NOTHING = {"0": "1", "false": "true", "NULL": "(void *)1", "CUDA_SUCCESS": "CUDA_ERROR_UNKNOWN",
           "NVML_SUCCESS": "NVML_ERROR_UNKNOWN"}  # fmt: skip
LEFT_ALONE = re.compile(
    r"/\*.*?\*/|//[^\n]*|^#(?:[^\n]*\\\n)*[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\blog_\w+\((?:[^;\"]|\"(?:\\.|[^\"\\])*\")*;",
    re.DOTALL | re.MULTILINE,
)
BODY = re.compile(r"^(?P<head>[^\s#/}][^;{}]*?)\n\{\n(?P<body>.*?)^\}", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?!__attribute__)\b(\w+)\(")


def sites(source: str) -> Iterator[Site]:
    text = LEFT_ALONE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), source)
    for body in BODY.finditer(text):
        name = (NAME.search(body["head"]) or body)[1]
        for operator, start, end, new in _edits(text, body.start("body"), body.end("body")):
            mutated = partial(_replaced, source, start, end, new)
            yield Site(operator, source.count("\n", 0, start), name, mutated)


def _replaced(source: str, start: int, end: int, new: str) -> str:
    return source[:start] + new + source[end:]


Edit = tuple[str, int, int, str]


def _edits(text: str, start: int, end: int) -> Iterator[Edit]:
    yield from _swaps(text, start, end)
    for match in NUMBER.finditer(text, start, end):
        yield "constant", *match.span(), str(int(match[0]) + 1)
        if int(match[0]):
            yield "constant", *match.span(), str(int(match[0]) - 1)
    for match in CONDITION.finditer(text, start, end):
        closed = _closed(text, match.end())
        yield "condition", match.end(), closed, f"!({text[match.end() : closed]})"
    for match in STATEMENT.finditer(text, start, end):
        if not DECLARATION.match(match[1]):
            yield "statement", *match.span(1), ";"
    for match in RETURN.finditer(text, start, end):
        yield "return", *match.span(1), NOTHING.get(match[1], "0")


def _swaps(text: str, start: int, end: int) -> Iterator[Edit]:
    for match in SYMBOL.finditer(text, start, end):
        for operator, swaps in SWAPS.items():
            if match[0] in swaps and OPERAND.match(text, match.start() - 2) and text[match.end()] in " \n":
                yield operator, *match.span(), swaps[match[0]]


def _closed(text: str, start: int) -> int:
    """Where the parenthesis closes that opened before `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise ValueError(f"no parenthesis closes the one before {text[start : start + 40]!r}")
