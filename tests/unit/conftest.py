"""A unit test starts no process or thread, binds no socket and does not sleep: such a test belongs in component/."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import ClassVar

import pytest

FORBIDDEN = {
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.exec": "becomes another program",
    "_thread.start_new_thread": "starts a thread",
    "_thread.start_joinable_thread": "starts a thread",
    "socket.bind": "binds a socket",
}
LONGEST_SLEEP = 0.01  #: seconds


class Watch:
    """Records which of these the current test has done."""

    on = False
    seen: ClassVar[list[str]] = []

    @classmethod
    def see(cls, event: str, arguments: tuple[object, ...]) -> None:
        if not cls.on:
            return
        if event in FORBIDDEN and not of_stand_in(arguments):
            cls.seen.append(FORBIDDEN[event])
        elif event == "time.sleep" and isinstance(arguments[0], (int, float)) and arguments[0] > LONGEST_SLEEP:
            cls.seen.append(f"sleeps for {arguments[0]} s")


def of_stand_in(arguments: tuple[object, ...]) -> bool:
    """Whether a thread is pytest-subprocess's, which calls back in one. Python 3.12 and later tell of threads."""
    thread = getattr(arguments[0], "__self__", None) if arguments else None
    return type(thread).__module__.startswith("pytest_subprocess.")


sys.addaudithook(Watch.see)  # Python cannot remove it again, therefore the switch


@pytest.fixture(autouse=True)
def pure() -> Iterator[None]:
    """Fails a test that is not pure, when it ends, so that no handler in the code can hide the failure."""
    Watch.seen.clear()
    Watch.on = True
    yield
    Watch.on = False
    assert not Watch.seen, f"a unit test {Watch.seen[0]}: move it to tests/component"
