"""What the gate passes to the interpreter: of the caller's only the state, the arguments, stdout and stderr."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import resource
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import without_calls

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

MARK = {"annotations": {"vgpu.io/cores": "20"}}
CLEAN = b"PATH=/usr/sbin:/usr/bin:/sbin:/bin\0LC_ALL=C.UTF-8\0"
HOSTILE = {
    "PATH": "/tmp/evil", "LD_PRELOAD": "/tmp/evil.so", "LD_LIBRARY_PATH": "/tmp", "PYTHONPATH": "/tmp/evil",
    "PYTHONHOME": "/tmp/evil", "PYTHONSTARTUP": "/tmp/evil.py", "GCONV_PATH": "/tmp/evil", "VGPU_PYTHON": "/tmp/evil",
}  # fmt: skip


def test_arguments(hook: Run, gate: Any) -> None:
    hook(MARK, args=("createRuntime", "--dry-run", "--config=/etc/c.json"))
    argv = gate.argv()
    assert argv[:4] == [str(gate.interpreter), "-I", "-S", "-c"]
    assert "sys.path[:0] = '/opt/a:/opt/b'.split(':')" in argv[4]
    assert argv[5:] == ["--config", "/etc/c.json", "--dry-run", "createRuntime"]


def test_the_administrators_words_are_arguments_of_their_own(hook: Run, gate: Any) -> None:
    given = ("--annotation=vgpu.io/cores=30", "--standalone=any", "--annotation", "vgpu.io/use-gputype=a b")
    hook({}, config={}, args=(*given, "poststop"))
    annotations = ["--annotation", "vgpu.io/cores=30", "--annotation", "vgpu.io/use-gputype=a b"]
    assert gate.argv()[5:] == ["--standalone", "any", *annotations, "poststop"]
    gate.install()
    more = ("--config=/c", "--prepared=u-0", "--dry-run", "--standalone=key", "prestart")
    hook({}, config={}, args=(*["--annotation=vgpu.io/x="] * 8, *more))
    assert gate.argv()[5:] == [
        "--config", "/c", "--dry-run", "--standalone", "key", "--prepared", "u-0",
        *["--annotation", "vgpu.io/x="] * 8, "prestart",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--standalone", "all"], ["--standalone"], ["--standalone="], ["--annotation", "cores=30"],
        ["--annotation=vgpu.io/cores"], ["--annotation"], ["--annotation=vgpu.io/x="] * 9, ["--dry-run=1"],
        ["--prepared"],
    ],
)  # fmt: skip
def test_wrong_words_are_an_error_of_usage(hook: Run, gate: Any, words: list[str]) -> None:
    done = hook(MARK, args=("prestart", *words))
    assert done.returncode == 2
    assert done.stderr.startswith(b"vgpu-hook: arguments: expected [--config /PATH]")
    assert done.stderr.count(b"\n") == 1
    assert not gate.started()


@pytest.mark.parametrize("size", [0, 1 << 19])
def test_a_limit_of_file_sizes_does_not_keep_the_state_from_the_hook(
    hook: Run, gate: Any, bundle: pathlib.Path, size: int
) -> None:
    """The runtime's RLIMIT_FSIZE counts for a memfd. SIGXFSZ would end the gate without a line."""
    gate.interpreter.write_text("#!/bin/sh\n[ $(wc -c) -gt $((size + 9)) ] && exit 9\n".replace("size", str(size)))
    done = hook(
        {**MARK, "x": "y" * size}, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (9, b"")


@pytest.mark.parametrize("rc", [0, 1, 7])
def test_the_exit_status_is_the_interpreters(hook: Run, gate: Any, rc: int) -> None:
    gate.install(rc)
    assert hook(MARK).returncode == rc


def test_an_interpreter_that_is_killed_is_one_line(hook: Run, gate: Any) -> None:
    gate.interpreter.write_text("#!/bin/sh\nkill -9 $$\n")
    done = hook(MARK)
    line = b"vgpu-hook: the hook's process: expected to finish, found its end by signal 9; start the container again\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_environment_and_directory(hook: Run, gate: Any, plain_gate: Any) -> None:
    # A sanitized program is not static, so LD_PRELOAD would reach it.
    hook(MARK, env=HOSTILE if gate is plain_gate else {})
    assert gate.seen("environ") == CLEAN
    assert gate.seen("cwd") == b"/\n"


def test_umask_and_signals(hook: Run, gate: Any) -> None:
    def caller() -> None:
        os.umask(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM, signal.SIGRTMAX])
        for ignored in (signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGRTMIN + 3):
            signal.signal(ignored, signal.SIG_IGN)

    hook(MARK, preexec_fn=caller, restore_signals=False)
    assert gate.seen("umask") == b"0022\n"
    status = dict(line.split(":\t", 1) for line in gate.seen("status").decode().splitlines() if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) == 0


def leave_open() -> None:
    for fd in (5, 63, 700):
        os.dup2(2, fd, inheritable=True)


def on_older_kernel(*calls: str) -> Callable[[], None]:
    """These calls fail with ENOSYS."""
    memfd_create = {"x86_64": 319, "aarch64": 279}.get(platform.machine())
    if memfd_create is None:
        pytest.skip(f"knows no system call numbers of {platform.machine()}")
    numbers = {"memfd_create": memfd_create, "close_range": 436}

    def prepare() -> None:
        leave_open()
        without_calls.install([numbers[call] for call in calls])

    return prepare


FALLBACKS = [(), ("memfd_create",), ("close_range",), ("memfd_create", "close_range")]


@pytest.mark.parametrize("missing", FALLBACKS, ids=lambda calls: "+".join(calls) or "none")
@pytest.mark.parametrize("size", [0, 65_000, 1_000_000])
def test_state_and_descriptors(hook: Run, gate: Any, missing: tuple[str, ...], size: int, bundle: pathlib.Path) -> None:
    state = json.dumps({"bundle": str(bundle), **MARK, "x": "x" * size}).encode()
    caller = on_older_kernel(*missing) if missing else leave_open
    result = hook(state, preexec_fn=caller, close_fds=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert gate.seen("state") == state
    # from 10 on a shell keeps the script itself and what it has redirected
    assert set(map(int, gate.seen("fds").split())) <= {0, 1, 2, 10, 11}


def test_closed_standard_descriptors_are_opened(hook: Run, gate: Any) -> None:
    def close_outputs() -> None:
        os.close(1)
        os.close(2)

    assert hook(MARK, preexec_fn=close_outputs).returncode == 0
    assert set(gate.seen("fds").split()) >= {b"0", b"1", b"2"}


@pytest.mark.parametrize("stage", ["prestart", "poststop"])
def test_a_broken_python_refuses_only_with_a_marker(hook: Run, gate: Any, stage: str) -> None:
    gate.interpreter.unlink()
    result = hook(MARK, args=(stage,))
    line = f"vgpu-hook: exec {gate.interpreter}: No such file or directory; install vgpu and python3 again\n"
    assert (result.returncode, result.stderr.decode()) == (1, line)
    gate.interpreter.write_text("no interpreter line")
    gate.interpreter.chmod(0o644)
    assert b": Permission denied; install vgpu and python3 again\n" in hook(MARK, args=(stage,)).stderr
    assert (hook({}).returncode, hook({}).stderr) == (0, b"")


MAIN = """
import gc, json, os, sys
def entry(argv):
    flags = [sys.flags.isolated, sys.flags.no_site, gc.isenabled()]
    print(json.dumps({"argv": argv, "path": sys.path[:2], "flags": flags,
                      "state": json.load(sys.stdin), "environ": dict(os.environ)}))
    sys.exit(7)
"""


@pytest.fixture(scope="module")
def real_python(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[pathlib.Path, ...]:
    """A gate on the system's Python. vgpu.hook.main is this test's; the namespace is spread over two roots."""
    folder = tmp_path_factory.mktemp("real")
    roots = (folder / "one", folder / "two")
    (roots[0] / "vgpu/config").mkdir(parents=True)
    (roots[1] / "vgpu/hook").mkdir(parents=True)
    (roots[1] / "vgpu/hook/main.py").write_text(MAIN)
    gate: Any = request.getfixturevalue("build_gate")(folder / "build", VGPU_PYTHON_PATH=f"{roots[0]}:{roots[1]}")
    return gate, *roots


def test_the_real_interpreter(real_python: tuple[pathlib.Path, ...], bundle: pathlib.Path) -> None:
    bin_folder, one, two = real_python
    state = {"bundle": str(bundle), **MARK}
    command = [bin_folder / "vgpu-hook", "poststop"]
    environ = {**HOSTILE, "LANG": "de_DE.UTF-8"}
    result = subprocess.run(command, input=json.dumps(state).encode(), env=environ, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (7, b"")
    seen = json.loads(result.stdout)
    assert seen == {
        "argv": ["poststop"],
        "path": [str(one), str(two)],
        "flags": [1, 1, False],
        "state": state,
        "environ": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
    }


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "import nothing_of_that_name",
            b"ModuleNotFoundError: \"No module named 'nothing_of_that_name'\"; install vgpu",
        ),
        ("raise ValueError('two\\nlines')", b"ValueError: 'two\\nlines'; install vgpu again"),
        ("raise GeneratorExit", b"GeneratorExit: ''; install vgpu again"),
        ("raise SystemExit('x')", b"SystemExit: 'x'; install vgpu again"),
        ("raise KeyboardInterrupt", b"the signal SIGINT; start the container again"),
        ("def entry(:", b"SyntaxError: "),
        ("x = 1", b"ImportError: "),
    ],
)
def test_a_broken_installation_is_one_line(
    real_python: tuple[pathlib.Path, ...], bundle: pathlib.Path, code: str, found: bytes
) -> None:
    bin_folder, _, two = real_python
    module = two / "vgpu/hook/main.py"
    module.write_text(code + "\n")
    state = json.dumps({"bundle": str(bundle), **MARK}).encode()
    result = subprocess.run([bin_folder / "vgpu-hook", "prestart"], input=state, capture_output=True, check=False)
    assert (result.returncode, result.stderr.count(b"\n")) == (1, 1)
    assert result.stderr.startswith(b"vgpu-hook: import")
    assert b", found " + found in result.stderr
    module.write_text(MAIN)


BAD_PATHS = ["relative/path", "/a:b", "/it's", '/quo"te', "/back\\slash", "/a:", ""]


def test_cmake_refuses_a_path_that_could_be_code(build_gate: Any, tmp_path: pathlib.Path) -> None:
    """In one folder, in which cmake looks for the compiler once."""
    for path in BAD_PATHS:
        with pytest.raises(subprocess.CalledProcessError) as failure:
            build_gate(tmp_path / "build", VGPU_PYTHON_PATH=path)
        assert b"VGPU_PYTHON_PATH: expected absolute paths" in failure.value.stderr
