"""MIG instances as cards, on a node of one whole card and one that is divided: what a container of an instance gets,
what it cannot open, and what follows when the instances change.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from attack_records import Attack, attack
from bundles import Bundle
from container_site import BOTH, GIB, INFO, MIB, Site, pairs
from daemons import wait_for

from vgpu.config import grants
from vgpu.config.inventory import Card

pytestmark = pytest.mark.root

POD = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"
REFUSED = "Operation not permitted"
TRIES = 200
DIVIDED = 1  #: the card in MIG mode


def divided(site: Site, *profiles: str) -> dict[str, Card]:
    """The instances of the node's inventory, after these were made of DIVIDED."""
    site.node.divide(DIVIDED, *profiles)
    site.node.take_inventory()
    return site.node.instances()


def with_driver(bundle: Bundle) -> Bundle:
    """The container's /proc has the driver's directory: a runtime's hook before vgpu's makes the kernel's part."""
    place = f"{bundle.rootfs}/proc/driver"
    script = f'nsenter -m -t "$pid" sh -c "mount -t tmpfs none {place} && mkdir {place}/nvidia"'
    command = ["sh", "-ec", r"""pid=$(sed 's/.*"pid": *\([0-9]*\).*/\1/'); """ + script]
    bundle.config["hooks"]["prestart"].insert(0, {"path": "/bin/sh", "args": command, "env": ["PATH=/usr/bin:/bin"]})
    return bundle


def numbers(card: Card) -> list[int]:
    return [node.minor for node in card.nodes[1:]]


@BOTH
def test_containers_of_instances_have_their_own_and_no_others(site: Site) -> None:
    """Three shares of one instance beside one of its sibling, and one of the whole card."""
    cards = divided(site, "3g.20gb", "2g.10gb", "1g.5gb")
    (whole_card,) = [card for card in site.node.inventory().cards if not card.parent]
    shares = [{"cores": "30", "memory": "1Gi", "profile": "3g.20gb"}] * 3 + [
        {"cores": "90", "memory": "2Gi", "profile": "1g.5gb"}, {"cores": "50", "memory": "3Gi", "nouse_gputype": "MIG"},
    ]  # fmt: skip
    for share in shares:
        container = site.start(with_driver(site.bundle(None, "sleep", "600", **share)))
        found = pairs(site.execute(container, *INFO))
        (held,) = site.node.claims()[container]["cards"]
        assert found["cards"] == "1"
        assert held["memory"] == int(share["memory"][0]) * GIB
        assert {found["card0.total"], found["card0.nvml_total"]} == {str(held["memory"])}
        assert f"{held['memory'] // MIB}MiB" in site.execute(container, "/usr/local/nvidia/bin/nvidia-smi")
        own = [card for card in cards.values() if card.uuid == held["uuid"]]
        assert [card.profile for card in own] == ([share["profile"]] if "profile" in share else [])
        listed = site.execute(container, "sh", "-c", "ls /dev/nvidia-caps || true").split()
        assert sorted(listed) == sorted(f"nvidia-cap{minor}" for card in own for minor in numbers(card))
        driver = site.execute(
            container, "sh", "-c", "cd /proc/driver/nvidia; ls gpus; grep -r Minor: capabilities || true"
        )
        assert sorted(driver.split("\n")) == sorted(
            [
                "",
                *(card.bus_id.lower() for card in own or [whole_card]),
                *(
                    f"capabilities/{name}:DeviceFileMinor: {node.minor}"
                    for card in own
                    for name, node in card.capabilities.items()
                ),
            ]
        )
    for profile, cores in {"3g.20gb": 10, "1g.5gb": 10}.items():
        refusal = site.refused(site.bundle(None, cores=str(cores + 1), memory="1Gi", profile=profile))
        assert f"{cores} cores free of 100" in refusal
    whole = site.bundle(None, cores="100", profile="2g.10gb")
    whole.config["process"]["env"].append(f"CUDA_VISIBLE_DEVICES={cards['2g.10gb'].parent}")
    found = site.seen(whole)
    assert found["cards"] == "1"
    assert 0 <= int(found["card0.total"]) - cards["2g.10gb"].memory < GIB, "but for what the driver keeps"
    notes = [note for record in site.node.log() for note in record.get("notes", [])]
    parent, own = cards["2g.10gb"].parent, cards["2g.10gb"].uuid
    assert f"CUDA_VISIBLE_DEVICES names {parent}, but the container's card is {own}: leave it out" in notes


@BOTH
@attack("nodes of a sibling instance's numbers, and of others, made and opened", "tenant, uid 0")
def test_no_number_of_a_siblings_node_opens(site: Site, attack: Attack) -> None:
    """The container's root makes nodes of the siblings' numbers and of others, by a seed that is given at the run."""
    cards = divided(site, "3g.20gb", "2g.10gb", "1g.5gb")
    seed = random.randrange(1 << 30)
    own = numbers(cards["2g.10gb"])
    siblings = [minor for profile, card in cards.items() if profile != "2g.10gb" for minor in numbers(card)]
    major = cards["1g.5gb"].nodes[-1].major
    others = [minor for minor in range(1, 4000) if minor not in own]
    tried = siblings + random.Random(seed).sample(others, TRIES - len(siblings))
    bundle = site.bundle(None, cores="20", memory="1Gi", profile="2g.10gb")
    made = "".join(f"mknod /tmp/n{at} c {major} {minor};" for at, minor in enumerate([*own, *tried]))
    paths = " ".join(f"/tmp/n{at}" for at in range(len(own) + TRIES))
    found = site.seen(bundle, "sh", "-c", f"{made} cudaprobe open {paths}")
    assert [found[f"/tmp/n{at}"] for at in range(len(own))] != [REFUSED] * len(own), "its own are permitted"
    opened = [tried[at] for at in range(TRIES) if found[f"/tmp/n{len(own) + at}"] != REFUSED]
    assert opened == [], f"seed {seed}"
    attack.held(TRIES, "the kernel refuses each")


@BOTH
def test_what_a_container_with_cap_sys_admin_reaches_of_a_sibling(site: Site) -> None:
    """The driver takes its capabilities as given. The kernel still opens no node of the sibling, and libvcuda makes no
    context on it; a container with a whole instance has no libvcuda, and the driver serves it."""
    cards = divided(site, "3g.20gb", "1g.5gb")
    own, sibling = cards["1g.5gb"], cards["3g.20gb"]
    made = "".join(
        f"mknod /tmp/{node.minor} c {node.major} {node.minor};" for node in (*own.nodes[1:], *sibling.nodes[1:])
    )
    look = f"{made} cudaprobe open {' '.join(f'/tmp/{minor}' for minor in (*numbers(own), *numbers(sibling)))}"
    for capability in ([], ["CAP_SYS_ADMIN"]):
        for amounts, result in (({"cores": "30", "memory": "1Gi"}, "context 800"), ({"cores": "100"}, "held 1")):
            bundle = site.bundle(None, profile="1g.5gb", **amounts)
            bundle.config["process"]["capabilities"]["bounding"] += capability
            bundle.config["process"]["env"] += [f"CUDA_VISIBLE_DEVICES={sibling.uuid}"]
            found = site.output(bundle, "sh", "-c", f"{look}; cudaprobe alloc 1 || true")
            assert [pairs(found)[f"/tmp/{minor}"] for minor in numbers(sibling)] == [REFUSED] * 2
            assert REFUSED not in [pairs(found)[f"/tmp/{minor}"] for minor in numbers(own)]
            assert (result if capability else "cuInit 100") in found.splitlines()


def test_instances_that_change(site: Site, cgroup: str) -> None:
    node = site.node
    ((instance, compute_instance, uuid),) = node.divide(DIVIDED, "3g.20gb")
    node.take_inventory()
    before = node.instances()["3g.20gb"]
    assert before.uuid == uuid
    share = {"cores": "30", "memory": "1Gi", "profile": "3g.20gb"}
    running = site.start(site.bundle(None, "sleep", "600", **share))

    node.destroy(DIVIDED, instance)
    assert "MIG instances were made or destroyed; run: vgpuctl inventory refresh" in site.refused(site.bundle(**share))
    assert set(site.node.claims()) == {running}, "nothing is left of the start"
    (again,) = node.divide(DIVIDED, "3g.20gb", gi=instance)
    assert again[:2] == (instance, compute_instance)
    node.take_inventory()
    after = node.instances()["3g.20gb"]
    assert after.uuid == again[2] != uuid
    assert numbers(after) == numbers(before)

    assert f"{running}, whose destroyed instance had its number" in site.refused(site.bundle(**share))
    assert site.node.claims()[running]["cards"][0]["uuid"] == uuid, "it keeps its claim"
    doctor = site.node.vgpuctl("doctor", "--output", "json", check=False).stdout
    (line,) = [item["found"] for item in json.loads(doctor) if item["check"] == "MIG instances"]
    assert line == f"container {running} holds {uuid}, which was destroyed"
    granted = site.granted(30, 1024)
    for grant in site.node.grants():
        grants.write(site.node.settings.state_dir, grants.changed(grant, devices={uuid: "0-29"}))
    pod = site.bundle().pod(POD, "main", cgroup, **granted)
    assert f"MIG instance {uuid}: expected it on this node, found none: it was destroyed" in site.refused(pod)

    site.delete(running)
    other = site.start(site.bundle(None, "sleep", "600", **share))
    assert site.node.claims()[other]["cards"][0]["uuid"] == again[2]
    doctor = site.node.vgpuctl("doctor", "--output", "json", check=False).stdout
    (line,) = [item["found"] for item in json.loads(doctor) if item["check"] == "MIG instances"]
    assert line.endswith(f"is held by container {other}")


def test_vgpud_follows_the_division_and_what_instances_use(site: Site) -> None:
    node = site.node
    site.start_daemon()
    ((instance, _, uuid),) = node.divide(DIVIDED, "3g.20gb")
    wait_for(lambda: [card.uuid for card in node.instances().values()] == [uuid], what=site.daemon.text)
    share = site.bundle(None, "cudaprobe", "hold", "300", "/end", cores="30", memory="1Gi", profile="3g.20gb")
    container = site.start(share)

    def use() -> dict[str, Any]:
        (row,) = node.status()["containers"]
        return row if (row["memory_used"] or 0) >= 300 * MIB and row["cores_used"] is not None else {}

    assert wait_for(use, what=site.daemon.text)["card"] == node.instances()["3g.20gb"].index
    node.destroy(DIVIDED, instance)
    ((_, _, other),) = node.divide(DIVIDED, "3g.20gb", gi=instance)
    wait_for(lambda: [card.uuid for card in node.instances().values()] == [other], what=site.daemon.text)
    assert set(node.claims()) == {container}
    assert "health is not known" not in site.daemon.text()
