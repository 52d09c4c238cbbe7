"""Made-up nodes of all kinds of topology, and requests for their cards."""

from __future__ import annotations

from itertools import combinations

from cards import card

from vgpu.config.request import Request, Wishes
from vgpu.hook.placement.placement import Commitment

MIB = 1 << 20
GIB = 1 << 30
WHOLE = Commitment(0, 0, True, ["whole"])


# Nodes


def make_node(count, link=lambda a, b: None, numa=lambda a: -1, name="Tesla T4", memory=15360 * MIB):
    """Cards 0..count-1. `link(a, b)`, with a < b, returns the link's name, or None for an unknown link."""
    names = [name] * count if isinstance(name, str) else name
    sizes = [memory] * count if isinstance(memory, int) else memory
    cards = []
    for a in range(count):
        links = {uuid(b): link(min(a, b), max(a, b)) for b in range(count) if b != a}
        links = {key: value for key, value in links.items() if value}
        cards.append(card(a, sizes[a], uuid=uuid(a), name=names[a], numa=numa(a), links=links))
    return cards


def uuid(index):
    return f"GPU-{index:02d}"


def t4():
    return make_node(1)


def mixed():
    """Four cards, no links known: T4 15 GiB, T4 15 GiB, A10 23 GiB, V100 32 GiB."""
    names = ["Tesla T4", "Tesla T4", "NVIDIA A10", "Tesla V100-PCIE-32GB"]
    return make_node(4, name=names, memory=[15360 * MIB, 15360 * MIB, 23028 * MIB, 32768 * MIB])


def dgx(count=8):
    """All cards connected by NVLink switches, half of the cards on each socket."""
    return make_node(count, lambda a, b: "NV12", lambda a: a * 2 // count, "NVIDIA A100-SXM4-80GB", 80 * GIB)


def quads():
    """Two quads of NVLink without links between them."""
    return make_node(8, lambda a, b: "NV4" if a // 4 == b // 4 else "SYS", lambda a: a // 4)


def cube_mesh():
    """The DGX-1's hybrid cube mesh: two full quads, each card with a link to its counterpart in the other quad."""
    double = {(0, 3), (1, 2), (2, 3), (4, 7), (5, 6), (6, 7)}

    def link(a, b):
        if a // 4 == b // 4:
            return "NV2" if (a, b) in double else "NV1"
        return "NV2" if b == a + 4 else "SYS"

    return make_node(8, link, lambda a: a // 4, "Tesla V100-SXM2-16GB", 16 * GIB)


def switch_pairs():
    """Pairs on a PCIe switch, two of them on each socket."""

    def link(a, b):
        return "PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS"

    return make_node(8, link, lambda a: a // 4)


def sockets():
    """Two sockets, cards alternating between them, links unknown."""
    return make_node(4, numa=lambda a: a % 2)


NODES = {
    "t4": t4, "mixed": mixed, "dgx": dgx, "quads": quads, "cube_mesh": cube_mesh, "switch_pairs": switch_pairs,
    "sockets": sockets,
}  # fmt: skip


def share(cores, memory_mib, gpus=1, **wishes):
    return Request(gpus, cores, memory_mib * MIB, wishes=Wishes(**wishes))


def whole(gpus=1, memory_mib=0, **wishes):
    return Request(gpus, 100, memory_mib * MIB, wishes=Wishes(**wishes))


def indexes(cards):
    return [card.index for card in cards]


def tier(a, b):
    """(NVLink width, on one switch or better, on one NUMA node or better) of a pair."""
    name = a.links.get(b.uuid, "NODE" if a.numa == b.numa != -1 else "SYS")
    width = int(name[2:]) if name.startswith("NV") else 0
    return width, bool(width) or name in ("PIX", "PXB"), bool(width) or name in ("PIX", "PXB", "PHB", "NODE")


def linked(cards):
    tiers = [tier(a, b) for a, b in combinations(cards, 2)]
    return [sum(values) for values in zip(*tiers)] if tiers else [0, 0, 0]


def random_node(rng, count):
    kinds = rng.choice([["NV1", "NV2", "SYS"], ["PIX", "PXB", "PHB", "NODE", "SYS"], ["NV2", "PIX", "NODE", "SYS"],
                        ["NV4", "SYS"], ["PIX", "SYS", None], [None]])  # fmt: skip
    names = {pair: rng.choice(kinds) for pair in combinations(range(count), 2)}
    numa = [rng.choice([-1, 0, 1]) for _ in range(count)]
    return make_node(count, lambda a, b: names[a, b], lambda a: numa[a])


def random_request(rng):
    if rng.random() < 0.3:
        return whole(rng.choice([1, 1, 2, 3, 4]))
    wishes = {"numa": rng.random() < 0.1, "nouse_types": rng.choice([(), (), ("a10",)])}
    return share(rng.choice([0, 5, 10, 25, 50, 75, 99]), rng.choice([256, 1024, 4096, 12000]),
                 rng.choice([1, 1, 1, 2, 3]), **wishes)  # fmt: skip


def commit(live):
    """Commitments of `live`, a list of (request, uuids)."""
    total = {}
    for number, (request, uuids) in enumerate(live):
        for name in uuids:
            sum_ = total.setdefault(name, Commitment(holders=[]))
            sum_.holders.append(f"c{number}")
            if request.exclusive:
                sum_.exclusive = True
            else:
                sum_.cores += request.cores
                sum_.memory += request.memory
    return total


def fits(card, request, live, policy):
    """Whether a card has room for one more request, computed from the containers and not from their sums."""
    here = [other for other, uuids in live if card.uuid in uuids]
    if request.exclusive:
        return not here and request.memory <= card.memory
    amounts = [*here, request]
    return (
        not any(other.exclusive for other in here)
        and not any(item in card.name.lower() for item in request.wishes.nouse_types)
        and sum(other.cores for other in amounts) <= round(100 * policy.cores_scaling)
        and sum(other.memory for other in amounts) <= card.memory * policy.memory_scaling
        and request.memory <= card.memory
    )
