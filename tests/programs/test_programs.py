"""Programs that nobody here wrote, unchanged, on simulated drivers of several releases: alone, and in a share.

Belongs here: the table of programs, and what holds for all of them. Each program's scenarios are in run_<name>.py. The
programs are in build/clients (`make clients`, `make clients-long`; VGPU_CLIENTS names another one). stand_ins/ has what
takes the place of CUDA's runtime and of the libraries that have a runtime in them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
import recorded_drivers
import yaml
from checkout import BUILD, CHECKOUT
from vcuda_boxes import SimBox, load_simctl, need_root

from vgpu.config import limits

HERE = Path(__file__).resolve().parent
CLIENTS = Path(os.environ.get("VGPU_CLIENTS", BUILD / "clients"))
STAND_INS = BUILD / "stand_ins"
WHEELS = next(CLIENTS.glob("long/lib/python3*/site-packages/nvidia"), STAND_INS)  #: libraries and compilers of NVIDIA
MIB, MS = 1 << 20, 1_000_000
CARD, LIMIT = 2048 * MIB, 768 * MIB  #: what a card has, and what a share has of it
CORES = 30
BEGIN, END = "<!-- programs: begin -->\n", "<!-- programs: end -->\n"  #: around the table in docs/compatibility.md
KERNEL = 20 * MS  #: ns that a kernel takes where the compute limit is looked at
BURST = 2 * KERNEL  #: what a program may use before its tokens come: one kernel, and the tokens that it has at first


class Program(NamedTuple):
    """Its scenarios: those of `work` print the same lines in every run, those of `full` meet the end of memory."""

    name: str
    script: str
    work: tuple[str, ...]
    full: tuple[str, ...] = ()
    refusal: str = ""  #: a pattern: what the program itself says then
    throttled: tuple[str, ...] = ()  #: those with as many kernels in each run, and enough to see the compute limit
    place: str = "programs"  #: its environment below CLIENTS
    packages: str = ""  #: below CLIENTS: for PYTHONPATH
    releases: tuple[str, ...] = ("550", "580", "615")  #: not older than CUDA 12.4
    quick: tuple[str, ...] = ()  #: those of the releases that `make test` runs
    environment: tuple[tuple[str, str], ...] = ()
    cards: int = 1
    limit: int = LIMIT
    fills_card: bool = True  #: `full` meets the end of a whole card, too


JAX_FULL = "(ValueError|XlaRuntimeError) RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate)"
ONCE, OLD, OLDER = ("550",), ("470", "535", "550"), ("470", "535", "550", "580", "615")
PROGRAMS = (
    Program(
        "PyTorch 2.5.1", "pytorch", ("work", "train", "graphs", "children", "compiled"), ("out_of_memory", "pair"),
        "OutOfMemoryError CUDA out of memory", ("work",),
    ),
    Program(
        "PyTorch, cudaMallocAsync", "pytorch", ("work", "graphs"), ("out_of_memory",),
        "OutOfMemoryError Allocation on device",
        environment=(("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),),
    ),
    Program(
        "PyTorch, expandable segments", "pytorch", ("work", "graphs"), ("out_of_memory", "pair"),
        "OutOfMemoryError CUDA out of memory", environment=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    ),
    Program("PyTorch, two cards", "pytorch", (), ("two_cards",), "OutOfMemoryError CUDA out of memory", cards=2),
    Program("Triton 3.1.0", "triton", ("work",)),
    Program("JAX 0.5.3", "jax", ("work", "children"), ("out_of_memory",), JAX_FULL, ("work",)),
    *(
        Program(
            f"JAX, {kind} allocator", "jax", ("work",), ("out_of_memory",), JAX_FULL,
            environment=(("XLA_PYTHON_CLIENT_ALLOCATOR", kind),),
        )
        for kind in ("platform", "cuda_async")
    ),
    Program(
        "JAX, two cards", "jax", (), ("two_cards",), JAX_FULL, cards=2,
        environment=(("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),),
    ),
    Program(
        "ONNX Runtime 1.20.2", "onnxruntime", ("work", "graphs"), ("out_of_memory",),
        "RuntimeError .*Failed to allocate memory", ("work",),
    ),
    Program("faiss 1.14.1", "faiss", ("work",), ("out_of_memory",), "RuntimeError .*out of memory", ("work",)),
    Program("faiss, two cards", "faiss", ("two_cards",), cards=2),
    Program(
        "Taichi 1.7.4", "taichi", ("work",), ("out_of_memory",), "RuntimeError .*CUDA_ERROR_OUT_OF_MEMORY", ("work",)
    ),
    Program("Halide 21", "halide", ("work",), ("out_of_memory",), "HalideError .*CUDA_ERROR_OUT_OF_MEMORY", ("work",)),
    Program(
        "Dr.Jit 1.5", "drjit", ("work",), ("out_of_memory",), "RuntimeError .*out of memory", ("work",), place="",
        quick=ONCE,
    ),
    Program(
        "hashcat 6", "hashcat", ("work",), ("out_of_memory",), "Not enough allocatable device memory", place="",
        limit=300 * MIB, fills_card=False,
    ),
    Program("FFmpeg, hwupload_cuda", "ffmpeg", ("work",), ("out_of_memory",), "CUDA_ERROR_OUT_OF_MEMORY", place=""),
    Program(
        "GCC's OpenMP", "openmp", ("work",), ("out_of_memory",), "omp_target_alloc returned NULL", ("work",), place="",
    ),
    *(
        Program(
            f"cuda-bindings {version}", "clients", ("cuda_bindings",), ("cuda_bindings_filled",),
            "MemoryError CUDA_ERROR_OUT_OF_MEMORY", place="", packages=packages, releases=("535", "615"),
            quick=("535", "615"),
        )
        for version, packages in (("12.9", ""), ("13", "cuda-bindings-13"))
    ),
    Program("cuda-bindings, newer calls", "clients", ("cuda_bindings_newer",), place="", releases=ONCE, quick=ONCE),
    *(
        Program(
            f"Numba {version}", "clients", ("numba_arrays",), ("numba_filled",),
            "CudaAPIError .*CUDA_ERROR_OUT_OF_MEMORY", place="", packages=packages, releases=releases, quick=quick,
        )
        for version, packages, releases, quick in (
            ("0.59", "numba-0.59", OLD, ("470", "550")),
            ("0.61", "numba-0.61", OLD, ()),
            ("of today", "numba", OLDER, ()),
        )
    ),
    Program("numba-cuda", "clients", ("numba_cuda",), place="long", releases=ONCE),
    Program("PyCUDA", "clients", ("pycuda",), place="long", releases=ONCE),
    Program(
        "tinygrad", "clients", ("tinygrad",), place="", releases=ONCE, quick=ONCE,
        environment=(("DEV", "CUDA"), ("CACHELEVEL", "0")),
    ),
)  # fmt: skip
MONITORS = Program("nvitop, gpustat", "clients", ("monitors",), place="", releases=OLDER)


def table() -> str:
    """The programs, as docs/compatibility.md has them."""
    lines = ["| program | runs | out of memory | cores | releases |", "|---|---|---|---|---|"]
    for program in (*PROGRAMS, MONITORS):
        kinds = (program.work, program.full, program.throttled)
        words = [", ".join(kind).replace("_", " ") for kind in kinds]
        lines.append(f"| {' | '.join((program.name, *words, ', '.join(program.releases)))} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table() -> None:
    page = (CHECKOUT / "docs/compatibility.md").read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == table()


class Site:
    """A simulated node with a release's driver and its cards, and a container with a share of each of them."""

    def __init__(self, directory: Path, release: str, cards: int = 1, clock: str = "wall") -> None:
        self.directory = directory
        self.driver = directory / "driver"
        self.driver.mkdir(parents=True)
        version = recorded_drivers.RELEASES[release]
        for library, soname in recorded_drivers.LIBRARIES.items():
            (self.driver / soname).symlink_to(BUILD / f"lib/drivers/{version}/{library}.so.{version}")
        simctl = load_simctl()
        profile = yaml.safe_load((CHECKOUT / "libvcuda/sim/profiles/t4x1.yaml").read_text())
        profile["models"]["t4"].update(memory_mib=CARD // MIB, reserved_mib=0)
        profile["cards"] = [{"model": "t4", "bus": f"0000:0{card}:00.0"} for card in range(4, 4 + cards)]
        state = directory / "state"
        simctl.make_state(str(state), profile, device_nodes=False, clock=clock)
        self.uuids = [card["uuid"] for card in simctl.read_state(str(state))["cards"]]
        self.box = SimBox(directory / "box", self.driver, Path(), {"VGPU_SIM_DIR": str(state)}, self.uuids[0])
        self.box.simctl = simctl
        self.box.libraries = recorded_drivers.libvcuda(release, self.driver, directory / "libvcuda")
        for place in (self.driver, self.box.libraries):
            (place / "libcuda.so").symlink_to("libcuda.so.1")

    def share(self, memory: int = LIMIT, cores: int = 100) -> None:
        cards = [limits.CardLimit(uuid, memory, cores, cores) for uuid in self.uuids]
        (self.box.path / "limits").write_bytes(limits.encode("box", cards))

    def run(self, program: Program, scenario: str, alone: bool = False, **environment: str) -> list[str]:
        """The lines that a scenario prints, on the driver alone or in the share."""
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        command = [str(CLIENTS / program.place / "bin/python"), str(HERE / f"run_{program.script}.py"), scenario]
        nvidia = [*WHEELS.glob("*/lib")]
        others = [STAND_INS, *nvidia] if program.place == "programs" else [*nvidia, STAND_INS]
        libraries = [self.driver if alone else self.box.libraries, *others]
        done = subprocess.run(
            command if alone else self.box.command(*command),
            check=False,
            cwd=home,
            env={
                **self.box.environment,
                "PATH": f"{WHEELS}/cuda_nvcc/bin:{os.environ['PATH']}",
                "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
                "HOME": str(home),
                "PYTHONPATH": str(CLIENTS / program.packages) if program.packages else "",
                "PYTHONWARNINGS": "ignore",
                "PYTHONDONTWRITEBYTECODE": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
                "TRITON_LIBCUDA_PATH": str(self.driver),
                "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={WHEELS}/cuda_nvcc",
                "_FAISS_WHEEL_DISABLE_CUDA_PRELOAD": "1",
                **dict(program.environment),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert [card["used"] for card in self.box.cards()] == [0] * len(self.uuids)
        return done.stdout.splitlines()

    def most_used(self) -> list[int]:
        return [int(card["most_used"]) for card in self.box.cards()]

    def elapsed(self) -> int:
        """ns of virtual time."""
        return int(self.box.simctl.read_state(self.box.environment["VGPU_SIM_DIR"])["clock"]["now"]) - 1000 * 1000 * MS


Sites = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Sites]:
    need_root()
    if not (CLIENTS / "bin/nvitop").exists():
        pytest.skip(f"{CLIENTS} is missing: make clients")
    made: list[Site] = []

    def make(release: str, cards: int = 1, clock: str = "wall") -> Site:
        made.append(Site(tmp_path / f"site{len(made)}", release, cards, clock))
        return made[-1]

    yield make
    for site in made:
        site.box.close()


def rows(*kinds: str) -> Any:
    """Each program, scenario of these kinds and release; `make test` has those of `quick`."""
    return pytest.mark.parametrize(
        ("program", "scenario", "release"),
        [
            pytest.param(
                program,
                scenario,
                release,
                id=f"{re.sub('[^A-Za-z0-9.]+', '-', program.name)}-{scenario}-{release}",
                marks=() if release in program.quick else pytest.mark.long,
            )
            for program in PROGRAMS
            for kind in kinds
            for scenario in getattr(program, kind)
            for release in program.releases
        ],
    )


@pytest.fixture(autouse=True)
def complete(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("long") and not (STAND_INS / ".stamp").exists():
        pytest.skip(f"{STAND_INS} is missing: make clients-long")


@rows("work")
def test_a_program_prints_the_same_in_a_share(make_site: Sites, program: Program, scenario: str, release: str) -> None:
    site = make_site(release, program.cards)
    site.share()
    alone = site.run(program, scenario, alone=True)
    site.box.forget_most_used()
    assert alone and site.run(program, scenario) == alone
    site.share(cores=CORES)
    assert site.run(program, scenario) == alone
    assert max(site.most_used()) <= LIMIT


@rows("full")
def test_a_program_meets_its_limit_as_it_meets_the_end_of_a_card(
    make_site: Sites, program: Program, scenario: str, release: str
) -> None:
    """By its own kind of error, at its own limit, and it goes on afterwards."""
    site = make_site(release, program.cards)
    site.share(program.limit)
    lines = without_refusals(program, site.run(program, scenario))
    assert max(site.most_used()) <= program.limit
    if program.fills_card:
        assert min(site.most_used()) > program.limit * 3 // 4
        assert without_refusals(program, site.run(program, scenario, alone=True)) == lines
        assert min(site.most_used()) > CARD * 3 // 4


def without_refusals(program: Program, lines: list[str]) -> list[str]:
    """The lines but those about the end of memory, of which there have to be some, in the program's own words."""
    refused = [line for line in lines if line.startswith("refused")]
    assert refused and all(re.search(program.refusal, line) for line in refused), lines
    return [line for line in lines if not line.startswith(("refused", "granted"))]


@rows("throttled")
def test_a_program_gets_its_part_of_the_time(make_site: Sites, program: Program, scenario: str, release: str) -> None:
    """In virtual time. The card does exactly the same work as without a limit."""
    work = []
    for cores in (0, CORES):
        site = make_site(release, program.cards, clock="virtual")
        site.share(cores=cores or 100)
        lines = site.run(program, scenario, alone=not cores, VGPU_SIM_KERNEL_NS=str(KERNEL))
        busy = int(site.box.cards()[0]["busy_ns"])
        work.append((lines, busy))
    assert work[0] == work[1]
    assert busy - BURST > busy * CORES // 100  # so much that it takes longer
    assert busy - BURST <= site.elapsed() * CORES // 100


@pytest.mark.parametrize("release", MONITORS.releases)
def test_monitors_show_the_limit_as_the_cards_memory(make_site: Sites, release: str) -> None:
    site = make_site(release)
    site.share()
    total, gpustat, nvitop = site.run(MONITORS, "monitors")
    assert total == f"total {LIMIT // MIB} <class 'int'> <class 'int'>"
    assert f"/ {LIMIT // MIB} MB" in gpustat
    assert f"/ {LIMIT // MIB}.0MiB" in nvitop
