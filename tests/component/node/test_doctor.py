"""The checks of `vgpuctl doctor` that start programs or load a compiled library."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from doctor_tree import Tree, only
from driver_roots import DriverRoot, compile_library

from vgpu.config import paths, records
from vgpu.config.inventory import Inventory, LimiterCopy, identity
from vgpu.config.settings import Settings
from vgpu.node.ctl import doctor as verb
from vgpu.node.doctor import coexistence, findings, image, node
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, Finding


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_libvcuda(tree: Tree) -> None:
    assert only(node.libvcuda, tree.context).status == FAILURE
    tree.write("vcuda/libcuda.so.1", "no ELF file")
    assert "ELF" in only(node.libvcuda, tree.context).expected
    compile_library(tree.path / "vcuda/libcuda.so.1", "int x;", "-nostdlib", soname="libother.so.1")
    assert "SONAME libother.so.1" in only(node.libvcuda, tree.context).found
    compile_library(tree.path / "vcuda/libcuda.so.1", "int x;", "-nostdlib", soname="libcuda.so.1")
    assert only(node.libvcuda, tree.context).found.endswith("NEEDED nothing")


def test_an_image_by_its_configuration_and_the_environment_of_a_pod(tmp_path: Path) -> None:
    """As skopeo prints the configuration, and as podman does; nobody needs root for that."""
    for name in ("a", "b", "c"):
        compile_library(tmp_path / f"root/opt/{name}/driver.so", "int x[1 << 16] = {1};", soname="libcuda.so.1")
        (tmp_path / f"root/opt/{name}/libcuda.so.1").symlink_to("driver.so")
    config = {"Env": ["LD_LIBRARY_PATH=a", "A=b=c"], "WorkingDir": "/opt", "Cmd": ["true"]}
    for text in ({"config": config}, [{"Config": config}]):
        (tmp_path / "config.json").write_text(json.dumps(text))
        arguments = ["--image", tmp_path / "root", "--image-config", tmp_path / "config.json", "--output", "json"]
        done = CliRunner().invoke(
            verb.doctor, [*map(str, arguments), "--env", "LD_PRELOAD=/opt/b/driver.so"], obj="/none"
        )
        found = {item["path"]: item["status"] for item in json.loads(done.stdout)}
        covered, stays = image.COVERED, image.STAYS
        assert found == {"/opt/a/driver.so": covered, "/opt/b/driver.so": covered, "/opt/c/driver.so": stays}
        assert done.exit_code == 1
    done = CliRunner().invoke(verb.doctor, ["--image", str(tmp_path), "--env", "A"], obj="/none")
    assert "expected NAME=VALUE" in str(done.exception)


def test_the_built_libvcuda_is_right(tree: Tree, build: Path) -> None:
    if not (build / "lib/vcuda").exists():
        pytest.skip("libvcuda is not built")
    settings = Settings({"paths.libvcuda": str(build / "lib/vcuda")})
    assert only(node.libvcuda, replace(tree.context, settings=settings)).status == OK


def test_the_copies_of_libvcuda_for_this_driver(tree: Tree, build: Path) -> None:
    """Doctor says why a share gets the packaged library, and finds a copy that was changed."""
    library = build / "lib/vcuda/libcuda.so.1"
    if not library.exists():
        pytest.skip("libvcuda is not built")
    made = tree.write("state/vcuda/550.54.15-ab/libcuda.so.1", "copy")
    digest = hashlib.sha256(b"copy").hexdigest()
    values = {"paths.run": tree.settings.run_dir, "paths.libvcuda": str(library.parent)}
    context = replace(tree.context, settings=Settings(values))

    def found_with(*copies: LimiterCopy) -> list[Finding]:
        found = Inventory("550.54.15", "", 1.0, [], [], [], [], list(copies))
        records.write(paths.inventory(tree.settings.run_dir), found.record())
        return list(node.libvcuda(context))[1:]

    packaged = identity(library.stat())
    (good,) = found_with(LimiterCopy("libcuda.so.1", packaged, "ab", str(made), digest, 7))
    assert good.status == OK and good.found.endswith("without 7 names that this driver lacks")
    (changed,) = found_with(LimiterCopy("libcuda.so.1", packaged, "ab", str(made), "0" * 64, 7))
    assert changed.status == FAILURE and digest in changed.found
    (why,) = found_with(LimiterCopy("libcuda.so.1", packaged, "ab", reason="[Errno 30] Read-only file system"))
    assert why.status == WARNING and "Read-only file system" in why.found
    (other,) = found_with(LimiterCopy("libcuda.so.1", "1:2:3:4", "ab", str(made), digest, 7))
    assert other.status == WARNING and "another one" in other.found
    (older,) = found_with()
    assert older.status == WARNING and "no copy" in older.found


def test_this_interpreter_is_right(tree: Tree) -> None:
    assert only(node.python, tree.context).status == OK


def test_a_broken_nvml_is_a_warning(driver_root: DriverRoot, tree: Tree) -> None:
    tree.inventory(str(driver_root.write("libnvidia-ml.so.550.54.15", "nothing")))
    assert "NVML" in only(coexistence.foreign_users, tree.context).found


# The verb


def test_every_check_has_a_finding_whatever_is_missing(tree: Tree) -> None:
    """On an empty node every check has a finding, but for those of what is not there, and none raises."""
    absent = ["byte code", "NVIDIA's runtime", "MIG instances"]
    findings_of = {name: findings.examine(name, check, tree.context) for name, check in verb.CHECKS.items()}
    assert [name for name, found in findings_of.items() if not found] == absent


def test_table_json_and_status(tree: Tree) -> None:
    table = tree.call()
    assert table.exit_code == 1
    assert "no runtime is configured to call the hook" in table.stdout
    assert "expected the NVIDIA kernel module; install the driver" in table.stdout
    found = json.loads(tree.call("--output", "json").stdout)
    assert {item["status"] for item in found} == {OK, WARNING, FAILURE}
    assert all(item["found"] for item in found)
