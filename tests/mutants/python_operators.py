"""Faults in Python: cosmic-ray's operators, one replacement for each thing that can be replaced.

Belongs here: which of cosmic-ray's operators are used, and where. Not planting and running (sample.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from sites import Site

BINARY = (
    "Add_Sub", "Sub_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "RShift_LShift", "LShift_RShift",
    "BitOr_BitAnd", "BitAnd_BitOr",
)  # fmt: skip
COMPARISON = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")
OPERATORS = (
    *(f"ReplaceBinaryOperator_{name}" for name in BINARY),
    *(f"ReplaceComparisonOperator_{name}" for name in COMPARISON),
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "AddNot",
    "NumberReplacer", "ExceptionReplacer", "RemoveDecorator", "ZeroIterationForLoop",
)  # fmt: skip
#: Lines that change nothing for a program that runs.
IDLE = ("TYPE_CHECKING", "lru_cache", "@cache", "frozen=True")


def sites(source: str) -> Iterator[Site]:
    nodes = list(ast_nodes(get_ast(source)))
    lines = source.splitlines()
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        found = [(node, place) for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (node, ((line, _), _)) in enumerate(found):
            if not _annotates(node) and not any(word in lines[line - 1] for word in IDLE):
                mutated = partial(mutate_code, source, operator, occurrence)
                yield Site(name, line - 1, _function(node), mutated)


def _function(node: Any) -> str:
    names = []
    while node := node.parent:
        if node.type in ("funcdef", "classdef"):
            names.append(node.name.value)
    return ".".join(reversed(names))


def _annotates(node: Any) -> bool:
    """Whether a type says it, which nothing evaluates."""
    while parent := node.parent:
        if parent.type in ("annassign", "tfpdef") and node is parent.children[1 if parent.type == "annassign" else -1]:
            return True
        if parent.type == "funcdef" and node is parent.annotation:
            return True
        node = parent
    return False
