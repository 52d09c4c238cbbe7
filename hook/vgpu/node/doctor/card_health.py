"""The check of the cards' health: what vgpud has recorded of each card, and the remedy.

Belongs here: which remedy fits which reason. Does not belong here: the reasons (vgpu.node.cards.health_rules).
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpu.config import health
from vgpu.config.clock import since_boot
from vgpu.hook.linux import staleness
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding

RESET = "end its containers, then run: nvidia-smi --gpu-reset -i {bus}"
#: A part of a reason -> what to do. The first that fits counts; {bus} is the card's bus id.
REMEDIES = (
    ("driver is not loaded", "load the driver: modprobe nvidia && nvidia-smi"),
    (
        "library and its kernel module differ",
        "end all programs on the cards, load the new module; or run: systemctl reboot",
    ),
    ("device node", "run: vgpuctl doctor --fix"),
    ("rebooted", "run: systemctl reboot"),
    ("peer-to-peer", "end the programs that use this card together with others"),
    ("IMEX", "run: systemctl restart nvidia-imex"),
    ("wants replacing", "have the card replaced"),
    ("reset", RESET),
    ("lost", f"{RESET}; if it stays lost, switch the machine off and on"),
    ("hangs", "look for its Xid in the kernel's log: dmesg; reset the card, or reboot the node"),
    ("stays quiet", "wait for 5 minutes; if it comes again, look for its Xid in the kernel's log: dmesg"),
)
OTHER = "look at: nvidia-smi -q -i {bus}, and at the kernel's log"


def card_health(context: CheckContext) -> Iterator[Finding]:
    found = health.read(context.settings.run_dir, staleness.boot_id(context.path("/proc")))
    if found is None or not found.is_fresh(since_boot()):
        yield Finding("card health", WARNING, "vgpud has not looked at the cards for a minute",
                      "vgpud to watch the cards", "start it: systemctl start vgpud")  # fmt: skip
        return
    inventory = context.inventory()
    cards = {card.uuid: card for card in inventory.cards} if inventory else {}
    for uuid, reason in found.reasons.items():
        card = cards.get(uuid)
        label, bus = (card.label(), card.bus_id) if card else (uuid, uuid)
        yield Finding("card health", FAILURE, f"{label}: {reason}", "a card that works", remedy(reason).format(bus=bus))
    if not found.known:
        yield Finding("card health", WARNING, "vgpud could not look at the cards in its last round", "an answer",
                      "see the check daemon")  # fmt: skip
    elif not found.reasons:
        yield Finding("card health", OK, f"{len(cards)} cards")


def remedy(reason: str) -> str:
    return next((do for part, do in REMEDIES if part in reason), OTHER)
