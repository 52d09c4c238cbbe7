"""What the node says that it holds: living containers, containers between two lives, and those without a pod."""

from __future__ import annotations

from pathlib import Path

from vgpu.config import grants, paths, records
from vgpu.config.claims import Claim
from vgpu.config.grants import Grant, Holder
from vgpu.config.limits import CardLimit
from vgpu.plugin.apiserver.holdings import held

GIB = 1 << 30
A, B = "GPU-a", "GPU-b"
UID, OTHER = "11111111-0000", "22222222-0000"


def claim(run: Path, name: str, cards: list[CardLimit], holder: Holder | None, *ids: str, whole: bool = False) -> None:
    (run / "containers" / name).mkdir(parents=True)
    made = Claim(name, 1, 1, cards, whole, holder, list(ids), "/b", 1.0, ready=True)
    records.write(paths.claim(str(run), name), made.record())


def grant(state: Path, resource: str, amount: int, container: str, created: float = 1.0, uid: str = UID) -> str:
    made = Grant(grants.new_id(), resource, amount, created, holder=Holder(uid, container), cards=[A])
    grants.write(str(state), made)
    return made.id


def test_living_containers_by_pod_and_those_without_one(tmp_path) -> None:
    run = tmp_path / "run"
    claim(run, "c1", [CardLimit(A, GIB, 30, 30)], Holder(UID, "main"))
    claim(run, "c2", [CardLimit(A, GIB, 20, 20)], Holder(UID, "side"))
    claim(run, "c3", [CardLimit(B, GIB, 100, 100)], Holder(OTHER, "main"), whole=True)
    claim(run, "c4", [CardLimit(A, GIB, 10, 10)], None)
    found = held(str(run), str(tmp_path / "state"), {})
    assert found == ({UID: {A: (50, 2048)}, OTHER: {B: (100, 0)}}, {A: (10, 1024)})


def test_a_container_between_two_lives_counts_while_its_pod_is_there(tmp_path) -> None:
    run, state = tmp_path / "run", tmp_path / "state"
    (state / "grants").mkdir(parents=True)
    grant(state, "cores", 30, "main")
    grant(state, "memory", GIB, "main")
    grant(state, "cores", 60, "init")
    grant(state, "memory", GIB, "init")
    assert held(str(run), str(state), {UID: ["main"]}) == ({UID: {A: (30, 1024)}}, {})
    assert held(str(run), str(state), {}) == ({}, {})


def test_a_claim_and_its_grants_count_once(tmp_path) -> None:
    run, state = tmp_path / "run", tmp_path / "state"
    (state / "grants").mkdir(parents=True)
    ids = [grant(state, "cores", 30, "main"), grant(state, "memory", GIB, "main")]
    claim(run, "c1", [CardLimit(A, GIB, 30, 30)], Holder(UID, "main"), *ids)
    assert held(str(run), str(state), {UID: ["main"]}) == ({UID: {A: (30, 1024)}}, {})


def test_of_grants_made_anew_the_newest_counts(tmp_path) -> None:
    state = tmp_path / "state"
    (state / "grants").mkdir(parents=True)
    for created in (1.0, 2.0):
        grant(state, "cores", 30, "main", created)
        grant(state, "memory", GIB, "main", created)
    assert held(str(tmp_path), str(state), {UID: ["main"]}) == ({UID: {A: (30, 1024)}}, {})
