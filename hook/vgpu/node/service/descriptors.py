"""The limit of a service on open descriptors, which it raises at its start.

Belongs here: the limit. A service without descriptors cannot look at its cards, nor answer kubelet.
"""

from __future__ import annotations

import contextlib
import resource

#: Children without close_range(2) close one descriptor after the other up to the limit, so it is not raised further.
ENOUGH = 65536


def raise_limit() -> None:
    """Raise the limit to what the hard limit allows, ENOUGH at most. A limit that is higher already stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a filter of system calls forbids it; the unit has raised it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
