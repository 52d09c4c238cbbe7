"""Containers with prepared resource claims, by runc: who gets the claim, and that its containers have one budget.

Belongs here: what the hook makes of the record of a prepared claim and of the arguments of its hooks. The driver that
writes both is in component/plugin/test_dra.py, the ledger's counting in component/hook/test_prepared_claims.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import bundles
import pytest
from container_site import GIB, Site
from daemons import wait_for

from vgpu.config import inventory, paths, prepared
from vgpu.config.prepared import PreparedClaim, Result
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import staleness

pytestmark = pytest.mark.root


class Claims:
    """A site whose node has prepared claims, each for some pods."""

    def __init__(self, site: Site, cgroup: str) -> None:
        self.site, self.cgroup = site, cgroup
        self.state = site.node.settings.state_dir
        self.card = inventory.read(site.node.settings.run_dir).cards[0]

    def prepare(self, *pods: str, results: tuple[tuple[int, int], ...] = ((30, 2 * GIB),), **fields: str) -> list[str]:
        """The ids of the results of a claim, (cores, memory) of the first card, for the pods with these uids."""
        made = [
            Result(at, f"r{at}", "n", "d", self.card.uuid, cores, memory, memory >= self.card.memory)
            for at, (cores, memory) in enumerate(results)
        ]
        boot = fields.get("boot", staleness.boot_id())
        claim = PreparedClaim(str(uuid.uuid4()), "default", fields.get("name", "shared"), boot, list(pods), made)
        prepared.write(self.state, claim)
        return claim.ids()

    def container(self, pod: str, *results: str) -> bundles.Bundle:
        """A container of the pod, whose CDI devices name these results: a pair of hooks for each."""
        made = self.site.plain_bundle().pod(pod, f"c{uuid.uuid4().hex[:6]}", self.cgroup)
        hook = str(self.site.node.hook)
        for stage in ("createRuntime", "poststop"):
            words = [["vgpu-hook", "--config", str(self.site.node.config), "--prepared", one, stage] for one in results]
            made.config.setdefault("hooks", {})[stage] = [{"path": hook, "args": each} for each in words]
        return made


@pytest.fixture
def place(site: Site, cgroup: str) -> Iterator[Claims]:
    yield Claims(site, cgroup)
    site.runtime.cleanup()  # before the cgroup goes
    for record in Path(paths.prepared_claims(site.node.settings.state_dir)).glob("*.json"):
        record.unlink()


def test_a_container_has_what_the_results_that_it_names_have_together(place: Claims) -> None:
    """Several devices are several hooks: the first sets up all, the others find it done."""
    pod = str(uuid.uuid4())
    [one], other = place.prepare(pod), place.prepare(pod, results=((20, GIB), (10, GIB)))
    assert place.site.seen(place.container(pod, one))["card0.total"] == str(2 * GIB)
    assert place.site.seen(place.container(pod, one, other[0]))["card0.total"] == str(3 * GIB)
    whole = place.prepare(pod, results=((100, place.card.memory),))
    gone = [Path(paths.prepared_claim(place.state, one.rpartition("-")[0])) for one in (one, other[0])]
    for record in gone:
        record.unlink()
    assert place.site.seen(place.container(pod, *whole))["card0.total"] == str(place.card.memory)
    Path(paths.prepared_claim(place.state, whole[0].rpartition("-")[0])).unlink()
    limited = place.prepare(pod, results=((100, GIB),))
    assert place.site.seen(place.container(pod, *limited))["card0.total"] == str(GIB)


def test_two_pods_on_one_claim_cannot_together_exceed_it(place: Claims) -> None:
    """What the one holds the other one cannot have, whichever ends first: they have one usage region and one file of
    limits. The ledger counts the claim once."""
    site, pods = place.site, [str(uuid.uuid4()) for _ in range(2)]
    ids = place.prepare(*pods, results=((30, 4 * GIB),))
    alone = int(site.seen(place.container(pods[1], *ids), "cudaprobe", "alloc", "250", "20")["held"])
    first = held(place, pods[0], ids, 2000)
    beside = site.seen(place.container(pods[1], *ids), "cudaprobe", "alloc", "250", "20")
    assert (beside["refused"], 2000 + 250 * int(beside["held"]) <= 4096) == ("2", True)
    assert alone - 10 <= int(beside["held"]) <= alone - 8  # the first has 2000 MiB and a context
    second = held(place, pods[1], ids, 500)
    run = site.node.settings.run_dir
    assert len({Path(paths.limits(run, one)).stat().st_ino for one in (first, second)}) == 1
    assert Ledger(site.node.settings, [place.card]).commitments()[place.card.uuid].cores == 30
    site.delete(first)
    third = site.seen(place.container(pods[0], *ids), "cudaprobe", "alloc", "250", "20")
    assert alone - 4 <= int(third["held"]) <= alone - 2  # the second has 500 MiB and a context


def held(place: Claims, pod: str, ids: list[str], mib: int) -> str:
    """A container that holds so much, until the test ends."""
    bundle = place.container(pod, *ids)
    container = place.site.start(bundle, "cudaprobe", "hold", str(mib), "/end")
    wait_for(lambda: "result 0" in (bundle.path / "output").read_text(), 300, (bundle.path / "output").read_text)
    return container


def test_a_pod_without_a_reservation_is_refused(place: Claims) -> None:
    pod, stranger = str(uuid.uuid4()), str(uuid.uuid4())
    ids = place.prepare(pod)
    line = place.site.refused(place.container(stranger, *ids))
    assert f"claim default/shared: expected a reservation for the pod {stranger}, found none" in line
    forged = place.container(stranger, *ids)
    forged.config["annotations"]["io.kubernetes.cri.sandbox-uid"] = pod
    assert "pod uid: expected one" in place.site.refused(forged)
    outside = place.container(pod, *ids)
    del outside.config["linux"]["cgroupsPath"]
    assert "expected a container of a pod" in place.site.refused(outside)
    sandbox = place.container(pod, *ids)
    sandbox.config["annotations"]["io.kubernetes.cri.container-type"] = "sandbox"
    assert "found a sandbox" in place.site.refused(sandbox)


@pytest.mark.parametrize(("case", "line"), [
    ("none", "expected a prepared claim, found none"),
    ("boot", "expected a preparation in this boot, found one of an earlier boot"),
    ("number", "expected a result of the claim, found none"),
    ("text", "--prepared: expected <claim uid>-<number>"),
])  # fmt: skip
def test_what_is_not_prepared_is_refused(place: Claims, case: str, line: str) -> None:
    pod = str(uuid.uuid4())
    [one] = place.prepare(pod, boot="earlier") if case == "boot" else place.prepare(pod)
    other = {"none": f"{uuid.uuid4()}-0", "boot": one, "number": one[:-1] + "1", "text": "x" * 80}[case]
    assert line in place.site.refused(place.container(pod, other))


def test_containers_with_some_results_in_common_are_refused(place: Claims) -> None:
    pod = str(uuid.uuid4())
    ids = place.prepare(pod, results=((30, GIB), (30, GIB)))
    place.site.start(place.container(pod, *ids))
    assert "containers of one claim have one budget" in place.site.refused(place.container(pod, ids[0]))
