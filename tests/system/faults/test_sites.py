"""One fault at each system call of the hook, its child, poststop, vgpud's reaper and the DRA driver: an errno of the
committed table (fault_errnos), or kill -9 before the call.

After each the container has its full share, or was refused with one line and is as it was before; the next start on the
same card gets its share; and the reaper leaves nothing. The sites are found anew by each run. `make test` takes some
faults at random, `make test-long` takes all faults of all sites, in parts if need be (fault_journal).
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import fault_bed
import pytest
from container_site import BOTH, INFO, OLD_KERNELS, Site
from fault_bed import Bed, Fault, Outcome, Tools
from fault_driver import DriverBed
from fault_errnos import ERRNOS
from fault_journal import Journal

pytestmark = pytest.mark.root

#: Kind of node -> whether containers are pods', and the calls that its kernel lacks. "claim": with prepared claims.
NODES = {"standalone": (False, ()), "pod": (True, ()), "claim": (True, ()), "Linux 4.18": (False, OLD_KERNELS["4.18"])}
DISK = ("write", "mkdir", "mkdirat", "symlinkat", "fsync", "ftruncate", "pwrite64", "rename")
CLAIMS = "the claim is prepared once kubelet repeats its call, and nothing is left over in the end"
MakeBed = Callable[[str], Bed]
Counts = Callable[..., Journal]


@pytest.fixture
def make_bed(tmp_path: Path, tools: Tools, base_trees: dict[str, Path]) -> Iterator[MakeBed]:
    made = []

    def make(kind: str) -> Bed:
        pods, without = NODES[kind]
        top, claims = f"/vgpu-test-{uuid.uuid4().hex[:8]}", kind == "claim"
        made.append(Bed(tmp_path / "bed", tools, base_trees["debian"], top, pods, claims=claims))
        made[-1].without = without
        return made[-1]

    yield make
    for bed in made:
        bed.close()


def turns(found: list[str]) -> list[Fault]:
    """The faults of all sites, in turns: the first fault of one site, the second of the next, and so on."""
    by_site = list(fault_bed.faults_at(found).values())
    turned = [faults[number % len(faults) :] + faults[: number % len(faults)] for number, faults in enumerate(by_site)]
    return [fault for level in itertools.zip_longest(*turned) for fault in level if fault]


def whats(done: dict[str, Outcome]) -> set[str]:
    return {outcome.what for outcome in done.values()}


@pytest.mark.parametrize("kind", NODES)
def test_a_start_under_each_fault(make_bed: MakeBed, journal: Counts, kind: str) -> None:
    bed = make_bed(kind)
    found = bed.sites("prestart")
    assert fault_bed.unknown(found) == [], "each call has a row in the table"
    assert len(set(found)) > 150
    faults, counts = turns(found), journal(f"faults-start-{kind.replace(' ', '-')}")
    done = counts.run(faults, bed.round)
    counts.judge(f"an error or kill -9 at a system call of the hook ({kind})", len(faults), len(set(found)))
    ends = {"share", "refused", "killed"}
    assert whats(done) == ends or (counts.sample and whats(done) < ends)


@pytest.mark.parametrize("kind", ["standalone", "pod", "claim"])
def test_a_stop_under_each_fault(make_bed: MakeBed, journal: Counts, kind: str) -> None:
    bed = make_bed(kind)
    found = bed.sites("poststop")
    assert fault_bed.unknown(found) == []
    faults, counts = turns(found), journal(f"faults-stop-{kind}")
    counts.run(faults, bed.stop_round)
    counts.judge(f"an error or kill -9 at a system call of poststop ({kind})", len(faults), len(set(found)))


def test_the_reaper_under_each_fault(make_bed: MakeBed, journal: Counts) -> None:
    bed = make_bed("standalone")
    found = bed.reaper_sites()
    assert fault_bed.unknown(found) == []
    faults, counts = turns(found), journal("faults-reaper")
    counts.run(faults, bed.reaper_round)
    counts.judge("an error or kill -9 at a system call of vgpud's reaper", len(faults), len(set(found)))


@pytest.mark.parametrize("what", ["prepare", "unprepare", "restore"])
def test_the_driver_of_claims_under_each_fault(tmp_path: Path, tools: Tools, journal: Counts, what: str) -> None:
    bed = DriverBed(tmp_path, tools)
    found = bed.sites(what)
    assert fault_bed.unknown(found) == []
    faults, counts = turns(found), journal(f"faults-driver-{what}")
    counts.run(faults, lambda fault: bed.round(what, fault))
    counts.judge(f"an error or kill -9 at a system call of the driver's {what}", len(faults), len(set(found)), CLAIMS)


def test_a_second_fault_while_the_first_is_undone(make_bed: MakeBed, journal: Counts) -> None:
    """The last mount fails, and then one step of the undoing. What cannot be undone is in the line."""
    bed = make_bed("standalone")
    mounts = [site for site in bed.sites("prestart") if site.startswith("move_mount ")]
    first = Fault(mounts[-1], mounts.count(mounts[-1]), "ENOMEM")
    found = bed.sites_after(first)
    second = [dataclasses.replace(fault, first=first) for fault in turns(found)]
    counts = journal("faults-undo")
    counts.run(second, bed.hard_round)
    counts.judge("a second error or kill -9 at a system call of the undoing", len(second), len(set(found)))


def test_the_steps_after_everything_is_kept(make_bed: MakeBed, journal: Counts) -> None:
    """From there on a start does not fail any more, whatever the last calls return."""
    bed = make_bed("standalone")
    found = [site for site in bed.sites("prestart") if " < execute.keep < " in site and "write" not in site]
    faults, counts = turns(found), journal("faults-kept")
    done = counts.run(faults, bed.round)
    counts.judge("an error or kill -9 after the mounts are kept", len(faults), len(set(found)))
    assert whats(done) <= {"share", "killed"}


def test_the_word_that_keeps_everything_cannot_be_written(make_bed: MakeBed) -> None:
    """The last step that a start can fail by. Its child has not heard of the success then, and undoes everything."""
    bed = make_bed("pod")
    [site] = {site for site in bed.sites("prestart") if site.startswith("write execute.keep:")}
    for error in ERRNOS["write"].split():
        outcome = bed.round(Fault(site, 1, error))
        assert outcome.problems == []
        assert outcome.what == ("share" if error == "EINTR" else "refused"), outcome.line  # Python writes again


def test_a_disk_that_stays_full_from_each_site_on(make_bed: MakeBed, journal: Counts) -> None:
    bed = make_bed("pod")
    found = [site for site in bed.sites("prestart") if site.partition(" ")[0] in DISK]
    faults = [Fault(site, 1, "ENOSPC", DISK[1:]) for site in dict.fromkeys(found)]
    counts = journal("faults-full")
    counts.run(faults, bed.hard_round)
    counts.judge("ENOSPC for ever from each writing site on", len(faults), len(faults))


def test_the_sites_in_a_runtimes_container_are_the_same(site: Site, make_bed: MakeBed, tools: Tools) -> None:
    bed = make_bed("standalone")
    own = set(bed.sites("prestart"))
    site.output(through_runc(bed, site.tree(), tools.command(Fault(), "hook")))
    assert {found for found in set(tools.sites()) - own if not elsewhere(found)} == set()


def elsewhere(site: str) -> bool:
    """Sites that depend on the place: a runtime's rules of devices, a cgroup with more levels."""
    return " < allow." in site or "rules." in site or "cgroup" in site


def through_runc(bed: Bed, tree: Path, command: list[str]) -> bundles.Bundle:
    """A bundle of the bed's node whose hook has a fault."""
    made = bundles.Bundle(bed.directory / "runc", tree, fault_bed.annotations(fault_bed.SHARE))
    hook = made.hooks(bed.node).simulated(bed.node).config["hooks"]["prestart"][0]
    hook["args"] = [*command, *hook["args"][1:]]
    hook["path"] = hook["args"][0]
    return made


@BOTH
def test_faults_in_a_runtimes_container(site: Site, make_bed: MakeBed, tools: Tools, journal: Counts) -> None:
    """Through runc, on cgroup v1 and v2: the container starts with its share or not at all; the next one starts."""
    bed = make_bed("standalone")
    tree = site.tree()
    found = bed.sites("prestart")

    def round_in_runc(fault: Fault) -> Outcome:
        done = site.runtime.run(through_runc(bed, tree, tools.command(fault, "hook")).command(*INFO))
        outcome = outcome_in_runc(done.returncode, done.stdout + done.stderr)
        outcome.problems.extend(bed.next_start())
        return outcome

    faults = turns(found)
    faults = faults[: len(faults) // 8]
    version = "v2" if site.prefix else "v1"
    counts = journal(f"faults-{version}", 3)
    counts.run(faults, round_in_runc)
    counts.judge(f"an error or kill -9 in a start through runc (cgroup {version})", len(faults), len(set(found)))


def outcome_in_runc(status: int, output: str) -> Outcome:
    if status == 0:
        return Outcome("share", "", [] if "card0.total 8589934592" in output else [f"no share: {output}"])
    killed = "signal: killed" in output
    problems = [] if killed or output.count("vgpu-hook: ") == 1 else [f"one line expected: {output}"]
    return Outcome("killed" if killed else "refused", output, problems)
