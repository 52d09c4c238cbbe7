"""What reads usage regions in the test's own process: no container of a unit test blocks anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vgpu.config.claims import Claim
from vgpu.node.daemon.reader import Asked


class InProcess:
    """Calls the work at once."""

    def call(self, claims: Iterable[Claim], work: Callable[[Claim], object]) -> dict[str, object]:
        return {claim.container: work(claim) for claim in claims}


def each(count: int, work: Callable[[int], object], _limit: float, _total: float) -> Asked:
    """As vgpu.node.daemon.reader.each."""
    found = Asked()
    found.answers = {index: work(index) for index in range(count)}
    return found


def silent(count: int, *_: object) -> Asked:
    """The same, but nobody answers."""
    found = Asked()
    found.silent = list(range(count))
    return found
