"""The ledger with concurrent processes."""

from __future__ import annotations

import os
import random
import traceback
from pathlib import Path

import pytest
from ledger_node import POD, Node, redeem, share, uuid_of

from vgpu.config.grants import Holder
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Start
from vgpu.hook.placement.placement import NoFit
from vgpu.hook.request.resolve_grants import WantedGrants


@pytest.mark.parametrize("seed", range(3))
def test_of_concurrent_claims_as_many_succeed_as_fit(tmp_path: Path, seed: int) -> None:
    """Twelve processes want 30 cores each of two cards. Three fit on each card."""
    node = Node(tmp_path)
    ids = [node.pair(cores=30) for _ in range(12)]
    random.Random(seed).shuffle(ids)
    starts = [node.start(f"c{at}", 100 + at, Holder(POD, f"m{at}") if at % 2 else None) for at in range(12)]
    gate_read, gate_write = os.pipe()
    children = []
    for at, start in enumerate(starts):
        child = os.fork()
        if child == 0:
            os.close(gate_write)
            os.read(gate_read, 1)
            os._exit(_claim_in_child(node, start, redeem(ids[at]) if start.holder else share(30)))
        children.append(child)
    os.close(gate_read)
    os.close(gate_write)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(codes) <= {0, 3}
    assert codes.count(0) == 6
    held = node.commitments()
    assert {uuid: cores for uuid, (cores, _, _) in held.items()} == {uuid_of(0): 90, uuid_of(1): 90}
    assert node.containers() == {start.container for start, code in zip(starts, codes) if code == 0}


def _claim_in_child(node: Node, start: Start, wanted: Request | WantedGrants) -> int:
    try:
        ledger = node.ledger()
        made = ledger.claim(start, wanted)
        ledger.confirm(start)
        return 0 if made else 4
    except NoFit:
        return 3
    except BaseException:  # a child must never come back into pytest
        traceback.print_exc()
        return 5
