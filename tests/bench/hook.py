"""Group `hook`: the time that the hook adds to `runc create`, as a multiple of what a bare Python hook adds.

All variants run in every round, several times each and in shuffled order (fixed seed), so that other load on the
machine affects all of them alike. A variant's cost in a round is the median of its repeats. A figure is
(cost - bare) / (reference - bare) of one round; min, median and max are over the rounds. Only `runc create` is timed,
from spawn to exit, each on a root file system of its own, and for hook.stop the `runc delete` of a container that has
ended. Other deletions are not timed, nor a first round that warms caches.

The root file systems are on a tmpfs: the journal of a disk that others share is not the hook's cost, and is measured
apart in hook.one_card_disk. The hook's records and runc's state are on the tmpfs too, as in /run on a node.

The hook is one file of byte code, as the package installs it. hook.one_card_sources is the same hook from the
checkout's sources, hook.one_card_release the hook in a release, which carries the same Python as the host has. With
BEFORE=DIRECTORY in the environment, the hook of that checkout is measured beside this one's, in the same rounds.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import bundles
import host_view
import nodes
import plugin_image
import trees
from checkout import BUILD, CHECKOUT
from results import BenchError, Result

from vgpu.config import records
from vgpu.config.settings import DEFAULTS
from vgpu.hook.formats import ldcache
from vgpu.hook.inject import plan
from vgpu.hook.linux import procfs
from vgpu.node.driver import files

ROUNDS = 100
REPEATS = 3
OFTEN = {"bare": 5, "reference": 5}  # every ratio rests on these two
STOPPED = ("bare", "one_card", "one_card_before")  # the variants whose stop is timed, too
MODULES = 45  # the bar of hook.modules
SEED = 1
SETTLE = 0.01  # seconds after a delete: the kernel removes namespaces and cgroups asynchronously

REFERENCE = ("python3", "-I", "-S", "-c", "import json, os, ctypes")
FILES = 30  # libraries and programs of a share
CACHE_ENTRIES = 200  # in the image's /etc/ld.so.cache: the number in CUDA's runtime images

#: Libraries of drivers that the simulated one lacks; unnamed ones fill up to FILES.
ABSENT = ("libnvidia-fatbinaryloader", "libnvidia-compiler", "libnvidia-tileiras", "libnvidia-sandboxutils")

TMPFS = ("/run", "/dev/shm")

ROOTS = ("config", "hook")  # of the checkout's sources, as the gate of the checkout has them
Timed = Callable[[], float]


def measure(rounds: int = ROUNDS) -> list[Result]:
    """All results of the group."""
    if os.geteuid() != 0:
        raise BenchError("needs root: runc creates containers")
    with _directory(None) as disk, _directory(_tmpfs()) as memory, _runtime(memory) as runtime:
        stage = Stage(runtime, disk, memory)
        print(f"root file systems, records, bundles and runc's state on a tmpfs: {memory}; {_load()}")
        variants = stage.variants()
        stage.print_content("hook.one_card", variants["one_card"])
        stage.print_content("hook.eight_cards", variants["eight_cards"])
        timed: dict[str, Timed] = {name: partial(stage.create, bundle) for name, bundle in variants.items()}
        with stage.running() as container:
            timed["state"] = partial(stage.call, *runtime.command, "state", container)
            timed["shim_state"] = partial(
                stage.call, str(BUILD / "bin/vgpu-runtime"), *runtime.command[1:], "state", container
            )
            for name in [name for name in STOPPED if name in variants]:
                timed[f"{name}_stop"] = partial(stage.stop, variants[name])
            costs = interleaved(timed, rounds)
        print(f"done; {_load()}")
        return [*results(costs), *stage.modules()]


def interleaved(timed: dict[str, Timed], rounds: int, repeats: int = REPEATS) -> dict[str, list[float]]:
    """Seconds per name, one figure a round. A first round is not counted."""
    shuffle = random.Random(SEED).shuffle
    costs: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(rounds + 1):
        order = [name for name in timed for _ in range(OFTEN.get(name, repeats))]
        shuffle(order)
        figures: dict[str, list[float]] = {name: [] for name in timed}
        for name in order:
            figures[name].append(timed[name]())
        if number:
            for name, seconds in figures.items():
                costs[name].append(median(seconds))
    return costs


def results(costs: dict[str, list[float]]) -> list[Result]:
    """Ratios, and the milliseconds behind them."""

    def added(name: str, bare: str = "bare") -> list[float]:
        return [cost - base for cost, base in zip(costs[name], costs[bare])]

    def ratio(name: str, bare: str = "bare") -> list[float]:
        return [cost / reference for cost, reference in zip(added(name, bare), added("reference"))]

    def milliseconds(seconds: list[float]) -> list[float]:
        return [item * 1000 for item in seconds]

    shim = [cost / plain for cost, plain in zip(costs["shim_state"], costs["state"])]
    saved = [sources - file for sources, file in zip(costs["one_card_sources"], costs["one_card"])]
    over = "cost over bare runc create / that of a python3 -I -S hook importing json, os, ctypes"

    def of_one_card(figures: list[float]) -> list[float]:
        return [cost / own for cost, own in zip(figures, added("one_card"))]

    on_disk, stop = added("one_card_disk", "bare_disk"), added("one_card_stop", "bare_stop")
    return [
        Result.of("hook.no_allocation", "ratio", 0.1, ratio("no_allocation"), f"{over}: no vgpu marker"),
        Result.of("hook.one_card", "ratio", 1.35, ratio("one_card"), f"{over}: share of one card, {FILES} files"),
        Result.of("hook.one_card_sources", "ratio", None, ratio("one_card_sources"), f"{over}: one_card, the sources"),
        Result.of(
            "hook.one_card_release", "ratio", 1.1, of_one_card(added("one_card_release")), "a release / one_card"
        ),
        Result.of(
            "hook.one_card_disk", "ratio", 1.6, of_one_card(on_disk), "one_card with its root on disk / one_card"
        ),
        Result.of("hook.stop", "ratio", 0.6, of_one_card(stop), "poststop, over bare runc delete / one_card"),
        *_beside_before(costs, added),
        Result.of("hook.eight_cards", "ratio", None, ratio("eight_cards"), f"{over}: eight whole cards"),
        Result.of("hook.shim_passthrough", "ratio", None, shim, "vgpu-runtime state / runc state"),
        Result.of("hook.bare_ms", "ms", None, milliseconds(costs["bare"]), "runc create without hooks"),
        Result.of("hook.reference_ms", "ms", None, milliseconds(added("reference")), "the reference hook adds"),
        Result.of("hook.no_allocation_ms", "ms", None, milliseconds(added("no_allocation")), "no vgpu marker adds"),
        Result.of("hook.one_card_ms", "ms", None, milliseconds(added("one_card")), "a share of one card adds"),
        Result.of("hook.stop_ms", "ms", None, milliseconds(stop), "poststop of a share adds to runc delete"),
        Result.of("hook.bytecode_saved_ms", "ms", None, milliseconds(saved), "one_card_sources - one_card"),
    ]


def _beside_before(costs: dict[str, list[float]], added: Callable[..., list[float]]) -> list[Result]:
    """What this hook adds less what the hook of BEFORE adds, in the same round."""
    if "one_card_before" not in costs:
        return []
    start = [(own - before) * 1000 for own, before in zip(costs["one_card"], costs["one_card_before"])]
    stop = [(own - before) * 1000 for own, before in zip(costs["one_card_stop"], costs["one_card_before_stop"])]
    part = [own / before for own, before in zip(added("one_card"), added("one_card_before"))]
    return [
        Result.of("hook.one_card_change", "ratio", None, part, "one_card / that of the checkout BEFORE"),
        Result.of("hook.one_card_change_ms", "ms", None, start, "one_card - that of BEFORE"),
        Result.of("hook.stop_change_ms", "ms", None, stop, "poststop - that of BEFORE"),
    ]


class Stage:
    """The nodes, root file systems and bundles that the group measures on.

    On `disk`: driver roots, and the root file system of one variant. On `memory`, a tmpfs: everything else.
    """

    def __init__(self, runtime: bundles.Runtime, disk: Path, memory: Path) -> None:
        self.runtime = runtime
        self.disk = disk
        self.memory = memory
        self.one = self.node("one", "t4x1")
        self.image = trees.make("debian", memory / "image")
        cache = self.image / "etc/ld.so.cache"
        names = [f"libimage{number}.so.1" for number in range(CACHE_ENTRIES)]
        additions = [ldcache.Addition(name, f"/usr/lib/{trees.MULTIARCH}/{name}") for name in names]
        cache.write_bytes(ldcache.merge(cache.read_bytes(), additions))
        subprocess.run(["cp", "-a", self.image, disk / "image"], check=True)

    def node(self, name: str, profile: str) -> nodes.SimulatedNode:
        """A node whose driver has the full set of libraries, inventory taken."""
        made = nodes.SimulatedNode(self.disk / name, profile, **{"paths.run": str(self.memory / f"run-{name}")})
        _complete(made.driver / "usr/lib" / trees.MULTIARCH, made.driver / "usr/bin")
        made.take_inventory()
        return made

    def with_byte_code(self, node: nodes.SimulatedNode, checkout: Path = CHECKOUT) -> nodes.SimulatedNode:
        """`node` with a gate that has the hook of `checkout` as one file of byte code."""
        above = self.disk / f"installed{len(list(self.disk.glob('installed*')))}"
        above.mkdir()
        file, build = above / "hook.bytecode", above / "gate"
        roots = ":".join(str(checkout / root) for root in ROOTS)
        compiler = checkout / "packaging/bytecode/compile_hook.py"
        gate = ["cmake", "-S", checkout / "hook/gate", "-B", build, f"-DVGPU_BYTE_CODE={file}"]
        for command in (["/usr/bin/python3", "-I", "-S", compiler, roots, file], gate, ["cmake", "--build", build]):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        made = copy.copy(node)
        made.hook = build / "bin/vgpu-hook"
        return made

    def with_hook_of(self, node: nodes.SimulatedNode, checkout: Path) -> nodes.SimulatedNode:
        """`node` with the byte code of another checkout, and of its settings those that this one knows."""
        made = self.with_byte_code(node, checkout)
        made.config = self.disk / "config-before.json"
        names = ["python3", "-c", "from vgpu.config.settings import DEFAULTS; print(*DEFAULTS)"]
        known = subprocess.check_output(
            names, env={"PATH": os.defpath, "PYTHONPATH": str(checkout / "config")}, text=True
        )
        values = {name: node.settings[name] for name in DEFAULTS if name in known.split()}
        records.write(str(made.config), {**node.settings.record(), "settings": values}, 0o644)
        return made

    def with_release(self, node: nodes.SimulatedNode) -> nodes.SimulatedNode:
        """`node` with the gate of a release, whose library is compiled as in the image vgpu-node."""
        release = host_view.release_of_this_machine(self.disk / "release")
        library = release / plugin_image.LIBRARY.relative_to("/")
        compiler = [plugin_image.PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", library]
        subprocess.run(compiler, check=True)
        made = copy.copy(node)
        made.hook = release / "usr/bin/vgpu-hook"
        return made

    def variants(self) -> dict[str, bundles.Bundle]:
        """The bundles to create, by name."""
        one, eight = self.one, self.node("eight", "h100x8")
        share = {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"}
        reference = {"path": "/usr/bin/python3", "args": list(REFERENCE), "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}
        plain = self.bundle("reference")
        plain.config["hooks"] = {"prestart": [reference]}
        installed, before = self.with_byte_code(one), os.environ.get("BEFORE")
        older = {
            "one_card_before": self.bundle("one_card_before", share).hooks(self.with_hook_of(one, Path(before)))
        } if before else {}  # fmt: skip
        return {
            **older,
            "bare": self.bundle("bare"),
            "reference": plain,
            "no_allocation": self.bundle("no_allocation").hooks(installed),
            "one_card": self.bundle("one_card", share).hooks(installed),
            "one_card_sources": self.bundle("one_card_sources", share).hooks(one),
            "one_card_release": self.bundle("one_card_release", share).hooks(self.with_release(one)),
            "one_card_disk": self.bundle("one_card_disk", share, self.disk).hooks(installed),
            "bare_disk": self.bundle("bare_disk", None, self.disk),
            "eight_cards": self.bundle("eight_cards", {"vgpu.io/cores": "800"}).hooks(self.with_byte_code(eight)),
        }

    def bundle(self, name: str, annotations: dict[str, str] | None = None, above: Path | None = None) -> bundles.Bundle:
        """A bundle whose root file system will be in `above`."""
        rootfs = (above or self.memory) / f"rootfs-{name}"
        return bundles.Bundle(self.memory / name, rootfs, annotations).command("sleep", "60")

    @contextmanager
    def fresh_rootfs(self, bundle: bundles.Bundle) -> Iterator[None]:
        """Copy the directories and link the files: as cheap as an overlay's empty upper layer, without its mount."""
        subprocess.run(["cp", "-al", bundle.rootfs.with_name("image"), bundle.rootfs], check=True)
        try:
            yield
        finally:
            shutil.rmtree(bundle.rootfs)

    @contextmanager
    def running(self) -> Iterator[str]:
        """A created container beside those that are measured."""
        apart = self.bundle("apart")
        with self.fresh_rootfs(apart):
            container = self.runtime.new_id("apart")
            timed_create(self.runtime, apart, container)
            try:
                yield container
            finally:
                self.runtime.delete(container)

    def create(self, bundle: bundles.Bundle) -> float:
        """Seconds of one `runc create`; deletes the container afterwards."""
        with self.fresh_rootfs(bundle):
            container = self.runtime.new_id("bench")
            try:
                return timed_create(self.runtime, bundle, container)
            finally:
                self.runtime.delete(container)
                self.runtime.started.remove(container)
                time.sleep(SETTLE)

    def stop(self, bundle: bundles.Bundle) -> float:
        """Seconds of the `runc delete` of a container whose init has ended."""
        with self.fresh_rootfs(bundle):
            container = self.runtime.new_id("bench")
            timed_create(self.runtime, bundle, container)
            pid = int(self.runtime.state(container)["pid"])
            os.kill(pid, signal.SIGKILL)
            while procfs.start_time(pid):
                time.sleep(SETTLE)
            seconds = self.call(*self.runtime.command, "delete", container)
            self.runtime.started.remove(container)
            time.sleep(SETTLE)
            return seconds

    def modules(self) -> list[Result]:
        """How many modules a start and a stop of a pod's share load from the sources; the same in each run."""
        grants = {"cores": 30, "memory": 2 << 30}
        names = {f"vgpu.io__grant_{name}": self.one.grant(name, amount) for name, amount in grants.items()}
        made = self.bundle("modules").pod(str(uuid.uuid4()), "c", "vgpu-bench", **names).hooks(self.one)
        counted: dict[str, list[int]] = {}
        for stage, (hook,) in made.config["hooks"].items():
            roots = ":".join(str(CHECKOUT / root) for root in ROOTS)
            program = [
                "python3",
                "-I",
                "-S",
                str(CHECKOUT / "tests/beds/loaded_hook.py"),
                str(made.path / stage),
                roots,
            ]
            hook.update(path="/usr/bin/python3", args=[*program, *hook["args"][1:]])
        self.create(made)
        for stage in ("prestart", "poststop"):
            counted[stage] = [len(line.split()) for line in (made.path / stage).read_text().splitlines()]
        start, stop = counted["prestart"], counted["poststop"]
        what = "modules of vgpu that the start of a pod's share loads, without packages"
        return [
            Result.of("hook.modules", "modules", MODULES, [start[0]], what),
            Result.of("hook.stop_modules", "modules", None, [stop[0]], "the same of its stop"),
            Result.of("hook.library_modules", "modules", None, [start[1]], "of Python's library, of the start"),
        ]

    def call(self, program: str, *arguments: str) -> float:
        """Seconds of one call of a runtime that starts nothing."""
        command = [program, *arguments]
        started = time.perf_counter()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
        seconds = time.perf_counter() - started
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)}: exit status {done.returncode}")
        return seconds

    def print_content(self, id: str, bundle: bundles.Bundle) -> None:
        """Print what the measured container has, from its mount table and its root file system."""
        before = _links(self.image)
        with self.fresh_rootfs(bundle):
            container = self.runtime.new_id("content")
            timed_create(self.runtime, bundle, container)
            kinds = _kinds(self.runtime.state(container)["pid"])
            links = _links(bundle.rootfs) - before
            self.runtime.delete(container)
        counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        print(f"{id}: {counted}; {links} links in the image's own directories")


def timed_create(runtime: bundles.Runtime, bundle: bundles.Bundle, container: str) -> float:
    """Seconds of `runc create`, from spawn to exit; BenchError with its output if it fails."""
    command = [*runtime.command, "create", "--bundle", str(bundle.write()), container]
    output = bundle.path / "output"
    with output.open("w") as stream:
        started = time.perf_counter()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=False)
        seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)}: exit status {done.returncode}: {output.read_text().strip()}")
    return seconds


def _complete(libraries: Path, programs: Path) -> None:
    """Add files to the driver until a share of compute and utility (without OpenCL and MPS) has FILES of them."""
    version = next(libraries.glob("libcuda.so.*.*")).name.partition(".so.")[2]
    shutil.copy2(programs / "nvidia-debugdump", programs / "nv-fabricmanager")
    capabilities = [files.capability_of(path.name) for path in libraries.glob(f"*.so.{version}")]
    have = len([item for item in capabilities if item in plan.DEFAULT_CAPABILITIES]) - len(plan.UNLIMITED_LIBRARIES)
    have += len(list(programs.iterdir())) - len(plan.UNLIMITED_BINARIES)
    names = [*ABSENT, *(f"libnvidia-stand-in{number}" for number in range(FILES))]
    for name in names[: FILES - have]:
        command = [
            "cc",
            "-shared",
            "-nostdlib",
            f"-Wl,-soname,{name}.so.1",
            "-o",
            str(libraries / f"{name}.so.{version}"),
        ]
        subprocess.run([*command, "-x", "c", "/dev/null"], check=True)


@contextmanager
def _runtime(memory: Path) -> Iterator[bundles.Runtime]:
    made = bundles.Runtime(memory / "runc")
    try:
        yield made
    finally:
        made.cleanup()


@contextmanager
def _directory(above: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-", dir=above) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _tmpfs() -> str:
    """The path of a tmpfs, like /run on a node: fsync costs nothing there."""
    mounted = {fields[1]: fields[2] for fields in map(str.split, Path("/proc/mounts").read_text().splitlines())}
    found = next((path for path in TMPFS if mounted.get(path) == "tmpfs"), "")
    if not found:
        raise BenchError(f"needs a tmpfs at {' or '.join(TMPFS)}, found none")
    return found


def _load() -> str:
    return "load " + Path("/proc/loadavg").read_text().rpartition(" ")[0]


def _kinds(pid: int) -> Counter[str]:
    """The mounts of a container that are not runc's own, counted by kind."""
    kinds: Counter[str] = Counter()
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        target, _, source = line.split()[4], *line.partition(" - ")[2].split()[:2]
        path = Path(f"/proc/{pid}/root{target}")
        if source == "vgpu":
            kinds["tmpfs"] += 1
        elif path.is_char_device() and "nvidia" in target:
            kinds["device nodes"] += 1
        elif path.is_dir():
            kinds["directories"] += "nvidia" in target
        elif target.startswith("/usr/local/vgpu"):
            kinds["files of the limiter"] += 1
        elif path.is_file() and target.startswith("/usr"):
            kinds["libraries and programs"] += 1
    return kinds


def _links(root: Path) -> int:
    return sum(path.is_symlink() for path in root.rglob("*"))
