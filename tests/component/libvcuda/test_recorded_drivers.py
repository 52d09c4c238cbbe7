"""libvcuda in front of stand-ins that have the names, and give the answers, of five real drivers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import recorded_drivers
from vcuda_boxes import AWKWARD_UUID, Box, compile_c, need_root

Programs = dict[str, Path]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    path = tmp_path_factory.mktemp("programs")
    names = ("ask_proc_address", "ask_names")
    return {name: compile_c(path / name, recorded_drivers.RECORDS / f"{name}.c", "-ldl") for name in names}


@pytest.fixture(scope="module", params=recorded_drivers.RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def box(release: str, tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> Iterator[Box]:
    """A box with a limit, on the stand-ins for a release, with libvcuda as it is for that driver."""
    need_root()
    path = tmp_path_factory.mktemp(release)
    for library in recorded_drivers.LIBRARIES:
        recorded_drivers.stand_in(path / "driver", release, library)
    made = Box(path / "box", path / "driver", programs["ask_names"], {}, AWKWARD_UUID)
    made.environment["LD_LIBRARY_PATH"] = str(recorded_drivers.libvcuda(release, path / "driver", path / "libvcuda"))
    made.limit(1 << 30)
    yield made
    made.close()


def asked(box: Box, program: Path, lines: list[str], *words: str) -> str:
    return subprocess.run(
        box.command(str(program), *words),
        input="\n".join(lines),
        env=box.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def test_every_answer_is_the_drivers_and_every_hooked_function_libvcudas(
    box: Box, release: str, programs: Programs
) -> None:
    """Every name, released version of CUDA and flag: CUresult, symbolStatus, and NULL or the function of that name."""
    words = ("libcuda.so.1", *map(str, recorded_drivers.CUDA))
    output = asked(box, programs["ask_proc_address"], recorded_drivers.asked_names(), *words)
    found, recorded = recorded_drivers.parsed(output), recorded_drivers.answers(release)
    assert len(recorded) > 2000
    assert {key: [answer.replace("@", "") for answer in pattern] for key, pattern in found.items()} == recorded
    functions = {answer.rpartition(",")[2] for pattern in found.values() for answer in pattern}
    past = {function[1:] for function in functions if function.startswith("@")} & recorded_drivers.hooked("libcuda")
    assert past == set(), "the driver's own function in the place of a wrapper"
    assert len(functions & recorded_drivers.hooked("libcuda")) > 100


@pytest.mark.parametrize("library", recorded_drivers.LIBRARIES)
def test_every_name_of_the_driver_is_found_and_no_other(
    box: Box, release: str, programs: Programs, library: str
) -> None:
    """By the library's handle, by RTLD_DEFAULT and by RTLD_NEXT, functions and data."""
    has = recorded_drivers.exports(library, release) | recorded_drivers.exports(library, release, "object")
    others = {name for other in recorded_drivers.RELEASES for name in recorded_drivers.exports(library, other)}
    lacks = (others | recorded_drivers.passed_on(library) | recorded_drivers.hooked(library)) - has
    assert len(has) > 200
    output = asked(box, programs["ask_names"], sorted(has | lacks), recorded_drivers.LIBRARIES[library])
    ways = dict(line.split(" ") for line in output.splitlines())
    assert {name for name in has if ways[name] != "hdn"} == set()
    assert {name for name in lacks if ways[name]} == set()
