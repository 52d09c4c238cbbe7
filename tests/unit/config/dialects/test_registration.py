"""A node's cards in the annotations that extenders read, byte for byte equal to those of their own plugins."""

from __future__ import annotations

import json

import cards

from vgpu.config.dialects import registration
from vgpu.config.dialects.registration import Offer
from vgpu.config.inventory import Card

A = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
B = "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4"
NOW = 1716199325.5


def card(uuid: str, index: int, name: str = "Tesla V100S-PCIE-32GB", numa: int = -1, **links: str) -> Card:
    return cards.card(index, 32 << 30, uuid=uuid, bus_id="0000:41:00.0", name=name, numa=numa, links=links)


def offer(**fields: object) -> Offer:
    both = [card(B, 1, "NVIDIA A100: 40, GB", 1, **{A: "NV12"}), card(A, 0, **{B: "NV12", "GPU-gone": "SYS"})]
    return Offer(both, {B: "Xid 79"}, "550.54.15", split=10, **fields)  # type: ignore[arg-type]


def test_hami_from_2_8_on() -> None:
    made = registration.registered(offer(memory=1.5), ["hami"], NOW)
    assert list(made) == ["hami.io/node-nvidia-register"]  # the handshake is the scheduler's alone
    assert json.loads(made["hami.io/node-nvidia-register"]) == [
        {"id": A, "count": 10, "devmem": 49152, "devcore": 100, "type": "NVIDIA-Tesla V100S-PCIE-32GB",
         "mode": "hami-core", "health": True},
        {"id": B, "index": 1, "count": 10, "devmem": 49152, "devcore": 100, "type": "NVIDIA A100  40  GB", "numa": 1,
         "mode": "hami-core"},
    ]  # fmt: skip


def test_hami_up_to_2_7() -> None:
    made = registration.registered(offer(cores=1.15), ["hami-2.7"], NOW)
    assert made == {
        "hami.io/node-nvidia-register": (
            f"{A},10,32768,115,NVIDIA-Tesla V100S-PCIE-32GB,0,true,0,hami-core:"
            f"{B},10,32768,115,NVIDIA A100  40  GB,1,false,1,hami-core:"
        ),
        "hami.io/node-handshake": "Reported 2024-05-20 10:02:05",
    }


def test_of_hamis_two_forms_under_one_key_the_newer_is_written() -> None:
    assert registration.registered(offer(), ["hami-2.7", "hami"], NOW) == registration.registered(
        offer(), ["hami"], NOW
    )


def test_volcano() -> None:
    made = registration.registered(offer(), ["volcano"], NOW)
    assert made == {
        "volcano.sh/node-vgpu-register": (
            f"{A},10,32768,NVIDIA-Tesla V100S-PCIE-32GB,true,hami-core:"
            f"{B},10,32768,NVIDIA A100  40  GB,false,hami-core:"
        ),
        "volcano.sh/node-vgpu-handshake": "Reported 2024-05-20 10:02:05",
    }


def test_the_fork() -> None:
    made = registration.registered(offer(memory=0.5), ["nvidia"], NOW)
    assert made["tydic.io/node-gpu-heartbeat"] == "1716199325500000000"
    assert json.loads(made["tydic.io/nvidia-device-register"]) == [
        {"id": A, "core": 100, "memory": 16384, "type": "Tesla V100S-PCIE-32GB", "isMig": False, "health": True},
        {"id": B, "core": 100, "memory": 16384, "type": "NVIDIA A100: 40, GB", "isMig": False, "health": False},
    ]


def test_our_own() -> None:
    (value,) = registration.registered(offer(cores=1.5, memory=2.0, policy="spread"), ["vgpu"], NOW).values()
    assert json.loads(value) == {
        "version": 1, "driver": "550.54.15", "policy": "spread", "cores": 1.5, "memory": 2.0, "split": 10,
        "cards": [
            {"uuid": A, "index": 0, "name": "Tesla V100S-PCIE-32GB", "memory": 32768, "numa": -1,
             "links": {"1": "NV12"}, "unhealthy": ""},
            {"uuid": B, "index": 1, "name": "NVIDIA A100: 40, GB", "memory": 32768, "numa": 1,
             "links": {"0": "NV12"}, "unhealthy": "Xid 79"},
        ],
    }  # fmt: skip


def test_our_own_of_a_large_node_fits() -> None:
    """All annotations of an object together may be 256 KiB long."""
    uuids = [f"GPU-{number:032x}" for number in range(16)]
    cards = [card(uuid, at, **{other: "NV18" for other in uuids if other != uuid}) for at, uuid in enumerate(uuids)]
    assert len(registration.own(Offer(cards, {}, "550.54.15"))) < 8 << 10


def test_nothing_is_registered_unasked() -> None:
    assert registration.registered(offer(), [], NOW) == {}
