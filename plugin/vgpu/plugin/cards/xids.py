"""What each Xid says of a card, by NVIDIA's catalog: nothing, that it wants a reset, or neither.

Belongs here: the numbers. The catalog is that of https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
whose "Resolution Bucket (Immediate Action)" decides; what a card then counts as is vgpu.plugin.cards.health_rules's.
docs/health.md has where this goes beyond the catalog, and what could not be checked.
"""

from __future__ import annotations

#: RESTART_APP: the card is as it was, the program is not. Any tenant can cause most of them.
_RESTART_APP = (
    8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94,
    *range(96, 106), *range(126, 136), 139,
)  # fmt: skip
#: IGNORE, some of it with an investigation later, which is a person's.
_IGNORE = (
    14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161,
)  # fmt: skip
CATALOG = "catalog"  #: among plugin.ignored_xids: all of these
HARMLESS = frozenset(_RESTART_APP + _IGNORE)

#: RESET_GPU and more, with what they say: the card's state is not to be trusted until it was reset. All others pass.
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
#: Told beside the actual change of state, which is asked for at once: no error by itself.
NOTICES = (154,)
