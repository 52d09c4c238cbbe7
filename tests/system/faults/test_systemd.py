"""systemd fails, hangs, answers late or wrongly while the hook adds a scope's devices; and a fault at each system call
of that talk. The container has its whole share, or was refused with one line and is as it was; the next one starts.
"""

from __future__ import annotations

import fcntl
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fault_bed
import pytest
from daemons import wait_for
from fake_systemd import Behaviour, FakeSystemd
from fault_bed import Bed, Fault, Tools
from fault_journal import Journal

pytestmark = pytest.mark.root

SAMPLE = 4
WAIT = 1.0  #: seconds of the hook for systemd here
STRICT = "[Scope]\nDevicePolicy=strict\n"
#: How systemd fails before the hook knows the unit's list, and afterwards; more ways in component/hook/test_systemd.py.
EARLY = {"it refuses": Behaviour(greeting=b"REJECTED EXTERNAL\r\n"), "silence": Behaviour(silent_at="auth")}
LATER = {
    "silence at the change": Behaviour(silent_at="SetUnitProperties"),
    "it forgets the change": Behaviour(forgets=True),
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, base_trees: dict[str, Path]) -> Iterator[Bed]:
    """Containers in scopes that restrict devices, with a systemd that answers for them."""
    directory = tmp_path_factory.mktemp("scopes")
    run = directory / "run"
    for name in ("run/systemd/system", "run/systemd/transient", "tools"):
        (directory / name).mkdir(parents=True)
    tools = Tools(directory / "tools", str(run), WAIT)
    with FakeSystemd({}).listening(run / "systemd/private") as systemd:
        top = f"/vgpu-test-{uuid.uuid4().hex[:8]}.slice"
        made = Bed(directory / "bed", tools, base_trees["debian"], top, systemd=systemd)
        yield made
        made.close()


def round_with(bed: Bed, behaviour: Behaviour, written: str) -> fault_bed.Outcome:
    """A start while systemd behaves so, and the next one, when it is well again. `written`: its file on the scope."""
    assert bed.systemd
    container = bed.container()
    transient = Path(bed.tools.run, "systemd/transient", container.id)
    try:
        if written:
            transient.write_text(written)
        before = (container.mounts(), container.files(), bed.records())
        bed.systemd.behaviour = behaviour
        bed.run(container, Fault("none"), "prestart")
        outcome = bed.judged(container, before, Fault("none"))
    finally:
        bed.systemd.behaviour = Behaviour()
        bed.end(container)
        transient.unlink(missing_ok=True)
    outcome.problems += bed.next_start()
    return outcome


@pytest.mark.parametrize("name", [*EARLY, *LATER])
def test_a_scope_that_restricts_is_refused(bed: Bed, name: str) -> None:
    began = time.monotonic()
    outcome = round_with(bed, {**EARLY, **LATER}[name], STRICT)
    assert (outcome.what, outcome.problems) == ("refused", []), outcome.line
    assert "systemd unit fault-" in outcome.line
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("name", EARLY)
def test_a_scope_of_which_nothing_is_known_gets_its_share(bed: Bed, name: str) -> None:
    """systemd has written no rule of devices for it, so a reload takes none away."""
    outcome = round_with(bed, EARLY[name], "")
    assert (outcome.what, outcome.problems) == ("share", []), outcome.line


def test_nobody_waits_with_a_hook_that_waits_for_systemd(bed: Bed) -> None:
    """The ledger's lock is free while systemd is silent."""
    assert bed.systemd
    container = bed.container()
    bed.tools.wait = 60
    bed.systemd.behaviour = Behaviour(silent_at="SetUnitProperties")
    command = bed.tools.command(Fault("none"), "hook", "--config", str(bed.node.config), "prestart")
    hook = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert hook.stdin
        hook.stdin.write(container.state())
        hook.stdin.close()
        systemd = bed.systemd
        wait_for(lambda: systemd.calls[-1:] == ["SetUnitProperties"], 60, lambda: str(systemd.calls))
        with Path(bed.node.settings.run_dir, "ledger.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert hook.poll() is None
    finally:
        hook.kill()
        hook.wait()
        bed.tools.wait = WAIT
        bed.systemd.behaviour = Behaviour()
        bed.end(container)
    assert bed.next_start() == []


def test_a_fault_at_each_call_of_the_talk(bed: Bed, journal: Callable[..., Journal]) -> None:
    found = [site for site in bed.sites("prestart") if "dbus." in site or "systemd." in site]
    assert fault_bed.unknown(found) == []
    assert len(set(found)) > 5
    faults = [fault for of_site in fault_bed.faults_at(found).values() for fault in of_site]
    counts = journal("faults-systemd", SAMPLE)
    done = counts.run(faults, bed.round)
    counts.judge("an error or kill -9 while the hook talks with systemd", len(faults), len(set(found)))
    assert {outcome.what for outcome in done.values()} <= {"share", "refused", "killed"}
