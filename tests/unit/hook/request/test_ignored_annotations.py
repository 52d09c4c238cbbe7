"""Which annotations have no effect, and what the log says of them."""

from __future__ import annotations

import pytest

from vgpu.config.request import Request
from vgpu.hook.request import ignored_annotations

GIB = 1 << 30


@pytest.mark.parametrize(
    ("annotations", "ignored"),
    [
        ({}, []),
        ({"vgpu.io/core-limit": "50", "vgpu.io/policy": "spread", "vgpu.io/numa-bind": "false"}, []),
        ({"vgpu.io/grant-cores": "a" * 32, "io.kubernetes.cri.sandbox-name": "p"}, []),
        ({"vgpu.io/memory": "2Gi", "vgpu.io/gpus": "1"}, ["vgpu.io/memory", "vgpu.io/gpus"]),
        ({"vgpu.io/policy": "mutex"}, ["vgpu.io/policy"]),
        ({"hami.io/gpu-scheduler-policy": "topology-aware"}, []),  # its extender reads that
        ({"nvidia.com/numa-bind": "1"}, ["nvidia.com/numa-bind"]),
        ({"vgpu.io/core-limit": "50", "nvidia.com/vcuda-core-limit": "50"}, []),
        ({"vgpu.io/core-limit": "50", "nvidia.com/vcuda-core-limit": "60"}, ["nvidia.com/vcuda-core-limit"]),
        ({"nvidia.com/use-gputype": "T4", "vgpu.io/use-gputype": "A10"}, ["nvidia.com/use-gputype"]),
    ],
)
def test_in_a_pod(annotations: dict[str, str], ignored: list[str]) -> None:
    notes = ignored_annotations.in_pod(annotations)
    assert [note.split()[1] for note in notes] == ignored
    assert all(note.isprintable() for note in notes)


def test_a_note_is_one_bounded_line() -> None:
    (note,) = ignored_annotations.in_pod({"vgpu.io/policy": "a\nb" * 9999})
    assert note.isprintable()
    assert len(note) < 600


@pytest.mark.parametrize(
    ("limit", "cores", "words"),
    [(0, 30, ""), (30, 30, ""), (80, 30, ""), (29, 30, "below the 30 cores"), (50, 100, "whole"), (100, 100, "")],
)
def test_a_core_limit(limit: int, cores: int, words: str) -> None:
    notes = ignored_annotations.core_limit(limit, Request(1, cores, GIB, limit))
    assert len(notes) == bool(words)
    assert all(words in note for note in notes)
