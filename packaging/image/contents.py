"""contents.py IMAGE KEY: prints a value of images.toml, an item a line. `debian` has the packages of every image, too.

Belongs here: reading the table. Does not belong here: what is made of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tomlkit

TABLE = Path(__file__).with_name("images.toml")
EVERY = "every"


def read() -> dict[str, Any]:
    """The table as plain values."""
    return tomlkit.parse(TABLE.read_text(encoding="utf-8")).unwrap()


def images() -> list[str]:
    return [name for name in read() if name != EVERY]


def value(image: str, key: str) -> list[str]:
    """The items of `key`; one item for a text."""
    table = read()
    found = table[image][key]
    items = [found] if isinstance(found, str) else list(found)
    return items + table[EVERY]["debian"] if key == "debian" else items


if __name__ == "__main__":
    print("\n".join(images() if sys.argv[1:] == ["images"] else value(*sys.argv[1:])))
