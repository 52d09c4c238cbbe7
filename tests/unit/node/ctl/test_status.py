"""`vgpuctl status`: tables and JSON from real records, and usage regions that tenants have changed."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import region_reading
from ctl_node import GIB, Node, uuid_of
from descriptors import opened
from host import Host

from vgpu.config import claims, grants, limits, paths, records, usage
from vgpu.config.grants import Grant, Holder
from vgpu.config.limits import CardLimit
from vgpu.config.request import Request
from vgpu.node.daemon import reader
from vgpu.node.daemon.usage_regions import region_of


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(reader, "each", region_reading.each)
    return Node(tmp_path, "status")


def test_a_free_node(node: Node) -> None:
    found = node.json()
    assert found["containers"] == []
    assert found["cards"][0] == {
        "card": 0, "uuid": uuid_of(0), "name": "Tesla T4", "cores_held": 0, "memory_held": 0, "memory": 16 * GIB,
        "context": None, "holders": [],
    }  # fmt: skip
    done = node.call()
    assert (done.exit_code, done.stderr) == (0, "")
    assert "16 GiB" in done.stdout


def test_the_holders_of_cards(node: Node) -> None:
    node.hold("one", Request(1, 30, 2 * GIB, 50))
    node.hold("pod", Request(1, 40, 3 * GIB), name="lab/train-0/main")
    node.hold("big", Request(1, 100, 0))
    found = node.json()
    held = {row["card"]: (row["cores_held"], row["memory_held"], row["holders"]) for row in found["cards"]}
    assert held[0] == (70, 5 * GIB, ["one", "lab/train-0/main"])
    assert held[1] == (100, 16 * GIB, ["big"])
    rows = {row["container"]: row for row in found["containers"]}
    assert (rows["one"]["cores"], rows["one"]["core_limit"], rows["one"]["memory_limit"]) == (30, 50, 2 * GIB)
    assert (rows["pod"]["pod"], rows["pod"]["card"], rows["pod"]["state"]) == ("lab/train-0/main", 0, "running")
    assert rows["big"]["memory_limit"] == "whole card"
    assert all(" " not in key for name in ("cards", "containers") for row in found[name] for key in row)
    text = node.call().stdout
    for word in ("2 GiB", "3 GiB", "whole card", "lab/train-0/main", "running", "core limit", "memory held"):
        assert word in text


@pytest.mark.parametrize(
    ("fields", "state"),
    [({}, "running"), ({"ready": False}, "starting"), ({"start_time": 1}, "stopped"), ({"pid": 4194304}, "stopped")],
)
def test_states(node: Node, fields: dict[str, object], state: str) -> None:
    node.hold("one", Request(1, 30, GIB))
    node.change("one", **fields)
    found = node.json()
    assert [row["state"] for row in found["containers"]] == [state]
    assert found["cards"][0]["cores_held"] == (0 if state == "stopped" else 30)


def test_limits_in_force_are_those_of_the_file(node: Node) -> None:
    node.hold("one", Request(1, 30, GIB))
    path = node.path / "run/containers/one/limits"
    limits.update(str(path), "one", [CardLimit(uuid_of(0), 5 * GIB, 30, 80)])
    (row,) = node.json()["containers"]
    assert (row["memory_limit"], row["core_limit"]) == (5 * GIB, 80)
    path.write_bytes(b"garbage")
    (row,) = node.json()["containers"]
    assert (row["memory_limit"], row["core_limit"]) == (GIB, 30)


def test_a_grant_between_two_starts_is_held(node: Node) -> None:
    holder = Holder("3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11", "main")
    ids = {"cores": "a" * 32, "memory": "b" * 32}
    for name, amount in (("cores", 20), ("memory", GIB)):
        grant = Grant(ids[name], name, amount, 1.0, holder=holder, cards=[uuid_of(1)])
        grants.write(node.settings.state_dir, grant)
    row = node.json()["cards"][1]
    assert (row["cores_held"], row["memory_held"], row["holders"]) == (20, GIB, [holder.describe()])


def test_damage_is_a_warning_each_once(node: Node) -> None:
    node.hold("one", Request(1, 30, GIB))
    path = node.path / "run/containers/one/claim.json"
    path.write_bytes(b"garbage")
    (node.path / "state/grants").mkdir(parents=True)
    (node.path / f"state/grants/{'c' * 32}.json").write_bytes(b"{")
    done = node.call("--output", "json")
    assert done.exit_code == 0
    lines = done.stderr.splitlines()
    assert len(lines) == len(set(lines)) == 2
    assert all(line.startswith("warning: ") for line in lines)
    assert any(str(path) in line for line in lines)
    assert json.loads(done.stdout)["cards"][0]["cores_held"] == 30


def test_a_container_that_does_not_answer_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "each", region_reading.silent)
    node.hold("one", Request(1, 30, GIB), name="default/train/main")
    node.hold("whole", Request(1, 100, 0))
    done = node.call("--output", "json")
    assert done.exit_code == 0
    (warning,) = json.loads(done.stdout)["warnings"]
    assert warning.startswith("container one (default/train/main): the memory that it uses is not known")
    assert [row["memory_used"] for row in json.loads(done.stdout)["containers"]] == [None, None]


def test_a_copy_of_libcuda_that_stays_is_named(node: Node) -> None:
    node.hold("one", Request(1, 30, GIB), name="default/train/main")
    claim = claims.read(str(node.path / "run"), "one")
    claim.uncovered = ["/opt/x/libcuda.so.1: stays"]
    records.write(paths.claim(str(node.path / "run"), "one"), claim.record())
    (warning,) = json.loads(node.call("--output", "json").stdout)["warnings"]
    assert warning == "container one (default/train/main): /opt/x/libcuda.so.1: stays"


@pytest.mark.parametrize("missing", ["config.json", "run/inventory.json"])
def test_without_settings_or_inventory_it_says_what_to_do(node: Node, missing: str) -> None:
    (node.path / missing).unlink()
    done = node.call()
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("vgpuctl: ")
    assert "run: vgpuctl" in done.stderr
    assert done.stderr.count("\n") == 1


# Usage regions


class Root(Host):
    """A made-up /proc/<pid>/root."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tree = path / "container"
        (self.tree / "usr/local/vgpu/usage").mkdir(parents=True)
        (self.proc / "7").mkdir(parents=True)
        (self.proc / "7/root").symlink_to(self.tree)
        self.live(7)

    @property
    def region(self) -> Path:
        return self.tree / "usr/local/vgpu/usage/usage"

    def usage(self) -> dict[str, int]:
        before = opened()
        try:
            return region_of(7, 5, usage.decode, str(self.proc))
        finally:
            assert opened() <= before


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def region(reserved: int) -> bytes:
    data = bytearray(usage.SIZE)
    struct.pack_into("=QQ", data, 0, usage.IDENTITY, 1)
    struct.pack_into("=Q16s", data, usage.HEADER.size, 1, limits.uuid_bytes(uuid_of(0)))
    struct.pack_into("=QQ", data, usage.CHARGES_OFFSET, 0, reserved)
    return bytes(data)


@pytest.mark.parametrize("data", [b"", b"garbage", bytes(usage.SIZE), region(1)[:-1], region(1) + b"x"])
def test_a_file_that_is_no_region(root: Root, data: bytes) -> None:
    root.region.write_bytes(data)
    assert root.usage() == {}


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "link out", "device"])
def test_a_region_that_is_no_file(root: Root, tmp_path: Path, kind: str) -> None:
    if kind == "directory":
        root.region.mkdir()
    elif kind == "fifo":
        os.mkfifo(root.region)
    elif kind == "link out":
        (tmp_path / "secret").write_bytes(region(7))
        root.region.symlink_to(tmp_path / "secret")
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        os.mknod(root.region, 0o20666, os.makedev(1, 5))  # zeros without end
    assert root.usage() == {}


def test_a_parent_that_leads_out_stays_inside(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside/usage"
    outside.mkdir(parents=True)
    (outside / "usage").write_bytes(region(7))
    os.rmdir(root.region.parent)
    os.rmdir(root.region.parent.parent)
    (root.tree / "usr/local/vgpu").symlink_to(outside.parent)
    assert root.usage() == {}


def test_another_process_of_the_same_pid_is_not_read(root: Root) -> None:
    root.region.write_bytes(region(5 * GIB))
    root.live(7, 6)
    assert root.usage() == {}


def test_no_such_process(root: Root) -> None:
    assert region_of(8, 5, usage.decode, str(root.proc)) == {}
    assert region_of(-1, 5, usage.decode) == {}


def test_usage_is_read_through_the_containers_root_absurd_figures_too(root: Root) -> None:
    root.region.write_bytes(region((1 << 64) - 1))
    assert root.usage() == {uuid_of(0): (1 << 64) - 1}
