"""Many containers at once and one after the other: the ledger stays right, and nothing accumulates on the host."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bpf_programs
import bundles
import daemons
import nodes
import pytest
from attack_records import Attack, attack

from vgpu.config import claims
from vgpu.hook.linux import bpf

pytestmark = pytest.mark.root

Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]


@pytest.fixture
def daemon(node: nodes.SimulatedNode) -> Iterator[daemons.Daemon]:
    made = daemons.Daemon(node).start().ready()
    yield made
    made.kill()


def held(node: nodes.SimulatedNode) -> list[str]:
    directory = Path(node.settings.run_dir) / "containers"
    return sorted(os.listdir(directory)) if directory.exists() else []


def status(node: nodes.SimulatedNode) -> dict[str, list[dict[str, object]]]:
    return json.loads(node.vgpuctl("status", "--output", "json").stdout)  # type: ignore[no-any-return]


def test_fifty_at_once_on_a_card_with_room_for_ten(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon
) -> None:
    """Exactly ten start. The others' errors have the reason. All records are right, even after more rounds of vgpud."""
    tree = rootfs()
    card = node.read_cards()[0]
    shares = [
        bundle(tree, cores="10", memory="1Gi", use_gpuuuid=card["uuid"]).command("sleep", "600") for _ in range(50)
    ]
    with ThreadPoolExecutor(50) as pool:
        done = list(pool.map(runc1.create, shares))
    started = sorted(container for container, result in done if result.returncode == 0)
    refused = [result.stderr for _, result in done if result.returncode != 0]
    assert len(started) == 10
    for message in refused:
        assert "vgpu-hook: allocation: no card fits" in message
        assert f"{card['uuid']}, {card['name']}): 0 cores free of 100" in message
    daemon.rounds()
    assert held(node) == started
    for container in started:
        claim = claims.read(node.settings.run_dir, container)
        assert claim.ready
        assert claim.pid == runc1.state(container)["pid"]
        assert [(item.uuid, item.cores, item.memory) for item in claim.cards] == [(card["uuid"], 10, 1 << 30)]
    told = status(node)
    assert [item["cores_held"] for item in told["cards"]] == [100, 0]
    assert sorted(str(item["container"]) for item in told["containers"]) == started
    log = [json.loads(line) for line in (Path(node.settings.run_dir) / "hook.log").read_text().splitlines()]
    assert len([line for line in log if line["error"]]) == 40
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(runc1.delete, started))
    assert held(node) == []


def footprint(node: nodes.SimulatedNode, daemon: daemons.Daemon, tree: Path, cgroup: str) -> dict[str, int]:
    """The objects on the host that a container may leave behind."""
    return {
        "mounts that name the node": _mounts(str(node.directory.parent)),
        "descriptors of vgpud": daemon.open_files(),
        "children of vgpud": _children(daemon.pid),
        "cgroups of ours": _cgroups(cgroup),
        "files of the node's state": _files(node.settings.state_dir),
        "files of the node's run": _files(node.settings.run_dir) - len(_logs(node)),
        "files in the root file system": _files(str(tree)),
    }


def _mounts(text: str) -> int:
    return sum(text in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _cgroups(name: str) -> int:
    """The cgroups below `name` in every hierarchy."""
    tops = [f"/sys/fs/cgroup{name}", *(f"{path}{name}" for path in Path("/sys/fs/cgroup").iterdir())]
    return sum(len(names) for top in tops for _, names, _ in os.walk(top))


def _programs() -> set[int]:
    """The device programs with the hook's name, of all nodes on this machine."""
    found = set()
    for number in bpf_programs.ids():
        try:
            fd = bpf.prog_get_fd_by_id(number)
        except OSError:  # it has ended meanwhile
            continue
        if bpf.prog_info(fd).name.startswith(b"vgpu"):
            found.add(number)
        os.close(fd)
    return found


def _files(directory: str) -> int:
    return sum(len(names) + len(files) for _, names, files in os.walk(directory))


def _logs(node: nodes.SimulatedNode) -> list[Path]:
    return list(Path(node.settings.run_dir).glob("hook.log*"))


def _children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def quiet(look: Callable[[], dict[str, int]]) -> dict[str, int]:
    """The footprint while the daemon does not query NVML, after the kernel has freed removed objects."""

    def twice() -> dict[str, int]:
        first = look()
        time.sleep(1)
        return first if first == look() and not first["children of vgpud"] else {}

    return daemons.wait_for(twice, what=lambda: f"it never was quiet: {look()}")  # type: ignore[no-any-return]


def run_some(runtime: bundles.Runtime, make: Callable[[], bundles.Bundle], number: int, at_once: int) -> list[str]:
    """Run `number` containers to their end, `at_once` at a time. Returns the errors."""

    def one(_: int) -> str:
        share = make()
        done: subprocess.CompletedProcess[str] = runtime.run(share.command("true"))
        return "" if done.returncode == 0 else done.stderr

    with ThreadPoolExecutor(at_once) as pool:
        return [error for error in pool.map(one, range(number)) if error]


@attack("starts and stops by runc, many at once, then one after the other", "the node")
def test_starts_and_stops_leave_nothing(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, daemon: daemons.Daemon,
    cgroup: str, attack: Attack,
) -> None:  # fmt: skip
    """With --long 200 at once and 5,000 in a row on each cgroup version. Nothing accumulates; the ledger is empty."""
    tree = rootfs()

    def make() -> bundles.Bundle:
        share = bundle(tree, cores="1", memory="64Mi")
        share.config["linux"]["cgroupsPath"] = f"{cgroup}/{uuid.uuid4().hex[:8]}"
        return share

    assert run_some(runc, make, 2, 1) == []  # the first start makes directories and the log
    look = functools.partial(footprint, node, daemon, tree, cgroup)
    before, programs = quiet(look), _programs()
    together, in_a_row = attack.amount(200, 40), attack.rounds(5000, 10)
    assert run_some(runc, make, together, together) == []
    late = daemon.health()["reaper"]["released"]  # of many, some poststop hooks wait longer than the reaper does
    assert run_some(runc, make, in_a_row, 1) == []
    assert held(node) == []
    ours = _programs() - programs  # and those of other tests, which end with their containers
    daemon.rounds(1)
    after = quiet(look)
    daemons.wait_for(lambda: not ours & _programs(), 300, "a device program stays")
    assert {name: (before[name], value) for name, value in after.items() if value > before[name]} == {}
    assert daemon.health()["reaper"]["released"] == late
    assert [item["cores_held"] for item in status(node)["cards"]] == [0, 0]
    outcome = "no growth of mounts, descriptors, device programs, cgroups or files; the ledger is empty"
    attack.held(together + in_a_row, outcome)
