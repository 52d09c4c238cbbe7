"""MIG: layouts that change while programs look, beside what was made; and what a process sees of an instance."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from vcuda_boxes import OWN_DEV

SEED = int(os.environ.get("VGPU_SEED", "1"))
GONE = 2  #: NVML_ERROR_INVALID_ARGUMENT
#: NVIDIA's tables (`nvidia-smi mig -lgip`): how many fit, multiprocessors, MiB.
TABLES = {
    "a100x2": {
        "1g.5gb": (7, 14, 4864), "1g.10gb": (4, 14, 9856), "2g.10gb": (3, 28, 9856), "3g.20gb": (2, 42, 19968),
        "4g.20gb": (1, 56, 19968), "7g.40gb": (1, 98, 40192),
    },
    "a100-80gbx2": {
        "1g.10gb": (7, 14, 9728), "1g.20gb": (4, 14, 19968), "2g.20gb": (3, 28, 19968), "3g.40gb": (2, 42, 40192),
        "4g.40gb": (1, 56, 40192), "7g.80gb": (1, 98, 80640),
    },
    "h100x1": {
        "1g.10gb": (7, 16, 9984), "1g.20gb": (4, 26, 20096), "2g.20gb": (3, 32, 20096), "3g.40gb": (2, 60, 40320),
        "4g.40gb": (1, 64, 40320), "7g.80gb": (1, 132, 81024),
    },
}  # fmt: skip

# For each line: what the handles of before are now, and the instances.
WATCHER = """
import json, sys
from pynvml import *
nvmlInit()
card, held = nvmlDeviceGetHandleByIndex(0), {}
def uuid_of(device):
    try:
        return nvmlDeviceGetUUID(device)
    except NVMLError as error:
        return error.value
for line in sys.stdin:
    before, found = {uuid: uuid_of(device) for uuid, device in held.items()}, []
    for index in range(nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            device = nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except NVMLError_NotFound:
            break
        held[nvmlDeviceGetUUID(device)] = device
        found.append([nvmlDeviceGetGpuInstanceId(device), nvmlDeviceGetComputeInstanceId(device), uuid_of(device),
                      nvmlDeviceGetName(device).rpartition("MIG ")[2], nvmlDeviceGetMemoryInfo(device).total >> 20,
                      nvmlDeviceGetAttributes_v2(device).multiprocessorCount])
    print(json.dumps([before, found]), flush=True)
"""

CUDA = """
import ctypes, json, uuid
cuda, made, count = ctypes.CDLL("libcuda.so.1"), [], ctypes.c_int()
result = cuda.cuInit(0)
for call in (cuda.cuDeviceGetUuid, cuda.cuDeviceGetUuid_v2) if not result else ():
    text = ctypes.create_string_buffer(16)
    assert call(text, 0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 1
    made.append(str(uuid.UUID(bytes=text.raw)))
print(json.dumps(made))
"""


def files_of(root: Path) -> set[str]:
    """What the root's capabilities show, each file with the number that mig-minors gives it."""
    lines = (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    minors = dict(line.split() for line in lines)
    found = set()
    for path in (root / "proc/driver/nvidia/capabilities").rglob("gi*/**/access"):
        gpu, _, *rest = path.relative_to(root / "proc/driver/nvidia/capabilities").parts
        assert path.read_text().split()[1] == minors["/".join((gpu, *rest))]
        found.add("/".join(rest))
    return found


@pytest.mark.parametrize("profile", TABLES)
def test_as_many_instances_fit_as_on_a_real_card(
    simctl: ModuleType, make_node: Callable[..., Any], profile: str
) -> None:
    for text, (count, _, _) in TABLES[profile].items():
        directory = str(make_node(profile).directory)
        simctl.set_mig(directory, 0, on=True)
        for _ in range(count):
            simctl.create_instance(directory, 0, text)
        with pytest.raises(simctl.SimError, match="no room"):
            simctl.create_instance(directory, 0, text)


@pytest.mark.parametrize("profile", TABLES)
def test_random_layouts(
    simctl: ModuleType, make_node: Callable[..., Any], driver_root: Path, tmp_path: Path, profile: str
) -> None:
    generator = random.Random(f"{SEED} {profile}")
    node, table = make_node(profile), TABLES[profile]
    directory, root = str(node.directory), tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/devices").write_text((driver_root / "proc/devices").read_text())
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHER], env=node.environment(), stdin=-1, stdout=-1, text=True
    )  # fmt: skip
    assert watcher.stdin and watcher.stdout
    simctl.set_mig(directory, 0, on=True)
    truth: dict[tuple[int, int], tuple[str, str]] = {}  # UUID and profile by ids
    bare: set[int] = set()
    for _ in range(60):
        text = generator.choice(list(table))
        compute = generator.randint(1, int(text[0]))
        if truth and generator.random() < 0.4:
            gi, ci = generator.choice(list(truth))
            whole = generator.random() < 0.5
            simctl.destroy_instance(directory, 0, gi, None if whole else ci)
            truth = {ids: made for ids, made in truth.items() if ids[0] != gi or not (whole or ids[1] == ci)}
            bare |= set() if whole or any(ids[0] == gi for ids in truth) else {gi}
        else:
            name = text if compute == int(text[0]) else f"{compute}c.{text}"
            try:
                gi, ci, made = simctl.create_instance(directory, 0, name)
            except simctl.SimError:
                pass
            else:
                assert (gi, ci) not in truth and (gi not in bare or name != text)
                truth[gi, ci] = made, name
                bare.discard(gi)
        simctl.show_layout(str(root), directory)
        assert files_of(root) == {f"gi{gi}/access" for gi in bare | {gi for gi, _ in truth}} | {
            f"gi{gi}/ci{ci}/access" for gi, ci in truth
        }
        watcher.stdin.write("\n")
        watcher.stdin.flush()
        before, found = json.loads(watcher.stdout.readline())
        living = {made for made, _ in truth.values()}
        assert all(now == made if made in living else now in living | {GONE} for made, now in before.items())
        assert [(gi, ci, made, name) for gi, ci, made, name, *_ in found] == [
            (*ids, *made) for ids, made in sorted(truth.items())
        ]
        for *_, name, memory, multiprocessors in found:
            _, of_all, of_gi = table[name.rpartition("c.")[2]]
            slice_size = table[next(iter(table))][1]
            expected = of_all if "c." not in name else int(name[0]) * slice_size
            assert (memory, multiprocessors) == (of_gi, expected)
        sizes = {gi: name.rpartition("c.")[2] for (gi, _), (_, name) in truth.items()}
        assert sum(table[size][2] for size in sizes.values()) <= table[list(table)[-1]][2]
        assert sum(int(size[0]) for size in sizes.values()) <= 7
    watcher.communicate()
    cards = [card["uuid"] for card in node.simctl.read_state(directory)["cards"]]
    whole = cards[0].removeprefix("GPU-")
    others = {"CUDA_VISIBLE_DEVICES": cards[0]}
    for ids, (made, _) in [*sorted(truth.items())[:1], *generator.sample(sorted(truth.items()), min(2, len(truth)))]:
        environments = [{"CUDA_VISIBLE_DEVICES": name} for name in (made, f"MIG-{cards[0]}/{ids[0]}/{ids[1]}")]
        for environment in [others, *environments] if ids == min(truth) else environments:
            assert node.python(CUDA, **environment) == [whole, made.removeprefix("MIG-")]


NODES = "nvidiactl=195:255 nvidia-uvm=511:0 nvidia0=195:0"
SEEN = """
import json
from pynvml import *
nvmlInit()
card = nvmlDeviceGetHandleByIndex(0)
def answer(call, *arguments):
    try:
        return call(*arguments)
    except NVMLError as error:
        return error.value
device = answer(nvmlDeviceGetMigDeviceHandleByIndex, card, 0)
print(json.dumps([
    device if isinstance(device, int) else nvmlDeviceGetUUID(device), nvmlDeviceGetMigMode(card),
    answer(nvmlDeviceGetMigDeviceHandleByIndex, card, 1),
    [answer(call, card) for call in (nvmlDeviceGetMemoryInfo, nvmlDeviceGetUtilizationRates)],
    [answer(call, device) for call in (nvmlDeviceGetUtilizationRates, nvmlDeviceGetPowerUsage, nvmlDeviceGetSerial)],
    answer(nvmlDeviceGetClockInfo, device, 0), nvmlDeviceIsMigDeviceHandle(card).value]))
"""


@pytest.mark.root
def test_a_process_sees_the_instance_whose_nodes_it_has(make_node: Callable[..., Any], simctl: ModuleType) -> None:
    """Of two instances, whatever CUDA_VISIBLE_DEVICES says of the other one; of a half set of nodes, nothing. The
    host's CAP_SYS_ADMIN needs no node of an instance."""
    profile = simctl.load_profile("h100x1")
    wish = [{"profile": "1g.10gb", "gi": 8}, {"profile": "3g.40gb", "gi": 2}]
    node = make_node({**profile, "cards": [{**profile["cards"][0], "mig": wish}]}, device_nodes=True)
    whole, *instances = node.simctl.read_state(str(node.directory))["cards"]
    for card, other in (instances, instances[::-1]):
        minor = 3 + 9 * card["gi"]
        nodes = " ".join((NODES, *(f"nvidia-caps/nvidia-cap{number}=510:{number}" for number in (minor, minor + 1))))
        own = [whole["uuid"].removeprefix("GPU-"), card["uuid"].removeprefix("MIG-")]
        assert node.python(CUDA, *OWN_DEV, NODES=nodes) == own
        assert node.python(CUDA, *OWN_DEV, NODES=nodes, CUDA_VISIBLE_DEVICES="0") == own
        assert node.python(CUDA, *OWN_DEV, NODES=nodes, CUDA_VISIBLE_DEVICES=other["uuid"]) == []
        assert node.python(CUDA, *OWN_DEV, NODES=nodes.rpartition(" ")[0]) == []
        sibling = [own[0], other["uuid"].removeprefix("MIG-")]
        administrator = {"NODES": NODES, "BOUNDING": "+all", "CUDA_VISIBLE_DEVICES": other["uuid"]}
        assert node.python(CUDA, *OWN_DEV, **administrator) == sibling
        assert node.python(CUDA, *OWN_DEV, "unshare", "--user", "--map-root-user", **administrator) == []
        seen = node.python(SEEN, *OWN_DEV, NODES=nodes)
        assert seen == [card["uuid"], [1, 1], 6, [4, 3], [3, 3, 3], 3, 0]


def test_a_destroyed_instance_fails_its_programs_alone(make_node: Callable[..., Any], simctl: ModuleType) -> None:
    """Also when its place has another instance; the memory of compute instances in one GPU instance is the same."""
    profile = simctl.load_profile("a100x2")
    wish = [{"profile": "1c.3g.20gb"}, {"profile": "1c.3g.20gb"}, {"profile": "3g.20gb"}]
    node = make_node({**profile, "cards": [{**profile["cards"][0], "mig": wish}, profile["cards"][1]]})
    directory, size = str(node.directory), 1 << 30
    instances = simctl.read_state(directory)["cards"][2:]
    ids = [(card["gi"], card["ci"]) for card in instances]
    clients = [node.client(CUDA_VISIBLE_DEVICES=card["uuid"]) for card in instances]
    left = []
    for client in clients:
        client.does("cuInit 0")
        client.does(f"cuCtxSetCurrent {client.made('cuDevicePrimaryCtxRetain & 0')}")
    for client in clients:
        left.append(client.left())
        client.made(f"cuMemAlloc_v2 & {size}")
    assert left[1] == left[0] - size and clients[2].left() == left[2] - size
    simctl.destroy_instance(directory, 0, *ids[1])
    made = uuid.uuid4()
    assert simctl.create_instance(directory, 0, "1c.3g.20gb", identity=str(made)) == (*ids[1], f"MIG-{made}")
    assert clients[1].numbers(f"cuMemAlloc_v2 & {size}")[0] == clients[1].numbers("cuCtxSynchronize")[0] == 999
    for client in (clients[0], clients[2]):
        client.made(f"cuMemAlloc_v2 & {size}")
    assert [len(card["processes"]) for card in simctl.read_state(directory)["cards"]] == [0, 0, 1, 0, 1]
