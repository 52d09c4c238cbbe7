"""The packages on every supported distribution: installed, used, installed again, removed and purged.

Belongs here: which distributions. What happens on each is in installed_node. Debian 12 is this machine's own, in
test_deb.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fresh_machine
import installed_node
import nodes
import pytest
import roots

pytestmark = [pytest.mark.root, pytest.mark.long]


@pytest.mark.parametrize("suite", fresh_machine.SUPPORTED)
def test_the_packages_work_on(
    suite: str, debs: list[Path], tmp_path: Path, rootfs: Callable[..., Path], node: nodes.SimulatedNode
) -> None:
    installed_node.check(installed_node.run(debs, tmp_path, rootfs, node, roots.made("fresh", suite)))
