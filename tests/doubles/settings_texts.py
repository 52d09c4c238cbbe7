"""Texts of config.yaml for tests, and the compiler's results for them."""

from __future__ import annotations

import re

import pytest
from checkout import CHECKOUT

from vgpu.config import settings
from vgpu.config.compiler import compile_source
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS


def compile_file(path: str, node: str) -> settings.Settings:
    return compile_source(path, node).settings


def values(made: settings.Settings) -> dict[str, object]:
    return {name: made[name] for name in DEFAULTS}


def lines_of(path: str, node: str = "n") -> list[str]:
    """The compiler's error lines, without the directory."""
    with pytest.raises(VgpuError) as caught:
        compile_file(path, node)
    return [line.replace(path, "F") for line in str(caught.value).split("\n")]


def uncommented() -> str:
    text = (CHECKOUT / "config/config.yaml").read_text()
    return re.sub(r"^( *)#([a-z_]+:)", r"\1\2", text, flags=re.M)
