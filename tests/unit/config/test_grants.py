"""Grants: the record, forged ids, and the joining of halves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import grants, paths
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.request import Wishes

GIB = 1 << 30
UUID = "GPU-8a56a4bc-1111-2222-3333-444455556666"
OTHER = "GPU-9a56a4bc-1111-2222-3333-444455556666"
ID = "0123456789abcdef" * 2


def of(resource: str, amount: int, **more: object) -> Grant:
    return Grant(grants.new_id(), resource, amount, 5.0, **more)  # type: ignore[arg-type]


def test_write_and_read(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    grant = Grant(ID, "gpu", 2, 1700000000.25, 30, GIB, {UUID: "0,1"}, Holder("uid", "main"), [UUID])
    grants.write(state, grant)
    read = grants.read(state, ID)
    assert read.record() == grant.record()
    assert read.holder == Holder("uid", "main")
    assert os.stat(paths.grants(state)).st_mode & 0o777 == 0o700
    assert os.stat(paths.grant(state, ID)).st_mode & 0o777 == 0o600


def test_ids_are_ids_and_differ() -> None:
    made = {grants.new_id() for _ in range(100)}
    assert len(made) == 100
    assert all(map(paths.is_grant_id, made))


FORGED = [
    "", "../../etc/passwd", "a/b", "/" * 32, ID + "/../x", ID.upper(), ID[:-1], ID + "0", ID[:-1] + "\n",
    ID[:-1] + "\0", "\u0660" * 32,
]  # fmt: skip


@pytest.mark.parametrize("text", FORGED)
def test_forged_ids_never_become_a_path(tmp_path: Path, text: str) -> None:
    assert not paths.is_grant_id(text)
    with pytest.raises(VgpuError, match=r"^grant id: expected 32 hexadecimal digits, found "):
        grants.read(str(tmp_path), text)


def test_unknown_grant_is_absent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        grants.read(str(tmp_path), ID)


def test_grant_under_anothers_name_is_refused(tmp_path: Path) -> None:
    state = str(tmp_path)
    grants.write(state, Grant(ID, "cores", 30, 1.0))
    os.rename(paths.grant(state, ID), paths.grant(state, "f" * 32))
    with pytest.raises(VgpuError, match=f"expected grant {'f' * 32}, found grant {ID}; delete the pod"):
        grants.read(state, "f" * 32)


SOUND = Grant(ID, "cores", 30, 1.0, devices={UUID: "1"}, holder=Holder("u", ""), cards=[UUID]).record()
CHANGES = [
    ({"version": 2}, "version: expected 1, found 2"),
    ({"version": None}, "version: expected 1, found nothing"),
    ({"id": "../x"}, "id: expected 32 hexadecimal digits, found ../x"),
    ({"id": 5}, "id: expected one line of text, found 5"),
    ({"resource": "disk"}, "resource: expected one of cores, memory, gpu, mig, found disk"),
    ({"resource": []}, "resource: expected one line of text"),
    ({"amount": 0}, "amount: expected a whole number from 1 to 3200, found 0"),
    ({"amount": -30}, "amount: expected a whole number from 1 to 3200, found -30"),
    ({"amount": 3201}, "amount: expected a whole number from 1 to 3200, found 3201"),
    ({"amount": 30.5}, "amount: expected a whole number from 1 to 3200, found 30.5"),
    ({"amount": True}, "amount: expected a whole number from 1 to 3200, found True"),
    ({"amount": "30"}, "amount: expected a whole number from 1 to 3200, found 30"),
    ({"resource": "gpu", "amount": 33}, "amount: expected a whole number from 1 to 32, found 33"),
    ({"resource": "memory", "amount": (1 << 50) + 1}, "amount: expected a whole number from 1 to 1125899906842624"),
    ({"cores": 150}, "cores: expected a whole number from 0 to 100, found 150"),
    ({"memory": -1}, "memory: expected a whole number from 0 to 1125899906842624, found -1"),
    ({"created": "now"}, "created: expected a time in seconds, found now"),
    ({"created": -1}, "created: expected a time in seconds, found -1"),
    ({"created": 1e300}, "created: expected a time in seconds"),
    ({"devices": []}, "devices: expected an object whose values are texts"),
    ({"devices": {UUID: 1}}, "devices: expected an object whose values are texts"),
    ({"cards": UUID}, "cards: expected a list"),
    ({"cards": [5]}, "cards: expected a list of texts"),
    ({"cards": ["\n"]}, "cards: expected a list of texts"),
    ({"share": 5}, "share: expected an object, found 5"),
    ({"memories": 5}, "memories: expected an object, found 5"),
    ({"memories": {UUID: -1}}, f"memories: {UUID}: expected a whole number from 0 to"),
    ({"share": {"cores": 101, "memory": 0}}, "share: cores: expected a whole number from 0 to 100, found 101"),
    ({"share": {"cores": 1, "memory": -1}}, "share: memory: expected a whole number from 0 to"),
    ({"holder": "u"}, "holder: expected an object, found u"),
    ({"holder": {}}, "holder: pod_uid: expected one line of text, not empty, found nothing"),
    ({"holder": {"pod_uid": "", "container": "c"}}, "holder: pod_uid: expected one line of text, not empty"),
    ({"holder": {"pod_uid": "u"}}, "holder: container: expected one line of text, found nothing"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES)
def test_refuses_a_wrong_field(change: dict[str, object], line: str) -> None:
    assert grants.from_record(SOUND, "f").record() == SOUND
    with pytest.raises(VgpuError) as caught:
        grants.from_record({**SOUND, **change}, "f")
    assert str(caught.value).startswith(f"f: {line}")
    assert str(caught.value).endswith("; delete the pod; its grant cannot be used")


LATER = {"share", "name", "memories", "pod_cgroup", "boot_id", "newest", "released"}


@pytest.mark.parametrize("name", sorted(set(SOUND) - LATER))
def test_refuses_a_missing_field(name: str) -> None:
    with pytest.raises(VgpuError, match=f"^f: {name}: expected "):
        grants.from_record({key: value for key, value in SOUND.items() if key != name}, "f")


def test_a_record_of_before_shares_has_none() -> None:
    assert grants.from_record({key: value for key, value in SOUND.items() if key != "share"}, "f").share is None


def test_a_record_of_before_the_pods_cgroup_has_none() -> None:
    later = ("pod_cgroup", "boot_id", "newest")
    found = grants.from_record({key: value for key, value in SOUND.items() if key not in later}, "f")
    assert (found.pod_cgroup, found.boot_id, found.newest) == ("", "", 0.0)


def test_a_share_fills_in_for_missing_halves() -> None:
    cores = Grant(ID, "cores", 30, 1.0, share=(30, 1 << 30))
    request = grants.join([cores], 0, Wishes())
    assert (request.gpus, request.cores, request.memory) == (1, 30, 1 << 30)
    gpu = Grant(ID, "gpu", 2, 1.0, 50, 8 << 30, share=(20, 3 << 30))
    request = grants.join([gpu], 0, Wishes())
    assert (request.gpus, request.cores, request.memory) == (2, 20, 3 << 30)
    request = grants.join([gpu, Grant("f" * 32, "memory", 5 << 30, 1.0)], 0, Wishes())
    assert (request.cores, request.memory) == (20, 5 << 30)  # a grant says its half itself


def test_damaged_grants_hide_no_others(tmp_path: Path) -> None:
    state = str(tmp_path)
    for digit in "abc":
        grants.write(state, Grant(digit * 32, "cores", 30, 1.0))
    for name, content in ((f"{'b' * 32}.json", b'{"version":1'), (f"{'d' * 32}.json", b"\xff"),
                          (f".{'a' * 32}.json.1.tmp", b""),                          ("README", b""),
                          (f"{'e' * 32}.txt", b"")):  # fmt: skip
        (tmp_path / "grants" / name).write_bytes(content)
    found, damaged = grants.read_all(state)
    assert [grant.id[0] for grant in found] == ["a", "c"]
    assert [line.partition(": expected")[0] for line in damaged] == [f"{state}/grants/{one * 32}.json" for one in "bd"]


def test_read_all_without_a_directory(tmp_path: Path) -> None:
    assert grants.read_all(str(tmp_path)) == ([], [])
    (tmp_path / "grants").write_text("")
    with pytest.raises(VgpuError, match="expected the directory of grants, found Not a directory"):
        grants.read_all(str(tmp_path))


JOINED = [
    ([of("cores", 30), of("memory", GIB)], (1, 30, GIB)),
    ([of("memory", GIB), of("cores", 30)], (1, 30, GIB)),
    ([of("cores", 100)], (1, 100, 0)),
    ([of("cores", 300), of("memory", GIB)], (3, 100, 0)),
    ([of("gpu", 2, cores=30, memory=GIB)], (2, 30, GIB)),
    ([of("gpu", 2)], (2, 100, 0)),
    ([of("gpu", 2), of("cores", 40), of("memory", GIB)], (2, 40, GIB)),
]


@pytest.mark.parametrize(("given", "amounts"), JOINED)
def test_join(given: list[Grant], amounts: tuple[int, ...]) -> None:
    made = grants.join(given, 0, Wishes(policy="spread"))
    assert (made.gpus, made.cores, made.memory) == amounts
    assert made.core_limit == made.cores
    assert made.wishes.policy == "spread"
    assert grants.join(given, 90, Wishes()).core_limit == max(90, made.cores)


def test_memory_beside_whole_cards_is_theirs_together_wherever_its_ids_lie() -> None:
    cores = of("cores", 200, devices={UUID: "0-99", OTHER: "0-99"})
    made = grants.join([cores, of("memory", GIB, devices={UUID: "1"})], 0, Wishes())
    assert (made.gpus, made.memory, made.total, made.preferred) == (2, 0, GIB, (UUID, OTHER))
    assert grants.join([of("cores", 99), of("memory", GIB)], 0, Wishes()).total == 0


APART = [
    ([], "grants: expected one of each resource, found none"),
    ([of("cores", 30), of("cores", 40)], "grants: expected one of each resource, found cores, cores"),
    ([of("cores", 30)], "grants: expected a grant of memory beside that of cores, found cores alone; a share needs"),
    ([of("memory", GIB)], "grants: expected a grant of cores beside that of memory, found memory alone; a share needs"),
    ([of("mig", 1), of("cores", 40)], "grants: expected a MIG instance and nothing else, found mig and cores; name"),
    ([of("gpu", 1, cores=30)], "grants: expected a grant of memory beside that of cores, found no memory"),
    ([of("gpu", 2), of("cores", 200)], "grants: expected at most 100 cores of each card, found 200 cores beside 2 gpu"),
    (
        [Grant(ID, "cores", 150, 1.0), of("memory", GIB)],
        "grant 01234567 of cores: expected 1 to 99 for a share of one card, or a multiple of 100, found 150",
    ),
]


@pytest.mark.parametrize(("given", "line"), APART)
def test_join_refuses(given: list[Grant], line: str) -> None:
    with pytest.raises(VgpuError) as caught:
        grants.join(given, 0, Wishes())
    assert str(caught.value).startswith(line)


PREFERENCES = [
    ([{UUID: "1"}, {UUID: "7,8"}], (UUID,)),
    ([{UUID: "1"}, {}], (UUID,)),
    ([{UUID: "1"}, {OTHER: "2"}], ()),
    ([{OTHER: "1", UUID: "2"}, {UUID: "1", OTHER: "2"}], (UUID, OTHER)),
    ([{}, {}], ()),
]


@pytest.mark.parametrize(("devices", "expected"), PREFERENCES)
def test_cards_are_preferred_where_all_device_ids_agree(
    devices: list[dict[str, str]], expected: tuple[str, ...]
) -> None:
    given = [of("cores", 30, devices=devices[0]), of("memory", GIB, devices=devices[1])]
    assert grants.join(given, 0, Wishes()).preferred == expected


def test_holder() -> None:
    assert Holder("u", "c") == Holder("u", "c")
    assert len({Holder("u", "c"), Holder("u", "c"), Holder("u", "d"), Holder("v", "c")}) == 3
    assert Holder("u", "").describe() == "pod u, container (unnamed)"


def test_a_changed_grant_is_another_one() -> None:
    one = grants.from_record(SOUND, "f")
    other = grants.changed(one, share=(1, 2), name="x")
    assert one.record() == grants.from_record(SOUND, "f").record()
    assert other.record() == {**one.record(), "share": {"cores": 1, "memory": 2}, "name": "x"}
