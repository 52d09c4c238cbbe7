"""The processes of a container: its own cgroup when it is claimed, and the processes found later, on fixture trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host import Host

from vgpu.config.claims import Claim
from vgpu.hook.ledger import container_processes
from vgpu.hook.ledger.container_processes import ContainerProcesses, Populations
from vgpu.hook.linux import cgroup, procfs


class Tree(Host):
    """A /proc of few processes, and cgroup hierarchies beside it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write(
            "proc/self/cgroup", "5:devices:/system.slice/containerd.service\n0::/system.slice/containerd.service\n"
        )
        self.mounts("cgroup", "devices", "cgroup2", "unified")

    def mounts(self, *kinds: str) -> None:
        lines = [
            f"{number} 20 0:{number} / {self.path}/{name} rw - {kind} {kind} rw,{name}"
            for number, (kind, name) in enumerate(zip(kinds[::2], kinds[1::2]))
        ]
        self.write("proc/self/mountinfo", "\n".join(lines) + "\n")

    def process(self, pid: int, parent: int, namespace: str = "host", cgroup: str = "", started: int = 0) -> None:
        self.write(f"proc/{pid}/stat", f"{pid} (a (b) S {parent} {'0 ' * 17}{started or pid} 0\n")
        self.write(f"proc/{pid}/cgroup", cgroup)
        (self.path / f"proc/{pid}/ns").mkdir(exist_ok=True)
        (self.path / f"proc/{pid}/ns/pid").symlink_to(f"pid:[{namespace}]")

    def cgroup(self, name: str, *pids: int) -> None:
        """Put processes into a cgroup, `<hierarchy>/<path>`."""
        hierarchy, _, path = name.partition("/")
        controllers = "" if hierarchy == "unified" else hierarchy
        for pid in pids:
            file = self.path / f"proc/{pid}/cgroup"
            if file.exists():
                file.write_text(f"5:{controllers}:/{path}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.process(1, 0)
    made.process(9, 1)
    return made


def processes_of(one: Claim, proc: str = "/proc") -> list[tuple[int, int]]:
    """The processes of a container that shares its cgroup with no other."""
    return ContainerProcesses([one], proc).of(one)


def claim(name: str, pid: int, cgroup: str) -> Claim:
    return Claim(name, pid, pid, [], False, None, [], "/b", 1.0, cgroup=cgroup)


@pytest.mark.parametrize(
    ("lines", "own"),
    [
        ("5:devices:/kubepods/pod1/c\n0::/\n", "devices:/kubepods/pod1/c"),
        ("5:devices:/\n0::/kubepods/pod1/c\n", ":/kubepods/pod1/c"),
        ("0::/a:b c/d\n", ":/a:b c/d"),
        ("7:cpu,cpuacct:/c\n6:memory:/c\n", "memory:/c"),
        ("7:cpu,cpuacct:/c\n1:name=systemd:/c\n", "cpu,cpuacct:/c"),
        ("5:devices:/system.slice/containerd.service\n0::/system.slice\n", ""),
        ("5:devices:/system.slice/containerd.service/c\n", "devices:/system.slice/containerd.service/c"),
        ("5:devices:/c\x1b[0m\n0::/c\n", ":/c"),
        ("5:devices:/" + "c" * 5000 + "\n", ""),
        ("", ""),
    ],
)
def test_own_cgroup_is_never_the_runtimes(tree: Tree, lines: str, own: str) -> None:
    tree.process(500, 9, "c", lines)
    assert cgroup.own_of(500, str(tree.proc)) == own


def test_nested_cgroups_count_and_other_cgroups_do_not(tree: Tree) -> None:
    for pid in (500, 501, 502):
        tree.process(pid, 9, "c")
    tree.cgroup("devices/c", 500)
    tree.cgroup("devices/c/init.scope", 501)
    tree.cgroup("devices/c/system.slice/a.service", 502)
    tree.process(503, 9, "c", "5:devices:/cc\n4:memory:/c\n")
    assert processes_of(claim("c", 500, "devices:/c"), str(tree.proc)) == [(500, 500), (501, 501), (502, 502)]


@pytest.mark.parametrize("cgroup", ["devices:/c", ":/c"])
def test_each_version(tree: Tree, cgroup: str) -> None:
    tree.process(500, 9, "c")
    tree.cgroup("devices/c" if cgroup.startswith("devices") else "unified/c", 500)
    assert processes_of(claim("c", 500, cgroup), str(tree.proc)) == [(500, 500)]


def test_a_process_whose_first_thread_has_ended_is_counted(tree: Tree) -> None:
    """The kernel moves an ended first thread to v1's root cgroups. Its process lives in another thread."""
    tree.process(500, 9, "c", "5:devices:/c\n")
    tree.process(501, 500, "c", "5:devices:/\n0::/\n")
    tree.write("proc/501/task/501/cgroup", "5:devices:/\n0::/\n")
    tree.write("proc/501/task/502/cgroup", "5:devices:/c\n0::/\n")
    assert [pid for pid, _ in processes_of(claim("c", 500, "devices:/c"), str(tree.proc))] == [500, 501]


def test_an_init_that_moved_is_counted(tree: Tree) -> None:
    """Docker in docker moves itself to another cgroup, an inner or an outer one."""
    tree.process(500, 9, "c")
    tree.process(501, 500, "c")
    tree.cgroup("devices/c", 501)
    assert [pid for pid, _ in processes_of(claim("c", 500, "devices:/c"), str(tree.proc))] == [500, 501]


def test_processes_in_a_shared_cgroup_are_distinguished(tree: Tree) -> None:
    """By PID namespace (500), by descent (600, in the host's). 700 is no container's; 503 is in a nested namespace."""
    tree.process(500, 9, "c")
    tree.process(501, 9, "c")  # runc exec
    tree.process(502, 501, "c")
    tree.process(503, 502, "inner")
    tree.process(600, 9)
    tree.process(601, 600)
    tree.process(700, 9)
    tree.cgroup("devices/both", 500, 501, 502, 503, 600, 601, 700)
    claims = [claim("a", 500, "devices:/both"), claim("b", 600, "devices:/both")]
    found = ContainerProcesses(claims, str(tree.proc))
    assert [[pid for pid, _ in found.of(item)] for item in claims] == [[500, 501, 502, 503], [600, 601]]


@pytest.mark.parametrize("cgroup", ["", "devices:/gone", "pids:/not/mounted", ":/../outside"])
def test_without_a_cgroup_the_namespace_decides(tree: Tree, cgroup: str) -> None:
    tree.process(500, 9, "c")
    tree.process(501, 500, "c")
    tree.process(900, 9)
    assert processes_of(claim("c", 500, cgroup), str(tree.proc)) == [(500, 500), (501, 501)]


def test_nobody_belongs_to_a_dead_init(tree: Tree) -> None:
    """Its cgroup and its pid may have a new owner by now."""
    tree.process(500, 9, "c", started=7)
    tree.cgroup("devices/c", 500)
    assert processes_of(claim("c", 500, "devices:/c"), str(tree.proc)) == []


def test_what_vanishes_meanwhile_is_left_out(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(500, 9, "c")
    tree.cgroup("devices/c", 500, 501)
    monkeypatch.setattr(container_processes.os, "listdir", lambda path: ["gone"])
    assert processes_of(claim("c", 500, "devices:/c"), str(tree.proc)) == [(500, 500)]


def test_this_very_process() -> None:
    own = os.getpid()
    assert procfs.command(own) != ""
    assert procfs.parent(own) == os.getppid()
    assert (own, procfs.start_time(own)) in processes_of(
        Claim("c", own, procfs.start_time(own), [], False, None, [], "", 1.0)
    )


def test_only_processes_of_the_cgroup_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has many processes, and vgpud goes over all of them in each round."""
    for pid, path in ((1, "/"), (2, "/kubepods/pod1/abc"), (3, "/kubepods/pod1/abcd"), (4, "/user"), (5, "/")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"5:devices:{path}\n0::/\n")
    parsed: list[str] = []
    real = cgroup.parse_cgroups
    monkeypatch.setattr(cgroup, "parse_cgroups", lambda text: parsed.append(text) or real(text))
    assert Populations(str(tmp_path)).of("/kubepods/pod1/abc") == [2]
    assert sorted(text.split("\n")[0] for text in parsed) == [
        "5:devices:/kubepods/pod1/abc",
        "5:devices:/kubepods/pod1/abcd",
    ]
    assert sorted(Populations(str(tmp_path)).of("/")) == [1, 2, 3, 4, 5]


def test_containers_with_one_budget_are_judged_by_all_their_processes(tree: Tree) -> None:
    """What vgpud compares with their usage region is what all of them hold together."""
    made = [claim(name, pid, f"devices:/{name}") for name, pid in (("a", 100), ("b", 200), ("c", 300))]
    for one in made:
        tree.process(one.pid, 9)
        tree.cgroup(f"devices/{one.container}", one.pid)
    for one in made[:2]:
        one.prepared = ["claim-0"]
    processes = ContainerProcesses(made, str(tree.proc))
    assert [processes.of_budget(one) for one in made] == [[(100, 100), (200, 200)]] * 2 + [[(300, 300)]]
