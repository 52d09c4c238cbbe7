"""Claims: the record, container ids that are no paths, and damaged files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu.config import claims, paths, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder
from vgpu.config.limits import UNLIMITED, CardLimit

UUID = "GPU-8a56a4bc-1111-2222-3333-444455556666"
ID = "0123456789abcdef" * 2
SOUND = Claim(
    "c1", 12, 3456, [CardLimit(UUID, 1 << 30, 30, 50)], False, Holder("uid", "main"), [ID], "/run/b", 17e8,
    "ns/pod/main", True, priority=0, devices={"195:0": "/dev/nvidia0"},
).record()  # fmt: skip
SOUND.update(uncovered=["/opt/x: stays"], limiter=77)
LATER = {
    "cgroup", "boot_id", "priority", "devices", "lowered", "promised", "common_presence", "uncovered", "limiter",
}  # fmt: skip
WHOLE = Claim("c2", 12, 3456, [CardLimit(UUID, UNLIMITED)], True, None, [], "/run/b", 17e8).record()


@pytest.mark.parametrize("record", [SOUND, WHOLE])
def test_write_and_read(tmp_path: Path, record: dict[str, object]) -> None:
    container = str(record["container"])
    path = paths.claim(str(tmp_path), container)
    os.makedirs(os.path.dirname(path))
    records.write(path, record)
    assert path == f"{tmp_path}/containers/{container}/claim.json"
    assert claims.read(str(tmp_path), container).record() == record


@pytest.mark.parametrize("text", ["a", "A0_+-.z", "0" * 64, "x" * 255, "k8s_main_pod-1.2"])
def test_container_ids(text: str) -> None:
    assert paths.is_container_id(text)
    assert paths.container("/run/vgpu", text) == f"/run/vgpu/containers/{text}"


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../x", "a/b", "/", "-a", ".a", "a\n", "a\0", "a b", "ä", "x" * 256, "a%"]
)
def test_what_is_no_container_id_never_becomes_a_path(tmp_path: Path, text: str) -> None:
    assert not paths.is_container_id(text)
    with pytest.raises(VgpuError, match=r"^container id: expected letters, digits, _ \+ - \., found "):
        claims.read(str(tmp_path), text)


def card(**change: object) -> dict[str, object]:
    return {"cards": [{"uuid": UUID, "memory": 1, "cores": 30, "core_limit": 30, **change}]}


CHANGES = [
    ({"version": 9}, "version: expected 1, found 9"),
    ({"container": "../c"}, "container: expected a container's id, found ../c"),
    ({"container": None}, "container: expected one line of text, found nothing"),
    ({"pid": "12"}, "pid: expected a whole number"),
    ({"pid": -1}, "pid: expected a whole number"),
    ({"pid": True}, "pid: expected a whole number"),
    ({"start_time": 1.5}, "start_time: expected a whole number"),
    ({"start_time": 1 << 70}, "start_time: expected a whole number"),
    ({"cards": {}}, "cards: expected a list"),
    ({"cards": [5]}, "cards[0]: expected an object, found 5"),
    ({"cards": [None]}, "cards[0]: expected an object, found nothing"),
    ({"cards": [{}]}, "cards[0]: uuid: expected one line of text, not empty, found nothing"),
    (card(uuid=""), "cards[0]: uuid: expected one line of text, not empty"),
    (card(memory=-1), "cards[0]: memory: expected a whole number from 0 to 18446744073709551615, found -1"),
    (card(memory=1 << 64), "cards[0]: memory: expected a whole number"),
    (card(memory="1"), "cards[0]: memory: expected a whole number"),
    (card(cores=150), "cards[0]: cores: expected a whole number from 0 to 100, found 150"),
    (card(core_limit=101), "cards[0]: core_limit: expected a whole number from 0 to 100, found 101"),
    ({"exclusive": 0}, "exclusive: expected true or false, found 0"),
    ({"exclusive": "no"}, "exclusive: expected true or false, found no"),
    ({"holder": []}, "holder: expected an object, found []"),
    ({"holder": {"pod_uid": 5, "container": "c"}}, "holder: pod_uid: expected one line of text"),
    ({"grants": ["../../x"]}, "grants: expected ids of grants"),
    ({"grants": [ID, 5]}, "grants: expected a list of texts"),
    ({"grants": ID}, "grants: expected a list"),
    ({"bundle": 5}, "bundle: expected one line of text, found 5"),
    ({"created": float("inf")}, "created: expected a time in seconds, found inf"),
    ({"created": 10**400}, "created: expected a time in seconds"),
    ({"name": "a\nb"}, "name: expected one line of text, found a\\x0ab"),
    ({"cgroup": 5}, "cgroup: expected one line of text, found 5"),
    ({"boot_id": None}, "boot_id: expected one line of text, found nothing"),
    ({"priority": -1}, "priority: expected a whole number from 0"),
    ({"devices": {"195:0": 5}}, "devices: expected an object whose values are texts"),
    ({"devices": {"195": "/dev/x"}}, "devices: expected an object of <major>:<minor> and paths"),
    ({"devices": {"195:-1": "/dev/x"}}, "devices: expected an object of <major>:<minor> and paths"),
    ({"lowered": []}, "lowered: expected an object of bytes"),
    ({"lowered": {UUID: -1}}, "lowered: expected an object of bytes"),
    ({"lowered": {UUID: True}}, "lowered: expected an object of bytes"),
    ({"ready": None}, "ready: expected true or false, found nothing"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES)
def test_refuses_a_wrong_field(change: dict[str, object], line: str) -> None:
    assert claims.from_record(SOUND, "f").record() == SOUND
    with pytest.raises(VgpuError) as caught:
        claims.from_record({**SOUND, **change}, "f")
    assert str(caught.value).startswith(f"f: {line}")


def test_fields_that_older_claims_lack_are_empty() -> None:
    old = {key: value for key, value in SOUND.items() if key not in LATER}
    read = claims.from_record(old, "f")
    assert (read.cgroup, read.boot_id, read.priority, read.uncovered, read.limiter) == ("", "", 1, [], 0)
    assert (read.lowered, read.common_presence) == (None, None), "not known, and written as it was"
    assert not {"lowered", "common_presence"} & set(read.record())


@pytest.mark.parametrize("name", sorted(set(SOUND) - LATER))
def test_refuses_a_missing_field(name: str) -> None:
    with pytest.raises(VgpuError, match=f"^f: {name}: expected "):
        claims.from_record({key: value for key, value in SOUND.items() if key != name}, "f")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b'{"version":1}', b"\xff\xfe", b"[" * 999, b" " * (records.MAX_RECORD + 1)]
)
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = Path(paths.claim(str(tmp_path), "c1"))
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(VgpuError) as caught:
        claims.read(str(tmp_path), "c1")
    assert str(caught.value).startswith(f"{path}: ")


def test_claim_in_anothers_directory_is_refused(tmp_path: Path) -> None:
    path = Path(paths.claim(str(tmp_path), "c9"))
    path.parent.mkdir(parents=True)
    records.write(str(path), SOUND)
    with pytest.raises(VgpuError, match=r"claim\.json: expected the claim of c9, found that of c1"):
        claims.read(str(tmp_path), "c9")


def test_no_claim_is_absent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        claims.read(str(tmp_path), "c1")
