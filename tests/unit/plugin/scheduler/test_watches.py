"""Watches without a server: what becomes of the state when an object is not what anybody expected."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.scheduler.watches import Watch


class Lists:
    """Lists nothing and sends one event; the second list ends the watch."""

    def __init__(self) -> None:
        self.lists = 0
        self.watch_: Watch | None = None

    def get(self, path: str, **query: str) -> dict[str, Any]:
        del path, query
        self.lists += 1
        if self.lists > 1 and self.watch_ is not None:
            self.watch_.stopped.set()
            raise OSError
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    def watch(self, path: str, silence: float, **query: str) -> Iterator[dict[str, Any]]:
        del path, silence, query
        yield {"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}}


def test_an_object_that_nobody_expected_leaves_a_state_that_is_not_current() -> None:
    def apply(kind: str, value: Any) -> None:
        raise KeyError(kind, value)

    api = Lists()
    api.watch_ = watch = Watch("/x", lambda found: None, apply, Conditions(Log(io.StringIO())))
    watch.run(api)  # type: ignore[arg-type]
    assert api.lists == 2
    assert watch.problem


def test_an_error_without_a_text_is_a_problem_as_well() -> None:
    api = Lists()
    api.lists = 1
    api.watch_ = watch = Watch("/x", lambda found: None, lambda kind, value: None, Conditions(Log(io.StringIO())))
    watch.run(api)  # type: ignore[arg-type]
    assert watch.problem == "OSError: "
