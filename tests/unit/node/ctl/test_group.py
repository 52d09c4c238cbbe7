"""The help of a group of verbs: whole sentences, in the width of the terminal."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from vgpu.node.ctl.main import main


@pytest.mark.parametrize("name", ["config", "grant", "inventory", "runtime"])
@pytest.mark.parametrize("columns", [60, 80])
def test_the_verbs_sentences_are_whole(name: str, columns: int) -> None:
    done = CliRunner().invoke(main, [name, "--help"], terminal_width=columns)
    assert done.exit_code == 0
    text = done.output.partition("Commands:")[2]
    assert text.count(".") >= 2
    assert "..." not in text
    assert max(map(len, done.output.splitlines())) <= columns
