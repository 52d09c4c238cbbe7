"""How much of a card the driver takes for one CUDA context, by the card's model. `<state>/context-sizes.json`.

Belongs here: the sizes that this node has seen, those that others have reported, and which of them counts. Not here:
seeing them (vgpu.node.daemon.context_sizes). A share that is smaller than a context is of no use, but no CUDA call and
no NVML call returns the size. It depends on the model and the driver's version, so a model without a figure stays
without one.
"""

from __future__ import annotations

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.config.inventory import Card

VERSION = 1
MIB = 1 << 20
LARGEST = 1 << 40

#: What others have reported, with the driver of their time: MiB and where, by NVML's name of the card.
REPORTED = {
    "NVIDIA GeForce RTX 3090": (256, "github.com/invoke-ai/InvokeAI/issues/9413, 2026-07"),
    "NVIDIA GeForce RTX 4060 Ti": (107, "github.com/ggml-org/llama.cpp/pull/23604, 2026-05"),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (555, "github.com/ggml-org/llama.cpp/pull/23604, 2026-05"),
}


class Seen:
    """The least that a process's context has taken on this node: `size` bytes with driver version `driver`."""

    __slots__ = ("driver", "size")

    def __init__(self, size: int, driver: str) -> None:
        self.size = size
        self.driver = driver


def size_of(name: str, seen: dict[str, Seen]) -> tuple[int, str]:
    """(bytes, who found that out) for cards of this model; (0, "") when nobody did."""
    if name in seen:
        return seen[name].size, f"seen on this node with driver {seen[name].driver}"
    if name in REPORTED:
        mib, source = REPORTED[name]
        return mib * MIB, f"reported: {source}"
    return 0, ""


def fill(cards: list[Card], seen: dict[str, Seen]) -> None:
    """Set the cards' context sizes."""
    for card in cards:
        card.context, card.context_source = size_of(card.name, seen)


def record(seen: dict[str, Seen]) -> dict[str, object]:
    models = [{"name": name, "size": item.size, "driver": item.driver} for name, item in sorted(seen.items())]
    return {"version": VERSION, "models": models}


def read(state_dir: str) -> dict[str, Seen]:
    """What this node has seen, by the card's name; {} when that is nothing. VgpuError when the file is damaged."""
    path = paths.context_sizes(state_dir)
    try:
        fields = Fields(records.read(path), path, "remove it: vgpud writes it anew")
    except FileNotFoundError:
        return {}
    fields.version(VERSION)
    found: dict[str, Seen] = {}
    for item in fields.objects("models"):
        size = item.whole("size", 1, LARGEST)
        found[item.text("name", empty=False)] = Seen(size, item.text("driver"))
    return found


def too_small(cards: list[Card], memory: list[int]) -> list[str]:
    """A line for each of the `cards` on which `memory` bytes (by card) have no room for a context."""
    return [
        f"{card.label()}: a share of {size // MIB} MiB is smaller than a CUDA context there, "
        f"{_mib_up(card.context)} MiB ({card.context_source}); no CUDA program can run in it"
        for card, size in zip(cards, memory)
        if size < card.context
    ]


def _mib_up(size: int) -> int:
    return -(-size // MIB)


def read_or_none(state_dir: str) -> tuple[dict[str, Seen], str]:
    """As read, with the reason why the file cannot be used, or ""."""
    try:
        return read(state_dir), ""
    except (OSError, VgpuError) as error:
        return {}, str(error)
