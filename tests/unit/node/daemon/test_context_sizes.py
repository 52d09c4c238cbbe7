"""Which of NVML's figures shows a context's size, and what vgpud writes then."""

from __future__ import annotations

from pathlib import Path

import cards
import pytest
from cards import write_inventory
from host import Host
from region_reading import InProcess

from vgpu.config import context_sizes, inventory, limits, paths, usage
from vgpu.config.claims import Claim
from vgpu.config.context_sizes import MIB
from vgpu.node.daemon.context_sizes import LEAST, MOST, ContextSizes

UUID = limits.uuid_text(bytes(range(16)))
NAME = "NVIDIA A100-SXM4-80GB"


class Node(Host):
    """A node of one card and one container. `living` is what the container's living processes have allocated."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        (path / "state").mkdir()
        self.sizes = ContextSizes(self.settings, self.conditions, InProcess())
        self.claims = {"c": Claim("c", 1, 1, [], False, None, [], "/b", 1.0)}
        self.living = 0
        self.inventory("550")
        monkeypatch.setattr("vgpu.node.daemon.usage_regions.held", lambda *_: {UUID: self.living})

    def inventory(self, driver: str) -> None:
        write_inventory(self.run_dir, cards.inventory([cards.card(uuid=UUID, name=NAME)], driver))

    def look(self, used: int, allocated: int = 0, pid: int = 7, living: int | None = None) -> int:
        """NVML reports `used` MiB of a process, whose region has `allocated`. Returns the MiB in the inventory."""
        self.living = (allocated if living is None else living) * MIB
        self.sizes.look({("c", UUID): (pid, used * MIB, allocated * MIB)}, self.claims, lambda _: [])
        return self.known()

    def known(self) -> int:
        (card,) = inventory.read(self.settings.run_dir).cards
        return card.context // MIB


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_the_least_that_was_seen_twice_counts(node: Node) -> None:
    assert node.look(424, 100) == 0, "its context may be half made"
    assert node.look(824, 500) == 324
    assert node.look(900, 500) == 324, "with code"
    assert node.look(820, 500) == 320
    assert context_sizes.read(node.settings.state_dir)[NAME].size == 320 * MIB
    (card,) = inventory.read(node.settings.run_dir).cards
    assert card.context_source == "seen on this node with driver 550"
    assert node.log.getvalue().count(f"a CUDA context on {NAME} takes 324 MiB") == 1


def test_another_process_begins_anew(node: Node) -> None:
    node.look(324)
    assert node.look(50, pid=8) == 0
    assert node.look(350, pid=8) == 350


def test_what_ended_processes_left_is_no_allocation(node: Node) -> None:
    node.look(324, 200, living=0)
    assert node.look(324, 200, living=0) == 324


def test_nonsense_is_ignored(node: Node) -> None:
    node.look(324)
    assert node.look(324, 400) == 0
    assert node.look(LEAST // MIB - 1) == 0
    node.sizes.look({}, node.claims, lambda _: [])
    assert node.look(324) == 0, "it was not in the last list"


def report(mib: int) -> dict[str, int]:
    """What the beginning of a region says in which libvcuda reports a context's size."""
    head = bytearray(usage.BEGINNING.ljust(usage.CARDS_END, b"\0"))
    usage.CARD.pack_into(head, usage.HEADER.size, 1, limits.uuid_bytes(UUID))
    usage.CONTEXT.pack_into(head, usage.HEADER.size + usage.CONTEXT_OFFSET, mib * MIB)
    return usage.contexts(bytes(head))


def test_what_libvcuda_reports_counts_at_once(node: Node) -> None:
    for mib, known in ((0, 0), (LEAST // MIB - 1, 0), (MOST // MIB + 1, 0), (330, 330), (340, 330), (320, 320)):
        node.sizes.look_at_reports([{}, report(mib), report(0)])
        assert node.known() == known
    assert not node.sizes.conditions.present


def test_the_same_report_is_read_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sizes.look_at_reports([report(330)])
    reads: list[str] = []
    monkeypatch.setattr(inventory, "read", reads.append)
    node.sizes.look_at_reports([report(330)])
    assert reads == []


def test_a_new_driver_counts_anew(node: Node) -> None:
    node.look(324)
    node.look(324)
    node.inventory("560")
    assert node.look(400) == 400


def test_an_inventory_without_the_size_gets_it_again(node: Node) -> None:
    node.look(324)
    node.look(324)
    node.inventory("550")
    assert node.known() == 0
    assert node.look(400) == 324


def test_a_damaged_record_is_a_condition(node: Node) -> None:
    Path(paths.context_sizes(node.settings.state_dir)).write_text("{")
    node.look(324)
    assert node.look(324) == 0
    assert "not recorded" in node.sizes.conditions.present[ContextSizes.TOPIC]
    Path(paths.context_sizes(node.settings.state_dir)).unlink()
    assert node.look(324) == 324
    assert not node.sizes.conditions.present
