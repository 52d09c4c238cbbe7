"""Values in nested tables, as TOML and JSON documents have them.

Belongs here: finding a value by its keys. Does not belong here: the text of a document (toml_text, json_text).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def look_up(document: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """The value below `keys`, or None."""
    value: Any = document
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
