"""One program in several languages, in a container with two cards of different limits: what each finds and gets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Callable

import pytest
from vcuda_boxes import SOURCES, SimBox, compile_c

from vgpu.config import limits

PROGRAMS = SOURCES / "languages"
LIMITS = (3 << 30, 5 << 30)
LINES = [f"{card} {limit} 0 2" for card, limit in enumerate(LIMITS)]
SHIM = "ld-linux-x86-64.so.2"

Make = Callable[[Path], Path]


def shim(directory: Path) -> Path:
    """The functions of glibc that the driver needs, as gcompat has them, under the loader's name."""
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", directory / SHIM, PROGRAMS / "musl_shim.c"], check=True)
    return directory / SHIM


def in_c(target: Path) -> Path:
    return compile_c(target, PROGRAMS / "client.c", "-ldl")


def in_musl(target: Path) -> Path:
    shim(target.parent)
    subprocess.run(["musl-gcc", "-o", target, PROGRAMS / "client.c"], check=True)
    return target


def in_go(target: Path) -> Path:
    environment = {**os.environ, "GO111MODULE": "off", "CGO_ENABLED": "1", "GOCACHE": f"{target}.cache"}
    subprocess.run(["go", "build", "-o", target, PROGRAMS / "client.go"], check=True, env=environment)
    return target


def in_rust(target: Path) -> Path:
    subprocess.run(["rustc", "-o", target, PROGRAMS / "client.rs"], check=True)
    return target


@pytest.fixture
def two_cards(sim_box: Callable[..., SimBox]) -> SimBox:
    box = sim_box("a100x2")
    uuids = [card["uuid"] for card in box.cards()]
    cards = [limits.CardLimit(uuid, limit) for uuid, limit in zip(uuids, LIMITS)]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    return box


@pytest.mark.parametrize(
    "make", [in_c, in_musl, pytest.param(in_go, marks=pytest.mark.long), pytest.param(in_rust, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("order", ["0,1", "1,0"])
def test_a_program_gets_the_limit_of_each_card(two_cards: SimBox, tmp_path: Path, make: Make, order: str) -> None:
    program = make(tmp_path / "client")
    environment = {**two_cards.environment, "CUDA_VISIBLE_DEVICES": order}
    command = [str(program), "libcuda.so.1"]
    if make is in_musl:  # nsenter, which is linked with glibc, must not load it
        environment["LD_LIBRARY_PATH"] += f":{tmp_path}"
        command = ["env", f"LD_PRELOAD={tmp_path / SHIM}", *command]
    done = subprocess.run(two_cards.command(*command), check=False, env=environment, capture_output=True, text=True)
    expected = LINES if order == "0,1" else [f"{card} {limit} 0 2" for card, limit in enumerate(reversed(LIMITS))]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("compiler", "is_linked", "nvml"),
    [("gcc", True, True), ("musl-gcc", True, True), ("musl-gcc", False, True), ("musl-gcc", False, False)],
)
def test_a_larger_program_works_and_stays_within_its_limit(
    sim_box: Callable[..., SimBox], tmp_path: Path, compiler: str, is_linked: bool, nvml: bool
) -> None:
    """Threads, streams, kernels, graphs, pools and contexts. With NVML, what the driver itself holds counts."""
    step = 4 << 20
    box = sim_box("t4x1", nvml=nvml)
    limit = 512 << 20
    box.limit(limit)
    program = tmp_path / "workload"
    libraries = [f"-L{box.libraries}", "-Wl,--no-as-needed", "-l:libcuda.so.1"] if is_linked else []
    unresolved = "-Wl,--unresolved-symbols=ignore-in-shared-libs"
    options = ["-O1", "-Wall", "-Werror", "-o", program, PROGRAMS / "workload.c", "-pthread", "-ldl", unresolved]
    subprocess.run([compiler, *options, *libraries], check=True)
    environment, preload = dict(box.environment), []
    if compiler == "musl-gcc":  # nsenter, which is linked with glibc, must not load it
        environment["LD_LIBRARY_PATH"] += f":{tmp_path}"
        preload = ["env", f"LD_PRELOAD={shim(tmp_path)}"]
    words = ["-" if is_linked else "libcuda.so.1", "8", "8", str(step)]
    command = box.command(*preload, str(program), *words)
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    before, filled, after = (int(word) for word in done.stdout.split())
    context, code = (box.context, 1 << 20) if nvml else (0, 0)
    assert limit - context - code <= before <= limit - context
    assert (filled, after) == (before // step * step, before)
    most = int(box.cards()[0]["most_used"])
    assert most - filled == limit - before if nvml else most - filled <= box.context + (1 << 20)
