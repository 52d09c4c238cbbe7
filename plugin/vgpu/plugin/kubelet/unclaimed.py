"""Containers that have had their grants for long, and have not met the hook.

Belongs here: which these are, and the sentence about them. A runtime that is not configured for the hook, a kubelet
that passes no CDI device on, or a containerd with CDI off starts a container without a card and without a message. Only
the missing claim shows it. kubelet's list does not say whether a container runs, so one whose image is being pulled
looks the same. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpu.config.grants import Grant
from vgpu.plugin.kubelet.pod_resources import Listing

PATIENCE = 120.0  #: seconds: most images are there by then


class Unclaimed:
    """Since when each grant has been listed by kubelet and claimed by no container."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, known: Iterable[Grant], listing: Listing, now: float) -> str:
        """A sentence that names the containers, or ""."""
        holders = {grant.id: listing.holders(grant) for grant in known if grant.holder is None}
        self._since = {grant_id: self._since.get(grant_id, now) for grant_id, held in holders.items() if held}
        late = {
            f"{held.pod[0]}/{held.pod[1]}/{held.container}"
            for grant_id, since in self._since.items()
            if now - since >= PATIENCE
            for held in holders[grant_id]
        }
        if not late:
            return ""
        return (
            f"no hook has claimed the shares of {', '.join(sorted(late))} for {PATIENCE:.0f} s: they wait for an image "
            "or an init container, or they run without a card because their runtime does not call the hook; "
            "run vgpuctl doctor"
        )
