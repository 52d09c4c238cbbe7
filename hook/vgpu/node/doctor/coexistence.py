"""Other users of the cards: containers that see the nodes of cards that they do not hold, and foreign processes.

Belongs here: comparing the node's processes with the ledger's claims. A process that has a card's node open does not
compute by that alone: nvidia-persistenced and monitoring programs hold nodes open, so the doctor only lists them. Does
not belong here: which processes NVML reports as foreign, which vgpu.node.daemon.foreign_processes decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from vgpu.config import foreign
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError, escaped
from vgpu.config.inventory import Card
from vgpu.config.limits import is_instance
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import procfs
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.node.daemon import foreign_processes, reader, worker
from vgpu.node.doctor.findings import OK, WARNING, CheckContext, Finding, failure
from vgpu.node.driver import discover

NVML_LIMIT = 60.0
SEEN_LIMIT = 1.0  #: seconds for the look into one mount namespace
SEEN_TOTAL = 10.0  #: seconds for all of them
MAX_LISTED = 5
_NODE = re.compile(r"^nvidia(\d+)$")


def containers(context: CheckContext) -> Iterator[Finding]:
    """Processes in other mount namespaces that see the node of a card on which they have no claim."""
    inventory = context.inventory()
    cards = {card.minor: card for card in inventory.cards} if inventory else {}
    owners = _owners(context)
    pids = _one_of_each_namespace(context.proc)
    asked = reader.each(len(pids), lambda index: _seen(context.proc, pids[index]), SEEN_LIMIT, SEEN_TOTAL)
    found = []
    for index, pid in enumerate(pids):
        owner = owners.get(pid)
        uuids = {card.uuid for card in owner.cards} if owner else set()
        held = {card.minor for card in inventory.cards if card.uuid in uuids} if inventory else set()
        minors = asked.answers.get(index)
        seen = [cards[minor] for minor in minors if minor in cards] if isinstance(minors, list) else []
        strange = [card for card in seen if card.minor not in held]
        if strange:
            found.append(_sees(context, pid, owner, strange))
    found += [_blocks(context, pids[index], owners.get(pids[index])) for index in asked.silent]
    yield from found or [Finding("containers", OK, "no container sees a card that it does not hold")]


def _sees(context: CheckContext, pid: int, owner: Claim | None, strange: list[Card]) -> Finding:
    name = _label(owner)
    names = ", ".join(f"nvidia{card.minor}" for card in strange)
    text = f"{name}: process {pid} ({escaped(procfs.command(pid, context.proc))}) sees {names}"
    do = "the container is privileged, or got the nodes without vgpu; the ledger does not count its use"
    return Finding("containers", WARNING, text, "only the nodes of cards that it holds", do)


def _blocks(context: CheckContext, pid: int, owner: Claim | None) -> Finding:
    text = (
        f"{_label(owner)}: process {pid} ({escaped(procfs.command(pid, context.proc))}) does not let the host read /dev"
    )
    do = "look for FUSE mounts and fanotify in the container, or end it"
    return Finding("containers", WARNING, text, f"an answer in {SEEN_LIMIT:g} s", do)


def _label(owner: Claim | None) -> str:
    if owner is None:
        return "a container that holds no card"
    return f"container {owner.container}{f' ({owner.name})' if owner.name else ''}"


def _one_of_each_namespace(proc: str) -> list[int]:
    """The lowest pid of a program in each mount namespace except the host's."""
    found: dict[str, int] = {}
    host = _namespace(proc, 1)
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        namespace = _namespace(proc, pid)
        if namespace and namespace != host and not procfs.is_kernel_thread(pid, proc):
            found.setdefault(namespace, pid)
    return list(found.values())


def _namespace(proc: str, pid: int) -> str:
    try:
        return os.readlink(f"{proc}/{pid}/ns/mnt")
    except OSError:
        return ""


def _seen(proc: str, pid: int) -> list[int]:
    """The minors of the cards whose node is in the process's /dev, looked up within its root. The process can block it,
    so only a reader calls this.
    """
    try:
        root = Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return []
    try:
        fd = root.open("/dev", os.O_RDONLY | os.O_DIRECTORY)
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
    except OSError:
        return []
    finally:
        root.close()
    return sorted(int(match[1]) for match in map(_NODE.match, names) if match)


def instances(context: CheckContext) -> Iterator[Finding]:
    """Who holds each MIG instance, for an administrator who wants to destroy one. Nothing where nobody holds any."""
    inventory, ledger = context.inventory(), Ledger(context.settings, [], context.proc)
    cards = {card.uuid: card for card in inventory.cards} if inventory else {}
    for claim in filter(ledger.lives, ledger.claims()):
        for uuid in filter(is_instance, (card.uuid for card in claim.cards)):
            if uuid in cards:
                yield Finding("MIG instances", OK, f"{cards[uuid].label()} is held by {_label(claim)}")
            else:
                do = "end the container; until then nobody gets an instance that has the same number"
                text = f"{_label(claim)} holds {uuid}, which was destroyed"
                yield Finding("MIG instances", WARNING, text, "an instance of this node", do)


def holders(context: CheckContext) -> Iterator[Finding]:
    """Programs that have a card's node open without a claim."""
    owners = _owners(context)
    found: dict[str, list[str]] = {}
    for pid in (int(name) for name in os.listdir(context.proc) if name.isdigit()):
        nodes = _open_nodes(context.proc, pid) if pid not in owners else []
        if nodes:
            command = escaped(procfs.command(pid, context.proc))
            found.setdefault(command, []).append(f"{pid}{_user(context, pid)} ({', '.join(nodes)})")
    lines = [f"{command}: {', '.join(pids[:MAX_LISTED])}" for command, pids in sorted(found.items())]
    text = "without a claim: " + "; ".join(lines) if lines else "no other program has a card's node open"
    yield Finding("open nodes", OK, text)


def _open_nodes(proc: str, pid: int) -> list[str]:
    directory = f"{proc}/{pid}/fd"
    found = set()
    try:
        for name in os.listdir(directory):
            target = os.readlink(f"{directory}/{name}")
            if target.startswith("/dev/") and _NODE.match(target[len("/dev/") :]):
                found.add(target[len("/dev/") :])
    except OSError:  # the process ended, or closed this descriptor, meanwhile
        pass
    return sorted(found)


def _user(context: CheckContext, pid: int) -> str:
    """` of <user>` for the user that the process runs as; "" in a fixture tree."""
    if not context.real:
        return ""
    import psutil  # noqa: PLC0415 - --help does without it

    try:
        return f" of {psutil.Process(pid).username()}"
    except psutil.Error:
        return ""


def foreign_users(context: CheckContext) -> Iterator[Finding]:
    """Processes that NVML lists on a card on which they have no claim."""
    inventory = context.inventory()
    if inventory is None:
        yield Finding("cards in use", WARNING, "not checked: there is no inventory", "NVML's lists of processes")
        return
    try:
        discover.require_usable_driver(context.settings)
        rows = foreign_processes.rows_of(worker.run(lambda: foreign_processes.listed(inventory), NVML_LIMIT))
    except VgpuError as error:
        yield failure("cards in use", error, WARNING)
        return
    labels = {card.uuid: card.label() for card in inventory.cards}
    judged = foreign_processes.judge(rows, Ledger(context.settings, inventory.cards, context.proc))
    for uuid, users in judged.items():
        for user in users:
            text = f"{labels.get(uuid, uuid)}: {user.describe()}, {user.memory >> 20} MiB, {user.kind}"
            do = "end it, or start it with a claim; until then no container can get this card as a whole card"
            yield Finding("cards in use", WARNING, text, "only containers that hold the card",
                          do if user.kind == foreign.COMPUTE else "")  # fmt: skip
    if not judged:
        yield Finding("cards in use", OK, "only containers that hold a card use it")


def _owners(context: CheckContext) -> dict[int, Claim]:
    """The claim of each process of a container, by pid."""
    ledger = Ledger(context.settings, [], context.proc)
    living = [claim for claim in ledger.claims() if claim.pid > 0 and ledger.lives(claim)]
    container_processes = ContainerProcesses(living, context.proc)
    return {pid: claim for claim in living for pid, _ in container_processes.of(claim)}
