"""The limit on descriptors: raised to the hard limit, but not beyond what is enough, and never lowered."""

from __future__ import annotations

import resource
from unittest.mock import patch

import pytest

from vgpu.node.service.descriptors import ENOUGH, raise_limit

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "set_to"),
    [
        ((1024, 4096), 4096), ((1024, 524288), ENOUGH), ((1024, INFINITE), ENOUGH), ((4096, 4096), None),
        ((1 << 20, 1 << 20), None), ((INFINITE, INFINITE), None),
    ],
)  # fmt: skip
def test_the_limit_is_raised(limits: tuple[int, int], set_to: int | None) -> None:
    with patch("resource.getrlimit", return_value=limits), patch("resource.setrlimit") as changed:
        raise_limit()
    assert [call.args[1] for call in changed.call_args_list] == ([(set_to, limits[1])] if set_to else [])


def test_a_filter_that_forbids_it_stops_nobody() -> None:
    with patch("resource.getrlimit", return_value=(1, 2)), patch("resource.setrlimit", side_effect=PermissionError):
        raise_limit()
