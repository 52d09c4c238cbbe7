"""The programs of packaging/setup: packages against an apt of the test's own, and progress."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from checkout import CHECKOUT

PROGRAM = CHECKOUT / "packaging/setup/packages"
#: The programs that the script itself uses, and a Python that is new enough.
TOOLS = (
    "sh", "sed", "sort", "tr", "ls", "head", "tail", "grep", "cut", "dirname", "date", "sleep", "cat", "mkdir", "rm",
    "ldd", "find",
)  # fmt: skip
NEW = "Inst cmake (3.25.1-1 Debian:12.0/stable [amd64])"
APT_GET = """#!/bin/sh
echo "$*" >>{log}
case "$*" in
update*) [ ! -e {log}.offline ] ;;
-s*=[0-9]*) cat {log}.plan.older ;;
-s*) cat {log}.plan ;;
esac
"""
APT_CACHE = """#!/bin/sh
case "$1 $2" in
"policy python3") echo "  Candidate: ${PYTHON_CANDIDATE:-3.11.2-1}" ;;
"madison "*) printf '%s | 2.0 | stable\n%s | 1.0 | security\n' "$2" "$2" ;;
esac
"""


class Machine:
    """A machine with a few programs, an apt whose plan is `plan`, and a user."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "apt.log"
        self.log.touch()
        self.programs = directory / "programs"
        self.programs.mkdir()
        self.build = directory / "build"
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        self.add("apt-get", APT_GET.format(log=self.log))
        self.add("apt-cache", APT_CACHE)
        self.user(0)
        self.plan(NEW)

    def add(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def user(self, uid: int) -> None:
        self.add("id", f"#!/bin/sh\necho {uid}\n")

    def python(self, version: str) -> None:
        self.add("python3", f"#!/bin/sh\ncase $2 in *version_info*) echo {version} ;; esac\n")

    def plan(self, *lines: str) -> None:
        """What apt would do."""
        for name in ("plan", "plan.older"):
            Path(f"{self.log}.{name}").write_text("".join(f"{line}\n" for line in lines))

    def plan_older(self, *lines: str) -> None:
        """What apt would do where a version is asked for."""
        Path(f"{self.log}.plan.older").write_text("".join(f"{line}\n" for line in lines))

    def packages(self, group: str = "demo", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, group, "python3"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={"PATH": str(self.programs), "VGPU_BUILD": str(self.build), "APT_LISTS": "/none", **environment},
        )  # fmt: skip

    def installed(self) -> str:
        """The line by which apt installs, if it was called so."""
        return "".join(line for line in self.log.read_text().splitlines() if line.startswith("install "))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.python("3.11")
    return made


def test_what_is_missing_is_installed_and_nothing_is_removed(machine: Machine) -> None:
    done = machine.packages()
    assert done.returncode == 0, done.stderr
    assert "--no-remove" in machine.installed()
    assert "--no-install-recommends" in machine.installed()
    assert " cmake " in machine.installed()
    assert " podman" not in machine.installed()
    assert "installing 1 packages for:" in done.stdout


@pytest.mark.parametrize(("age", "read"), [(0, 0), (5 * 3600, 1)])
def test_lists_of_some_hours_are_not_read_again(machine: Machine, tmp_path: Path, age: int, read: int) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    os.utime(lists, (time.time() - age, time.time() - age))
    assert machine.packages(APT_LISTS=str(lists)).returncode == 0
    assert machine.log.read_text().count("update -q\n") == read
    assert " cmake " in machine.installed()


def test_a_runtime_that_is_there_is_used(machine: Machine) -> None:
    for name in ("cc", "cmake", "musl-gcc", "runc", "busybox"):
        machine.add(name)
    machine.packages()
    wanted = machine.installed().split()
    assert not {"runc", "gcc", "cmake", "python3", "python3-venv"} & set(wanted)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Remv docker-ce [5:28.3.2-1]", "removes docker-ce"),
        ("Inst libc6 [2.36-9] (2.36-10 Debian:12 [amd64])", "upgrades libc6"),
    ],
)
def test_more_than_adding_is_refused(machine: Machine, line: str, shown: str) -> None:
    for name in ("runc", "busybox"):
        machine.add(name)
    machine.plan(NEW, line)
    done = machine.packages("build")
    assert done.returncode == 1
    assert "make: apt would do more than install" in done.stderr
    assert f"\n{shown}\n" in done.stderr
    assert "run: apt-get install --no-install-recommends gcc " in done.stderr
    assert "Nothing was changed." in done.stderr
    assert machine.installed() == ""


def test_a_version_that_upgrades_nothing_is_installed_instead(machine: Machine) -> None:
    for name in ("runc", "busybox", "cc", "musl-gcc"):
        machine.add(name)
    machine.plan(NEW, "Inst cmake-data [1.0] (2.0 Debian:12/stable [amd64])")
    machine.plan_older("Inst cmake (1.0 Debian-Security:12/stable-security [amd64])")
    done = machine.packages("build")
    assert done.returncode == 0, done.stderr
    assert " cmake=2.0" in machine.installed(), "the first version of apt's table without harm"
    simulated = [line for line in machine.log.read_text().splitlines() if line.startswith("-s install")]
    assert all("Upgrade-By-Source-Package=false" in line for line in simulated)


def test_an_old_python_is_refused_before_anything_is_done(machine: Machine) -> None:
    machine.python("3.8")
    done = machine.packages()
    assert done.returncode == 1
    assert "make: needs Python 3.9 or newer; " in done.stderr
    assert " has 3.8. Use Debian 11 or newer, or Ubuntu 22.04 or newer" in done.stderr
    assert machine.log.read_text() == ""


def test_an_old_python_that_is_not_installed_yet_is_refused_as_well(machine: Machine) -> None:
    (machine.programs / "python3").unlink()
    done = machine.packages(PYTHON_CANDIDATE="3.8.2-0ubuntu2")
    assert done.returncode == 1
    assert " has 3.8. " in done.stderr
    assert machine.log.read_text() == ""


@pytest.mark.parametrize("version", ["3.9", "3.14", "4.0"])
def test_newer_pythons(machine: Machine, version: str) -> None:
    machine.python(version)
    assert machine.packages().returncode == 0


def test_who_is_not_root_gets_the_list(machine: Machine) -> None:
    machine.user(1000)
    done = machine.packages()
    assert done.returncode == 1
    assert done.stderr.startswith("make: run as root, or install these packages: gcc ")
    assert done.stderr.endswith(" musl-tools\n")
    assert " cmake " in done.stderr
    assert machine.log.read_text() == ""


def test_without_the_network_the_lists_that_are_there_serve(machine: Machine) -> None:
    Path(f"{machine.log}.offline").touch()
    done = machine.packages()
    assert done.returncode == 0
    assert "going on with the package lists that are there" in done.stdout
    assert " cmake " in machine.installed()


def test_progress_shows_that_a_command_goes_on_and_how_it_failed(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo first; sleep 2; echo last; exit 3"]
    progress = [CHECKOUT / "packaging/setup/progress", "working", tmp_path / "new/log", *command]
    environment = {**os.environ, "PROGRESS_SECONDS": "1"}
    done = subprocess.run(progress, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[0] == "working"
    assert lines[1].endswith(" s: first")
    assert lines[-3:] == ["first", "last", f"failed: working (status 3; output: {tmp_path}/new/log)"]


SOURCE = "deb [trusted=yes] http://nobody.invalid/debian stable main\n"


@pytest.mark.root
@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("", ": it has no sources of packages (/etc/apt/sources.list, /etc/apt/sources.list.d)\n"),
        (SOURCE, ": apt-get update says:\nW: Failed to fetch http://nobody.invalid/debian/dists/stable/InRelease  "),
    ],
    ids=["no sources", "no network"],
)
def test_apts_own_cause_is_printed(machine: Machine, tmp_path: Path, source: str, cause: str) -> None:
    """The machine's own apt, with no lists, in a network namespace of its own: nothing answers there."""
    for name in ("apt-get", "apt-cache"):
        (machine.programs / name).unlink()
        (machine.programs / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "sources.list").write_text(source)
    (tmp_path / "lists/partial").mkdir(parents=True)
    places = {"Dir::Etc::SourceList": "sources.list", "Dir::State::Lists": "lists", "Dir::Cache": "cache"}
    settings = [f'{name} "{tmp_path / value}";' for name, value in places.items()]
    settings += ['Dir::Etc::SourceParts "/dev/null";', 'Acquire::Languages "none";', 'APT::Sandbox::User "root";']
    (tmp_path / "apt.conf").write_text("\n".join(settings))
    done = subprocess.run(
        ["/usr/bin/unshare", "--net", PROGRAM, "build", "python3"], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": str(machine.programs), "VGPU_BUILD": str(machine.build), "APT_LISTS": "/none",
             "APT_CONFIG": str(tmp_path / "apt.conf")},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"make: apt knows no package gcc cmake{cause}" in done.stderr
