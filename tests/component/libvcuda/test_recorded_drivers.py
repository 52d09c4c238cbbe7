"""cuGetProcAddress through libvcuda, on stand-ins that answer as real drivers of five releases were recorded to do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import recorded_drivers
from vcuda_boxes import AWKWARD_UUID, Box, compile_c, need_root

#: R470 has no cuGetProcAddress_v2, and libvcuda exports it for all drivers.
RELEASES = [release for release in recorded_drivers.RELEASES if release != "470"]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("ask") / "ask", recorded_drivers.ASK, "-ldl")


@pytest.fixture
def box(request: pytest.FixtureRequest, tmp_path: Path, ask: Path) -> Iterator[Box]:
    """A box with a limit, on the stand-ins for a release."""
    need_root()
    driver = tmp_path / "driver"
    for library in recorded_drivers.LIBRARIES:
        recorded_drivers.stand_in(driver, request.param, library)
    made = Box(tmp_path / "box", driver, ask, {}, AWKWARD_UUID)
    made.limit(1 << 30)
    yield made
    made.close()


def asked(box: Box) -> recorded_drivers.Answers:
    done = subprocess.run(
        box.command(str(box.program), "libcuda.so.1", *map(str, recorded_drivers.CUDA)),
        input="\n".join(recorded_drivers.asked_names()),
        env=box.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return recorded_drivers.parsed(done.stdout)


@pytest.mark.parametrize(("box", "release"), [(release, release) for release in RELEASES], indirect=["box"])
def test_every_answer_is_the_drivers_and_every_hooked_function_libvcudas(box: Box, release: str) -> None:
    """Every name, released version of CUDA and flag: CUresult, symbolStatus, and NULL or the function of that name."""
    found, recorded = asked(box), recorded_drivers.answers(release)
    assert len(recorded) > 2000
    assert {key: [answer.replace("@", "") for answer in pattern] for key, pattern in found.items()} == recorded
    functions = {answer.rpartition(",")[2] for pattern in found.values() for answer in pattern}
    past = {function[1:] for function in functions if function.startswith("@")} & recorded_drivers.hooked("libcuda")
    assert past == set(), "the driver's own function in the place of a wrapper"
    assert len(functions & recorded_drivers.hooked("libcuda")) > 100
