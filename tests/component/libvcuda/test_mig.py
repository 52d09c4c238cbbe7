"""Shares of MIG instances: each instance is a card with a time and a memory of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from sharing_containers import MS, Container, Node
from vcuda_boxes import SimBox, load_simctl

from vgpu.config import core_schedule, limits

GIB = 1 << 30
PROFILE = load_simctl().load_profile("h100x1")
LAYOUT = [{"profile": "1c.3g.40gb", "gi": 1}, {"profile": "1c.3g.40gb", "gi": 1}, {"profile": "3g.40gb", "gi": 2}]
NODE = {**PROFILE, "cards": [{**PROFILE["cards"][0], "mig": LAYOUT}]}

SEEN = """
import json
from pynvml import *
nvmlInit()
def answer(call, *arguments):
    try:
        return call(*arguments)
    except NVMLError as error:
        return error.value
device = nvmlDeviceGetMigDeviceHandleByIndex(nvmlDeviceGetHandleByIndex(0), 2)
memory = nvmlDeviceGetMemoryInfo(device)
print(json.dumps([nvmlDeviceGetUUID(device), memory.total, memory.used,
       [(one.usedGpuMemory, one.gpuInstanceId, one.computeInstanceId)
        for one in nvmlDeviceGetComputeRunningProcesses(device)],
       answer(nvmlDeviceGetUtilizationRates, device), answer(nvmlDeviceGetProcessUtilization, device, 0)]))
"""


def test_shares_of_instances_in_time(node: Node) -> None:
    """Two containers on one instance have 30 and 70 percent of it, and their floods take nothing from its siblings: not
    from the one in the same GPU instance, and not from the other. When it is destroyed, its programs alone fail."""
    shares = ((1, 30), (1, 70), (2, 50), (3, 50))
    made = [(node.container(NODE), card, share) for card, share in shares]
    for container, card, share in made:
        uuid = container.uuid(card)
        container.box.environment["CUDA_VISIBLE_DEVICES"] = uuid
        container.limit(share, [card])
        together = [share for other, share in shares if other == card]
        container.write_schedules([core_schedule.schedule(uuid, together)[together.index(share)]])

    def used(of: list[tuple[Container, int, int]]) -> list[float]:
        node.director.run(250 * MS)
        before = [container.busy(card) for container, card, _ in of]
        node.director.run(1000 * MS)
        return [(container.busy(card) - busy) / (1000 * MS) * 100 for (container, card, _), busy in zip(of, before)]

    for container, _, _ in made[2:]:
        container.flood()
    alone = used(made[2:])
    for container, _, _ in made[:2]:
        container.flood()
    assert used(made) == [pytest.approx(share, abs=1) for share in (30, 70, *alone)]
    assert alone == [pytest.approx(50, abs=1)] * 2
    directory, card = made[0][0].box.environment["VGPU_SIM_DIR"], made[0][0].box.cards()[1]
    made[0][0].box.simctl.destroy_instance(directory, 0, card["gi"], card["ci"])
    node.director.until(lambda: not made[0][0].lives() and not made[1][0].lives())
    assert [process.returncode for container, _, _ in made for process in container.processes] == [1, 1, None, None]
    assert used([(container, card - 1, share) for container, card, share in made[2:]]) == [
        pytest.approx(share, abs=1) for share in alone
    ]


def test_a_share_of_an_instance_in_memory(sim_box: Callable[..., SimBox]) -> None:
    """By CUDA and by NVML: the share's figures, with what its own processes hold, on the instance that is listed."""
    boxes = [sim_box(NODE, nvml=True) for _ in range(2)]
    for box in boxes:
        _, _, sibling, card = box.cards()
        box.environment["CUDA_VISIBLE_DEVICES"] = card["uuid"]
        box.path.joinpath("limits").write_bytes(
            limits.encode("box", [limits.CardLimit(sibling["uuid"], GIB), limits.CardLimit(card["uuid"], 4 * GIB)])
        )
    client = boxes[0].caller()
    assert client.numbers("cuMemGetInfo_v2 & &") == (0, 4 * GIB - card["context_overhead"], 4 * GIB)
    assert client.numbers("cuDeviceTotalMem_v2 & 0") == (0, 4 * GIB)
    assert client.numbers(f"cuMemAlloc_v2 & {4 * GIB}")[0] == 2
    client.made(f"cuMemAlloc_v2 & {GIB}")
    held = GIB + int(card["context_overhead"])
    for box, own in zip(boxes, ([[held, 2, 0]], [])):
        command = box.command(sys.executable, "-c", SEEN)
        done = subprocess.run(command, env=box.environment, check=True, stdout=-1)
        assert json.loads(done.stdout) == [card["uuid"], 4 * GIB, sum(used for used, *_ in own), own, 3, 3]


@pytest.mark.parametrize(("node", "expected"), [(PROFILE, 0), (NODE, 800)], ids=["whole", "instance"])
def test_a_card_that_the_limits_file_does_not_list(
    sim_box: Callable[..., SimBox], node: dict[str, object], expected: int
) -> None:
    """A whole card has no limit. An instance has the numbers of one that was destroyed: nothing is made on it."""
    box = sim_box(node)
    box.path.joinpath("limits").write_bytes(limits.encode("box", [limits.CardLimit(limits.uuid_text(bytes(16)), GIB)]))
    client = box.uninitialized("warning")
    assert client.numbers("cuInit 0") == (0,)
    memory = f"cuMemCreate & {2 << 20} {{i:1,i:0,i:1,i:0,q:0,q:0}} 0"
    ways = [memory, "cuCtxCreate_v2 & 0 0", "cuCtxCreate_v4 & 0 0 0", "cuDevicePrimaryCtxRetain & 0"]
    assert [client.numbers(way)[0] for way in ways] == [expected] * len(ways)
    assert box.log.count("so nothing is made on it") == (expected != 0)
    if not expected:
        client.made(f"cuMemAlloc_v2 & {2 * GIB}")
        assert "not in the limits file, so it has no limit" in box.log
