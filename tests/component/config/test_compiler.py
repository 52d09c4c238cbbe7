"""The compiler of config.yaml on large and on random input."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from settings_texts import compile_file, lines_of, uncommented, values

from vgpu.config import compiler
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS


@pytest.fixture
def source(tmp_path: Path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_source_size_is_bounded(source) -> None:
    assert values(compile_file(source("#" * compiler.MAX_SOURCE), "n")) == DEFAULTS
    assert lines_of(source("#" * (compiler.MAX_SOURCE + 1))) == [
        "F: expected at most 1048576 bytes, found more; is it the right file?"
    ]


def test_nothing_but_vgpu_error_escapes(source) -> None:
    """Fixed-seed mutations of a full file: each compiles or raises VgpuError, one printable line per error."""
    chance = random.Random(20240602)
    whole = uncommented().encode()
    whole = re.sub(rb"^ *#.*\n", b"", whole, flags=re.M) + b"nodes: &x {a: {scaling: {<<: {cores: 2}}}}\n"
    pieces = [b"\t", b"\xff", b"*x", b"&x ", b"<<: *x", b"[", b"{", b"}", b"!!binary ", b"!!int ", b"'",
              b'"', b"\\U0011ffff",              b": ", b"- ", b"? ", b"|\n", b"%YAML 9.9\n", b"---\n",
              b"9" * 400, b"2001-99-99", b"0x", b"1:99:99", b".nan", b"\x00",
              b"!!omap ", b"!!set ", b"!!timestamp x", b"~", b"\xed\xa0\x80"]  # fmt: skip
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randint(0, 6)] = chance.choice(pieces)
        try:
            compile_file(source(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])), "n")
        except VgpuError as error:
            refused += 1
            assert all(line.isprintable() for line in str(error).split("\n"))
    assert refused > 200
