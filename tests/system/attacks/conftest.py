"""Fixtures of the attacks: a node of one card with a neighbour at work, and the snapshot of the host, which is compared
after each test. Node and neighbour last for one file, the root file systems for one test.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import attack_bed
import attack_records
import bundles
import nodes
import pytest
from attack_bed import Site
from checkout import BUILD
from daemons import wait_for


@pytest.fixture(scope="session")
def attack_programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return attack_bed.compiled(tmp_path_factory.mktemp("attack-programs"))


def make_node(directory: Path, **settings: object) -> nodes.SimulatedNode:
    """A node of one card, with a libvcuda of its own: an attack that succeeds must not reach the build."""
    libvcuda = directory / "node/libvcuda"
    shutil.copytree(BUILD / "lib/vcuda", libvcuda, symlinks=True)
    made = nodes.SimulatedNode(directory / "node", "t4x1", **{"paths.libvcuda": str(libvcuda), **settings})
    for name in ("state", "run/containers"):
        (directory / "node" / name).mkdir(mode=0o700)
    made.take_inventory()
    return made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> nodes.SimulatedNode:
    return make_node(tmp_path_factory.mktemp("attacked"))


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bundles.Runtime]:
    """runc, whose containers carry a prefix of this file."""
    runtime = bundles.Runtime(tmp_path_factory.mktemp("attackers") / "runc", "runc")
    runtime.prefix = f"vgpu-attack-{uuid.uuid4().hex[:6]}"
    yield runtime
    runtime.cleanup()


@pytest.fixture
def site(
    node: nodes.SimulatedNode, containers: bundles.Runtime, base_trees: dict[str, Path], tmp_path: Path,
    attack_programs: dict[str, Path],
) -> Iterator[Site]:  # fmt: skip
    made = Site(node, tmp_path, base_trees["debian"], containers, attack_programs)
    yield made
    made.end()


@pytest.fixture
def idle(
    containers: bundles.Runtime, base_trees: dict[str, Path], tmp_path: Path, attack_programs: dict[str, Path]
) -> Iterator[Site]:
    """A node without a neighbour."""
    made = Site(make_node(tmp_path / "idle"), tmp_path, base_trees["debian"], containers, attack_programs)
    yield made
    made.end()


@pytest.fixture
def keyed(tmp_path: Path) -> nodes.SimulatedNode:
    """A node as a new installation leaves it: requests need its key."""
    return make_node(tmp_path / "keyed", **{"standalone.requests": "key"})


@pytest.fixture(scope="module")
def worker(
    node: nodes.SimulatedNode, containers: bundles.Runtime, base_trees: dict[str, Path],
    attack_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory,
) -> attack_bed.Neighbour:  # fmt: skip
    directory = tmp_path_factory.mktemp("neighbour")
    return attack_bed.Neighbour(Site(node, directory, base_trees["debian"], containers, attack_programs))


@pytest.fixture
def neighbour(
    worker: attack_bed.Neighbour, site: Site, attack: attack_records.Attack
) -> Iterator[attack_bed.Neighbour]:
    """A neighbour; after the attack and the end of all other containers the host is as before, and so is it.

    The attack's record is written later, and says so if that is not the case.
    """
    snapshot = attack_bed.Snapshot(site.node, site.runtime.prefix, lambda: [worker.pid])
    before = snapshot.take()
    yield worker
    outcome, attack.outcome = attack.outcome, "NOT HELD: the host or the neighbour is not as before"
    for container in site.runtime.started:
        if container != worker.container:
            site.runtime.delete(container)
    wait_for(
        lambda: not attack_bed.difference(before, snapshot.take()),
        5,
        lambda: "\n".join(attack_bed.difference(before, snapshot.take())),
    )
    assert worker.is_undisturbed()
    attack.outcome = outcome


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host beside the root file system, with a file in it."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "file").write_text("the host's")
    (made / "lib").mkdir()
    return made
