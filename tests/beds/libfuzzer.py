"""The fuzz targets in C: building them with any clang that has libFuzzer, and running them on their kept inputs.

The kept inputs of a target lie in tests/fuzz/corpus/<target>. Each is run first, and the search begins from them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from checkout import CHECKOUT

FUZZ = CHECKOUT / "tests/fuzz"
LIBVCUDA, GATE = "libvcuda/src", "hook/gate"
#: Target -> the folder of its program's sources, and those that it is linked with.
TARGETS = {
    "fuzz_limits": (LIBVCUDA, ["base/log.c"]),
    "fuzz_schedules": (LIBVCUDA, ["base/log.c"]),
    "fuzz_usage": (LIBVCUDA, ["base/log.c", "base/process.c", "shared/share_locks.c", "shared/slot_lock.c"]),
    "fuzz_gate": (GATE, ["json_scan.c", "marker.c", "spec_hooks.c"]),
}
OPTIONS = ["-g", "-O1", "-std=gnu11", "-D_GNU_SOURCE", "-fsanitize=fuzzer,address,undefined"]


def clang() -> str:
    """A clang of any version that has libFuzzer; "" where there is none."""
    for directory in os.get_exec_path():
        for name in (Path(directory, "clang"), *sorted(Path(directory).glob("clang-[0-9]*"))):
            if name.exists() and any((resources(name) / "lib").glob("*/libclang_rt.fuzzer*.a")):
                return str(name)
    return ""


def resources(program: Path) -> Path:
    done = subprocess.run([program, "-print-resource-dir"], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip())


def build(target: str, directory: Path) -> Path:
    folder, sources = TARGETS[target]
    program = directory / target
    includes = [f"-I{CHECKOUT}/libvcuda/include", f"-I{CHECKOUT / folder}"]
    files = [str(FUZZ / f"{target}.c"), *(str(CHECKOUT / folder / name) for name in sources)]
    command = [clang(), *OPTIONS, "-fno-sanitize-recover=all", *includes, "-o", program, *files, "-lpthread"]
    subprocess.run(command, check=True)
    return program


def run(program: Path, seconds: int) -> subprocess.CompletedProcess[bytes]:
    """Run the kept inputs, and others for `seconds`. What it finds lies beside `program`, new inputs in `new`."""
    limits = [f"-max_total_time={seconds}", "-timeout=30", "-max_len=8192", "-rss_limit_mb=1024"]
    new = program.parent / "new"
    new.mkdir(exist_ok=True)
    command = [str(program), *limits, str(new), str(FUZZ / "corpus" / program.name)]
    return subprocess.run(command, cwd=program.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def rounds(done: subprocess.CompletedProcess[bytes]) -> int:
    """How many inputs it ran: the number in `Done 131785 runs in 31 second(s)`."""
    words = done.stdout.rpartition(b"Done ")[2].split()
    return int(words[0]) if words and words[0].isdigit() else 0
