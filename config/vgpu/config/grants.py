"""Grants: the amounts that the device plugin has handed out. `<state>/grants/<id>.json`, readable by root only.

Belongs here: the record, its checks, and how a container's grants are joined into one request. Grants exist because
kubelet allocates cores and memory in separate calls that do not name the pod. The plugin answers each call with an
*amount* under an unguessable id. The hook identifies the container, joins its grants, and binds them to it for good.
"""

from __future__ import annotations

import os

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields
from vgpu.config.limits import MAX_CARDS
from vgpu.config.request import MAX_SIZE, WHOLE_CARD, Request, Wishes, split_cores

VERSION = 1
RESOURCES = ("cores", "memory", "gpu", "mig")
ANNOTATIONS = {name: f"vgpu.io/grant-{name}" for name in RESOURCES}
ENVIRONMENT = {name: f"VGPU_GRANT_{name.upper()}" for name in RESOURCES}
MAX_AMOUNTS = {"cores": WHOLE_CARD * MAX_CARDS, "memory": MAX_SIZE, "gpu": MAX_CARDS, "mig": 1}


def are_not_all(annotations: dict[str, str]) -> bool:
    """Whether `annotations` have a `<domain>/<name>` that is no grant's. vgpu reads no name of another form."""
    return any("/" in name and name not in ANNOTATIONS.values() for name in annotations)


class Holder:
    """The owner of a claimed grant: a pod's uid and the container's name in it.

    `container` is "" where the runtime does not pass it on (Docker under kubelet, an old containerd).
    """

    __slots__ = ("container", "pod_uid")

    def __init__(self, pod_uid: str, container: str) -> None:
        self.pod_uid = pod_uid
        self.container = container

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holder) and (self.pod_uid, self.container) == (other.pod_uid, other.container)

    def __hash__(self) -> int:
        return hash((self.pod_uid, self.container))

    def describe(self) -> str:
        return f"pod {self.pod_uid}, container {self.container or '(unnamed)'}"


class Grant:
    """One answer of Allocate.

    `amount` is percent in all for cores, bytes for memory, cards for gpu, and 1, an instance of the profile of its
    device, for mig. A gpu grant has in `cores` and `memory` the amounts of each card (100 and 0: the whole card).
    `devices` maps card uuids to device ids of kubelet; they are a preference for cards, and show when a later grant has
    taken over the same ids. The first claim fills in `holder` and `cards`. It also fills in `share`, the (cores,
    memory) of each card, where the grants' amounts alone do not decide them: the container gets the same when it starts
    again, even if its pod's annotations have changed.
    `memories`, by card uuid, is the memory of each card where cards differ; `share` then has the largest. `released`,
    the (cores, memory) of each card, is what the container gets at most when it starts again, because somebody has
    lowered its share and given the rest away; None: nobody has. `name` is
    the holder's namespace/pod/container as its runtime passed them on, or "". Kubelet identifies pods by name.

    Every claim fills in three facts by which the ledger later knows that the pod is gone. `pod_cgroup` is the cgroup of
    the whole pod in the boot `boot_id`, `<controllers>:<path>`, "" where the container has none below it. `newest` is
    the `created` of the newest grant of the node at that time, 0 in a record from before these fields. kubelet
    allocates for all containers of a pod before it starts the first, so a later grant is never the same pod's.
    """

    __slots__ = (
        "amount", "boot_id", "cards", "cores", "created", "devices", "holder", "id", "memories", "memory", "name",
        "newest", "pod_cgroup", "released", "resource", "share",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        resource: str,
        amount: int,
        created: float,
        cores: int = WHOLE_CARD,
        memory: int = 0,
        devices: dict[str, str] | None = None,
        holder: Holder | None = None,
        cards: list[str] | None = None,
        share: tuple[int, int] | None = None,
        name: str = "",
        memories: dict[str, int] | None = None,
        pod_cgroup: str = "",
        boot_id: str = "",
        newest: float = 0.0,
        released: tuple[int, int] | None = None,
    ) -> None:
        self.id = id
        self.resource = resource
        self.amount = amount
        self.created = created
        self.cores = cores
        self.memory = memory
        self.devices = devices or {}
        self.holder = holder
        self.cards = cards or []
        self.share = share
        self.name = name
        self.memories = memories or {}
        self.pod_cgroup = pod_cgroup
        self.boot_id = boot_id
        self.newest = newest
        self.released = released

    def record(self) -> dict[str, object]:
        holder = self.holder and {"pod_uid": self.holder.pod_uid, "container": self.holder.container}
        share, released = (pair and {"cores": pair[0], "memory": pair[1]} for pair in (self.share, self.released))
        return {
            "version": VERSION, "id": self.id, "resource": self.resource, "amount": self.amount,
            "created": self.created, "cores": self.cores, "memory": self.memory, "devices": self.devices,
            "holder": holder, "cards": self.cards, "share": share, "name": self.name,
            "memories": self.memories, "pod_cgroup": self.pod_cgroup, "boot_id": self.boot_id, "newest": self.newest,
            "released": released,
        }  # fmt: skip


def changed(grant: Grant, **fields: object) -> Grant:
    """A copy of `grant` with these fields changed."""
    return Grant(**{**{name: getattr(grant, name) for name in Grant.__slots__}, **fields})


def new_id() -> str:
    """A random id of 128 bits, which nobody can guess."""
    return os.urandom(paths.GRANT_ID_LENGTH // 2).hex()


def write(state_dir: str, grant: Grant, temporary: str = "") -> None:
    """Store `grant` durably. This makes the directory, for root only, when it is missing."""
    os.makedirs(paths.grants(state_dir), mode=0o700, exist_ok=True)
    records.write(paths.grant(state_dir, grant.id), grant.record(), temporary=temporary)


def read(state_dir: str, grant_id: str) -> Grant:
    """The grant; FileNotFoundError when there is none, VgpuError when its file is damaged."""
    path = paths.grant(state_dir, grant_id)
    grant = from_record(records.read(path, _DO), path)
    if grant.id != grant_id:
        raise VgpuError(path, expected=f"grant {grant_id}", found=f"grant {grant.id}", do=_DO)
    return grant


_DO = "delete the pod; its grant cannot be used"


def count(state_dir: str) -> int:
    """How many grants there are, also damaged ones."""
    try:
        return sum(name.endswith(".json") for name in os.listdir(paths.grants(state_dir)))
    except FileNotFoundError:
        return 0


def read_all(state_dir: str) -> tuple[list[Grant], list[str]]:
    """(grants, one message for each unreadable file). A damaged grant never hides the others."""
    grants, damaged = [], []
    try:
        names = sorted(os.listdir(paths.grants(state_dir)))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise VgpuError(paths.grants(state_dir), expected="the directory of grants", found=error.strerror) from error
    for name in names:
        grant_id, _, suffix = name.partition(".")
        if suffix != "json" or not paths.is_grant_id(grant_id):
            continue  # the temporary file of a write that is not complete
        try:
            grants.append(read(state_dir, grant_id))
        except FileNotFoundError:
            continue  # removed since the listing
        except VgpuError as error:
            damaged.append(str(error))
    return grants, damaged


def from_record(record: dict[str, object], source: str) -> Grant:
    """The Grant in `record`; a VgpuError names `source` and the wrong field."""
    fields = Fields(record, source, _DO)
    fields.version(VERSION)
    resource = fields.text("resource")
    if resource not in RESOURCES:
        raise fields.wrong("resource", "one of " + ", ".join(RESOURCES))
    if not paths.is_grant_id(fields.text("id")):
        raise fields.wrong("id", f"{paths.GRANT_ID_LENGTH} hexadecimal digits")
    return Grant(
        id=fields.text("id"),
        resource=resource,
        amount=fields.whole("amount", 1, MAX_AMOUNTS[resource]),
        created=fields.time("created"),
        cores=fields.whole("cores", 0, WHOLE_CARD),
        memory=fields.whole("memory", 0, MAX_SIZE),
        devices=fields.mapping("devices"),
        holder=holder_of(fields),
        cards=fields.texts("cards"),
        share=_pair_of(fields, "share"),
        name=fields.text("name") if "name" in record else "",
        memories=_memories_of(fields) if "memories" in record else {},
        pod_cgroup=fields.text("pod_cgroup") if "pod_cgroup" in record else "",
        boot_id=fields.text("boot_id") if "boot_id" in record else "",
        newest=fields.time("newest") if "newest" in record else 0.0,
        released=_pair_of(fields, "released"),
    )


def _memories_of(fields: Fields) -> dict[str, int]:
    memories = fields.inner("memories")
    return {uuid: memories.whole(uuid, 0, MAX_SIZE) for uuid in memories.record}


def _pair_of(fields: Fields, key: str) -> tuple[int, int] | None:
    """None where the amounts alone decide, and in records from before this field existed."""
    if fields.record.get(key) is None:
        return None
    pair = fields.inner(key)
    return pair.whole("cores", 0, WHOLE_CARD), pair.whole("memory", 0, MAX_SIZE)


def holder_of(fields: Fields) -> Holder | None:
    """The record's holder; None where nobody has claimed the grant yet."""
    if "holder" in fields.record and fields.record["holder"] is None:
        return None
    holder = fields.inner("holder")
    return Holder(holder.text("pod_uid", empty=False), holder.text("container"))


def join(grants: list[Grant], core_limit: int, wishes: Wishes) -> Request:
    """One request from the grants of one container; VgpuError when a half is missing or they contradict each other.

    `core_limit` is 0 where nobody set one: the ceiling is then the share. Where one of the halves has no grant, a
    grant's `share` supplies it. Memory beside whole cards is what those cards must have together; the cards of
    its device ids are no preference, because kubelet may take all of the memory from fewer cards. What was released
    is not asked for.
    """
    request = _joined(grants, core_limit, wishes)
    for grant in grants:
        if grant.released:
            request = request.at_most(*grant.released, core_limit)
    return request


def _joined(grants: list[Grant], core_limit: int, wishes: Wishes) -> Request:
    by_resource = {grant.resource: grant for grant in grants}
    if len(by_resource) != len(grants) or not grants:
        found = ", ".join(grant.resource for grant in grants) or "none"
        raise VgpuError("grants", expected="one of each resource", found=found)
    cores, memory, gpu, mig = (by_resource.get(name) for name in RESOURCES)
    if mig is not None:
        if len(grants) > 1:
            found = " and ".join(grant.resource for grant in grants)
            raise VgpuError("grants", expected="a MIG instance and nothing else", found=found, do=_ALONE)
        return Request(1, WHOLE_CARD, 0, core_limit, wishes, preferred=preferred(grants))
    if gpu is not None:
        return _of_gpu(gpu, cores, memory, core_limit, wishes)
    if cores is None:
        raise VgpuError("grants", expected="a grant of cores beside that of memory", found="memory alone", do=_PAIR)
    cards, per_card = split_cores(cores.amount, 0, f"grant {cores.id[:8]} of cores")
    amount = memory.amount if memory is not None else cores.share[1] if cores.share else 0
    if per_card < WHOLE_CARD and not amount:
        raise VgpuError("grants", expected="a grant of memory beside that of cores", found="cores alone", do=_PAIR)
    if per_card < WHOLE_CARD:
        return Request(cards, per_card, amount, core_limit, wishes, preferred=preferred(grants))
    return Request(cards, per_card, 0, core_limit, wishes, preferred=preferred([cores]), total=amount)


_ALONE = "name one resource of cards in the container's limits"
_PAIR = "a share needs limits for both resources in the pod's spec"


def _of_gpu(gpu: Grant, cores: Grant | None, memory: Grant | None, core_limit: int, wishes: Wishes) -> Request:
    own_cores, own_memory = gpu.share or (gpu.cores, gpu.memory)
    per_card = cores.amount if cores is not None else own_cores
    if per_card > WHOLE_CARD:
        found = f"{per_card} cores beside {gpu.amount} gpu"
        raise VgpuError("grants", expected="at most 100 cores of each card", found=found)
    amount = memory.amount if memory is not None else own_memory
    if per_card < WHOLE_CARD and not amount:
        raise VgpuError("grants", expected="a grant of memory beside that of cores", found="no memory", do=_PAIR)
    grants = [grant for grant in (gpu, cores, memory) if grant is not None]
    memories = gpu.memories if memory is None and per_card < WHOLE_CARD else {}
    return Request(gpu.amount, per_card, amount, core_limit, wishes, preferred=preferred(grants), memories=memories)


def preferred(grants: list[Grant]) -> tuple[str, ...]:
    """The cards of the device ids, where all grants with device ids agree on them."""
    choices = {tuple(sorted(grant.devices)) for grant in grants if grant.devices}
    return choices.pop() if len(choices) == 1 else ()
