"""`vgpuctl set`: vgpuctl checks the request against the node; a running program follows it within 100 ms."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from vgpu.config import claims, core_schedule, grants, limits, paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.inventory import Card, Device, Inventory
from vgpu.config.request import Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time
from vgpu.hook.placement.placement import NoFit
from vgpu.hook.request.resolve_grants import WantedGrants
from vgpu.node.ctl.set import set_limits

if TYPE_CHECKING:
    from vcuda_boxes import SimBox

GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-000000000000"
OUT_OF_MEMORY = 2


class Node:
    def __init__(self, path: Path, uuid: str = UUID) -> None:
        self.path = path
        self.config = path / "config.json"
        self.settings = Settings({"paths.state": str(path / "state"), "paths.run": str(path / "run")})
        records.write(str(self.config), self.settings.record())
        self.cards = [Card(uuid, 0, 0, "", "Tesla T4", 16 * GIB, Device("/dev/nvidia0", "nvidia0", 195, 0))]
        (path / "run").mkdir()
        found = Inventory("550.54.15", "", 1.0, [], [], [], self.cards)
        records.write(paths.inventory(str(path / "run")), found.record())

    def claim(self, container: str, memory: int, cores: int, pid: int = 0, name: str = "", pair: bool = False) -> None:
        """A claim of a container whose init is this process; `pair`: by the grants of a pod."""
        pid = pid or os.getpid()
        ledger = Ledger(self.settings, self.cards)
        gpus: Request | WantedGrants = Request(1, cores, memory)
        if pair:
            made = [Grant(grants.new_id(), *one, 1.0) for one in (("cores", cores), ("memory", memory))]
            for grant in made:
                grants.write(self.settings.state_dir, grant)
            gpus = WantedGrants({grant.resource: grant.id for grant in made}, 0, Wishes())
        holder = Holder("a-pod", "main") if pair else None
        assert ledger.claim(Start(container, pid, start_time(pid), "/b", holder, name, time.time()), gpus)

    def set(self, *arguments: str) -> Result:
        return CliRunner().invoke(set_limits, arguments, obj=str(self.config))

    def in_force(self, container: str) -> tuple[int, int, int]:
        """(memory, cores, core limit) of the limits file. Asserts that the claim has the same."""
        (card,) = limits.decode((self.path / "run/containers" / container / "limits").read_bytes())[1]
        assert claims.read(str(self.path / "run"), container).cards == [card]
        return card.memory, card.cores, card.core_limit


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.claim("abc1", 2 * GIB, 30)
    made.claim("abd2", 8 * GIB, 50)
    return made


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--memory", "8Gi"], (8 * GIB, 30, 30)),
        (["--memory", "1Gi"], (GIB, 30, 30)),
        (["--cores", "50"], (2 * GIB, 50, 50)),
        (["--cores", "10"], (2 * GIB, 10, 10)),
        (["--core-limit", "100"], (2 * GIB, 30, 100)),
        (["--cores", "20", "--core-limit", "60", "--memory", "3Gi"], (3 * GIB, 20, 60)),
        (["--cores", "0", "--core-limit", "40"], (2 * GIB, 0, 40)),
    ],
)
def test_a_change_that_fits_takes_effect(node: Node, arguments: list[str], expected: tuple[int, int, int]) -> None:
    done = node.set("abc", *arguments)
    assert done.exit_code == 0, done.exception
    assert node.in_force("abc1") == expected
    assert node.in_force("abd2") == (8 * GIB, 50, 50)


def test_the_claim_has_the_highest_limit_of_before(node: Node) -> None:
    def lowered() -> dict[str, int] | None:
        return claims.read(str(node.path / "run"), "abc1").lowered

    assert lowered() == {}
    for memory, expected in (("3Gi", {}), ("2Gi", {UUID: 3 * GIB}), ("1Gi", {UUID: 3 * GIB}), ("2Gi", {UUID: 3 * GIB})):
        assert node.set("abc1", "--memory", memory).exit_code == 0
        assert lowered() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abc1"], "none of them"),
        (["abc1", "--memory", "9Gi"], "memory"),
        (["abc1", "--cores", "51"], "cores"),
        (["abc1", "--cores", "100"], "cores"),
        (["abc1", "--cores", "-1"], "cores"),
        (["abc1", "--core-limit", "29"], "core limit 29"),
        (["abc1", "--core-limit", "101"], "core limit 101"),
        (["abc1", "--memory", "lots"], "--memory"),
        (["ab", "--memory", "1Gi"], "matches 2"),
        (["zzz", "--memory", "1Gi"], "matches 0"),
        (["../../etc", "--memory", "1Gi"], "matches 0"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_and_changes_nothing(
    node: Node, arguments: list[str], message: str
) -> None:
    done = node.set(*arguments)
    assert isinstance(done.exception, VgpuError), done.output
    assert message in str(done.exception)
    assert node.in_force("abc1") == (2 * GIB, 30, 30)


def test_the_share_of_a_resource_claim_is_not_changed(node: Node) -> None:
    """The scheduler counts what the claim has."""
    path = paths.claim(str(node.path / "run"), "abc1")
    records.write(path, {**records.read(path), "prepared": ["6f1c3c52-0000-4c53-9d3a-6f0f8f0f1a11-0"]})
    done = node.set("abc1", "--cores", "10")
    assert isinstance(done.exception, VgpuError), done.output
    assert "found that of a resource claim" in str(done.exception)
    assert node.in_force("abc1") == (2 * GIB, 30, 30)


def test_it_prints_what_it_changed(node: Node) -> None:
    done = node.set("abc", "--memory", "3Gi", "--cores", "40")
    assert done.stdout == "abc1, card 0: memory 2 GiB -> 3 GiB, cores 30 -> 40, core limit 30 -> 40\n"
    assert node.set("abc1", "--memory", "3Gi").stdout == "abc1, card 0: as before, nothing to change\n"
    done = node.set("abc1", "--core-limit", "50", "--output", "json")
    amounts = {"memory": 3 * GIB, "cores": 40}
    assert json.loads(done.stdout) == {
        "container": "abc1", "name": "", "promised": {}, "warnings": [],
        "cards": [{"uuid": UUID, "before": {**amounts, "core_limit": 40}, "after": {**amounts, "core_limit": 50}}],
    }  # fmt: skip


def test_a_lowered_share_stays_its_pods_unless_it_is_released(tmp_path: Path) -> None:
    """Issue: a pod of 60 cores was lowered to 20, another container got 70, and the pod's restart was refused."""
    node = Node(tmp_path)
    node.claim("pod1", 4 * GIB, 60, pair=True)

    def room() -> str:
        try:
            node.claim("other", GIB, 70)
        except NoFit as error:
            return str(error)
        return ""

    done = node.set("pod1", "--cores", "20")
    assert "its pod keeps 60 cores and 4 GiB of each card for when it starts again" in done.stdout
    assert "vgpuctl set pod1 --release" in done.stdout
    assert "cores" in room()
    done = node.set("pod1", "--release")
    assert done.stdout == "pod1, card 0: as before, nothing to change\n"
    assert room() == ""
    found, _ = grants.read_all(node.settings.state_dir)
    assert {(grant.amount, grant.released) for grant in found} == {(60, (20, 4 * GIB)), (4 * GIB, (20, 4 * GIB))}
    assert isinstance(node.set("other", "--release").exception, VgpuError)
    node.set("pod1", "--cores", "30", "--memory", "2Gi", "--release")
    found, _ = grants.read_all(node.settings.state_dir)
    assert {grant.released for grant in found} == {(20, 2 * GIB)}, "what was given away does not come back"


def test_a_container_is_named_as_people_name_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.claim("ab" * 32, GIB, 10, name="lab/train-0/main")
    node.claim("cd" * 32, GIB, 10, name="lab/train-1/main")
    node.claim("ef" * 32, GIB, 10, name="lab/train-1/side")
    for number, name in enumerate(("lab/train-0/main", "lab/train-0", "ababab", "ab" * 32)):
        done = node.set(name, "--cores", str(20 + number))
        assert done.exit_code == 0, done.exception
        assert done.stdout.startswith("abababababab (lab/train-0/main), card 0: cores ")
    message = str(node.set("lab/train-1", "--cores", "20").exception)
    assert "matches 2 containers; they are: cdcdcdcdcdcd (lab/train-1/main), efefefefefef (lab/train-1/side)" in message
    message = str(node.set("train", "--cores", "20").exception)
    assert "matches 0 containers; with cards: abababababab (lab/train-0/main), cdcd" in message
    assert "\n" not in message


def test_an_id_wins_over_a_longer_one_and_over_a_name(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.claim("abc", GIB, 10)
    node.claim("abcd", GIB, 10, name="abc")
    assert node.set("abc", "--cores", "20").stdout.startswith("abc, card 0")
    assert "matches 2" in str(node.set("ab", "--cores", "20").exception)
    assert "matches 0" in str(node.set("", "--cores", "20").exception)


def test_without_any_container_it_says_so(tmp_path: Path) -> None:
    assert "no container has cards" in str(Node(tmp_path).set("x", "--cores", "20").exception)


def test_the_containers_own_share_does_not_count_against_it(tmp_path: Path) -> None:
    """The error lists only the other containers as holders of the full card."""
    node = Node(tmp_path)
    node.claim("mine", GIB, 30)
    run = str(tmp_path / "run")
    other = claims.read(run, "mine")
    other.container, other.exclusive = "other", True  # by a record that nothing of vgpu would have written
    Path(paths.container(run, "other")).mkdir()
    records.write(paths.claim(run, "other"), other.record())
    message = str(node.set("mine", "--memory", "2Gi").exception)
    assert "by other" in message
    assert "mine" not in message


def test_a_crowded_card_can_still_shrink(node: Node) -> None:
    node.cards[0].memory = GIB  # less than the commitments on it
    found = Inventory("550.54.15", "", 1.0, [], [], [], node.cards)
    records.write(paths.inventory(str(node.path / "run")), found.record())
    assert node.set("abc1", "--memory", "1500Mi").exit_code == 0
    assert node.in_force("abc1")[0] == 1500 << 20


def test_whole_cards_and_ended_containers_are_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.claim("whole", 0, 100)
    assert "whole cards" in str(node.set("whole", "--memory", "1Gi").exception)
    claim = claims.read(str(tmp_path / "run"), "whole")
    claim.start_time += 1
    records.write(paths.claim(str(tmp_path / "run"), "whole"), claim.record())
    assert "ended" in str(node.set("whole", "--memory", "1Gi").exception)


def test_a_running_program_follows_it_within_100_ms(t4: SimBox, tmp_path: Path) -> None:
    directory = tmp_path / "node"
    directory.mkdir()
    node = Node(directory, t4.uuid)
    node.claim("box", 2 * GIB, 30)
    (t4.path / "limits").hardlink_to(directory / "run/containers/box/limits")  # as the hook's bind mount
    client = t4.opened()
    result, pointer = client.alloc(2 * GIB)
    assert (result, client.alloc(1)[0]) == (0, OUT_OF_MEMORY)
    assert node.set("box", "--memory", "3Gi").exit_code == 0
    assert client.alloc(GIB)[0] == 0
    assert node.set("box", "--memory", "1Gi").exit_code == 0
    assert client.numbers("info") == (0, 0, GIB)
    assert client.alloc(1)[0] == OUT_OF_MEMORY
    assert client.numbers(f"free {pointer}") == (0,)
    assert client.alloc(1)[0] == OUT_OF_MEMORY  # a GiB is still held


def test_a_changed_share_changes_all_containers_schedules(node: Node) -> None:
    files = [node.path / "run/containers" / name / "cards" for name in ("abc1", "abd2")]
    assert [core_schedule.decode(file.read_bytes())[0][0] for file in files] == core_schedule.schedule(UUID, [30, 50])
    assert node.set("abc", "--cores", "40").exit_code == 0
    assert [core_schedule.decode(file.read_bytes())[0][0] for file in files] == core_schedule.schedule(UUID, [40, 50])
