"""Group `vcuda`: the time that libvcuda adds to a call of a driver whose functions return at once, and to a start.

Per call: a multiple of one `clock_gettime(CLOCK_MONOTONIC)` measured in the same process, so that the machine's speed
cancels out. A program is timed alternately with libvcuda in front of the null driver and with the null driver alone. A
figure is (with - without) / clock of one pair of runs. The group needs root for a private mount namespace, which has
the limiter's files where a container has them.

Start: 64 processes at once, from the first spawn to the end of the last one. Each opens the library, makes a context
and allocates some memory. The figure is the time with libvcuda over the time without, of alternating runs. Both
libraries are on the same file system, bound to directories of the same depth, as in a container: the loader walks some
forty paths below each directory, and a tmpfs is slower to map.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from checkout import BUILD
from results import BenchError, Result

from vgpu.config import limits

ROUNDS = 15
PROCESSES = 64
ROOM = 1 << 37  #: the contexts of 64 processes fit, so no process calls NVML for their size
SOURCES = Path(__file__).resolve().parent / "null_driver"
CARD = limits.uuid_text(b"null-driver-card")
BARS = {"launch": 0.3, "mem_alloc_free": 10.0, "mem_create": None, "get_proc_address": 10.0}
WHAT = {
    "launch": "cuLaunchKernel: (libvcuda - null driver) / clock_gettime",
    "mem_alloc_free": "cuMemAlloc_v2 + cuMemFree_v2: (libvcuda - null driver) / clock_gettime",
    "mem_create": "cuMemCreate + cuMemRelease: (libvcuda - null driver) / clock_gettime",
    "get_proc_address": "cuGetProcAddress_v2: (libvcuda - null driver) / clock_gettime",
}

ENTER = """
mount -t tmpfs none /usr/local && mkdir /usr/local/vgpu && cd /usr/local/vgpu && mkdir driver ours usage && \
for file in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do : > usage/usage$file; done && \
cp "$0"/limits limits && mount --bind "$0"/driver driver && mount --bind "$0"/ours ours && echo in && exec cat
"""


def measure(rounds: int = ROUNDS) -> list[Result]:
    """All results of the group."""
    if os.geteuid() != 0:
        raise BenchError("needs root: a private mount namespace")
    if not (BUILD / "lib/vcuda/libcuda.so.1").exists():
        raise BenchError(f"libvcuda is not built in {BUILD}: run `make build`")
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name, Place(Path(name)) as place:
        calls: dict[str, list[float]] = {}
        for _ in range(rounds):
            for figure, value in place.added().items():
                calls.setdefault(figure, []).append(value)
        starts = place.starts(rounds)
    results = [Result.of(f"vcuda.{name}.added", "ratio", bar, calls[name], WHAT[name]) for name, bar in BARS.items()]
    what = "cuMemCreate + cuMemRelease over cuMemAlloc_v2 + cuMemFree_v2: what libvcuda adds"
    results.append(Result.of("vcuda.mem_create.over_alloc", "ratio", 1.2, calls["create_over_alloc"], what))
    what = "cuMemImportFromShareableHandle while 2,000 other imports are held, over while none is"
    results.append(Result.of("vcuda.import.growth", "ratio", 2.0, calls["import_growth"], what))
    results.append(Result.of("vcuda.import_us", "us", None, calls["import_us"], "the import above, while none is held"))
    what = f"{PROCESSES} processes at once, from spawn to end: libvcuda / null driver"
    results.append(Result.of(f"vcuda.first_context.{PROCESSES}", "ratio", 1.1, starts["ratio"], what))
    results.append(Result.of("vcuda.clock_ns", "ns", None, calls["clock"], "one clock_gettime(CLOCK_MONOTONIC)"))
    results.append(Result.of("vcuda.start_ms", "ms", None, starts["with"], "the start above, with libvcuda"))
    results.append(Result.of("vcuda.start_plain_ms", "ms", None, starts["without"], "the start above, without"))
    return results


class Place:
    """A mount namespace with a container's /usr/local/vgpu, the null driver, and a share of `cores` of its card."""

    def __init__(self, path: Path, cores: int = 100) -> None:
        self.path = path
        (path / "driver").mkdir()
        shutil.copytree(BUILD / "lib/vcuda", path / "ours")
        self._compile("driver/libcuda.so.1", "null_driver.c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
        self._compile("driver/libnvidia-ml.so.1", "null_nvml.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
        self._compile("program", "null_program.c", "-ldl")
        (path / "limits").write_bytes(limits.encode("bench", [limits.CardLimit(CARD, ROOM, cores, cores)]))

    def _compile(self, output: str, source: str, *options: str) -> None:
        command = ["cc", "-O2", "-Wall", "-Werror", "-o", self.path / output, SOURCES / source, *options]
        subprocess.run(command, check=True)

    def __enter__(self) -> Place:
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        if self.holder.stdout.readline() != b"in\n":
            raise BenchError("no private mount namespace")
        return self

    def __exit__(self, *_: object) -> None:
        assert self.holder.stdin is not None
        assert self.holder.stdout is not None
        self.holder.stdin.close()
        self.holder.stdout.close()
        self.holder.wait()

    def command(self, *arguments: str) -> list[str]:
        nsenter = shutil.which("nsenter") or "nsenter"
        return [nsenter, f"--mount=/proc/{self.holder.pid}/ns/mnt", str(self.path / "program"), *arguments]

    def environment(self, limited: bool) -> dict[str, str]:
        libraries = "/usr/local/vgpu/ours" if limited else "/usr/local/vgpu/driver"
        return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": libraries}

    def nanoseconds(self, limited: bool) -> dict[str, float]:
        """Nanoseconds per call and of the clock, from the program's output."""
        command, environment = self.command("calls"), self.environment(limited)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)}: exit status {done.returncode}: {done.stdout.strip()}")
        return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}

    def added(self) -> dict[str, float]:
        """The figures of one pair of runs."""
        plain, limited = self.nanoseconds(False), self.nanoseconds(True)
        clock = median((plain["clock"], limited["clock"]))
        added = {name: limited[name] - plain[name] for name in ("query", *BARS)}
        return {
            "clock": clock,
            "query_ns": added["query"],
            "create_over_alloc": added["mem_create"] / added["mem_alloc_free"],
            "import_growth": limited["import_after"] / limited["import_first"],
            "import_us": limited["import_first"] / 1000,
            **{name: added[name] / clock for name in BARS},
        }

    def start(self, limited: bool) -> float:
        """Milliseconds of PROCESSES starts at once, spawned by one process in the namespace."""
        done = subprocess.run(
            self.command("starts", str(PROCESSES)),
            env=self.environment(limited),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"starts: exit status {done.returncode}: {done.stdout.strip()}")
        return float(done.stdout)

    def starts(self, rounds: int) -> dict[str, list[float]]:
        figures: dict[str, list[float]] = {"with": [], "without": [], "ratio": []}
        for number in range(rounds + 1):
            without, limited = self.start(False), self.start(True)
            if number:  # the first warms caches
                figures["with"].append(limited)
                figures["without"].append(without)
                figures["ratio"].append(limited / without)
            time.sleep(0.01)
        return figures
