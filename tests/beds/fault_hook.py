"""Run the hook, reaper or DRA driver with one fault: python3 -I -S fault_hook.py LIBRARY ORDER PROGRAM [ARGUMENT ...]

LIBRARY is fault_calls.c, compiled. ORDER is a JSON file of fault_bed.Order; it names the file for what happens. PROGRAM
is `hook` with the hook's arguments, or `reaper`, `driver`, `plugin` or `vgpud` with the path of the settings; `driver`
has what to do, too. The process imports everything first, as the hook does, and takes its faults from then on.

A *site* is a system call with the stack of Python functions that makes it, the innermost first. In a loop one site
occurs several times.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(CHECKOUT, name) for name in ("config", "hook", "tests/beds")]

from fault_errnos import EXEMPT  # noqa: E402 - the path is known only now

from vgpu.config import records  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any


class Faults:
    """Decides about every system call. `order` has: out, numbers, and faults that happen one after the other.

    A fault has: site, occurrence, error (0 kills), sticky. After the last one, without a site, all sites are written.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.names = {number: name for name, number in order["numbers"].items()}
        self.faults = list(order["faults"])
        self.seen = 0
        self.stuck: dict[str, int] = {}  # calls that go on failing, and their error
        self.out = os.open(order["out"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(self.out, 900, inheritable=False)
        os.close(self.out)
        self.out = 900
        self.texts: dict[CodeType, str] = {}

    def decide(self, number: int) -> int:
        frame = sys._getframe().f_back
        if frame is None or frame.f_code.co_filename == __file__:
            return 0  # the interpreter's own call, or our write from fork_with
        return self.verdict(self.names.get(number, f"number {number}"), frame)

    def verdict(self, call: str, frame: FrameType | None) -> int:
        if call in self.stuck:
            return self.stuck[call]
        fault = self.faults[0] if self.faults else None
        site = f"{call} {self.stack(frame)}" if fault else ""
        if fault and not fault["site"]:
            os.write(self.out, f"{site}\n".encode())
        if not fault or site != fault["site"]:
            return 0
        self.seen += 1
        return self.happen(call, site) if self.seen == fault["occurrence"] else 0

    def happen(self, call: str, site: str) -> int:
        fault = self.faults.pop(0)
        self.seen = 0
        os.write(self.out, f"happened {site}\n".encode())
        if not fault["error"]:
            os.kill(os.getpid(), signal.SIGKILL)
        self.stuck = dict.fromkeys(fault["sticky"], fault["error"])
        return -fault["error"] if call == "close" else int(fault["error"])

    def stack(self, frame: FrameType | None) -> str:
        """`records.write_bytes:191 < ledger._record < ...`, up to main; a line number for the innermost function."""
        found: list[str] = []
        while frame is not None and frame.f_code.co_name not in ("entry", "run"):
            code = frame.f_code
            text = self.texts.get(code)
            if text is None:
                module = code.co_filename.rpartition("/")[2].removesuffix(".py")
                text = self.texts[code] = f"{module}.{code.co_name}"
            if not text.startswith("<frozen"):
                found.append(text if found else f"{text}:{frame.f_lineno}")
            frame = frame.f_back
        return " < ".join(found)


class StandingFaults(Faults):
    """A call at one site that fails again and again, in each process of a program, between `arm` and `disarm`."""

    armed: dict[str, Any] | None = None
    hits = 0

    def arm(self, order: dict[str, Any]) -> None:
        """`order` has: site ("" writes all sites), error, times (0: always)."""
        self.armed, self.hits = order, 0

    def disarm(self) -> None:
        self.armed = None

    def tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a child that is about to execute a program has closed the file
            os.write(self.out, f"{text}\n".encode())

    def entry(self, phase: Any) -> None:
        for _ in phase:
            pass

    def verdict(self, call: str, frame: FrameType | None) -> int:
        order = self.armed
        if order is None:
            return 0
        site = f"{call} {self.stack(frame).partition(' < fault_health.')[0]}"
        if not order["site"]:
            self.tell(site)
        elif site == order["site"] and (not order["times"] or self.hits < order["times"]):
            self.hits += 1
            if self.hits == 1:
                self.tell(f"happened {site}")
            return -int(order["error"]) if call == "close" else int(order["error"])
        return 0


def fork_with(faults: Faults) -> None:
    """os.fork, which asks as a system call does."""
    real = os.fork

    def fork() -> int:
        error = faults.verdict("fork", sys._getframe(1))
        if error:
            raise OSError(error, os.strerror(error))
        return real()

    os.fork = fork


def begin(library: str, faults: Faults, numbers: dict[str, int], between: tuple[int, int] = (0, 0)) -> None:
    """From here on every system call is asked about, or those that are made at the addresses `between`."""
    loaded = ctypes.CDLL(library, use_errno=True)
    begin_between = loaded.fault_begin_between
    begin_between.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
    callback = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(faults.decide)
    exempt = [numbers[name] for name in EXEMPT if name in numbers]
    faults.callback = callback  # type: ignore[attr-defined] - as long as the process
    function = ctypes.cast(callback, ctypes.c_void_p)
    if begin_between(function, (ctypes.c_int * len(exempt))(*exempt), len(exempt), *between) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def of_the_c_library() -> tuple[int, int]:
    """The addresses of the C library's code."""
    maps = records.read_bounded("/proc/self/maps").decode().splitlines()
    [found] = {line.split()[0] for line in maps if " r-xp " in line and ("/libc." in line or "/libc-" in line)}
    low, high = (int(text, 16) for text in found.split("-"))
    assert low >> 32 == high >> 32, "the filter compares 32 bits"
    return low, high


def watch(library: str, order: dict[str, Any], program: str, config: str) -> None:
    """Be the device plugin or vgpud under standing faults, until stdin ends."""
    sys.path[:0] = order["path"]
    from fault_health import PROGRAMS, serve

    faults = StandingFaults(order)
    watched = PROGRAMS[program](config, faults)
    begin(library, faults, order["numbers"], of_the_c_library())
    serve(watched, faults)
    os._exit(0)


def import_whole_hook() -> None:
    """Also what a function of the hook imports: no fault is for the import system."""
    top = os.path.join(CHECKOUT, "hook")
    for folder, _, names in os.walk(os.path.join(top, "vgpu/hook")):
        for name in names:
            if name.endswith(".py"):
                importlib.import_module(os.path.join(folder, name)[len(top) + 1 : -len(".py")].replace("/", "."))


def run(library: str, order: dict[str, Any], program: str, arguments: list[str]) -> None:
    if program in ("plugin", "vgpud"):
        watch(library, order, program, arguments[0])
    faults = Faults(order)
    if program == "hook":
        import_whole_hook()
        from vgpu.hook.devices import allow, systemd
        from vgpu.hook.main import entry

        allow.AllowDevices.execute.__defaults__ = ("/proc", order["run"])
        systemd.allow.__defaults__ = (order["run"], order["wait"])
        fork_with(faults)
        begin(library, faults, order["numbers"])
        entry(arguments)
    sys.path[:0] = order["path"]
    from fault_driver import work
    from fault_reaper import sweep

    from vgpu.config import settings

    read = settings.read(arguments[0])
    if program == "driver":
        begin(library, faults, order["numbers"])
        os._exit(work(read, arguments[1]))
    begin(library, faults, order["numbers"])
    os._exit(sweep(read))


if __name__ == "__main__":
    given = records.decode_object(records.read_bounded(sys.argv[2]), sys.argv[2])
    run(sys.argv[1], given, sys.argv[3], sys.argv[4:])
