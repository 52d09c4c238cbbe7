"""The gate as a program under test: the built one, and builds whose interpreter is a script of the test.

No test here needs root. The stand-in interpreter records how it was started. Tests of a broken Python remove it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shlex
import subprocess
from collections.abc import Callable

import pytest
from checkout import BUILD, CHECKOUT, EMULATOR

RECORDER = """#!/bin/sh
cat /proc/$$/cmdline > {to}/cmdline
cat /proc/$$/environ > {to}/environ
cat /proc/self/status > {to}/status
readlink /proc/$$/cwd > {to}/cwd
ls /proc/$$/fd > {to}/fds
umask > {to}/umask
cat > {to}/state
exit $(cat {to}/rc)
"""


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A gate whose interpreter is `interpreter`. That one records its arguments and the rest in files below `to`."""

    bin: pathlib.Path
    interpreter: pathlib.Path
    to: pathlib.Path

    def install(self, rc: int = 0) -> None:
        for file in self.to.iterdir():
            file.unlink()
        (self.to / "rc").write_text(str(rc))
        self.interpreter.write_text(RECORDER.format(to=self.to))
        self.interpreter.chmod(0o755)

    def started(self) -> bool:
        return (self.to / "state").exists()

    def seen(self, name: str) -> bytes:
        return (self.to / name).read_bytes()

    def argv(self) -> list[str]:
        """The interpreter's arguments, without the /bin/sh that the kernel put first."""
        return self.seen("cmdline").decode().split("\0")[1:-1]


Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def build(to: pathlib.Path, **settings: str) -> pathlib.Path:
    """Configure and build hook/gate alone. Returns the folder with the programs, or with scripts that emulate them."""
    options = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run(
        ["cmake", "-S", CHECKOUT / "hook/gate", "-B", to, "-DVGPU_WERROR=ON", *options], check=True, capture_output=True
    )
    subprocess.run(["cmake", "--build", to], check=True, capture_output=True)
    return emulated(to / "bin") if EMULATOR else to / "bin"


def emulated(folder: pathlib.Path) -> pathlib.Path:
    scripts = folder.with_name("emulated")
    scripts.mkdir()
    for program in folder.iterdir():
        command = shlex.join([EMULATOR[0], "-0", str(program), *EMULATOR[1:], str(program)])
        (scripts / program.name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (scripts / program.name).chmod(0o755)
    return scripts


def stand_in(folder: pathlib.Path, **settings: str) -> StandIn:
    to = folder / "seen"
    to.mkdir()
    interpreter = folder / "interpreter"
    fixed = {
        "VGPU_PYTHON": str(interpreter), "VGPU_PYTHON_PATH": "/opt/a:/opt/b", "VGPU_SYSLOG": str(folder / "log"),
        "VGPU_STDIN_SECONDS": "3",
    }  # fmt: skip
    return StandIn(build(folder / "build", **fixed, **settings), interpreter, to)


@pytest.fixture(scope="session")
def gate_bin() -> pathlib.Path:
    if not (BUILD / "bin/vgpu-hook").exists():
        pytest.fail(f"{BUILD}/bin/vgpu-hook: expected the built gate, found nothing; build, or set VGPU_BUILD")
    return BUILD / "bin"


@pytest.fixture(scope="session")
def plain_gate(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return stand_in(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="session")
def sanitized_gate(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return stand_in(tmp_path_factory.mktemp("gate-san"), VGPU_SANITIZE="ON")


@pytest.fixture(params=["static", "sanitized"])
def gate(request: pytest.FixtureRequest) -> StandIn:
    """Every case runs against the program as shipped and against one with AddressSanitizer and UBSan."""
    found: StandIn = request.getfixturevalue("plain_gate" if request.param == "static" else "sanitized_gate")
    found.install()
    return found


@pytest.fixture
def bundle(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    return folder


@pytest.fixture
def hook(gate: StandIn, bundle: pathlib.Path) -> Run:
    """hook(state, config=..., args=...) runs vgpu-hook in the bundle. Values other than bytes are encoded as JSON. A
    state that is a dict gets the key `bundle`."""

    def run(
        state: object, *, config: object = None, args: tuple[str, ...] = ("prestart",), **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        if isinstance(state, dict):
            state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": 1, "bundle": str(bundle), **state}
        if config is not None:
            (bundle / "config.json").write_bytes(as_bytes(config))
        command = [str(gate.bin / "vgpu-hook"), *args]
        settings: dict[str, object] = {"cwd": bundle, "capture_output": True, "timeout": 30, **options}
        return subprocess.run(command, input=as_bytes(state), check=False, **settings)  # type: ignore[call-overload]

    return run


def as_bytes(document: object) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


@pytest.fixture(scope="session")
def build_gate() -> Callable[..., pathlib.Path]:
    return build
