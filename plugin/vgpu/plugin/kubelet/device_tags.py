"""Which tag stands for which card in device ids, kept over restarts: `<state>/card-tags.json`.

Belongs here: the record. A tag is a checksum of the card's uuid (vgpu.node.service.kubelet_resources), which two cards may have in
common. Then one of them has another, and which one must not depend on which cards are there today: kubelet's checkpoint
has ids of both. So every card's tag is written down when the card is first seen, and never changes or goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.node.service import kubelet_resources

VERSION = 1


def read(state_dir: str) -> dict[str, str]:
    """uuid -> tag of all cards that were ever seen; empty when there is no record, VgpuError when it is damaged."""
    path = paths.device_tags(state_dir)
    try:
        fields = Fields(records.read(path, _DO), path, _DO)
    except FileNotFoundError:
        return {}
    fields.version(VERSION)
    tags = fields.mapping("tags")
    if not all(map(kubelet_resources.is_tag, tags.values())) or len(set(tags.values())) != len(tags):
        raise fields.wrong("tags", f"different tags of {kubelet_resources.TAG_LENGTH} hexadecimal digits")
    return tags


_DO = "it is made anew by the checksums"


def keep(state_dir: str, uuids: Iterable[str], known: dict[str, str]) -> tuple[dict[str, str], str]:
    """(tags of `uuids` and all cards before, what went wrong or ""). `known`: the last answer of this process.

    A new card is written down at once. Without a disk that takes it the tags hold for this process; a damaged record is
    replaced, so that after it only cards with a checksum in common may have changed theirs, if one of them is away.
    """
    problem, found = "", {}
    try:
        found = read(state_dir)
    except VgpuError as error:
        problem = str(error)
    tags = kubelet_resources.tags_of(uuids, {**known, **found})
    if tags != found:
        path = paths.device_tags(state_dir)
        try:
            os.makedirs(state_dir, mode=0o755, exist_ok=True)
            records.write(path, {"version": VERSION, "tags": tags})
        except OSError as error:
            problem = str(VgpuError(path, expected="to write down the cards' tags", found=error.strerror or str(error)))
    return tags, problem
