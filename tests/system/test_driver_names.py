"""A container of a share on an older driver: its programs find the driver's names, and no other, through the copies."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import bundles
import nodes
import pytest
import recorded_drivers
from checkout import BUILD, DATA

pytestmark = pytest.mark.root

VERSION = "470.256.02"
NAMES = set().union(*(recorded_drivers.exports("libcuda", "470", kind) for kind in ("function", "object")))
#: Names that 470 lacks, and one that it has.
LACKING, HAD = {"cuEventElapsedTime_v2", "cuCtxGetDevice_v2", "cuGetProcAddress_v2"}, {"cuMemAlloc_v2"}


class Site:
    """A node of driver 470 whose package of libvcuda can be replaced, and a root file system with names_client."""

    def __init__(self, path: Path, rootfs: Path) -> None:
        self.package = path / "package"
        shutil.copytree(BUILD / "lib/vcuda", self.package)
        self.node = nodes.SimulatedNode(path / "node", version=VERSION, **{"paths.libvcuda": str(self.package)})
        self.node.take_inventory()
        self.rootfs = rootfs
        client = rootfs / "usr/bin/names_client"
        subprocess.run(["cc", "-o", client, DATA / "cuda/names_client.c", "-ldl"], check=True)
        (rootfs / "names").write_text("\n".join(NAMES | LACKING | HAD))

    def share(self, path: Path, *command: str) -> bundles.Bundle:
        annotations = {"vgpu.io/cores": "20", "vgpu.io/memory": "1Gi"}
        return bundles.Bundle(path, self.rootfs, annotations).hooks(self.node).simulated(self.node).command(*command)

    def notes(self) -> str:
        """The lines of the last start."""
        rows = [json.loads(row) for row in (Path(self.node.settings.run_dir) / "hook.log").read_text().splitlines()]
        return "\n".join(next(row for row in reversed(rows) if row["stage"] == "prestart")["notes"])

    def replace_package(self) -> None:
        """As dpkg does: another inode under the same name."""
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy2(self.package / name, self.package / "new")
            (self.package / "new").rename(self.package / name)


@pytest.fixture
def site(tmp_path: Path, rootfs: Callable[..., Path]) -> Site:
    return Site(tmp_path / "site", rootfs())


FIND = ("sh", "-c", "names_client handle libcuda.so.1 < /names; stat -L -c inode-%i /usr/lib/*/libcuda.so.1")


def found(runtime: bundles.Runtime, share: bundles.Bundle) -> set[str]:
    done = runtime.run(share)
    assert done.returncode == 0, done.stderr + done.stdout
    return set(done.stdout.split())


def test_a_share_finds_the_names_of_the_driver(runc1: bundles.Runtime, site: Site, tmp_path: Path) -> None:
    """Two containers have one inode, and so share its pages. After an upgrade of the package: the packaged library."""
    first = found(runc1, site.share(tmp_path / "b1", *FIND))
    assert {name for name in first if not name.startswith("inode-")} == NAMES
    assert found(runc1, site.share(tmp_path / "b2", *FIND)) == first
    assert "lacks" not in site.notes()

    site.replace_package()
    assert found(runc1, site.share(tmp_path / "b3", *FIND)) >= LACKING
    assert "another one than when the inventory was taken" in site.notes()
    site.node.take_inventory()
    assert found(runc1, site.share(tmp_path / "b4", *FIND)) == first, "the same build: the same copy"
    assert "lacks" not in site.notes()


def test_a_copy_that_was_removed_is_a_line(runc1: bundles.Runtime, site: Site, tmp_path: Path) -> None:
    shutil.rmtree(Path(site.node.settings.state_dir) / "vcuda")
    assert found(runc1, site.share(tmp_path / "b1", *FIND)) >= LACKING | HAD
    assert "libcuda.so.1: programs see names that driver 470.256.02 lacks" in site.notes()
