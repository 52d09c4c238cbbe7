"""Checked access to the fields of a record: a value of the right type within bounds, or an error with file and field.

Belongs here: the checks that all records share. Not here: the meaning of any record. A root user or a power cut may
have left any bytes in a record's file, and a wrong field must never become a wrong amount.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError, shown

MAX_TEXT = 4096
MAX_ITEMS = 4096
MAX_WHOLE = 1 << 63


class Fields:
    """The fields of `record`, from `source` (a path, for messages); errors end with the advice `do`."""

    __slots__ = ("do", "record", "source")

    def __init__(self, record: object, source: str, do: str = "") -> None:
        if not isinstance(record, dict):
            found = "nothing" if record is None else record
            raise VgpuError(source, expected="an object", found=found, do=do)
        self.record: dict[str, object] = record
        self.source = source
        self.do = do

    def wrong(self, name: str, expected: str) -> VgpuError:
        found = self.record.get(name)
        found = "nothing" if found is None else found
        return VgpuError(f"{self.source}: {name}", expected=expected, found=found, do=self.do)

    def version(self, version: int) -> None:
        """Refuse every other version."""
        found = self.record.get("version")
        if type(found) is not int or found != version:
            raise self.wrong("version", f"{version}")

    def text(self, name: str, empty: bool = True) -> str:
        value = self.record.get(name)
        if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable() or not (empty or value):
            raise self.wrong(name, "one line of text" if empty else "one line of text, not empty")
        return value

    def whole(self, name: str, low: int = 0, high: int = MAX_WHOLE) -> int:
        value = self.record.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return value

    def time(self, name: str) -> float:
        """Seconds since 1970."""
        value = self.record.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1 << 40:
            raise self.wrong(name, "a time in seconds")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.record.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def items(self, name: str) -> list[object]:
        value = self.record.get(name)
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise self.wrong(name, f"a list of at most {MAX_ITEMS}")
        return value

    def texts(self, name: str) -> list[str]:
        values = [item for item in self.items(name) if isinstance(item, str) and item.isprintable()]
        if len(values) != len(self.items(name)):
            raise self.wrong(name, "a list of texts")
        return values

    def mapping(self, name: str) -> dict[str, str]:
        value = self.record.get(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.wrong(name, "an object whose values are texts")
        return value

    def inner(self, name: str) -> Fields:
        """The fields of the object under `name`."""
        return Fields(self.record.get(name), f"{self.source}: {name}", self.do)

    def objects(self, name: str) -> list[Fields]:
        """The fields of each object in the list under `name`."""
        where = f"{self.source}: {shown(name)}"
        return [Fields(item, f"{where}[{index}]", self.do) for index, item in enumerate(self.items(name))]
