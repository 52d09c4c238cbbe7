"""The modules that a process loads: the hook loads few, and the plugin loads none that it does not need yet."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from checkout import CHECKOUT

from vgpu.config import settings
from vgpu.hook import main as hook_main
from vgpu.node.ctl import main as program

# The process


def test_what_the_process_imports() -> None:
    """A fresh interpreter, started like the gate's, loads no module that is slow to import or not needed."""
    paths = [
        os.path.dirname(os.path.dirname(os.path.dirname(module.__file__ or ""))) for module in (settings, hook_main)
    ]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; import vgpu.hook.main; "
        "import vgpu.hook.devices.cgroup_v1, vgpu.hook.devices.cgroup_v2, vgpu.hook.request.pod_record; "  # later ones
        "print(' '.join(sorted(name for name in sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    slow = {
        "dataclasses", "enum", "typing", "pathlib", "logging", "subprocess", "re", "json", "threading", "collections",
        "functools", "inspect", "shutil", "tempfile", "socket", "yaml", "click", "contextlib", "ctypes", "types",
    }  # fmt: skip
    assert not modules & slow
    assert not {name for name in modules if name.startswith("vgpu.plugin")}


def test_placement_loads_no_heavy_module():
    """It runs in the hook's process. The interpreter has `-S` as there, and gets this process's paths."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import vgpu.hook.placement.placement\n"
        "heavy = {'dataclasses', 'enum', 'typing', 'pathlib', 're', 'json', 'logging', 'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_little_is_imported(repository: Path) -> None:
    """Each import costs time at every start of a container."""
    code = (
        f"import sys; sys.path[:0] = [{str(repository / 'config')!r}, {str(repository / 'hook')!r}]\n"
        "import vgpu.hook.devices.allow\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"_socket", "vgpu.hook.linux.dbus", "vgpu.hook.devices.systemd"} & set(done.stdout.split()), (
        "without systemd"
    )
    heavy = {"re", "json", "dataclasses", "enum", "typing", "pathlib", "logging", "subprocess", "contextlib"}
    assert not heavy & set(done.stdout.split())


HEAVY = ("re", "json", "dataclasses", "typing", "enum", "pathlib", "logging", "subprocess", "functools", "collections")


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the system's Python is missing")
def test_modules_of_the_hooks_process_import_little() -> None:
    top = CHECKOUT
    code = (
        f"import sys; sys.path[:0] = [{str(top / 'config')!r}, {str(top / 'hook')!r}]\n"
        "from vgpu.hook.formats import elf, ldcache\n"
        "from vgpu.hook.linux import staleness\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def entry(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, value, program.GROUP)


CONFIG = entry("config", "vgpu.node.ctl.config:config")


@pytest.fixture(autouse=True)
def verbs(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """The entry points that vgpuctl finds, whether or not vgpu is installed here."""
    found = [CONFIG]
    monkeypatch.setattr(metadata, "entry_points", lambda group: list(found))
    monkeypatch.delenv("NODE_NAME", raising=False)
    return found


def test_counting_needs_no_grpc() -> None:
    program = "import sys, vgpu.node.ctl.config; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"False\n"


#: What --help and --version do without. importlib.metadata has some of the standard library's.
LIBRARIES = ("grpc", "google.protobuf", "kubernetes", "yaml", "jsonschema", "psutil", "pynvml", "rich", "tabulate")
PROGRAMS = {"vgpuctl": "vgpu.node.ctl.main", "vgpud": "vgpu.node.daemon.command",
            "vgpu-device-plugin": "vgpu.plugin.command"}  # fmt: skip


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_help_and_version_need_no_library(name: str, option: str) -> None:
    """A module that is None in sys.modules cannot be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({LIBRARIES!r})); sys.argv = [{name!r}, {option!r}]; "
        f"from {PROGRAMS[name]} import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"{name} {metadata.version('vgpu')}\n" if option == "--version" else f"sage: {name} "
    assert expected in done.stdout


VERBS = ("config check", "config apply", "config import", "config show", "doctor", "grant list", "grant add",
         "grant remove", "health", "inventory show", "inventory refresh", "logs", "ps", "set", "status",
         "top")  # fmt: skip


def test_the_help_of_a_verb_needs_no_slow_library_and_every_verb_prints_json() -> None:
    slow = ("grpc", "google.protobuf", "kubernetes", "jsonschema", "psutil", "rich", "tabulate")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({slow!r}))\n"
        "from click.testing import CliRunner; from vgpu.node.ctl.main import main\n"
        f"for verb in {VERBS!r}:\n"
        "    done = CliRunner().invoke(main, [*verb.split(), '--help'])\n"
        "    assert done.exit_code == 0 and '--output [' in done.output and 'json' in done.output, (verb, done.output)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_plugin_says_which_package_brings_grpc() -> None:
    code = "import sys; sys.modules['grpc'] = None; sys.argv = ['x']; from vgpu.plugin.command import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("; run: apt-get install python3-grpcio python3-protobuf\n")
    assert done.stderr.count("\n") == 1


def test_the_plugin_refuses_a_grpc_that_hangs() -> None:
    code = (
        "import sys, types; sys.modules['vgpu.plugin.main'] = types.ModuleType('main'); "
        "sys.modules['grpc'] = types.ModuleType('grpc'); sys.modules['grpc'].__version__ = '1.30.2'; "
        "import vgpu.plugin.command as c; c.SINCE_PYTHON = (3, 0); sys.argv = ['x']; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "expected 1.42 or newer for this Python, found 1.30.2, which hangs" in done.stderr


def test_what_is_not_needed_to_register_is_not_loaded() -> None:
    program = "import sys, vgpu.plugin.main; print([name for name in sys.argv[1:] if name in sys.modules])"
    later = [
        "kubernetes",
        "pynvml",
        "yaml",
        "jsonschema",
        "click",
        "http.server",
        "vgpu.plugin.cards.health_monitor",
        "vgpu.plugin.kubelet.grant_gc",
        "vgpu.plugin.apiserver",
        "psutil",
        "tabulate",
        "importlib.metadata",
    ]
    command = [sys.executable, "-c", program, *later]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_the_kubernetes_package_is_not_loaded_before_the_connection() -> None:
    program = (
        "import sys, vgpu.plugin.apiserver\n"
        "print([name for name in ('kubernetes', 'urllib3', 'yaml', 'requests') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
