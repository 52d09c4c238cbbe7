"""What prepared resource claims have of the cards, and which containers share one budget.

Belongs here: counting the records, once each, however many containers use them. A record counts from Prepare to
Unprepare, with or without a container, because the scheduler gave its share to the claim; so does one of an earlier
boot, which kubelet prepares again. Not here: the record (vgpu.config.prepared), and what a container names (request).
The caller holds the ledger's lock.
"""

from __future__ import annotations

import os

from vgpu.config import paths, prepared
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.limits import CardLimit
from vgpu.hook.ledger.totals import Totals
from vgpu.hook.placement.placement import NoFit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from vgpu.hook.request.prepared_claims import WantedResults

PATIENCE = 30.0  #: seconds that a container waits for another one with its budget, which is being set up


def add_to(totals: Totals, state_dir: str, known: list[tuple[Claim, bool]], own: Collection[str]) -> list[str]:
    """Add all results but those with the ids `own`. Returns messages about records that are damaged or cannot be read.

    Living containers count in the place of such a record, or of one that is gone, once for each budget.
    """
    found, damaged = prepared.read_all(state_dir)
    counted = set(own)
    for claim in found:
        for result in claim.results:
            one = prepared.result_id(claim.uid, result.number)
            if one not in counted:
                memory = 0 if result.whole else result.memory
                totals.add((CardLimit(result.card, memory, result.cores, result.cores), result.whole), claim.label())
            counted.add(one)
    for living in [claim for claim, lives in known if lives and claim.prepared]:
        if not counted.intersection(living.prepared):
            totals.add_claim(living)
            counted.update(living.prepared)
    return [str(error) for error in damaged.values()]


def partner_of(container: str, wanted: WantedResults, known: list[tuple[Claim, bool]], state_dir: str) -> Claim | None:
    """The claim of a living container with the same budget; None for the first one.

    VgpuError where another container has some of the results and not the same ones, or a claim was unprepared
    meanwhile. NoFit while the other container is being set up.
    """
    for claim in wanted.claims:
        if not os.path.exists(paths.prepared_claim(state_dir, claim.uid)):
            raise VgpuError(claim.label(), expected="a prepared claim", found="that kubelet has unprepared it")
    for other, lives in known:
        if not lives or other.container == container or not set(wanted.ids).intersection(other.prepared):
            continue
        name = other.name or other.container
        if other.prepared != wanted.ids:
            expected = f"all or none of what {name} has, as containers of one claim have one budget"
            do = "name the same claims and requests in both containers, or make a claim for each"
            raise VgpuError("claims", expected=expected, found="some of it", do=do)
        if not other.ready:
            raise NoFit("claims", expected=f"{name}, which has the same budget, to be set up", found="it is not yet")
        return other
    return None
