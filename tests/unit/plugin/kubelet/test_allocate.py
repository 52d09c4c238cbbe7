"""From ids to grants: their amounts, refusals, and that a call is granted completely or not at all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from plugin_inputs import GIB, MIB, make_cards, make_settings

from vgpu.config import cdi_device, grants, paths
from vgpu.config.request import Wishes
from vgpu.hook.ledger.commitments import LaterGrants
from vgpu.node.service.kubelet_resources import advertised
from vgpu.plugin.kubelet import allocate
from vgpu.plugin.kubelet.allocate import Allocator, Refused, grant_for


def ids(resource, count: int, card: int = 0, first: int = 0) -> list[str]:
    return [f"{resource.slots[card].tag}-{number}" for number in range(first, first + count)]


def offered(cards: int = 2, **values):
    settings = make_settings(**values)
    return settings, advertised(settings, make_cards(cards))


def joined(*made):
    return grants.join(list(made), 0, Wishes())


def test_a_share() -> None:
    settings, [cores, memory] = offered()
    one = grant_for(cores, ids(cores, 50), settings, 1.0)
    other = grant_for(memory, ids(memory, 8), settings, 1.0)
    assert (one.resource, one.amount, one.devices) == ("cores", 50, {"GPU-00": "0-49"})
    assert (other.resource, other.amount, other.devices) == ("memory", 2 * GIB, {"GPU-00": "0-7"})
    request = joined(one, other)
    assert (request.gpus, request.cores, request.memory, request.preferred) == (1, 50, 2 * GIB, ("GPU-00",))


def test_two_whole_cards() -> None:
    settings, [cores, _] = offered()
    made = grant_for(cores, ids(cores, 100) + ids(cores, 100, 1), settings, 1.0)
    request = joined(made)
    assert (request.gpus, request.cores, request.exclusive) == (2, 100, True)
    assert request.preferred == ("GPU-00", "GPU-01")


def test_memory_of_all_cards_may_be_asked_for() -> None:
    """It may be several whole cards' memory, or one card's for a share. Only the hook can decide that."""
    settings, [cores, memory] = offered()
    everything = grant_for(memory, ids(memory, 60) + ids(memory, 60, 1), settings, 1.0)
    assert everything.amount == 30720 * MIB
    request = joined(grant_for(cores, ids(cores, 100) + ids(cores, 100, 1), settings, 1.0), everything)
    assert (request.gpus, request.total, request.exclusive) == (2, 30720 * MIB, True)


@pytest.mark.parametrize(
    ("values", "count", "cores", "memory", "exclusive"),
    [
        ({}, 1, 50, 7680 * MIB, False),
        ({}, 2, 50, 7680 * MIB, False),
        ({"scaling__cores": 2.0}, 1, 99, 7680 * MIB, False),
        ({"resources__split_count": 1}, 2, 100, 0, True),
    ],
)
def test_gpu_units(values, count: int, cores: int, memory: int, exclusive: bool) -> None:
    settings, [gpu] = offered(resources__mode="gpu", **values)
    wanted = [f"{gpu.slots[card].tag}-0" for card in range(count)]
    request = joined(grant_for(gpu, wanted, settings, 1.0))
    assert (request.gpus, request.cores, request.memory, request.exclusive) == (count, cores, memory, exclusive)


def test_gpu_units_of_unlike_cards_are_worth_the_smaller_one() -> None:
    settings = make_settings(resources__mode="gpu")
    [gpu] = advertised(settings, make_cards() + make_cards(1, 80 * GIB, first=1))
    assert grant_for(gpu, ids(gpu, 1, 1), settings, 1.0).memory == 40 * GIB
    assert grant_for(gpu, ids(gpu, 1, 1) + ids(gpu, 1, 0), settings, 1.0).memory == 7680 * MIB


def test_all_units_of_a_split_card_fit_on_it() -> None:
    """With any factors, K units are never worth more than the ledger's capacity."""
    for split in (2, 3, 7, 10, 99):
        for scaling in (0.99, 1.0, 1.7, 5.0):
            settings = make_settings(resources__mode="gpu", resources__split_count=split, scaling__cores=scaling,
                                     scaling__memory=min(scaling, 2.0))  # fmt: skip
            [gpu] = advertised(settings, make_cards())
            policy = allocate.kubelet_resources.policy_of(settings)
            each = grant_for(gpu, ids(gpu, 1), settings, 1.0)
            assert each.cores * split <= policy.cores()
            assert each.memory * split <= policy.memory(gpu.slots[0].card)


CORES = "tencent.com/vcuda-core: "
MEMORY = "tencent.com/vcuda-memory: "
REFUSED = [
    (0, lambda cores: [], CORES + "expected device ids, found an empty request"),
    (0, lambda cores: ids(cores, 3) + ids(cores, 1), CORES + "expected each device id once, found ae5578c0-0 again"),
    (0, lambda cores: ["nope-1"], CORES + "expected device ids of this node, found nope-1; "),
    (0, lambda cores: [*ids(cores, 1), "x" * 5000], CORES + "expected device ids of this node, found xxx"),
    (0, lambda cores: ids(cores, 100) + ids(cores, 50, 1),
     CORES + "expected 1 to 99 for a share of one card, or a multiple of 100, found 150; ask for whole cards"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "wanted", "line"), REFUSED)
def test_refuses_what_the_node_can_never_serve(which: int, wanted, line: str) -> None:
    settings, both = offered()
    with pytest.raises(Refused) as caught:
        grant_for(both[which], wanted(both[which]), settings, 1.0)
    assert str(caught.value).startswith(line)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("values", "count", "line"),
    [
        ({"scaling__cores": 2.5}, 250, "or a multiple of 100, found 250"),
        ({"scaling__cores": 2.0}, 200, "expected at most the 1 cards of this node, found 2 cards (200 cores)"),
        ({"scaling__cores": 0.5}, 51, None),
        ({"scaling__cores": 0.5}, 50, None),
    ],
)
def test_cores_of_scaled_cards(values, count: int, line: str | None) -> None:
    settings, [cores, _] = offered(1, **values)
    wanted = ids(cores, min(count, cores.count()))
    if line is None:
        assert grant_for(cores, wanted, settings, 1.0).amount == 50
        return
    with pytest.raises(Refused, match=re.escape(line)):
        grant_for(cores, wanted, settings, 1.0)


def test_a_share_larger_than_what_scaling_leaves_is_refused() -> None:
    settings, [cores, _] = offered(2, scaling__cores=0.5)
    with pytest.raises(Refused, match="expected at most 50 cores for a share, found 60"):
        grant_for(cores, ids(cores, 50) + ids(cores, 10, 1), settings, 1.0)


def test_more_gpu_units_than_cards_are_refused() -> None:
    settings, [gpu] = offered(2, resources__mode="gpu")
    with pytest.raises(Refused, match="expected at most 2, one of each card of this node, found 3"):
        grant_for(gpu, ids(gpu, 2) + ids(gpu, 1, 1), settings, 1.0)
    assert grant_for(gpu, ids(gpu, 2), settings, 1.0).amount == 2  # the hook takes two cards


def test_oversubscribed_memory_never_exceeds_the_card() -> None:
    settings, [_, memory] = offered(1, scaling__memory=2.0)
    assert grant_for(memory, ids(memory, 60), settings, 1.0).amount == 15360 * MIB
    line = "^tencent.com/vcuda-memory: expected at most 15360 MiB, that of all cards, found 15616 MiB; a share lies on"
    with pytest.raises(Refused, match=line):
        grant_for(memory, ids(memory, 61), settings, 1.0)


def test_a_grant_of_scattered_ids_can_be_read_back(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, resources__memory_unit=MIB)
    [_, memory] = advertised(settings, make_cards(1, 80 * GIB))
    scattered = [f"{memory.slots[0].tag}-{number}" for number in range(0, memory.count(), 2)]
    [made] = Allocator(settings).allocate(memory, [scattered])
    assert grants.read(settings.state_dir, made.id).devices == made.devices


# A call as a whole


def stored(settings) -> list[str]:
    return sorted(os.listdir(paths.grants(settings.state_dir)))


def test_grants_of_a_call_are_on_disk_with_ids_of_their_own(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    [cores, _] = advertised(settings, make_cards())
    made = Allocator(settings).allocate(cores, [ids(cores, 10), ids(cores, 20, first=10)])
    assert [grant.amount for grant in made] == [10, 20]
    assert stored(settings) == sorted(f"{grant.id}.json" for grant in made)
    assert grants.read(settings.state_dir, made[1].id).devices == {"GPU-00": "10-29"}
    assert os.stat(paths.grant(settings.state_dir, made[0].id)).st_mode & 0o777 == 0o600


def test_nothing_is_granted_when_a_part_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    [cores, _] = advertised(settings, make_cards())
    with pytest.raises(Refused):
        Allocator(settings).allocate(cores, [ids(cores, 10), ["unknown-0"]])
    assert not Path(paths.grants(settings.state_dir)).exists()


def test_nothing_remains_when_the_disk_fails_half_way(tmp_path: Path, monkeypatch) -> None:
    settings = make_settings(tmp_path)
    [cores, _] = advertised(settings, make_cards())
    real, calls = grants.write, []

    def failing(state_dir: str, grant) -> None:
        calls.append(grant)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(state_dir, grant)

    monkeypatch.setattr(grants, "write", failing)
    with pytest.raises(OSError, match="No space"):
        Allocator(settings).allocate(cores, [ids(cores, 10), ids(cores, 10, first=10), ids(cores, 1, first=20)])
    assert stored(settings) == []


def test_a_later_grant_of_the_same_ids_supersedes_whatever_the_clock_says(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    [cores, _] = advertised(settings, make_cards())
    times = iter([100.0, 100.0, 50.0])
    allocator = Allocator(settings, lambda: next(times))
    made = [allocator.allocate(cores, [ids(cores, 10)])[0] for _ in range(3)]
    known, _ = grants.read_all(settings.state_dir)
    kept = [grant.id for grant in known if not LaterGrants(known).of(grant)]
    assert kept == [made[-1].id]


def test_answers_have_keys_of_their_own() -> None:
    settings, both = offered()
    made = [grant_for(resource, ids(resource, 5), settings, 1.0) for resource in both]
    answers = [allocate.answer(grant, settings) for grant in made]
    assert answers[0] == ({"VGPU_GRANT_CORES": made[0].id}, {"vgpu.io/grant-cores": made[0].id}, ())
    assert answers[1] == ({"VGPU_GRANT_MEMORY": made[1].id}, {"vgpu.io/grant-memory": made[1].id}, ())


def test_where_cdi_is_on_all_answers_name_one_device() -> None:
    """kubelet adds a device that two answers name once. Only the hook comes by it: the grants stay as they are."""
    settings, both = offered(**{"plugin.cdi": True})
    made = [grant_for(resource, ids(resource, 5), settings, 1.0) for resource in both]
    for grant in made:
        found = allocate.answer(grant, settings)
        assert found.cdi_devices == ("vgpu.io/share=grant",)
        assert found.environment == {grants.ENVIRONMENT[grant.resource]: grant.id}
        assert found.annotations == {
            grants.ANNOTATIONS[grant.resource]: grant.id,
            cdi_device.ANNOTATION: cdi_device.DEVICE,
        }


def test_a_new_plugin_goes_on_after_the_grants_of_the_one_before(tmp_path: Path) -> None:
    """The clock was set back meanwhile."""
    settings = make_settings(tmp_path)
    [cores, _] = advertised(settings, make_cards())
    [first] = Allocator(settings, lambda: 9000.0).allocate(cores, [ids(cores, 10)])
    [second] = Allocator(settings, lambda: 50.0).allocate(cores, [ids(cores, 10)])
    assert LaterGrants([first, second]).of(first) == [second]
    assert not LaterGrants([first, second]).of(second)


def test_the_two_halves_of_a_share_are_successive_calls(tmp_path: Path) -> None:
    """The second half should lie on the first one's card. The third call is of the next container."""
    settings = make_settings(tmp_path)
    cores, memory = advertised(settings, make_cards(3))
    now = [1000.0]
    allocator = Allocator(settings, lambda: now[0])

    def give(resource, card: int, count: int) -> None:
        allocator.allocate(resource, [ids(resource, count, card)])

    assert allocator.card_of_other_half("cores") == ""
    give(cores, 1, 30)
    assert allocator.card_of_other_half("memory") == cores.slots[1].card.uuid
    assert allocator.card_of_other_half("cores") == "", "the next container's: this one has no memory"
    give(memory, 1, 4)
    assert allocator.card_of_other_half("cores") == "", "both halves are there"
    give(memory, 2, 4)
    assert allocator.card_of_other_half("cores") == cores.slots[2].card.uuid
    now[0] += 5
    assert allocator.card_of_other_half("cores") == "", "long ago"
    give(cores, 0, 100)
    assert allocator.card_of_other_half("memory") == "", "a whole card has no other half"
