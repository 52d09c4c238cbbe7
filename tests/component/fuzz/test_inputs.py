"""Any bytes as the input of everything that Python reads: the kept corpus, and hypothesis on top of it.

The rounds of `make test` are the same each time. `make test-long` takes more; `make fuzz` searches without a plan.
"""

from __future__ import annotations

from pathlib import Path

import attack_records
import fuzz_inputs
import hypothesis
import pytest
from checkout import CHECKOUT
from hypothesis import strategies as st

CORPUS = CHECKOUT / "tests/fuzz/corpus"
TARGETS = sorted(fuzz_inputs.TARGETS)
TOKENS = [
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"null", b"true", b"-1", b"0", b"1e999", b"99999999999999999999", b"NaN",
    b'""', b'"\\ud800"', b"\xff", b"\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\n", b"..", b"/", b"\\", b"=",
    b"vgpu.io/", b"GPU-", b"_", b";",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz_inputs._folder[:] = [str(tmp_path_factory.mktemp("inputs"))]


def corpus(target: str) -> list[Path]:
    return sorted((CORPUS / target).iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_inputs(target: str) -> None:
    """At least one of them is a sound input, so that the others begin from something that is read to its end."""
    read = [fuzz_inputs.accepted(target, path.read_bytes()) for path in corpus(target)]
    assert any(read)


changes = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 12), st.one_of(st.sampled_from(TOKENS), st.binary(max_size=9))),
    max_size=6,
)


def changed(seed: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """`seed` with some bytes replaced: each edit has a place, how many bytes go, and what comes."""
    data = bytearray(seed)
    for place, gone, new in edits:
        at = place % (len(data) + 1)
        data[at : at + gone] = new
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS)
def test_changed_inputs(target: str, pytestconfig: pytest.Config) -> None:
    rounds = 20_000 if pytestconfig.getoption("--long") else 200
    counts = {True: 0, False: 0}

    @hypothesis.settings(
        max_examples=rounds, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(st.sampled_from([path.read_bytes() for path in corpus(target)]), changes)
    def run(seed: bytes, edits: list[tuple[int, int, bytes]]) -> None:
        counts[fuzz_inputs.accepted(target, changed(seed, edits))] += 1

    run()
    outcome = f"{counts[True]} read, {counts[False]} refused with a line, no other end"
    attack = f"changed bytes in what is read as {target}"
    attack_records.save(attack_records.row(attack, "tenant, node", sum(counts.values()), outcome), f"fuzz-{target}")
    assert counts[True]
