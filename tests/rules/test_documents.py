"""The documents: each command stands in a block that a test types, and each quoted message comes out of the sources."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import docs_commands
import pytest
from checkout import CHECKOUT

from vgpu.config import annotations, request

PROGRAMS = (
    "vgpuctl", "vgpud", "vgpu-hook", "vgpu-device-plugin", "podman", "docker", "ctr", "kubectl", "apt-get", "make",
    "systemctl", "journalctl", "curl", "install", "rm", "cat", "tail", "modprobe", "nvidia-modprobe",
)  # fmt: skip
SHELL = re.compile(rf"^(?: {{4}}|\$ )({'|'.join(PROGRAMS)})(?= |$)(?!:)", re.MULTILINE)


@pytest.mark.parametrize("page", docs_commands.documents())
def test_commands_stand_in_blocks_of_their_own(page: str) -> None:
    text = Path(CHECKOUT, page).read_text(encoding="utf-8")
    assert not SHELL.findall(text)


def test_every_block_of_commands_is_typed_or_has_a_reason() -> None:
    for page in docs_commands.documents():
        for block in docs_commands.blocks(page):
            if block.kind == "sh":
                assert page in docs_commands.PAGES or block.reason(), (page, block.text)


def test_every_reason_is_of_a_block() -> None:
    for page, begin in docs_commands.NOT_TYPED:
        assert [block for block in docs_commands.blocks(page) if block.text.startswith(begin)], (page, begin)


def test_the_readme_leads_to_all_starts() -> None:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    pages = [path.name for path in (CHECKOUT / "docs").glob("start-*.md")]
    assert len(pages) == 3
    assert [page for page in pages if f"(docs/{page})" not in text] == []


# docs/troubleshooting.md

PAGE = CHECKOUT / "docs/troubleshooting.md"
FOREIGN = "## Messages of other programs"
PARTS = re.compile(r": expected |, found |: found |; |\.\.\.|: ")


@lru_cache(maxsize=1)
def literals() -> str:
    """Every text in the sources, one a line. What a message inserts is `...`, or the name of an annotation."""
    found = [*annotations.NAMES]
    for part in ("config", "hook", "plugin"):
        for path in (CHECKOUT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(map(rendered, node.values)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def rendered(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    name = part.value if isinstance(part, ast.FormattedValue) else None
    named = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    value = getattr(request, named, None) if named.isupper() else None
    return value if isinstance(value, str) else "..."


def messages() -> list[str]:
    return re.findall(r"^#### `(.*)`$", PAGE.read_text(encoding="utf-8").split(FOREIGN)[0], re.MULTILINE)


@pytest.mark.parametrize("message", messages())
def test_each_part_of_a_quoted_message_is_in_the_sources(message: str) -> None:
    texts = literals()
    parts = [part.strip() for part in PARTS.split(message) if len(part.strip()) > 2]
    assert parts
    assert [part for part in parts if part not in texts] == []


def test_the_page_quotes_many_messages_each_once() -> None:
    assert len(messages()) == len(set(messages())) >= 20
