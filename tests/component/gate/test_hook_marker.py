"""Which containers vgpu-hook leaves alone, for which it starts Python, and which it refuses itself."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from checkout import CHECKOUT

from vgpu.config.errors import VgpuError
from vgpu.hook.request import oci_state

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

LEAVE, RUN, REFUSE = "leave", "run", "refuse"
MARK = {"annotations": {"vgpu.io/cores": "20"}}
ENV_MARK = {"process": {"env": ["PATH=/bin", "VGPU_GRANT_CORES=abc"]}}
CRI, CRIO = "io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"
#: A pod's sandbox has the pod's annotations, among them wishes and names that nobody reads.
SANDBOX = {"annotations": {CRI: "sandbox", "vgpu.io/core-limit": "50", "vgpu.io/x": ""}}
CRIO_SANDBOX = {"annotations": {"vgpu.io/policy": "x", CRIO: "sandbox"}}
#: By these names a container asks for an amount: then it is none.
AMOUNTS = [
    "vgpu.io/grant-gpu", "vgpu.io/request-", "vgpu.io/request-0f", "vgpu.io/cores", "vgpu.io/memory", "vgpu.io/gpus",
]  # fmt: skip
CONTAINER = {"annotations": {"io.kubernetes.cri.container-type": "container", "vgpu.io/grant-cores": "x"}}


def verdict(result: subprocess.CompletedProcess[bytes], gate: Any) -> str:
    """The verdict. Asserts that a refusal prints one line and anything else prints nothing."""
    if gate.started():
        assert (result.returncode, result.stderr) == (0, b"")
        return RUN
    if result.returncode == 0:
        assert result.stderr == b""
        return LEAVE
    assert result.returncode == 1, result
    assert result.stdout == b""
    assert result.stderr.startswith(b"vgpu-hook: ")
    assert result.stderr.endswith(b"\n")
    assert result.stderr.count(b"\n") == 1
    assert b"ERROR: " not in result.stderr, "a sanitizer's report"
    return REFUSE


WHOLE: list[tuple[str, Any, Any, str]] = [
    ("nothing", {}, {}, LEAVE),
    ("null annotations", {"annotations": None}, {"annotations": None, "process": None}, LEAVE),
    ("annotation in the state", MARK, {}, RUN),
    ("annotation in the state, no config.json", MARK, None, RUN),
    ("annotation in config.json", {}, MARK, RUN),
    ("env in config.json", {}, ENV_MARK, RUN),
    ("env in the state is none", ENV_MARK, {}, LEAVE),
    ("the bare prefix", {"annotations": {"vgpu.io/": ""}}, {}, RUN),
    ("another domain", {"annotations": {"notvgpu.io/cores": "1", "vgpu.io": "1", "vgpu.iox/": "1"}}, {}, LEAVE),
    ("as a value", {"annotations": {"a": "vgpu.io/cores"}}, {"annotations": {"b": "VGPU_GRANT_X=1"}}, LEAVE),
    ("in args", {}, {"process": {"args": ["vgpu.io/x", "VGPU_GRANT_CORES=1"], "env": []}}, LEAVE),
    ("as a deeper key", {"x": MARK}, {"linux": MARK, "process": MARK}, LEAVE),
    ("env elsewhere", {}, {"env": ["VGPU_GRANT_X=1"], "hooks": {"prestart": [{"env": ["VGPU_GRANT_X=1"]}]}}, LEAVE),
    ("env inside an entry", {}, {"process": {"env": ["A=VGPU_GRANT_CORES=1", "vgpu_grant_x=1"]}}, LEAVE),
    ("env of wrong types", {}, {"process": {"env": [1, None, {"VGPU_GRANT_": 1}, ["VGPU_GRANT_"]]}}, LEAVE),
    ("env that is no list", {}, {"process": {"env": "VGPU_GRANT_CORES=1"}}, LEAVE),
    ("annotations that are a list", {"annotations": ["vgpu.io/cores"]}, {}, LEAVE),
    ("a value of another type", {"annotations": {"vgpu.io/cores": [{}, {"a": []}]}}, {}, RUN),
    ("sandbox in the state", SANDBOX, {}, LEAVE),
    ("sandbox in config.json", {"annotations": {"vgpu.io/x": ""}}, SANDBOX, LEAVE),
    ("sandbox in config.json, an amount in the state", MARK, SANDBOX, RUN),
    ("sandbox in the state, an amount in config.json", SANDBOX, MARK, RUN),
    ("sandbox with a grant in the environment", CRIO_SANDBOX, ENV_MARK, RUN),
    ("sandbox by CRI-O", {}, CRIO_SANDBOX, LEAVE),
    ("a pod's container", CONTAINER, CONTAINER, RUN),
    ("sandbox as another key's value", {"annotations": {"x": "sandbox", "vgpu.io/a": "sandbox"}}, {}, RUN),
    ("sandbox of another type", {"annotations": {"io.kubernetes.cri.container-type": 1, "vgpu.io/a": ""}}, {}, RUN),
]


@pytest.mark.parametrize(("state", "config", "expected"), [case[1:] for case in WHOLE], ids=[c[0] for c in WHOLE])
def test_whole_documents(hook: Run, gate: Any, state: Any, config: Any, expected: str) -> None:
    assert verdict(hook(state, config=config), gate) == expected


@pytest.mark.parametrize("config", [{}, CRIO_SANDBOX, None], ids=["plain", "sandbox", "no config.json"])
def test_a_hook_of_a_prepared_claim_always_runs(hook: Run, gate: Any, config: Any) -> None:
    """No other mark is on the container. A sandbox has no such hook, so its type is forged."""
    assert verdict(hook({}, config=config, args=("--prepared", "u-0", "createRuntime")), gate) == RUN


@pytest.mark.parametrize("name", AMOUNTS)
@pytest.mark.parametrize("kind", [CRI, CRIO])
def test_a_container_that_asks_for_an_amount_is_no_sandbox(hook: Run, gate: Any, name: str, kind: str) -> None:
    """An image, or a pod's author, can forge the type."""
    marks = {"annotations": {kind: "sandbox", name: "1"}}
    for state, config in ((marks, {}), ({}, marks), ({"annotations": {name: "1"}}, {"annotations": {kind: "sandbox"}})):
        gate.install()
        assert verdict(hook(state, config=config), gate) == RUN


@pytest.mark.parametrize(
    "options", [("--annotation", "vgpu.io/cores=30"), ("--annotation=vgpu.io/x=", "--standalone=key")]
)
def test_the_command_line_asks_for_every_container_but_sandboxes(
    hook: Run, gate: Any, options: tuple[str, ...]
) -> None:
    assert verdict(hook({}, config={}, args=(*options, "prestart")), gate) == RUN
    gate.install()
    assert verdict(hook(b"", config={}, args=(*options, "prestart")), gate) == REFUSE
    assert verdict(hook({}, config=SANDBOX, args=(*options, "prestart")), gate) == LEAVE


@pytest.mark.parametrize("writes", [b"", b'{"annotations":{"vgpu.io/cores":"1"}}', b"x" * (2 << 20)])
@pytest.mark.parametrize(("config", "expected"), [(MARK, REFUSE), ({}, LEAVE)])
def test_a_writer_that_never_closes_its_end_is_not_waited_for(
    gate: Any, bundle: pathlib.Path, writes: bytes, config: Any, expected: str
) -> None:
    """The build under test waits 3 s, and no longer when the writer goes on with a byte now and then."""
    (bundle / "config.json").write_text(json.dumps(config))
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [gate.bin / "vgpu-hook", "prestart"], stdin=read_end, cwd=bundle, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        os.close(read_end)
        with contextlib.suppress(BrokenPipeError):
            os.set_blocking(write_end, False)
            for byte in writes[: 1 << 16].split(b":"):
                os.write(write_end, byte)
        out, err = process.communicate(timeout=120)
        os.close(write_end)
    expected = REFUSE if b"vgpu.io/" in writes else expected
    result = subprocess.CompletedProcess([], process.returncode, out, err)
    assert verdict(result, gate) == expected
    assert expected == LEAVE or b"found no end of it within 3 s" in err


def test_one_bound_for_config_json_in_the_gate_and_in_python(hook: Run, gate: Any, bundle: pathlib.Path) -> None:
    """A config.json of the largest size is read by both, and one byte more is refused by both."""
    header = (CHECKOUT / "hook/gate/input.h").read_text()
    bounds = {name: int(size) << 20 for name, size in re.findall(r"#define (\w+)_MAX_MIB (\d+)", header)}
    assert bounds == {"STATE": oci_state.MAX_STATE, "CONFIG": oci_state.MAX_CONFIG}
    text = json.dumps({**MARK, "root": {"path": "/"}}).encode()
    for size, expected in ((oci_state.MAX_CONFIG, RUN), (oci_state.MAX_CONFIG + 1, REFUSE)):
        gate.install()
        assert verdict(hook({}, config=text.ljust(size)), gate) == expected
        state = {"id": "c", "pid": 0, "bundle": str(bundle)}
        if expected == RUN:
            assert oci_state.read(state).annotations == MARK["annotations"]
        else:
            with pytest.raises(VgpuError, match="at most 16777216 bytes"):
                oci_state.read(state)


SPELLINGS = [
    (rb'{"annotations":{"vgpu.io\/cores":"1"}}', RUN),
    (rb'{"annotations":{"\u0076gpu\u002eio\u002Fcores":"1"}}', RUN),
    (rb'{"ann\u006ftations":{"vgpu.io/x":""}}', RUN),
    (b' \t\r\n{ "annotations" :\n{ "a" : 1 , "vgpu.io/x" : { } } } \n', RUN),
    (rb'{"process":{"env":["VGPU\u005fGRANT_CORES=1"]}}', RUN),
    (rb'{"annotations":{"\\vgpu.io/x":"1","\"vgpu.io/x":"1","\u0000vgpu.io/x":""}}', LEAVE),
    (rb'{"annotations":{"\u0176gpu.io/x":"1","\uff56gpu.io/x":"1"}}', LEAVE),
    (b'{"annotations":{"a\\\\":"vgpu.io/x"}}', LEAVE),
    (b'{"annotations":{},"annotations":{"vgpu.io/x":""}}', RUN),
    (b'{"annotations":{"vgpu.io/x":""},"annotations":{}}', RUN),
    (b'{"annotations":{"\xff\xfe":"\xc3","vgpu.io/x":""}}', RUN),
    (b'{"n":[-0,0,1.5e+300,1E-9,' + b"9" * 5000 + b'],"annotations":{}}', LEAVE),
    (b'{"a":' + b"[" * 400 + b"]" * 400 + b',"annotations":{"vgpu.io/x":""}}', RUN),
    (b"{}", LEAVE),
]


@pytest.mark.parametrize(("config", "expected"), SPELLINGS)
def test_spellings_of_config_json(hook: Run, gate: Any, config: bytes, expected: str) -> None:
    assert verdict(hook({}, config=config), gate) == expected


@pytest.mark.parametrize("name", ["plain", "with space", 'quo"te\\', "amp&<>", "ümläut", "emoji😀", "new\nline"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_bundles_path_is_read_as_json(
    hook: Run, gate: Any, bundle: pathlib.Path, name: str, ascii_only: bool
) -> None:
    folder = bundle / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ENV_MARK))
    state = json.dumps({"bundle": str(folder)}, ensure_ascii=ascii_only).replace("&", r"\u0026").encode()
    assert verdict(hook(state), gate) == RUN


HALF = b'{"bundle":"/b","annotations":{"vgpu.io/cores":"2'
BAD_STATES: list[tuple[str, bytes, Any, str]] = [
    ("empty", b"", {}, LEAVE),
    ("empty, a marker in config.json", b"", MARK, REFUSE),
    ("empty, a sandbox by config.json", b"", SANDBOX, LEAVE),
    ("empty, a broken config.json", b"", b"{", LEAVE),
    ("empty, a broken config.json with a marker", b"", b'{"annotations":{"vgpu.io/cores"', REFUSE),
    ("empty, no config.json", b"", None, LEAVE),
    ("white space", b" \n", {}, LEAVE),
    ("truncated", b'{"bundle":"/b","annotations":{"a', {}, LEAVE),
    ("truncated, with a marker", HALF, {}, REFUSE),
    ("truncated, with an escaped marker", HALF.replace(b"/cores", rb"\/cores"), None, REFUSE),
    ("truncated, with an environment", b'{"env":["VGPU_GRANT_CORES=', {}, REFUSE),
    ("truncated, only the container's args name it", b"{", {"process": {"args": ["vgpu.io/x"]}}, LEAVE),
    ("garbage", bytes(range(256)) * 3, {}, LEAVE),
    ("garbage with a marker", b"\0\xff vgpu.io/ \0", {}, REFUSE),
    ("no object", b'["vgpu.io/cores"]', {}, REFUSE),
    ("a string", b'"x"', {}, LEAVE),
    ("two documents", b'{"bundle":"/b"} {"annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("a NUL behind it", b'{"bundle":"/b","annotations":{"vgpu.io/a":""}}\0', {}, REFUSE),
    ("a NUL in a string", b'{"bundle":"/b\0","annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("no bundle", b'{"annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("no bundle, no marker", b'{"annotations":{}}', {}, LEAVE),
    ("no bundle, the marker in config.json", b'{"annotations":{}}', ENV_MARK, REFUSE),
    ("a relative bundle", b'{"bundle":"b","annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("a bundle that is a number", b'{"bundle":1,"annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("a NUL in the bundle", rb'{"bundle":"/b\u0000c","annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("a bundle too long", b'{"bundle":"/' + b"b" * 5000 + b'","annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("too deep", b'{"bundle":"/b","x":' + b"[" * 100_000, {}, LEAVE),
    ("too deep, closed", b'{"x":' + b"[" * 513 + b"]" * 513 + b',"annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("oversized", b'{"bundle":"/b","x":"' + b"x" * (1 << 20) + b'"}', {}, LEAVE),
    ("oversized, far more", b" " * (8 << 20), {}, LEAVE),
    ("oversized with a marker", b'{"annotations":{"vgpu.io/a":""},"x":"' + b"x" * (1 << 20) + b'"}', {}, REFUSE),
    ("oversized, the marker in config.json", b" " * (2 << 20), MARK, REFUSE),
    ("a byte order mark", b'\xef\xbb\xbf{"bundle":"/b","annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("a trailing comma", b'{"bundle":"/b","annotations":{"vgpu.io/a":"",}}', {}, REFUSE),
    ("a bad escape", rb'{"bundle":"/b","annotations":{"vgpu.io/a":"\x41"}}', {}, REFUSE),
    ("half an escape", rb'{"bundle":"/b","annotations":{"vgpu.io/a":"\u12', {}, REFUSE),
    ("a bad number", b'{"bundle":"/b","pid":01,"annotations":{"vgpu.io/a":""}}', {}, REFUSE),
    ("a bad word", b'{"bundle":"/b","x":nul,"annotations":{"vgpu.io/a":""}}', {}, REFUSE),
]


@pytest.mark.parametrize(("state", "config", "expected"), [c[1:] for c in BAD_STATES], ids=[c[0] for c in BAD_STATES])
def test_bad_states(hook: Run, gate: Any, state: bytes, config: Any, expected: str) -> None:
    result = hook(state, config=config)
    assert verdict(result, gate) == expected
    if expected == REFUSE:
        assert b"state JSON on stdin: expected one JSON object of at most 1 MiB" in result.stderr
        assert b", found " in result.stderr


def test_a_state_of_the_greatest_size_is_read(hook: Run, gate: Any, bundle: pathlib.Path) -> None:
    state = json.dumps({"bundle": str(bundle), **MARK}).encode()
    assert verdict(hook(state.ljust(1 << 20)), gate) == RUN
    assert len(gate.seen("state")) == 1 << 20


BAD_CONFIGS: list[tuple[str, bytes, str]] = [
    ("empty", b"", LEAVE),
    ("garbage", b"\0\1\2", LEAVE),
    ("truncated", b'{"process":{"env":["A=', LEAVE),
    ("truncated with a marker", b'{"process":{"env":["VGPU_GRANT_CORES=', REFUSE),
    ("garbage with a marker", b"vgpu.io/cores: 3", REFUSE),
    ("two documents", b'{}{"annotations":{"vgpu.io/a":""}}', REFUSE),
    ("too deep", b'{"process":' + b'{"a":' * 5000, LEAVE),
]


@pytest.mark.parametrize(("config", "expected"), [c[1:] for c in BAD_CONFIGS], ids=[c[0] for c in BAD_CONFIGS])
def test_bad_config_json(hook: Run, gate: Any, bundle: pathlib.Path, config: bytes, expected: str) -> None:
    result = hook({}, config=config)
    assert verdict(result, gate) == expected
    if expected == REFUSE:
        assert f"{bundle}/config.json: expected ".encode() in result.stderr


@pytest.mark.parametrize("config", [case[1] for case in BAD_CONFIGS], ids=[c[0] for c in BAD_CONFIGS])
def test_bad_config_json_is_pythons_to_report_if_the_state_is_marked(hook: Run, gate: Any, config: bytes) -> None:
    assert verdict(hook(MARK, config=config), gate) == RUN


def test_oversized_config_json(hook: Run, gate: Any, bundle: pathlib.Path) -> None:
    config = bundle / "config.json"
    config.write_bytes(b'{"annotations":{"vgpu.io/a":""}}')
    os.truncate(config, (16 << 20) + 1)  # sparse
    result = hook({})
    assert verdict(result, gate) == REFUSE
    assert b"expected one JSON object of at most 16 MiB, found more than 16777216 bytes" in result.stderr
    config.write_bytes(b"{}")
    os.truncate(config, 1 << 40)
    assert verdict(hook({}), gate) == LEAVE


@pytest.mark.parametrize("kind", ["fifo", "directory", "dangling"])
def test_a_config_json_that_is_no_file_blocks_no_start(hook: Run, gate: Any, bundle: pathlib.Path, kind: str) -> None:
    path = bundle / "config.json"
    {"fifo": os.mkfifo, "directory": os.mkdir, "dangling": lambda to: os.symlink("/nonexistent", to)}[kind](path)
    assert verdict(hook({}), gate) == LEAVE
    assert verdict(hook(MARK), gate) == RUN


def test_a_line_is_one_line_whatever_the_path(hook: Run, gate: Any, bundle: pathlib.Path) -> None:
    folder = bundle / "a\n\x1b[31m\x7f"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"vgpu.io/")
    result = hook({"bundle": str(folder)})
    assert verdict(result, gate) == REFUSE
    assert b"/a??[31m?/config.json: " in result.stderr


def test_the_line_goes_to_the_log_too(hook: Run, gate: Any) -> None:
    """Without a log, with one, and with one whose reader hangs. The container's start never waits for a reader."""
    path = gate.interpreter.parent / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        result = hook(HALF)
        assert verdict(result, gate) == REFUSE
        assert log.recv(2048, socket.MSG_DONTWAIT) == b"<27>" + result.stderr.rstrip(b"\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
            other.setblocking(False)
            while True:
                other.sendto(b"x", str(path))
        assert verdict(hook(HALF), gate) == REFUSE
    path.unlink()


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "poststop"])
def test_every_stage_decides_alike(hook: Run, gate: Any, stage: str) -> None:
    assert verdict(hook({}, args=(stage,)), gate) == LEAVE
    assert verdict(hook(HALF, args=(stage,)), gate) == REFUSE
    assert verdict(hook(MARK, args=(stage,)), gate) == RUN


def test_stdin_closed_or_a_directory(hook: Run, gate: Any, bundle: pathlib.Path) -> None:
    command = [str(gate.bin / "vgpu-hook"), "prestart"]
    (bundle / "config.json").write_text("{}")
    closed = subprocess.run(command, cwd=bundle, check=False, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    assert (closed.returncode, closed.stderr) == (0, b"")
    (bundle / "config.json").write_text(json.dumps(MARK))
    folder = os.open(bundle, os.O_RDONLY)
    result = subprocess.run(command, cwd=bundle, check=False, stdin=folder, capture_output=True)
    os.close(folder)
    assert result.returncode == 1
    assert b"found Is a directory" in result.stderr


USAGE = [
    (),
    ("start",),
    ("prestart", "poststop"),
    ("--verbose", "prestart"),
    ("--config",),
    ("--config", "c.json", "prestart"),
]


@pytest.mark.parametrize("args", USAGE)
def test_usage(hook: Run, gate: Any, args: tuple[str, ...]) -> None:
    result = hook(MARK, args=args)
    assert (result.returncode, result.stderr.count(b"\n")) == (2, 1)
    assert b"prestart|createRuntime|poststop" in result.stderr
    assert not gate.started()


def test_version_help_and_a_foreign_program_name(gate: Any) -> None:
    version = subprocess.run([gate.bin / "vgpu-hook", "--version"], capture_output=True, check=True)
    assert version.stdout.startswith(b"vgpu-hook ")
    for option in ("--help", "-h"):
        done = subprocess.run([gate.bin / "vgpu-hook", option], capture_output=True, check=True)
        assert done.stdout.startswith(b"Usage: vgpu-hook ")
        assert done.stderr == b""
    assert not gate.started()
    other = subprocess.run([gate.bin / "vgpu-gate", "prestart"], capture_output=True, check=False)
    assert (other.returncode, other.stderr.count(b"\n")) == (2, 1)
