"""The hook's file of byte code: its contents, and when the gate's start program uses it or the sources."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import subprocess
from collections.abc import Callable

import pytest
from checkout import CHECKOUT

pytestmark = pytest.mark.root  # the start program uses only files of root

COMPILER = CHECKOUT / "packaging/bytecode/compile_hook.py"
PYTHON = "/usr/bin/python3"
STATE = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 1, "annotations": {"vgpu.io/cores": "20"}}

MAIN = """
import sys
from vgpu.config import colour
from vgpu.hook.shapes import square
def entry(argv):
    from vgpu.hook import later
    print("{text}", colour.NAME, square.SIDES, later.WHERE, __file__, len(sys.argv))
    sys.exit(0)
def fail():
    raise ValueError("on purpose")
"""


def write_sources(root: pathlib.Path, text: str) -> None:
    """A small hook: a namespace package, a package with code, and a module that a function imports."""
    for folder in ("vgpu/config", "vgpu/hook/shapes"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "vgpu/hook/main.py").write_text(MAIN.format(text=text))
    (root / "vgpu/hook/unused.py").write_text("raise AssertionError\n")
    (root / "vgpu/hook/later.py").write_text("from vgpu.hook import latest\nWHERE = latest.WHERE\n")
    (root / "vgpu/hook/latest.py").write_text(f"WHERE = 'later in {text}'\n")
    (root / "vgpu/hook/shapes/__init__.py").write_text("from vgpu.hook.shapes import square\n")
    (root / "vgpu/hook/shapes/square.py").write_text("SIDES = 4\n")
    (root / "vgpu/config/colour.py").write_text("NAME = 'green'\n")


def compile_hook(*arguments: str | pathlib.Path, **options: object) -> tuple[int, str]:
    """The compiler's exit status, and what it says."""
    command = [PYTHON, "-I", "-S", COMPILER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    return done.returncode, done.stderr


def test_a_check_compares_the_file_with_the_sources(tmp_path: pathlib.Path) -> None:
    sources, file = tmp_path / "sources", tmp_path / "hook.bytecode"
    write_sources(sources, "first")
    assert compile_hook(sources, file)[0] == 0
    written = file.read_bytes()
    assert compile_hook("--check", sources, file) == (0, "")
    (sources / "vgpu/hook/latest.py").write_text("WHERE = 'elsewhere'\n")
    status, line = compile_hook("--check", sources, file)
    assert status == 1
    assert line == f"{file}: expected the byte code of {sources} for this Python, found other; compile it again\n"
    assert file.read_bytes() == written
    write_sources(sources, "first")
    assert compile_hook("--check", sources, file)[0] == 0
    file.write_bytes(written[:-1])
    assert compile_hook("--check", sources, file)[0] == 1
    file.unlink()
    assert "No such file" in compile_hook("--check", sources, file)[1]


class Installed:
    """A gate with a byte code file, and the small hook's sources."""

    def __init__(self, folder: pathlib.Path, build_gate: Callable[..., pathlib.Path]) -> None:
        self.sources = folder / "sources"
        self.file = folder / "hook.bytecode"
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        settings = {"VGPU_PYTHON_PATH": str(self.sources), "VGPU_BYTE_CODE": str(self.file)}
        self.hook = build_gate(folder / "build", **settings) / "vgpu-hook"

    def reset(self) -> None:
        """Write byte code of a hook that prints "first", and sources of one that prints "second"."""
        self.file.unlink(missing_ok=True)
        write_sources(self.sources, "first")
        assert compile_hook(self.sources, self.file) == (0, "")
        write_sources(self.sources, "second")

    def start(self) -> str:
        state = json.dumps({**STATE, "bundle": str(self.bundle)})
        done = subprocess.run([self.hook, "prestart"], input=state, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), request.getfixturevalue("build_gate"))


@pytest.fixture
def installed(made: Installed) -> Installed:
    made.reset()
    return made


def test_the_byte_code_is_one_version_whatever_becomes_of_the_sources(installed: Installed) -> None:
    main = f"{installed.sources}/vgpu/hook/main.py"
    assert installed.start() == f"first green 4 later in first {main} 2\n"
    for source in installed.sources.rglob("*.py"):
        source.unlink()
    assert installed.start() == f"first green 4 later in first {main} 2\n"


def shorten(by: int) -> Callable[[pathlib.Path], None]:
    return lambda file: os.truncate(file, max(0, file.stat().st_size - by))


def keep(length: int) -> Callable[[pathlib.Path], None]:
    return lambda file: os.truncate(file, length)


def flip(at: int) -> Callable[[pathlib.Path], None]:
    def change(file: pathlib.Path) -> None:
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        file.write_bytes(content)

    return change


def link(file: pathlib.Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def directory(file: pathlib.Path) -> None:
    file.unlink()
    file.mkdir()


UNUSABLE: dict[str, Callable[[pathlib.Path], object]] = {
    "missing": pathlib.Path.unlink,
    "another magic number": flip(0),
    "another hash": flip(4),
    "damaged in the middle": flip(700),
    "empty": keep(0),
    "cut within the magic number": keep(3),
    "cut within the hash": keep(11),
    "cut after the hash": keep(12),
    "cut by a byte": shorten(1),
    "cut by half": keep(500),
    "another owner": lambda file: os.chown(file, 65534, 0),
    "writable by the group": lambda file: file.chmod(0o664),
    "writable by others": lambda file: file.chmod(0o646),
    "a link": link,
    "a directory": directory,
}


@pytest.mark.parametrize("damage", list(UNUSABLE.values()), ids=list(UNUSABLE))
def test_an_unusable_file_leaves_the_sources(installed: Installed, damage: Callable[[pathlib.Path], object]) -> None:
    assert installed.start().startswith("first ")
    damage(installed.file)
    try:
        assert installed.start() == f"second green 4 later in second {installed.sources}/vgpu/hook/main.py 2\n"
    finally:
        if installed.file.is_dir() and not installed.file.is_symlink():
            installed.file.rmdir()


def test_a_new_file_replaces_the_last(installed: Installed) -> None:
    before = installed.file.stat().st_ino
    assert compile_hook(installed.sources, installed.file)[0] == 0
    assert installed.start().startswith("second green 4 later in second ")
    after = installed.file.stat()
    assert (after.st_ino != before, after.st_uid, after.st_mode & 0o7777) == (True, 0, 0o644)


def small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def test_a_failure_to_write_leaves_the_last_file(installed: Installed) -> None:
    before = installed.file.read_bytes()
    status, line = compile_hook(installed.sources, installed.file, preexec_fn=small_files)
    assert (status, line.count("\n")) == (1, 1)
    assert line.startswith(f"compile_hook.py: {installed.file}: ")
    assert installed.file.read_bytes() == before
    assert not installed.file.with_name("hook.bytecode.new").exists()
    nowhere = installed.file / "below a file"
    assert "Not a directory" in compile_hook(installed.sources, nowhere)[1]


def test_broken_sources_leave_the_last_file(installed: Installed) -> None:
    before = installed.file.read_bytes()
    (installed.sources / "vgpu/hook/later.py").write_text("import nothing_of_that_name\n")
    status, line = compile_hook(installed.sources, installed.file)
    assert status == 1
    assert "nothing_of_that_name" in line
    assert installed.file.read_bytes() == before


def test_the_start_program_imports_nothing_that_is_not_loaded() -> None:
    names = ("_frozen_importlib", "_frozen_importlib_external", "_imp", "marshal", "posix", "sys")
    code = f"import sys; print({{*{names!r}}} - {{*sys.modules}})"
    done = subprocess.run([PYTHON, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


EXECUTE = """
import marshal, sys, traceback
finder, table = marshal.loads(open(sys.argv[1], 'rb').read()[12:])
exec(finder, {'table': table})
"""


def execute(file: pathlib.Path, code: str) -> str:
    """The output of `code` in an interpreter that has `file` and no other file of vgpu."""
    command = [PYTHON, "-I", "-S", "-c", EXECUTE + code, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_traceback_names_the_source(installed: Installed) -> None:
    code = """
from vgpu.hook.main import fail
try:
    fail()
except ValueError:
    traceback.print_exc(file=sys.stdout)
"""
    shown = execute(installed.file, code)
    assert f'File "{installed.sources}/vgpu/hook/main.py", line 10, in fail' in shown


def test_a_module_that_the_file_lacks_is_not_taken_from_the_sources(installed: Installed) -> None:
    code = f"""
sys.path.insert(0, {str(installed.sources)!r})
try:
    import vgpu.hook.unused
except ModuleNotFoundError as error:
    print(error)
"""
    assert execute(installed.file, code) == "No module named 'vgpu.hook.unused' in the hook's byte code\n"


@pytest.fixture(scope="module")
def roots() -> str:
    return f"{CHECKOUT}/config:{CHECKOUT}/hook"


#: Without packages: those without code are there from the start, in the file.
LOADED = """
found = {name: module for name, module in sys.modules.items() if name.partition('.')[0] == 'vgpu'}
print(*sorted(name for name, module in found.items() if not hasattr(module, '__path__')))
"""


def test_the_file_has_what_the_hook_loads_and_what_its_functions_import(tmp_path: pathlib.Path, roots: str) -> None:
    file = tmp_path / "hook.bytecode"
    assert compile_hook(roots, file)[0] == 0
    source = f"import sys\nsys.path[:0] = {roots.split(':')!r}\nimport vgpu.hook.main\n{LOADED}"
    command = [PYTHON, "-I", "-S", "-c", source]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert execute(file, f"import vgpu.hook.main\n{LOADED}").split() == loaded
    everything = execute(file, "print(*(name for name, entry in table[0].items() if not entry[1]))").split()
    later = set(everything) - set(loaded)
    assert later, "the hook imports the bus to systemd within a function"
    assert execute(file, "".join(f"import {name}\n" for name in everything) + LOADED).split() == sorted(everything)


SHARE = {"vgpu.io/cores": "20", "vgpu.io/memory": "1Gi"}
CASES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "no memory": ({"vgpu.io/cores": "20"}, ("prestart",)),
    "no settings": (SHARE, ("prestart",)),
    "an explanation": (SHARE, ("--dry-run", "prestart")),
    "a stop": ({"vgpu.io/cores": "20"}, ("poststop",)),
    "no number": ({"vgpu.io/cores": "x"}, ("createRuntime",)),
}


@pytest.fixture(scope="module")
def whole_hook(tmp_path_factory: pytest.TempPathFactory, roots: str, request: pytest.FixtureRequest) -> pathlib.Path:
    """A gate with this checkout's hook as byte code, without sources."""
    folder = tmp_path_factory.mktemp("whole")
    assert compile_hook(roots, folder / "hook.bytecode")[0] == 0
    settings = {"VGPU_PYTHON_PATH": "/nowhere", "VGPU_BYTE_CODE": str(folder / "hook.bytecode")}
    built: pathlib.Path = request.getfixturevalue("build_gate")(folder / "build", **settings)
    return built / "vgpu-hook"


@pytest.mark.parametrize("case", list(CASES))
def test_the_hook_prints_the_same_from_byte_code(
    whole_hook: pathlib.Path, gate_bin: pathlib.Path, bundle: pathlib.Path, tmp_path: pathlib.Path, case: str
) -> None:
    annotations, arguments = CASES[case]
    fields = {"annotations": annotations}
    (bundle / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", **fields, "root": {"path": "rootfs"}}))
    state = json.dumps({**STATE, **fields, "pid": os.getpid(), "bundle": str(bundle)})

    def said(hook: pathlib.Path) -> tuple[int, str, str]:
        command = [hook, "--config", tmp_path / "config.json", *arguments]
        done = subprocess.run(command, input=state, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert said(whole_hook) == said(gate_bin / "vgpu-hook")
