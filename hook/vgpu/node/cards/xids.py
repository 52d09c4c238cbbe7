"""The meaning of each Xid for a card, by NVIDIA's catalog: harmless, needs a reset, or neither.

Belongs here: the numbers. The catalog is https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; its
"Resolution Bucket (Immediate Action)" decides. vgpu.node.cards.health_rules decides what follows for the card.
docs/card-health.md lists where this goes beyond the catalog, and what could not be checked.
"""

from __future__ import annotations

#: RESTART_APP: the program has to be restarted, the card is unaffected. Any tenant can cause most of these.
_RESTART_APP = (
    8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94,
    *range(96, 106), *range(126, 136), 139,
)  # fmt: skip
#: IGNORE; the catalog recommends that a person investigates some of them later.
_IGNORE = (
    14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161,
)  # fmt: skip
CATALOG = "catalog"  #: in plugin.ignored_xids: all of these
HARMLESS = frozenset(_RESTART_APP + _IGNORE)

#: RESET_GPU and more, with their meaning: the card is unhealthy until it is reset. Other Xids need no reset.
RESET = {
    46: "it stopped processing and could not be stopped either",
    48: "uncorrectable memory error",
    61: "its microcontroller reports an internal error",
    62: "its microcontroller halted",
    64: "a failing memory row or page could not be recorded",
    74: "NVLink error",
    79: "it fell off the bus",
    95: "uncontained memory error",
    109: "a context switch did not end",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "its system processor (GSP) failed",
    136: "an NVLink could not be trained",
    140: "unrecovered memory error",
    143: "it could not be initialised",
    151: "key rotation failed",
    155: "an NVLink is down",
    156: "a faulty part of it is taken out of use by a reset",
    158: "fatal timeout",
}
#: Notices of a change of state and no errors; the probe reads the new state at once.
NOTICES = (154,)
