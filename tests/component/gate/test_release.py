"""A release's gate starts the release's own Python, by the release's loader, as hook and as the programs in Python.

The release here has this machine's Python: a copy of the interpreter, by whose place Python finds its library, and
links to the folders of libraries. tests/system has a release of an image, on a host without Python and C library.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest
import trees
from checkout import CHECKOUT

pytestmark = pytest.mark.root  # the gate uses only byte code of root

PYTHON = pathlib.Path("/usr/bin/python3").resolve()
SETTINGS = {
    "VGPU_RELEASE": "ON", "VGPU_PYTHON": str(PYTHON), "VGPU_PYTHON_PATH": "/usr/lib/vgpu/python",
    "VGPU_BYTE_CODE": "/usr/lib/vgpu/hook.bytecode",
}  # fmt: skip
STATE = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 1, "annotations": {"vgpu.io/cores": "20"}}
#: Stands for vgpu.hook.main, vgpuctl and vgpud.
MAIN = """
import ctypes, json, os, struct, subprocess, sys, zlib
def shown():
    libraries = {line.split("/", 1)[1].strip() for line in open("/proc/self/maps") if "/_ctypes" in line}
    return {"argv": sys.argv, "prefix": sys.prefix, "environ": dict(os.environ), "stdin": sys.stdin.read(),
            "flags": [sys.flags.isolated, sys.flags.no_site, sys.flags.dont_write_bytecode],
            "encoding": sys.getfilesystemencoding(),
            "library": os.path.dirname(json.__file__), "extensions": len(libraries)}
def entry(argv):
    print(json.dumps(shown()))
    sys.exit(7)
def main():
    again = subprocess.run([sys.executable, "-I", "-S", "-c", "import sys; print(sys.prefix, *sys.argv[1:])", "x"],
                           capture_output=True, text=True, check=True)
    print(json.dumps({**shown(), "path": sys.path, "again": again.stdout.split()}))
    return 5
"""


@pytest.fixture(scope="module", params=["static", "sanitized"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    sanitize = {"VGPU_SANITIZE": "ON"} if request.param == "sanitized" else {}
    build: Callable[..., pathlib.Path] = request.getfixturevalue("build_gate")
    return build(tmp_path_factory.mktemp("gate") / "build", **SETTINGS, **sanitize)


@pytest.fixture
def release(built: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A release 1, below a link to it by the name of current, which is returned."""
    root = tmp_path / "1"
    modules = root / "usr/lib/vgpu/python/vgpu"
    for module in ("hook/main.py", "node/ctl/main.py", "node/daemon/command.py"):
        (modules / module).parent.mkdir(parents=True)
        (modules / module).write_text(MAIN)
    for folder in (f"lib/{trees.MULTIARCH}", f"usr/lib/{trees.MULTIARCH}", f"usr/lib/{PYTHON.name}"):
        (root / folder).parent.mkdir(parents=True, exist_ok=True)
        (root / folder).symlink_to(f"/{folder}")
    shutil.copytree(built, root / "usr/bin", symlinks=True)
    shutil.copy2(PYTHON, root / "usr/bin")
    compiler = [PYTHON, "-I", "-S", CHECKOUT / "packaging/bytecode/compile_hook.py"]
    subprocess.run([*compiler, modules.parent, root / "usr/lib/vgpu/hook.bytecode"], check=True)
    (tmp_path / "current").symlink_to("1")
    return tmp_path / "current"


def call(program: pathlib.Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """The exit status, and what a program of the release prints, with a state on its stdin."""
    state = json.dumps({**STATE, "bundle": str(program.parent)})
    done = subprocess.run(
        [program, *arguments], input=state, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_hook_has_the_releases_python_and_nothing_of_the_caller(release: pathlib.Path) -> None:
    status, shown, error = call(release / "usr/bin/vgpu-hook", "poststop", PYTHONHOME="/x", LC_ALL="de")
    assert (status, error) == (7, "")
    root = str(release.resolve())
    assert json.loads(shown) == {
        "argv": ["-c", "poststop"], "prefix": f"{root}/usr", "flags": [1, 1, 1], "encoding": "utf-8", "extensions": 1,
        "environ": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        "stdin": json.dumps({**STATE, "bundle": f"{release}/usr/bin"}), "library": f"{root}/usr/lib/{PYTHON.name}/json",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["vgpuctl", "vgpud"])
def test_a_program_gets_the_callers_arguments_environment_and_input(release: pathlib.Path, name: str) -> None:
    arguments = ["--help", "-c", "", "ü"]
    status, printed, error = call(release / "usr/bin" / name, *arguments, LC_ALL="C", HOME="/root")
    assert (status, error) == (5, "")
    root, shown = str(release.resolve()), json.loads(printed)
    assert shown["argv"] == [f"{release}/usr/bin/{name}", *arguments]
    assert shown["environ"] == {"LC_ALL": "C", "HOME": "/root"}
    assert json.loads(shown["stdin"])["bundle"] == f"{release}/usr/bin"
    assert shown["prefix"] == f"{root}/usr"
    assert shown["path"][0] == f"{root}/usr/lib/vgpu/python"
    assert all(path.startswith(root) for path in shown["path"])
    assert shown["again"] == [f"{root}/usr", "x"], "a program starts the release's Python by sys.executable"


def test_too_many_arguments_are_one_line(release: pathlib.Path) -> None:
    line = "vgpuctl: arguments: expected at most 1023, found 1024\n"
    assert call(release / "usr/bin/vgpuctl", *["x"] * 1024) == (2, "", line)
    assert call(release / "usr/bin/vgpuctl", *["x"] * 1023)[0] == 5


HOOK = "usr/bin/vgpu-hook"


def edit(release: pathlib.Path) -> pathlib.Path:
    with (release / "usr/lib/vgpu/hook.bytecode").open("r+b") as file:
        file.seek(700)
        file.write(b"xyz")
    return release / HOOK


def without(path: str) -> Callable[[pathlib.Path], pathlib.Path]:
    def remove(release: pathlib.Path) -> pathlib.Path:
        (release / path).unlink()
        return release / HOOK

    return remove


#: What is done to a release, which gives the hook's path, and what the last line of the hook then says.
BROKEN: dict[str, tuple[Callable[[pathlib.Path], pathlib.Path], str]] = {
    "damaged byte code": (edit, "found ImportError: 'another owner, mode or content'"),
    "no byte code": (without("usr/lib/vgpu/hook.bytecode"), "found FileNotFoundError"),
    "no library of Python": (without(f"usr/lib/{PYTHON.name}"), "found ImportError: 'the standard library of /usr'"),
    "no loader": (without(f"lib/{trees.MULTIARCH}"), "No such file or directory"),
    "a path of two": (lambda release: release.resolve().rename(release.with_name("a:b")) / HOOK, "Invalid argument"),
    "another place": (lambda release: (release / "usr/bin").rename(release / "bin") / "vgpu-hook", "Invalid argument"),
}


@pytest.mark.parametrize("broken", list(BROKEN.values()), ids=list(BROKEN))
def test_a_broken_release_refuses_and_says_what_to_do(
    release: pathlib.Path, broken: tuple[Callable[[pathlib.Path], pathlib.Path], str]
) -> None:
    damage, found = broken
    status, shown, error = call(damage(release), "prestart")
    assert (status, shown) == (1, "")
    lines = error.splitlines()
    assert [line.startswith("vgpu-hook: ") for line in lines] == [False] * (len(lines) - 1) + [True]
    assert found in lines[-1]
    assert lines[-1].endswith("; install this release of vgpu again: delete the pod of vgpu-node on this node")
