"""Compares real drivers with and without libvcuda in front: `make compatibility` [RELEASES="550 615"] [ROWS=Numba].

Belongs here: the checks, each a program that runs twice, and the table in docs/compatibility.md. The drivers come from
packages.py. What a check compares stands in the column's heading; a cell is the number of lines that differ. It also
writes the records in tests/data/drivers. Needs root, a network, and 9 GB of disk; no card.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

import packages
import recorded_drivers
from checkout import BUILD, CHECKOUT, DATA
from vcuda_boxes import AWKWARD_UUID, Box, compile_c

HERE = Path(__file__).resolve().parent
CACHE = BUILD / "compatibility"
PAGE = CHECKOUT / "docs/compatibility.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
#: Directories below CACHE, and what pip installs into them. Each is used alone.
INSTALLED = {
    "torch": ("torch", "numpy"),
    "numba-0.59": ("numba==0.59.*", "numpy<1.27"),
    "numba-0.61": ("numba==0.61.*",),
    "numba": ("numba",),
    "cupy": ("cupy-cuda12x",),
    "cuda-bindings-12": ("cuda-bindings==12.9.*",),
    "cuda-bindings-13": ("cuda-bindings==13.*",),
    "monitors": ("nvitop", "gpustat"),
}
#: NVIDIA's own libraries by the CUDA version that they are of: program, package, version, library.
WHEELS = {
    "cudart 11.8": ("cudart", "nvidia-cuda-runtime-cu11", "11.8.89", "libcudart.so.11.0"),
    "cudart 12.0": ("cudart", "nvidia-cuda-runtime-cu12", "12.0.146", "libcudart.so.12"),
    "cudart 12.4": ("cudart", "nvidia-cuda-runtime-cu12", "12.4.127", "libcudart.so.12"),
    "cudart 12.9": ("cudart", "nvidia-cuda-runtime-cu12", "12.9.79", "libcudart.so.12"),
    "cudart 13.0": ("cudart", "nvidia-cuda-runtime", "13.0.96", "libcudart.so.13"),
    "cudart 13.5": ("cudart", "nvidia-cuda-runtime", "13.5.37", "libcudart.so.13"),
    "CUPTI 11.8": ("cupti", "nvidia-cuda-cupti-cu11", "11.8.87", "libcupti.so.11.8"),
    "CUPTI 12.9": ("cupti", "nvidia-cuda-cupti-cu12", "12.9.79", "libcupti.so.12"),
    "CUPTI 13.5": ("cupti", "nvidia-cuda-cupti", "13.5.25", "libcupti.so.13"),
    "NVRTC 11.8": ("nvrtc", "nvidia-cuda-nvrtc-cu11", "11.8.89", "libnvrtc.so.11.2"),
    "NVRTC 12.9": ("nvrtc", "nvidia-cuda-nvrtc-cu12", "12.9.86", "libnvrtc.so.12"),
    "NVRTC 13.5": ("nvrtc", "nvidia-cuda-nvrtc", "13.5.37", "libnvrtc.so.13"),
}


class Node:
    """A release's driver alone, and the same with libvcuda and a limit in front."""

    def __init__(self, release: str, directory: Path, box: Box) -> None:
        self.release, self.directory, self.box = release, directory, box

    def run(self, behind: bool, command: list[str], stdin: str = "", **environment: str) -> list[str]:
        """What the command prints, without what differs between any two runs, and its exit status."""
        path = [str(self.box.libraries if behind else self.directory), *environment.pop("libraries", "").split()]
        done = subprocess.run(
            self.box.command(*command) if behind else command,
            check=False,
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(path), **environment},
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        text = re.sub(r"0x[0-9a-f]{6,}|\b\d{2}:\d{2}:\d{2}\b|\bat [0-9a-f]{8,}", "...", done.stdout)
        return [*text.splitlines(), f"exit status {done.returncode}"]

    def both(self, command: list[str], stdin: str = "", **environment: str) -> tuple[list[str], list[str]]:
        return self.run(False, command, stdin, **environment), self.run(True, command, stdin, **environment)


@contextmanager
def node_of(release: str) -> Iterator[Node]:
    directory = packages.unpacked(release, CACHE / "drivers")
    place = CACHE / "boxes" / release
    subprocess.run(["rm", "-rf", place], check=True)
    box = Box(place, directory, directory / "nvidia-smi", {}, AWKWARD_UUID)
    box.libraries = recorded_drivers.libvcuda(release, directory, place / "libvcuda")
    box.limit(1 << 30)
    try:
        yield Node(release, directory, box)
    finally:
        box.close()


def different(lines: tuple[list[str], list[str]]) -> str:
    alone, behind = lines
    for one, other in zip(alone, behind):
        if one != other:
            print(f"    alone:  {one}\n    behind: {other}", file=sys.stderr)
    return str(sum(one != other for one, other in zip(alone, behind)) + abs(len(alone) - len(behind)))


# ---- the checks


def names(node: Node, library: str, way: str) -> tuple[set[str], set[str]]:
    """The names found alone and behind, by a way of ask_names.c."""
    every = {name for release in recorded_drivers.RELEASES for name in recorded_drivers.exports(library, release)}
    every |= recorded_drivers.exports(library, node.release, "object") | recorded_drivers.passed_on(library)
    alone, behind = node.both(
        [str(program("ask_names")), recorded_drivers.LIBRARIES[library]], "\n".join(sorted(every))
    )
    found = [{line.split()[0] for line in lines if way in line.partition(" ")[2]} for lines in (alone, behind)]
    assert len(found[0]) > 200
    return found[0], found[1]


def missing(library: str) -> Callable[[Node], str]:
    return lambda node: str(max(len(alone - behind) for alone, behind in (names(node, library, way) for way in "hdn")))


def too_many(library: str) -> Callable[[Node], str]:
    return lambda node: str(max(len(behind - alone) for alone, behind in (names(node, library, way) for way in "hdn")))


def proc_address(node: Node) -> str:
    command = [str(program("ask_proc_address")), "libcuda.so.1", *map(str, recorded_drivers.CUDA)]
    alone, behind = node.both(command, "\n".join(recorded_drivers.asked_names()))
    return different((alone, [line.replace("@", "") for line in behind]))


def not_replaced(node: Node) -> str:
    command = [str(program("ask_proc_address")), "libcuda.so.1", *map(str, recorded_drivers.CUDA)]
    text = "\n".join(node.run(True, command, "\n".join(recorded_drivers.asked_names())))
    return str(len(set(re.findall(r"@(\w+)", text)) & recorded_drivers.hooked("libcuda")))


def injection(node: Node) -> str:
    library = compile_c(CACHE / "injection.so", recorded_drivers.RECORDS / "injection.c", "-shared", "-fPIC", "-ldl")
    start = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    alone, behind = node.both([sys.executable, "-c", start], CUDA_INJECTION64_PATH=str(library))
    assert any(
        line == f"injected: cuMemFree {node.directory}/libcuda.so.1 {node.directory}/libcuda.so.1" for line in alone
    )
    ours = str(node.box.libraries)
    return different((alone, [line.replace(ours, str(node.directory)) for line in behind]))


def smi(arguments: str) -> Callable[[Node], str]:
    return lambda node: different(node.both([str(node.directory / "nvidia-smi"), *arguments.split()]))


def python(name: str, directory: str) -> Callable[[Node], str]:
    def check(node: Node) -> str:
        command = [sys.executable, str(HERE / "programs.py"), name]
        return different(node.both(command, PYTHONPATH=str(CACHE / directory), CUPY_CACHE_IN_MEMORY="1"))

    return check


def monitor(name: str, *arguments: str) -> Callable[[Node], str]:
    command = [sys.executable, "-m", name, *arguments]
    return lambda node: different(node.both(command, PYTHONPATH=str(CACHE / "monitors")))


def wheel(heading: str) -> Callable[[Node], str]:
    name, package, version, library = WHEELS[heading]
    directory = CACHE / f"{package}-{version}"

    def check(node: Node) -> str:
        path = next(path for path in directory.rglob(library))
        return different(
            node.both([sys.executable, str(HERE / "programs.py"), name, str(path)], libraries=str(path.parent))
        )

    return check


def static_cudart(version: str) -> Callable[[Node], str]:
    def check(node: Node) -> str:
        archive = next(CACHE.glob(f"nvidia-cuda-runtime*-{version}/nvidia/*/lib/libcudart_static.a"))
        libraries = (str(archive), "-lpthread", "-ldl", "-lrt", "-lstdc++")
        target = compile_c(CACHE / f"static_cudart-{version}", recorded_drivers.RECORDS / "static_cudart.c", *libraries)
        return different(node.both([str(target)]))

    return check


def musl(node: Node) -> str:
    """With the functions of glibc that the driver needs, which gcompat has on Alpine."""
    languages = DATA / "cuda/languages"
    shim, target = CACHE / "musl/ld-linux-x86-64.so.2", CACHE / "musl/client"
    target.parent.mkdir(exist_ok=True)
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", shim, languages / "musl_shim.c"], check=True)
    subprocess.run(["musl-gcc", "-o", target, recorded_drivers.RECORDS / "versions.c"], check=True)
    command = ["env", f"LD_PRELOAD={shim}", str(target)]
    alone, behind = node.both(command, libraries=str(shim.parent))
    assert alone[0].startswith("cuDriverGetVersion 0 1"), alone
    return different((alone, behind))


class Row(NamedTuple):
    """A check: what it compares, whether a card would show more, and how it is done."""

    what: str
    card: str
    check: Callable[[Node], str]


ROWS = (
    Row("libcuda: names of the driver that are missing", "no", missing("libcuda")),
    Row("libcuda: names that the driver lacks", "no", too_many("libcuda")),
    Row("libnvidia-ml: names of the driver that are missing", "no", missing("libnvidia-ml")),
    Row("libnvidia-ml: names that the driver lacks", "no", too_many("libnvidia-ml")),
    Row("cuGetProcAddress: other answers", "no", proc_address),
    Row("cuGetProcAddress: hooked functions that are not libvcuda's", "no", not_replaced),
    Row("NVML: init, shutdown, count, version", "yes", python("nvml", "none")),
    Row("nvidia-smi", "yes", smi("")),
    Row("nvidia-smi -q", "yes", smi("-q")),
    Row("nvidia-smi --help", "no", smi("--help")),
    *(Row(heading, "yes", wheel(heading)) for heading in WHEELS),
    Row("cudart 12.9, linked statically", "yes", static_cudart("12.9.79")),
    Row("cudart 13.5, linked statically", "yes", static_cudart("13.5.37")),
    Row("program linked with musl: load, versions", "yes", musl),
    Row("PyTorch: import, availability", "yes", python("torch", "torch")),
    Row("Numba 0.59: functions that it takes", "yes", python("numba", "numba-0.59")),
    Row("Numba 0.61: functions that it takes", "yes", python("numba", "numba-0.61")),
    Row("Numba, current: functions that it takes", "yes", python("numba", "numba")),
    Row("CuPy", "yes", python("cupy", "cupy")),
    Row("cuda-bindings 12.9", "yes", python("cuda_bindings", "cuda-bindings-12")),
    Row("cuda-bindings 13", "yes", python("cuda_bindings", "cuda-bindings-13")),
    Row("nvitop", "yes", monitor("nvitop", "--once")),
    Row("gpustat", "yes", monitor("gpustat")),
    Row("CUDA_INJECTION64_PATH: library loaded, what it finds", "yes", injection),
)


def program(name: str) -> Path:
    target = CACHE / name
    return target if target.exists() else compile_c(target, recorded_drivers.RECORDS / f"{name}.c", "-ldl")


# ---- preparing, records, table


def install() -> None:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--target"]
    wanted = {
        **INSTALLED,
        **{f"{package}-{version}": (f"{package}=={version}",) for _, package, version, _ in WHEELS.values()},
    }
    for directory, requirements in wanted.items():
        if not (CACHE / directory).exists():
            alone = ["--no-deps"] if directory not in INSTALLED else []
            subprocess.run([*pip, str(CACHE / directory), *alone, *requirements], check=True)


def record(releases: list[str]) -> None:
    """Write the answers of these drivers anew; others keep theirs. The lists of exports have to be right already."""
    for release in releases:
        directory = packages.unpacked(release, CACHE / "drivers")
        for library, file in recorded_drivers.LIBRARIES.items():
            recorded = tuple(recorded_drivers.exports(library, release, kind) for kind in ("function", "object"))
            if recorded_drivers.symbols(directory / file) != recorded:
                raise SystemExit(f"{directory / file} exports other names than were recorded: see names/refresh.py")
    answers = {release: recorded_drivers.answers(release) for release in recorded_drivers.RELEASES}
    for release in releases:
        library = packages.unpacked(release, CACHE / "drivers") / "libcuda.so.1"
        command = [program("ask_proc_address"), library, *map(str, recorded_drivers.CUDA)]
        done = subprocess.run(
            command, input="\n".join(recorded_drivers.asked_names()), stdout=subprocess.PIPE, text=True, check=True
        )
        answers[release] = recorded_drivers.parsed(done.stdout)
    recorded_drivers.write_answers(answers)


def table(cells: dict[tuple[str, str], str]) -> str:
    releases = list(recorded_drivers.RELEASES)
    lines = [f"| what differs | {' | '.join(recorded_drivers.RELEASES.values())} | a card shows more |"]
    lines.append("|---|" + "---|" * (len(releases) + 1))
    for row in ROWS:
        figures = [cells.get((row.what, release), "") for release in releases]
        lines.append(f"| {row.what} | {' | '.join(figures)} | {row.card} |")
    return "\n".join(lines) + "\n"


def written() -> dict[tuple[str, str], str]:
    """The cells of the page's table."""
    cells = {}
    for line in PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()[2:]:
        what, *figures = [word.strip() for word in line.strip("|").split("|")]
        cells.update({(what, release): figure for release, figure in zip(recorded_drivers.RELEASES, figures)})
    return cells


def main(words: list[str]) -> int:
    """`words`: releases, and parts of rows' names; none: all. What is not run keeps its cell."""
    releases = [release for release in recorded_drivers.RELEASES if release in words]
    parts = [word for word in words if word not in recorded_drivers.RELEASES]
    releases = releases or list(recorded_drivers.RELEASES)
    rows = [row for row in ROWS if not parts or any(part in row.what for part in parts)]
    CACHE.mkdir(parents=True, exist_ok=True)
    install()
    record(releases)
    cells = written()
    for release in releases:
        with node_of(release) as node:
            for row in rows:
                cells[row.what, release] = row.check(node)
                print(release, row.what, cells[row.what, release], flush=True)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(cells) + END + rest.partition(END)[2], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
