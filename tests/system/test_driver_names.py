"""A container of a share on an older driver: its programs find the driver's names, and no other, through the copies."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
import recorded_drivers
from checkout import BUILD, DATA
from container_site import Site, copied

pytestmark = pytest.mark.root

VERSION = "470.256.02"
NAMES = set().union(*(recorded_drivers.exports("libcuda", "470", kind) for kind in ("function", "object")))
#: Names that 470 lacks, and one that it has.
LACKING, HAD = {"cuEventElapsedTime_v2", "cuCtxGetDevice_v2", "cuGetProcAddress_v2"}, {"cuMemAlloc_v2"}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of libvcuda, which can be replaced."""
    shutil.copytree(BUILD / "lib/vcuda", tmp_path / "package")
    return tmp_path / "package"


@pytest.fixture
def site(tmp_path: Path, base_trees: dict[str, Path], package: Path) -> Iterator[Site]:
    """A node of driver 470, whose root file systems have names_client."""
    node = nodes.SimulatedNode(tmp_path / "node", version=VERSION, **{"paths.libvcuda": str(package)})
    node.take_inventory()
    tree = copied(base_trees["debian"], tmp_path)
    subprocess.run(["cc", "-o", tree / "usr/bin/names_client", DATA / "cuda/names_client.c", "-ldl"], check=True)
    (tree / "names").write_text("\n".join(NAMES | LACKING | HAD))
    made = Site(node, tmp_path, {"debian": tree})
    yield made
    made.end()


def notes(site: Site) -> str:
    """The lines of the last start."""
    return "\n".join(next(row for row in reversed(site.node.log()) if row["stage"] == "prestart")["notes"])


def replace(package: Path) -> None:
    """As dpkg does: another inode under the same name."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy2(package / name, package / "new")
        (package / "new").rename(package / name)


FIND = ("sh", "-c", "names_client handle libcuda.so.1 < /names; stat -L -c inode-%i /usr/lib/*/libcuda.so.1")


def found(site: Site) -> set[str]:
    return set(site.output(site.share(), *FIND).split())


def test_a_share_finds_the_names_of_the_driver(site: Site, package: Path) -> None:
    """Two containers have one inode, and so share its pages. After an upgrade of the package it stays the same."""
    first = found(site)
    assert {name for name in first if not name.startswith("inode-")} == NAMES
    assert found(site) == first
    assert "lacks" not in notes(site)

    replace(package)
    assert found(site) == first
    assert "another one than when the inventory was taken" in notes(site)
    site.node.take_inventory()
    assert found(site) == first, "the same build: the same copy"
    assert "lacks" not in notes(site)


def test_a_copy_that_was_removed_is_a_line(site: Site) -> None:
    shutil.rmtree(Path(site.node.settings.state_dir) / "vcuda")
    assert found(site) >= LACKING | HAD
    assert "libcuda.so.1: programs see names that driver 470.256.02 lacks" in notes(site)
