"""A stop: poststop, which releases the cards of a container that has ended.

Belongs here: the steps of a stop. It loads no module of a start. A failure is only a warning: the claim dies with its
container's init.
"""

from __future__ import annotations

from vgpu.config import settings as node_settings
from vgpu.config.errors import VgpuError
from vgpu.hook.hooklog import Run
from vgpu.hook.ledger.living_claims import LivingClaims


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
    return ["released", *claims.notes] if claims.release(container) else claims.notes
