"""The modules that a process loads: the hook loads few, and the plugin loads none that it does not need yet."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from checkout import CHECKOUT

#: What is slow to import, or not needed, in the hook's process.
SLOW = (
    "dataclasses", "enum", "typing", "pathlib", "logging", "subprocess", "re", "json", "threading", "collections",
    "functools", "inspect", "shutil", "tempfile", "socket", "yaml", "click", "contextlib", "ctypes", "types",
    "vgpu.plugin",
)  # fmt: skip
#: What the plugin loads when kubelet knows of the cards already.
LATER = (
    "kubernetes", "pynvml", "yaml", "jsonschema", "click", "http.server", "vgpu.plugin.kubelet.grant_gc",
    "vgpu.plugin.apiserver", "psutil", "tabulate", "importlib.metadata",
)  # fmt: skip
#: Modules of the hook's process that are imported together.
HOOK = [
    ("vgpu.hook.start", "vgpu.hook.devices.cgroup_v1", "vgpu.hook.devices.cgroup_v2", "vgpu.hook.request.pod_record"),
    ("vgpu.hook.ledger.commitments", "vgpu.hook.request.outside_kubernetes", "vgpu.hook.inject.classic_mounts"),
]
#: module -> what it does without.
OTHERS = {
    "vgpu.node.ctl.config": ("grpc",),
    "vgpu.plugin.main": LATER,
    "vgpu.plugin.apiserver": ("kubernetes", "urllib3", "yaml", "requests"),
}


def loaded(*modules: str, prefix: str = "", options: tuple[str, ...] = ()) -> set[str]:
    """What a fresh interpreter has loaded when it has imported these."""
    code = f"import sys; {prefix}import {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def loaded_by_the_hook(*modules: str) -> set[str]:
    paths = [str(CHECKOUT / part) for part in ("config", "hook")]
    return loaded(*modules, prefix=f"sys.path[:0] = {paths}; ", options=("-I", "-S"))


@pytest.mark.parametrize("modules", HOOK, ids=lambda modules: modules[0])
def test_the_hooks_process_loads_little(modules: tuple[str, ...]) -> None:
    """Each import costs time at every start of a container."""
    assert not loaded_by_the_hook(*modules) & {*SLOW}


@pytest.mark.parametrize("module", OTHERS)
def test_what_is_not_needed_yet_is_not_loaded(module: str) -> None:
    assert not loaded(module) & {*OTHERS[module]}


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
