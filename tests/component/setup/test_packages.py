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
    "ldd", "find", "awk",
)  # fmt: skip
NEW = "Inst cmake (3.25.1-1 Debian:12.0/stable [amd64])"
APT_GET = """#!/bin/sh
echo "$*" >>{log}
plan() {{ cat {log}.$1; ! grep -q ^E: {log}.$1; }}
case "$*" in
update*) [ ! -e {log}.offline ] ;;
-s*/setup/preferences*) plan pinned ;;
-s*--ignore-hold*) plan unheld ;;
-s*) plan plain ;;
esac
"""
#: Of glibc, one package was upgraded and one is held.
DPKG_QUERY = """#!/bin/sh
printf 'installed glibc 2.36-10\\ninstalled glibc 2.36-9\\nconfig-files gone 1\\n'
"""
APT_CACHE = """#!/bin/sh
case "$1 $2" in
"policy python3") echo "  Candidate: ${PYTHON_CANDIDATE:-3.11.2-1}" ;;
"madison ${ABSENT-}") ;;
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
        self.add("apt-mark", "#!/bin/sh\necho libc6\n")
        self.add("dpkg-query", DPKG_QUERY)
        self.user(0)
        self.plan(NEW)

    def add(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def user(self, uid: int) -> None:
        self.add("id", f"#!/bin/sh\necho {uid}\n")

    def python(self, version: str) -> None:
        self.add("python3", f"#!/bin/sh\ncase $2 in *version_info*) echo {version} ;; esac\n")

    def plan(self, *lines: str, of: tuple[str, ...] = ("plain", "pinned", "unheld")) -> None:
        """What apt would do: with its own preferences, with those of the installed versions, regardless of holds."""
        for name in of:
            Path(f"{self.log}.{name}").write_text("".join(f"{line}\n" for line in lines))

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
    ("group", "package"), [("test", "rpmlint"), ("test", "mold"), ("long", "chromium"), ("build", "musl-tools")]
)
def test_what_not_every_distribution_has_is_named_and_left_out(machine: Machine, group: str, package: str) -> None:
    for program in ("prometheus", "promtool"):  # which are unpacked
        machine.add(program)
    done = machine.packages(group, ABSENT=package)
    assert done.returncode == 0, done.stderr
    assert f"going on without {package}: apt has no such package\n" in done.stdout
    assert " cmake" in machine.installed()
    assert f" {package}" not in machine.installed()
    machine.packages(group)
    assert f" {package}" in machine.installed()


UPGRADE = "Inst libc6 [2.36-9] (2.36-10 Debian:12 [amd64])"
UNMET = (" libc6-dev : Depends: libc6 (= 2.36-10) but 2.36-9 is to be installed", "E: Unable to correct problems")
ALONE = "make: apt cannot add gcc cmake and leave all else as it is: it "


@pytest.mark.parametrize(
    ("plain", "unheld", "said"),
    [
        (["Remv docker-ce [5:28.3.2-1]", UPGRADE], [], f"{ALONE}removes docker-ce, upgrades libc6. Nothing was "),
        (UNMET, [UPGRADE], f"{ALONE}upgrades libc6 (held: libc6). Nothing was changed. If that is right for "
         "this machine, run: apt-get install --no-install-recommends --ignore-hold --allow-change-held-packages gcc "),
        (UNMET, UNMET, f"make: apt cannot install gcc cmake:{UNMET[0]} (all of apt's words: "),
    ],
)  # fmt: skip
def test_more_than_adding_is_refused_in_one_line(
    machine: Machine, plain: list[str], unheld: list[str], said: str
) -> None:
    machine.add("musl-gcc")
    machine.plan(*UNMET, of=("pinned",))
    machine.plan(*plain, of=("plain",))
    machine.plan(*unheld, of=("unheld",))
    done = machine.packages("build")
    assert done.returncode == 1
    assert done.stderr.replace(" gcc libc6-dev ", " gcc ").startswith(said)  # the machine may have libc6-dev
    assert done.stderr.count("\n") == 1
    assert machine.installed() == ""


def test_where_the_newest_would_upgrade_the_versions_of_what_is_installed_are_taken(machine: Machine) -> None:
    """Of several, the oldest first: the packages of one source depend on each other's version."""
    machine.plan(NEW, UPGRADE, of=("plain",))
    done = machine.packages("build")
    assert done.returncode == 0, done.stderr
    preferences = machine.build / "setup/preferences"
    assert f" -oDir::Etc::Preferences={preferences} " in machine.installed()
    assert preferences.read_text() == (
        "Package: src:glibc\nPin: version 2.36-9\nPin-Priority: 999\n\n"
        "Package: src:glibc\nPin: version 2.36-10\nPin-Priority: 998\n\n"
    )
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
    seen = tmp_path / "seen"
    command = ["sh", "-c", f"echo first; until [ -e {seen} ]; do sleep 0.1; done; echo last; exit 3"]
    progress = [CHECKOUT / "packaging/setup/progress", "working", tmp_path / "new/log", *command]
    environment = {**os.environ, "PROGRESS_SECONDS": "1"}
    with subprocess.Popen(progress, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert next(process.stdout) == "working\n"
        assert any(line.endswith(" s: first\n") for line in process.stdout)
        seen.touch()
        rest = process.stdout.read().splitlines()
    assert process.returncode == 3
    assert rest[-3:] == ["first", "last", f"failed: working (status 3; output: {tmp_path}/new/log)"]


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
