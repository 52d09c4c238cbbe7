"""Random TOML files of others: for edits that must leave every other byte as it is."""

from __future__ import annotations

import random

KEYS = ("a", "b-1", '"quoted.key"', "'single'", "version_2", "imports", '"io.containerd.x"')
VALUES = ("1", "-2.5", "true", '"text # no comment"', "'raw'", '["a", "b"]', "[\n  1, # one\n  2,\n]",
          "{x = 1, y = 'z'}", '"""\nlines\n"""', "2026-11-22T10:00:00Z", "0xff")  # fmt: skip
SPACE = ("", "\n", "\n\n", "# a comment\n", "   # indented\n")


def random_document(rng: random.Random) -> str:
    """A random TOML file: comments, odd spacing, all kinds of values, tables in any order, perhaps no last newline."""
    text = rng.choice(SPACE) + _body(rng)
    names = rng.sample([f"t{number}" for number in range(9)], rng.randrange(5))
    for name in names:
        indent = rng.choice(("", "  ", "\t"))
        for header in rng.choice(([f"[{name}]"], [f"[{name}.sub.'deep er']"], [f"[[{name}]]", f"[[{name}]]"])):
            text += f"{rng.choice(SPACE)}{indent}{header}{rng.choice(('', ' # why'))}\n{_body(rng, indent)}"
    return text.rstrip("\n") if rng.random() < 0.3 else text


def _body(rng: random.Random, indent: str = "") -> str:
    keys = rng.sample(KEYS, rng.randrange(4))
    equals = rng.choice((" = ", "=", "   ="))
    return "".join(f"{indent}{key}{equals}{rng.choice(VALUES)}{rng.choice(('', '  # c'))}\n" for key in keys)
