"""A stop: poststop, which releases the cards of a container that has ended.

Belongs here: the steps of a stop. It loads no module of a start. A failure is only a warning: the claim dies with its
container's init.
"""

from __future__ import annotations

import time

from vgpu.config import settings as node_settings
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.hook.hooklog import Run
from vgpu.hook.ledger.living_claims import LivingClaims
from vgpu.hook.linux import procfs

EXIT_WITHIN = 10.0  #: seconds that a killed init has to go; runc waits as long, and crun does not wait at all
PAUSE = 0.02


def stop(run: Run, state: dict[str, object], config_path: str, proc: str = "/proc") -> list[str]:
    """Release the container of `state`. Returns lines for the log."""
    run.step = "configuration"
    settings = node_settings.read(config_path)
    run.run_dir = settings.run_dir
    run.step = "release"
    claims = LivingClaims(settings, proc)
    container = state.get("id")
    if not isinstance(container, str):
        raise VgpuError("state JSON on stdin", expected="an id", found=container)
    if not claims.release(container) and not (_exits(claims, proc) and claims.release(container)):
        return claims.notes
    if claims.ended is not None:
        run.name = claims.ended.name
        run.held = held(claims.ended, time.clock_gettime(time.CLOCK_BOOTTIME))
    return ["released", *claims.notes]


def _exits(claims: LivingClaims, proc: str) -> bool:
    """Wait for the init that has kept its claim, if it is exiting. False when it lives on."""
    claim, deadline = claims.living, time.monotonic() + EXIT_WITHIN
    if claim is None or not procfs.is_exiting(claim.pid, proc):
        return False
    while claims.lives(claim) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    gone = not claims.lives(claim)
    if not gone:
        claims.notes.append(f"its init {claim.pid} has been exiting for {EXIT_WITHIN:.0f} s: its claim stays")
    return gone


def held(claim: Claim, ended: float) -> dict[str, object]:
    """What the container held of which card until `ended`, in seconds since boot: vgpud may not have seen its end."""
    return {
        "boot_id": claim.boot_id, "pid": claim.pid, "start_time": claim.start_time, "ready": claim.ready,
        "pod_uid": claim.holder.pod_uid if claim.holder else "",
        "ended": ended,
        "cards": [[card.uuid, *claim.committed(card)] for card in claim.cards],
    }  # fmt: skip
