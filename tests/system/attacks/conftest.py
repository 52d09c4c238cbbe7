"""Fixtures of the attacks: a node of one card with a neighbour at work, the record of each attack, and the snapshot of
the host, which is compared after each test.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import attack_bed
import attack_records
import bundles
import nodes
import pytest
from checkout import BUILD
from daemons import wait_for


@pytest.fixture(scope="session")
def attack_programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return attack_bed.compiled(tmp_path_factory.mktemp("attack-programs"))


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Iterator[attack_records.Attack]:
    """The record of this test's attack, written when the test has ended."""
    name, who = request.function.attack
    made = attack_records.Attack(name, who, request.config.getoption("--long"))
    yield made
    attack_records.save(made, request.path.stem)


@pytest.fixture
def node(tmp_path: Path) -> nodes.SimulatedNode:
    """A node of one card, with a libvcuda of its own: an attack that succeeds must not reach the build."""
    shutil.copytree(BUILD / "lib/vcuda", tmp_path / "node/libvcuda", symlinks=True)
    made = nodes.SimulatedNode(tmp_path / "node", "t4x1", **{"paths.libvcuda": str(tmp_path / "node/libvcuda")})
    (tmp_path / "node/state").mkdir()
    made.take_inventory()
    return made


@pytest.fixture
def site(
    node: nodes.SimulatedNode, tmp_path: Path, rootfs: Callable[..., Path], bundle: Callable[..., bundles.Bundle],
    attack_programs: dict[str, Path],
) -> Iterator[attack_bed.Site]:  # fmt: skip
    runtime = bundles.Runtime(tmp_path / "runc", "runc")
    runtime.prefix = f"vgpu-attack-{uuid.uuid4().hex[:6]}"
    made = attack_bed.Site(node, runtime, attack_programs, rootfs(), bundle)
    yield made
    runtime.cleanup()


@pytest.fixture
def neighbour(site: attack_bed.Site) -> Iterator[attack_bed.Neighbour]:
    """A neighbour; after the attack and the end of all other containers the host is as before, and so is it."""
    made = attack_bed.Neighbour(site)
    snapshot = attack_bed.Snapshot(site.node, site.runtime.prefix, lambda: [made.pid])
    before = snapshot.take()
    yield made
    for container in site.runtime.started:
        if container != made.container:
            site.runtime.delete(container)
    wait_for(lambda: not attack_bed.difference(before, snapshot.take()), 5, lambda: "\n".join(
        attack_bed.difference(before, snapshot.take())))  # fmt: skip
    assert made.is_undisturbed()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host beside the root file system, with a file in it."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "file").write_text("the host's")
    (made / "lib").mkdir()
    return made
