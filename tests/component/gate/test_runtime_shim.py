"""vgpu-runtime: what it passes on, when it changes config.json, and what it adds there."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Shim = Callable[..., "subprocess.CompletedProcess[bytes]"]

MARK = {"annotations": {"vgpu.io/cores": "20"}}
FOREIGN = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
OTHER = {"path": "/bin/true"}
RECORDER = """#!/bin/sh
printf '%s\\0' "$0" "$@" > {to}/argv
/bin/cat /proc/$$/environ > {to}/environ
exit 5
"""


@pytest.fixture
def gate_folder(gate: Any) -> pathlib.Path:
    folder: pathlib.Path = gate.bin
    return folder


@pytest.fixture
def runtime(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "real runtime"
    path.write_text(RECORDER.format(to=tmp_path))
    path.chmod(0o755)
    return path


@pytest.fixture
def shim(gate_folder: pathlib.Path, runtime: pathlib.Path, bundle: pathlib.Path, tmp_path: pathlib.Path) -> Shim:
    """shim(*args) runs vgpu-runtime in `bundle`, with a runtime that records its arguments and exits with 5."""

    def run(*args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        (tmp_path / "argv").unlink(missing_ok=True)
        command = [gate_folder / "vgpu-runtime", "--vgpu-runtime", runtime, *args]
        settings = {"cwd": bundle, "capture_output": True, "timeout": 30, **options}
        return subprocess.run(command, check=False, **settings)

    return run


def refused(status: int, *command: str | pathlib.Path) -> str:
    """The one line of a command that fails with this status."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
    return done.stderr


def runtime_argv(tmp_path: pathlib.Path) -> list[str] | None:
    file = tmp_path / "argv"
    return file.read_text().split("\0")[:-1] if file.exists() else None


def ours(folder: pathlib.Path, stage: str, config: str | None = None) -> dict[str, Any]:
    return {
        "path": f"{folder}/vgpu-hook",
        "args": ["vgpu-hook", *(["--config", config] if config else []), stage],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 60,
    }


def has_ours(hooks: dict[str, Any], *stages: str) -> bool:
    paths = [hook.get("path") for stage in stages for hook in hooks.get(stage) or [] if isinstance(hook, dict)]
    return any(isinstance(path, str) and path.endswith("/vgpu-hook") for path in paths)


def expected(spec: dict[str, Any], folder: pathlib.Path, config: str | None = None) -> dict[str, Any]:
    """The model: the hook is last in prestart and first in poststop, and each is added only once."""
    hooks = dict(spec.get("hooks") or {})
    if not has_ours(hooks, "prestart", "createRuntime"):
        hooks["prestart"] = [*(hooks.get("prestart") or []), ours(folder, "prestart", config)]
    if not has_ours(hooks, "poststop"):
        hooks["poststop"] = [ours(folder, "poststop", config), *(hooks.get("poststop") or [])]
    return {**spec, "hooks": hooks}


VGPU = {"path": "/usr/bin/vgpu-hook", "args": ["vgpu-hook", "prestart"]}
HOOKS: dict[str, Any] = {
    "null": None,
    "empty": {},
    "only others": {"createContainer": [OTHER], "poststart": None},
    "prestart null": {"prestart": None},
    "prestart empty": {"prestart": []},
    "prestart": {"prestart": [FOREIGN, OTHER]},
    "poststop null": {"poststop": None},
    "poststop": {"poststop": [OTHER, FOREIGN]},
    "both": {"prestart": [FOREIGN], "poststop": [OTHER]},
    "both, the other way round": {"poststop": [OTHER], "createRuntime": [OTHER], "prestart": [FOREIGN]},
    "both null": {"poststop": None, "prestart": None},
    "null and empty": {"prestart": [], "startContainer": [], "poststop": None},
    "ours in prestart": {"prestart": [FOREIGN, VGPU]},
    "ours in createRuntime": {"createRuntime": [VGPU, OTHER], "prestart": [OTHER]},
    "ours in poststop": {"poststop": [VGPU], "prestart": []},
    "ours in both": {"prestart": [VGPU], "poststop": [VGPU]},
    "ours in a stage that does not count": {"createContainer": [VGPU], "poststart": [VGPU]},
    "something like ours": {"prestart": [{"path": "/a/not-vgpu-hook"}, {"path": "vgpu-hook", "args": ["/vgpu-hook"]}]},
    "hooks of wrong types": {"prestart": [None, 1, "x", [], {"path": 1}]},
    "brackets in strings": {"prestart": [{"path": "/x]}", "args": ["[", '"]', "\\"]}], "a": "}"},
}


@pytest.mark.parametrize("indent", [None, 2, "\t"], ids=["compact", "spaces", "tabs"])
@pytest.mark.parametrize("place", ["front", "back"])
@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS)
def test_hooks(
    shim: Shim, bundle: pathlib.Path, gate_folder: pathlib.Path, hooks: Any, place: str, indent: Any
) -> None:
    rest = {"ociVersion": "1.0.2", **MARK, "process": {"args": ["}"], "hooks": {"prestart": []}}}
    spec = {"hooks": hooks, **rest} if place == "front" else {**rest, "hooks": hooks}
    config = bundle / "config.json"
    config.write_text(json.dumps(spec, indent=indent))
    assert shim("create", "c").returncode == 5
    assert json.loads(config.read_text()) == expected(spec, gate_folder)
    once, inode = config.read_bytes(), config.stat().st_ino
    assert shim("run", "c").returncode == 5
    assert (config.read_bytes(), config.stat().st_ino) == (once, inode), "a second time changes nothing"
    assert os.listdir(bundle) == ["config.json"]


def test_all_else_stays_byte_for_byte(shim: Shim, bundle: pathlib.Path, gate_folder: pathlib.Path) -> None:
    text = b' \n{ "annotations":{"vgpu.io/a" :1.50},"x":"\xc3\xa4\\u00e4\\/" ,"n":1E2}\n\n'
    (bundle / "config.json").write_bytes(text)
    shim("create", "c")
    after = (bundle / "config.json").read_bytes()
    assert after.startswith(b' \n{"hooks":{')
    assert after.endswith(text[3:])
    assert json.loads(after) == expected(json.loads(text), gate_folder)


def test_keys_written_with_escapes(shim: Shim, bundle: pathlib.Path, gate_folder: pathlib.Path) -> None:
    text = r'{"annotations":{"vgpu.io\/a":""},"hoo\u006bs":{"pre\u0073tart":[{"p\u0061th":"\/usr\/bin\/vgpu-hook"}]}}'
    (bundle / "config.json").write_text(text)
    shim("create", "c")
    assert json.loads((bundle / "config.json").read_text()) == expected(json.loads(text), gate_folder)


def test_vgpu_config_reaches_the_hooks(
    shim: Shim, bundle: pathlib.Path, gate_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (bundle / "config.json").write_text(json.dumps(MARK))
    path = '/etc/a"\\\tä'
    shim("--root", "/r", f"--vgpu-config={path}", "create", "c")
    assert json.loads((bundle / "config.json").read_text()) == expected(MARK, gate_folder, path)
    argv = runtime_argv(tmp_path)
    assert argv is not None
    assert argv[1:] == ["--root", "/r", "create", "c"]


UNTOUCHED: list[tuple[str, Any]] = [
    ("no marker", {"process": {"args": ["vgpu.io/x"]}}),
    ("sandbox", {"annotations": {"vgpu.io/a": "", "io.kubernetes.cri.container-type": "sandbox"}}),
    ("garbage without a marker", b"\0{"),
    ("empty", b""),
    ("missing", None),
]


@pytest.mark.parametrize("config", [case[1] for case in UNTOUCHED], ids=[case[0] for case in UNTOUCHED])
def test_others_are_not_touched(shim: Shim, bundle: pathlib.Path, tmp_path: pathlib.Path, config: Any) -> None:
    path = bundle / "config.json"
    if config is not None:
        path.write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
        before = path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns
    result = shim("create", "--bundle", str(bundle), "c")
    assert (result.returncode, result.stderr) == (5, b"")
    assert runtime_argv(tmp_path) == [str(tmp_path / "real runtime"), "create", "--bundle", str(bundle), "c"]
    if config is not None:
        assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before


REFUSED: list[tuple[str, bytes, bytes]] = [
    ("truncated", b'{"annotations":{"vgpu.io/a":"', b"found an unexpected end at byte 29"),
    ("garbage", b"vgpu.io/", b"found no object at byte 0"),
    ("hooks a list", b'{"hooks":[],"annotations":{"vgpu.io/a":""}}', b"neither null nor of the right type"),
    ("prestart a string", b'{"hooks":{"prestart":"x"},"annotations":{"vgpu.io/a":""}}', b"neither null nor"),
    ("prestart a number", b'{"annotations":{"vgpu.io/a":""},"hooks":{"poststop":1}}', b"neither null nor"),
    ("hooks twice", b'{"hooks":{},"annotations":{"vgpu.io/a":""},"hooks":{}}', b"a duplicate key in its hooks"),
    ("prestart twice", b'{"hooks":{"prestart":[],"prestart":null},"annotations":{"vgpu.io/a":""}}', b"a duplicate key"),
]


@pytest.mark.parametrize(("config", "cause"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused(shim: Shim, bundle: pathlib.Path, tmp_path: pathlib.Path, config: bytes, cause: bytes) -> None:
    (bundle / "config.json").write_bytes(config)
    result = shim("create", "--bundle", str(bundle), "c")
    assert (result.returncode, result.stderr.count(b"\n")) == (1, 1)
    assert result.stderr.startswith(f"vgpu-runtime: {bundle}/config.json: expected ".encode())
    assert cause in result.stderr
    assert runtime_argv(tmp_path) is None
    assert (bundle / "config.json").read_bytes() == config


@pytest.mark.root
def test_mode_and_owner_are_kept(shim: Shim, bundle: pathlib.Path) -> None:
    config = bundle / "config.json"
    config.write_text(json.dumps(MARK))
    config.chmod(0o640)
    os.chown(config, 1234, 5678)
    shim("create", "c", umask=0o077)
    assert "hooks" in json.loads(config.read_text())
    after = config.stat()
    assert (after.st_mode & 0o7777, after.st_uid, after.st_gid) == (0o640, 1234, 5678)


def test_a_symlink_is_refused_only_for_writing(shim: Shim, bundle: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "target.json"
    (bundle / "config.json").symlink_to(target)
    target.write_text(json.dumps({}))
    assert shim("create", "c").returncode == 5
    target.write_text(json.dumps(MARK))
    result = shim("create", "c")
    assert (result.returncode, result.stderr.count(b"\n")) == (1, 1)
    assert b"expected a regular file, found a symlink" in result.stderr
    assert json.loads(target.read_text()) == MARK
    assert (bundle / "config.json").is_symlink()
    target.write_text(json.dumps({**MARK, "hooks": {"prestart": [VGPU], "poststop": [VGPU]}}))
    assert shim("create", "c").returncode == 5


def test_a_write_that_fails_leaves_nothing_behind(shim: Shim, bundle: pathlib.Path, tmp_path: pathlib.Path) -> None:
    config = bundle / "config.json"
    config.write_text(json.dumps({**MARK, "x": "x" * 100_000}))
    before = config.read_bytes()
    result = shim("create", "c", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    assert (result.returncode, result.stderr.count(b"\n")) == (1, 1)
    assert b"config.json: add vgpu-hook: File too large" in result.stderr
    assert (config.read_bytes(), os.listdir(bundle)) == (before, ["config.json"])
    assert runtime_argv(tmp_path) is None


ADDS = [
    ("create", "c"), ("run", "c"), ("create", "--bundle", "{b}", "c"), ("create", "--bundle={b}", "c"),
    ("create", "-b", "{b}", "c"), ("create", "-b={b}", "c"), ("create", "-bundle", "{b}", "c"),
    ("create", "c", "--bundle", "{b}"), ("run", "-d", "-b{b}", "c"), ("run", "-db", "{b}", "c"),
    ("run", "--bundle", "/nonexistent", "-b", "{b}", "c"),
    ("create", "--pid-file", "-b", "--console-socket", "--bundle", "-b", "{b}", "c"),
    ("create", "--preserve-fds=3", "--no-pivot", "--unknown", "-b", "{b}", "c"), ("create", "--bundle", "", "c"),
    ("run", "-f", "{b}/config.json", "-b", "/nonexistent", "c"), ("run", "-f{b}/config.json", "c"),
    ("run", "--config=config.json", "-b", "/nonexistent", "c"), ("--root", "run", "create", "-b", "{b}", "c"),
    ("--root=/r", "--log", "/l", "--log-format", "json", "--systemd-cgroup", "create", "-b", "{b}", "c"),
    ("-root", "/r", "--debug", "run", "c"),
    ("--criu", "/c", "--rootless", "auto", "--cgroup-manager", "systemd", "--log-level", "info", "create", "c"),
    ("--unknown-flag", "create", "c"), ("--unknown", "value", "create", "c"), ("--unknown", "--debug", "create", "c"),
    ("--unknown=create", "run", "c"), ("--", "create", "c"),
]  # fmt: skip
LEAVES = [
    (), ("--version",), ("features",), ("--root", "create"), ("state", "create"), ("start", "run"),
    ("delete", "--force", "create"), ("exec", "c", "run"), ("--unknown", "exec", "-t", "c", "run", "x"),
    ("restore", "-b", "{b}", "c"), ("spec", "--bundle", "{b}"), ("--log", "run", "--root", "create", "list"),
    ("create", "--bundle", "/nonexistent", "c"), ("create", "-b", "x" * 5000, "c"), ("run", "--", "--bundle", "{b}"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "adds"), [(a, True) for a in ADDS] + [(a, False) for a in LEAVES])
def test_command_lines(
    shim: Shim, bundle: pathlib.Path, tmp_path: pathlib.Path, args: tuple[str, ...], adds: bool
) -> None:
    line = [word.format(b=bundle) for word in args]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = bundle / "config.json"
    config.write_text(json.dumps(MARK))
    result = shim(*line, cwd=elsewhere if line != list(args) else bundle)
    assert (result.returncode, result.stderr) == (5, b"")
    assert runtime_argv(tmp_path) == [str(tmp_path / "real runtime"), *line], "handed on as they came"
    assert ("hooks" in json.loads(config.read_text())) is adds


def test_environment_is_passed_on(shim: Shim, tmp_path: pathlib.Path) -> None:
    environ = {"NOTIFY_SOCKET": "/n", "XDG_RUNTIME_DIR": "/x", "_LIBCONTAINER": "1", "PATH": "/somewhere"}
    shim("state", "c", env=environ)
    assert set((tmp_path / "environ").read_text().split("\0")[:-1]) == {f"{k}={v}" for k, v in environ.items()}


def test_own_options_need_absolute_paths(gate_folder: pathlib.Path, runtime: pathlib.Path) -> None:
    for words in (["--vgpu-runtime"], ["--vgpu-runtime", "runc"], ["--vgpu-config=c"], ["--vgpu-config", ""]):
        refused(2, gate_folder / "vgpu-runtime", *words)


def test_never_itself(gate_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "runc"
    link.symlink_to(gate_folder / "vgpu-gate")
    for path in (link, gate_folder / "vgpu-runtime", tmp_path, tmp_path / "none"):
        line = refused(1, gate_folder / "vgpu-runtime", f"--vgpu-runtime={path}", "--version")
        assert f"vgpu-runtime: find the OCI runtime: expected {path}" in line


def test_a_name_that_is_not_installed(gate_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "vgpu-runtime-nosuch"
    link.symlink_to(gate_folder / "vgpu-gate")
    assert "expected nosuch" in refused(1, link, "--version")


def test_a_runtime_that_cannot_be_started(gate_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/nonexistent\n")
    broken.chmod(0o755)
    line = refused(1, gate_folder / "vgpu-runtime", f"--vgpu-runtime={broken}", "list")
    assert line == f"vgpu-runtime: exec {broken}: No such file or directory\n"


def test_links_of_the_build(gate_bin: pathlib.Path) -> None:
    for name in ("vgpu-hook", "vgpu-runtime", "vgpu-runtime-runc", "vgpu-runtime-crun"):
        assert os.readlink(gate_bin / name) == "vgpu-gate"
    assert (gate_bin / "vgpu-gate").read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("format", [["--log-format", "json"], ["--log-format=json"]])
def test_a_refusal_is_in_the_runtimes_log(gate_folder: pathlib.Path, tmp_path: pathlib.Path, format: list[str]) -> None:
    """containerd reads nothing else of a create that failed. The JSON is right for a runtime's name with a quote."""
    log = tmp_path / "log.json"
    command = [gate_folder / "vgpu-runtime", '--vgpu-runtime=/no"where\\', "--log", log, *format, "create", "c"]
    line = refused(1, *command)
    record = json.loads(log.read_text())
    assert record == {"level": "error", "msg": line.rstrip("\n")}
    assert '/no"where\\' in record["msg"]


def test_no_json_in_a_log_of_text(gate_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    refused(1, gate_folder / "vgpu-runtime", "--vgpu-runtime=/nowhere", "--log", log, "create", "c")
    assert not log.exists()


# --vgpu-annotation, for clients that have no option for annotations; --vgpu-standalone


GIVEN = ("--vgpu-annotation", "vgpu.io/cores=30", "--vgpu-annotation=vgpu.io/memory=1Gi")
PASSED_ON = ["--annotation", "vgpu.io/cores=30", "--annotation", "vgpu.io/memory=1Gi"]


@pytest.mark.parametrize("before", [{}, {"annotations": None}, {"annotations": {"a": "b"}}, MARK])
def test_a_share_of_the_command_line_is_in_the_hooks_arguments(
    shim: Shim, bundle: pathlib.Path, tmp_path: pathlib.Path, before: dict[str, Any]
) -> None:
    """There no image can write. The container's annotations stay as they are."""
    config = bundle / "config.json"
    config.write_text(json.dumps(before))
    options = (*GIVEN, "--vgpu-standalone=key", "--vgpu-config", "/c")
    assert shim(*options, "--root", "/r", "create", "--bundle", str(bundle), "x").returncode == 5
    found = json.loads(config.read_text())
    for stage in ("prestart", "poststop"):
        ((hook),) = found["hooks"].pop(stage)
        assert hook["args"] == ["vgpu-hook", "--config", "/c", "--standalone", "key", *PASSED_ON, stage]
    assert found == {**before, "hooks": {}}
    assert (runtime_argv(tmp_path) or [])[1:] == ["--root", "/r", "create", "--bundle", str(bundle), "x"]
    text = config.read_text()
    assert shim(*options, "create", "--bundle", str(bundle), "x").returncode == 5
    assert config.read_text() == text, "a second time adds nothing"


def test_eight_long_annotations_and_a_long_path_fit(shim: Shim, bundle: pathlib.Path) -> None:
    config = bundle / "config.json"
    config.write_text("{}")
    words = [f"vgpu.io/use-gputype={'x' * 230}{i}" for i in range(8)]
    given = [word for text in words for word in ("--vgpu-annotation", text)]
    assert shim(*given, "--vgpu-config", "/" + "\t" * 4000, "create", "x").returncode == 5
    hooks = json.loads(config.read_text())["hooks"]
    assert [word for word in hooks["poststop"][0]["args"] if word.startswith("vgpu.io/")] == words
    assert hooks["prestart"][0]["args"][2] == "/" + "\t" * 4000
    assert shim(*given, *GIVEN, "create", "x").returncode == 2


def test_a_bundle_that_cannot_be_read_is_refused_where_every_container_has_a_share(
    shim: Shim, bundle: pathlib.Path
) -> None:
    (bundle / "config.json").write_text("{")
    assert shim("create", "x").returncode == 5
    done = shim(*GIVEN, "create", "x")
    assert (done.returncode, b"of at most 16 MiB, found" in done.stderr) == (1, True)


def test_annotations_are_for_create_and_run_alone_and_not_for_a_sandbox(shim: Shim, bundle: pathlib.Path) -> None:
    config = bundle / "config.json"
    for text in ('{"annotations":{"io.kubernetes.cri.container-type":"sandbox"}}', "{}"):
        config.write_text(text)
        verb = "create" if "sandbox" in text else "start"
        assert shim(*GIVEN, verb, "--bundle", str(bundle), "x").returncode == 5
        assert config.read_text() == text


STANDALONE = ("--vgpu-standalone", "any or key", ["", "all", "any=", "create"])
ANNOTATION = (
    "--vgpu-annotation",
    "vgpu.io/KEY=VALUE",
    ["", "cores=30", "vgpu.io/cores", 'vgpu.io/a="', "vgpu.io/a=\\", "vgpu.io/a=\n", "vgpu.io/" + "a=" * 130],
)


@pytest.mark.parametrize(("option", "expected", "words"), [STANDALONE, ANNOTATION], ids=["standalone", "annotation"])
def test_a_bad_word_is_an_error_of_usage(
    shim: Shim, bundle: pathlib.Path, option: str, expected: str, words: list[str]
) -> None:
    for word in words:
        done = shim(option, word, "create", "--bundle", str(bundle), "x")
        assert done.returncode == 2
        assert f"{expected} after {option}".encode() in done.stderr
