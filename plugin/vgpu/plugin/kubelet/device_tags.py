"""Which tag stands for which card in device ids: the record `<state>/card-tags.json`, which survives restarts.

Belongs here: the record. vgpu.node.service.kubelet_resources computes a tag as a checksum of the card's uuid. If two
cards have the same checksum, one of them gets another tag. Which one must not depend on the cards present today,
because kubelet's checkpoint has ids of both. So `keep` records every card's tag when the card first appears, and no tag
changes or disappears afterwards.
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
    """uuid -> tag of all cards ever seen; empty when there is no record, VgpuError when it is damaged."""
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


_DO = "the plugin writes it again from the checksums"


def keep(state_dir: str, uuids: Iterable[str], known: dict[str, str]) -> tuple[dict[str, str], str]:
    """(tags of `uuids` and of all earlier cards, the problem or ""). `known`: the last result in this process.

    A new card is recorded at once. If the disk refuses the record, the tags hold for this process only. A damaged
    record is replaced: then a tag can only change for cards with the same checksum of which one is absent.
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
