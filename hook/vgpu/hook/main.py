"""The hook's process: `vgpu-hook [OPTIONS] prestart|createRuntime|poststop`, state JSON on stdin.

Belongs here: the arguments, the exit status and the lines that the process leaves. Not here: what is done: start and
stop, of which a process loads one. The gate starts this process only for containers that carry a vgpu marker. Exit 0
means that the hook is done or had nothing to do. Exit 1 means that the container must not start: one line on stderr,
`vgpu-hook: <step>: <cause>`, gives the reason, and the log gets the same. In poststop a failure is only a warning.

Standard library only, single-threaded, root.
"""

from __future__ import annotations

import os
import sys

from vgpu.config.errors import escaped
from vgpu.config.request import PREFIX
from vgpu.config.settings import COMPILED_PATH
from vgpu.hook import hooklog
from vgpu.hook.hooklog import Run
from vgpu.hook.request import oci_state
from vgpu.hook.request.oci_state import CommandLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

STARTING = ("prestart", "createRuntime")
STOPPED = "poststop"
ANY, KEY = "any", "key"  #: what the argument --standalone may say
USAGE = (
    "usage: vgpu-hook [--config FILE] [--dry-run] [--standalone any|key] [--annotation vgpu.io/KEY=VALUE]... "
    "[--prepared CLAIM-N] prestart|createRuntime|poststop"
)


class Arguments:
    """The hook's arguments: the compiled settings, --dry-run, the stage, and the administrator's requests."""

    __slots__ = ("command_line", "config", "dry_run", "stage")

    def __init__(self, config: str) -> None:
        self.config = config
        self.dry_run = False
        self.stage = ""
        self.command_line = CommandLine()


def parse(arguments: list[str]) -> Arguments | None:
    """None when the arguments are wrong."""
    made = Arguments(COMPILED_PATH)
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--dry-run" and not equals:
            made.dry_run = True
            continue
        if not equals and rest:
            value = rest.pop(0)
        elif not equals:
            return None
        if option == "--config":
            made.config = value
        elif option == "--standalone" and value in (ANY, KEY):
            made.command_line.standalone = value
        elif option == oci_state.PREPARED and value:
            made.command_line.prepared = value
        elif option == "--annotation" and value.startswith(PREFIX) and "=" in value:
            key, _, text = value.partition("=")
            made.command_line.annotations[key] = text
        else:
            return None
    if len(rest) != 1 or rest[0] not in (*STARTING, STOPPED):
        return None
    made.stage = rest[0]
    return made


def main(arguments: list[str], stdin: int = 0, proc: str = "/proc") -> int:
    """Run the hook; returns its exit status. `proc` is the root of procfs."""
    parsed = parse(arguments)
    if parsed is None:
        _print(USAGE, sys.stderr)
        return 2
    run = Run()
    state: dict[str, object] = {}
    lines: list[str] = []
    failed = ""
    try:
        state = oci_state.read_state(stdin)
        lines = _do(parsed, run, state, proc)
    except (Exception, KeyboardInterrupt) as error:  # a bug, too: one line, and no container without limits
        failed = _line(run.step, error)
    _report(parsed, run, state, lines, failed)
    if run.keep and not failed:
        try:
            run.keep()
        except (Exception, KeyboardInterrupt) as error:
            failed = _line(run.step, error)
            _report(parsed, run, state, [], failed)
    return 1 if failed else 0


def _do(parsed: Arguments, run: Run, state: dict[str, object], proc: str) -> list[str]:
    """Lines for the log. A process loads the modules of a start or those of a stop. The stop stands first: the file of
    byte code has what both load beside it.
    """
    if parsed.stage == STOPPED:
        from vgpu.hook import stop  # noqa: PLC0415

        return stop.stop(run, state, parsed.config, proc)
    from vgpu.hook.start import Hook  # noqa: PLC0415

    return Hook(run, parsed.config, parsed.command_line, parsed.dry_run, proc).start(state)


def entry(arguments: list[str]) -> None:
    """The gate calls this. It exits at once after `main`: the interpreter's shutdown takes longer than some steps."""
    status = main(arguments)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads what is left
        pass
    os._exit(status)


def _line(step: str, error: BaseException) -> str:
    """The line of a failure. Without a descriptor or memory to spare, what the error says has to do."""
    try:
        from vgpu.hook import error_line  # noqa: PLC0415
    except (ImportError, OSError, MemoryError):
        return f"{step}: {escaped(f'{type(error).__name__}: {error}')}"
    return error_line.line(step, error)


def _report(parsed: Arguments, run: Run, state: dict[str, object], lines: list[str], failed: str) -> None:
    """What cannot be said or logged changes nothing about the start."""
    try:
        if failed:
            _print(f"vgpu-hook: {failed}", sys.stderr)
        if parsed.dry_run:
            for line in lines:
                _print(escaped(line), sys.stdout)  # the maker of an image chose the names of its files
        elif run.run_dir and (lines or failed):
            hooklog.write(run.run_dir, hooklog.record(parsed.stage, state, lines, failed, run.name, run.steps))
    except (Exception, KeyboardInterrupt) as error:
        _print("vgpu-hook: " + _line("report", error), sys.stderr)


def _print(line: str, stream: TextIO) -> None:
    """Where nobody reads the line, the exit status and the log remain."""
    try:
        print(line, file=stream)
    except OSError:
        return
