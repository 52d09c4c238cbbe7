"""`vgpuctl selftest --bare` on the simulated driver in virtual time: without a runtime, a cgroup or any right."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import selftest_bed
from checkout import CHECKOUT
from daemons import wait_for

from vgpu.node.selftest import place


@pytest.fixture
def node(tmp_path: Path) -> Iterator[selftest_bed.Node]:
    made = selftest_bed.Node(tmp_path / "node")
    yield made
    assert places(made) == []


def places(node: selftest_bed.Node) -> list[str]:
    """The directories that runs of this node have left."""
    locks = {path: path.read_text().strip() for path in Path("/tmp").glob(f".v?/{place.LOCK}")}
    return [str(path.parent) for path, pid in locks.items() if pid in map(str, node.pids)]


def replace_program(node: selftest_bed.Node, text: str, **words: object) -> None:
    """`text` is a script; its {real} is the program."""
    path = node.programs / "vgpu-selftest"
    script = text.format(real=path.resolve(), python=sys.executable, **words)
    path.unlink()
    path.write_text(script)
    path.chmod(0o755)


@pytest.mark.root
def test_an_ordinary_user_without_any_right(node: selftest_bed.Node) -> None:
    """The quick rows; the user's home is read-only, and is not needed."""
    done = node.selftest("--bare", "--output", "json", prefix=node.as_nobody())
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert selftest_bed.failed(report) == []
    verdicts = {row["id"]: row["verdict"] for row in report["rows"]}
    assert verdicts.pop("device.second-card") == "not applicable"
    assert verdicts.pop("totals.smi") in ("pass", "not applicable")
    assert verdicts.pop("cost.change") == "info"
    assert set(verdicts.values()) == {"pass"}
    assert str(node.directory) not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(node: selftest_bed.Node, number: int) -> None:
    """A killed one leaves its directory, which the next run clears; its programs have ended with it."""
    process = node.start("--bare")
    assert process.stderr
    wait_for(lambda: "memory.device" in process.stderr.readline(), selftest_bed.PATIENCE)
    process.send_signal(number)
    _, errors = process.communicate(timeout=selftest_bed.PATIENCE)
    if number != signal.SIGKILL:
        assert (process.returncode, places(node)) == (3, [])
        assert errors.splitlines()[-1] == "vgpuctl: self-test: stopped"
    wait_for(lambda: not node.read_cards()[0]["processes"], selftest_bed.PATIENCE)
    assert selftest_bed.failed(node.report("--bare", "--row", "totals")) == []


def test_nothing_is_judged_where_the_report_cannot_be_written(node: selftest_bed.Node) -> None:
    done = node.selftest("--bare", "--report", "/proc/report.json")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "vgpuctl: --report: expected a file to write, found No such file or directory\n"


#: `vgpuctl` to which NVML gives other answers: by the names of its functions, as JSON.
OTHER_NVML = """
import json, sys
import pynvml
from vgpu.node.ctl import main
for name, answer in json.loads(sys.argv[1]).items():
    setattr(pynvml, name, lambda _card, answer=answer: answer)
del sys.argv[1:3]
main.main()
"""
#: The program, but for what SAYS makes of its answers.
OTHER_ANSWERS = """#!/bin/sh
"{real}" "$@" | sed -u "${{SAYS-}}"
"""
TESLA = 15360  #: MiB of the card, of which the driver keeps 448


def with_nvml(**answers: object) -> tuple[str, ...]:
    """What begins the command of a vgpuctl to which NVML answers so."""
    return (sys.executable, "-c", OTHER_NVML, json.dumps(answers))


@pytest.mark.parametrize(
    ("found", "prefix", "memory"),
    [
        ("libcuda.so.1: expected the driver's library, found none", ("env", "-u", "LD_LIBRARY_PATH"), TESLA),
        ("a card: expected one, found CUDA error 100", ("env", "CUDA_VISIBLE_DEVICES="), TESLA),
        ("is in MIG mode", with_nvml(nvmlDeviceGetMigMode=[1, 1]), TESLA),
        ("is in an exclusive compute mode", with_nvml(nvmlDeviceGetComputeMode=3), TESLA),
        ("has a display", with_nvml(nvmlDeviceGetDisplayActive=1), TESLA),
        ("MPS runs: end it with", ("env", "CUDA_MPS_PIPE_DIRECTORY={pipe}"), TESLA),
        ("unsupported PTX version; install a newer driver", ("env", 'SAYS=s/"code": 0/"code": 222/'), TESLA),
        ("a context on the card: expected one, found CUDA error 2", (), 448 + 64),
        ("the card's memory: expected", (), 1024),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else "",
)  # fmt: skip
def test_nothing_is_judged(
    node: selftest_bed.Node, tmp_path: Path, found: str, prefix: tuple[str, ...], memory: int
) -> None:
    """One line says why, besides those of progress."""
    (tmp_path / "control").touch()
    replace_program(node, OTHER_ANSWERS)
    node.new_state("t4x1", model={"memory_mib": memory})
    done = node.selftest("--bare", prefix=tuple(word.replace("{pipe}", str(tmp_path)) for word in prefix))
    assert (done.returncode, done.stdout) == (3, "")
    *progress, line = done.stderr.splitlines()
    assert found in line
    assert all(text.startswith("selftest: ") for text in progress)


def test_persistence_that_is_off_is_a_note(node: selftest_bed.Node) -> None:
    prefix = with_nvml(nvmlDeviceGetPersistenceMode=0)
    done = node.selftest("--bare", "--row", "totals", "--output", "json", prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert "persistence is off: the driver may start again between rows" in json.loads(done.stdout)["notes"]


def test_nothing_is_judged_beside_another_process(node: selftest_bed.Node) -> None:
    with node.other_program() as pid:
        done = node.selftest("--bare")
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert f"is used by pid {pid} (vgpu-selftest)" in line


@pytest.mark.root
def test_nothing_is_judged_beside_a_container(node: selftest_bed.Node) -> None:
    node.hold_cards("train")
    for prefix, holder in ((), "container train"), (node.as_nobody(), "a container, perhaps: only root can look"):
        done = node.selftest("--bare", prefix=prefix)
        assert (done.returncode, done.stdout) == (3, "")
        (line,) = done.stderr.splitlines()
        assert f"is held by {holder}" in line


#: `vgpuctl` with a second for a quick run, which takes 15 minutes otherwise.
IMPATIENT = """
import sys
from vgpu.node.ctl import main, selftest
selftest.TIMEOUTS["quick"] = 1
del sys.argv[1]
main.main()
"""


def test_a_run_that_takes_too_long_leaves_nothing(node: selftest_bed.Node) -> None:
    """Its program never answers."""
    replace_program(node, "#!/bin/sh\nexec cat >/dev/null\n")
    done = node.selftest("--bare", prefix=(sys.executable, "-c", IMPATIENT))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "vgpuctl: self-test: it took too long\n"


#: The program, behind one that loses the card when the turn of managed memory has come.
LOSES = """#!{python}
import subprocess, sys
real = subprocess.Popen(["{real}", *sys.argv[1:]], stdin=subprocess.PIPE, text=True)
for line in sys.stdin:
    if " managed" in line:
        subprocess.run([sys.executable, "{simctl}", "set", "{sim}", "--card", "0", "--lost", "yes"], check=True)
    real.stdin.write(line)
    real.stdin.flush()
real.stdin.close()
sys.exit(real.wait())
"""


def test_a_card_that_is_lost_half_way_is_not_judged(node: selftest_bed.Node) -> None:
    replace_program(node, LOSES, simctl=CHECKOUT / "libvcuda/sim/tools/simctl.py", sim=node.sim)
    done = node.selftest("--bare", "--row", "memory", "--output", "json")
    assert done.returncode == 3, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert rows[0]["verdict"] == "pass"
    assert rows[-1]["verdict"] == "not judged"
