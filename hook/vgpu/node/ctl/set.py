"""`vgpuctl set`: changes what a running container may use of its cards, at once.

Belongs here: checking the new amounts against the commitments to other containers, and writing them to the claim and
the limits file. The ledger then computes the core schedules of the cards again. libvcuda reads the limits file and the
core schedules at the next allocation or launch, so no process is restarted. Does not belong here: the placement rules
(vgpu.hook.placement). Only root can write the records.

If a new amount is below the container's use, the container keeps what it has, and gets no more until it has freed
enough. The new amounts last until the container ends. A pod's container starts again with the amounts of its grants, so
what lies between them and a lower share stays promised to it, unless `--release` gives that away.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from vgpu.config import grants, inventory, limits, paths, records, settings
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.limits import CardLimit
from vgpu.config.request import WHOLE_CARD, Request, Wishes, parse_size
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.placement import placement
from vgpu.node.ctl.names import Names
from vgpu.node.ctl.output import Bytes, Id, output_option, print_json

MAX_CANDIDATES = 10


@click.command("set")
@click.argument("container")
@click.option("--memory", help="Memory on each of its cards, such as 2Gi or 1536Mi.")
@click.option("--cores", type=int, help="Guaranteed percent of each of its cards, 0 to 99.")
@click.option("--core-limit", type=int, help="Maximum percent of each of its cards, up to 100.")
@click.option("--release", is_flag=True, help="Others may have what its pod's grants promise beyond the new share.")
@output_option
@click.pass_obj
def set_limits(
    config_path: str,
    container: str,
    memory: str | None,
    cores: int | None,
    core_limit: int | None,
    release: bool,
    output: str,
) -> None:
    """Change the share of a running CONTAINER, and print what changed.

    CONTAINER is its id, or the beginning of its id, or its name: namespace/pod/container for a container of a pod
    (namespace/pod if only one container of the pod has cards), otherwise the name that podman or Docker gave it.
    """
    if memory is None and cores is None and core_limit is None and not release:
        raise VgpuError("set", expected="--memory, --cores, --core-limit or --release", found="none of them")
    size = None if memory is None else parse_size(memory, "--memory")
    node = settings.read(config_path)
    known = inventory.read(node.run_dir).cards
    ledger = Ledger(node, known)
    names = Names()
    for claim in ledger.claims():  # reads the files of podman and Docker before it takes the lock
        names.of(claim)
    with Lock(node.run_dir):
        claim = _claim(ledger, container, names)
        before = list(claim.cards)
        wanted = [_changed(card, size, cores, core_limit) for card in before]
        change(ledger, claim, wanted, release)
    warnings = list(dict.fromkeys(ledger.notes))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if output == "json":
        print_json(_as_json(claim, names.of(claim), before, wanted, warnings))
        return
    index = {card.uuid: card.index for card in known}
    for old, new in zip(before, wanted):
        click.echo(f"{_label(claim, names)}, card {index.get(new.uuid, new.uuid)}: {_difference(old, new)}")
    if claim.promised:
        cores_kept, memory_kept = next(iter(claim.promised.values()))
        click.echo(
            f"its pod keeps {cores_kept} cores and {Bytes(memory_kept)} of each card for when it starts again; to give "
            f"away what is beyond the new share: vgpuctl set {claim.container[:12]} --release"
        )


def change(ledger: Ledger, claim: Claim, wanted: list[CardLimit], release: bool = False) -> None:
    """Give the container the limits `wanted`; VgpuError if there is no room. The caller holds the ledger's lock.

    What is given away is lowered in the grants first, and then in the claim.
    """
    _check_room(ledger, claim, wanted)
    mine = _grants_of(ledger, claim)
    if release and not mine:
        do = "it starts again with what its annotations ask for"
        raise VgpuError("--release", expected="a container of a pod", found="one without a grant", do=do)
    claim.promised = _promised(mine, wanted)
    _record(ledger.run_dir, claim, wanted)
    if release and claim.promised:
        left = wanted[0].cores, max(card.memory for card in wanted)
        claim.promised = {}
        try:
            for grant in mine:
                grants.write(ledger.state_dir, grants.changed(grant, released=left))
            records.write(paths.claim(ledger.run_dir, claim.container), claim.record())
        except OSError as error:
            raise VgpuError("--release", expected="to write the grants", found=str(error)) from error
    ledger.reschedule(card.uuid for card in wanted)


def _grants_of(ledger: Ledger, claim: Claim) -> list[Grant]:
    """[] also where they are gone: kubelet has deleted the pod, and it does not start again."""
    try:
        return [grants.read(ledger.state_dir, grant_id) for grant_id in claim.grants]
    except FileNotFoundError:
        return []


def _promised(mine: list[Grant], wanted: list[CardLimit]) -> dict[str, tuple[int, int]]:
    """Card uuid -> the (cores, memory) of the grants, where one of them is above the share."""
    if not mine:
        return {}
    request = grants.join(mine, 0, Wishes())
    promised = {}
    for card in wanted:
        memory = request.memory_of(card.uuid)
        if request.cores > card.cores or memory > card.memory:
            promised[card.uuid] = request.cores, memory
    return promised


def _as_json(
    claim: Claim, name: str, before: list[CardLimit], after: list[CardLimit], warnings: list[str]
) -> dict[str, object]:
    cards = [{"uuid": old.uuid, "before": _amounts(old), "after": _amounts(new)} for old, new in zip(before, after)]
    promised = {uuid: {"cores": cores, "memory": memory} for uuid, (cores, memory) in claim.promised.items()}
    return {"container": claim.container, "name": name, "cards": cards, "promised": promised, "warnings": warnings}


def _amounts(card: CardLimit) -> dict[str, object]:
    return {"memory": card.memory, "cores": card.cores, "core_limit": card.core_limit}


def _difference(old: CardLimit, new: CardLimit) -> str:
    """`memory 2 GiB -> 3 GiB, cores 30 -> 40`"""
    rows = (
        ("memory", Bytes(old.memory), Bytes(new.memory)),
        ("cores", old.cores, new.cores),
        ("core limit", old.core_limit, new.core_limit),
    )
    return (
        ", ".join(f"{name} {was} -> {now}" for name, was, now in rows if was != now) or "as before, nothing to change"
    )


def _claim(ledger: Ledger, container: str, names: Names) -> Claim:
    """The claim of a running container; VgpuError if there is none, or if the container has no share to change."""
    claims = ledger.claims()
    found = _matches(claims, container, names)
    if len(found) != 1:
        raise _none_or_many(container, found, found or claims, names)
    claim = found[0]
    if not ledger.lives(claim) or claim.pid < 0:
        found_state = "a container that has ended, or a damaged claim"
        raise VgpuError(f"container {claim.container}", expected="a running container", found=found_state)
    if claim.prepared:
        do = "make another claim: the scheduler counts what this one has"
        raise VgpuError(f"container {claim.container}", expected="a share", found="that of a resource claim", do=do)
    if claim.exclusive:
        do = "start it again with a share"
        raise VgpuError(f"container {claim.container}", expected="a share", found="whole cards, without limits", do=do)
    return claim


def _matches(claims: list[Claim], wanted: str, names: Names) -> list[Claim]:
    """The claims that `wanted` may mean: by id, else by name, else by the beginning of the id or of a pod's name."""
    tests: tuple[Callable[[Claim], bool], ...] = (
        lambda claim: claim.container == wanted,
        lambda claim: bool(wanted) and names.of(claim) == wanted,
        lambda claim: bool(wanted) and (claim.container.startswith(wanted) or claim.name.startswith(wanted + "/")),
    )
    return next((found for found in ([claim for claim in claims if test(claim)] for test in tests) if found), [])


def _none_or_many(wanted: str, found: list[Claim], candidates: list[Claim], names: Names) -> VgpuError:
    listed = [_label(claim, names) for claim in candidates[:MAX_CANDIDATES]]
    more = f" and {len(candidates) - MAX_CANDIDATES} more" if len(candidates) > MAX_CANDIDATES else ""
    text = f"{'they are' if found else 'with cards'}: {', '.join(listed)}{more}" if listed else "no container has cards"
    expected = "the id or the name of one container that holds cards, or the beginning of its id"
    return VgpuError(
        "container", expected=expected, found=f"{wanted[:64]}, which matches {len(found)} containers", do=text
    )


def _label(claim: Claim, names: Names) -> str:
    """`0123456789ab (namespace/pod/container)`"""
    name = names.of(claim)
    return Id(claim.container).short() + (f" ({name})" if name else "")


def _changed(card: CardLimit, memory: int | None, cores: int | None, core_limit: int | None) -> CardLimit:
    """The card's limits with the given values.

    Without `core_limit`, the limit is raised to the new guarantee if it is below that. A limit that was equal to the
    old guarantee becomes equal to the new one.
    """
    new_cores = card.cores if cores is None else cores
    ceiling = core_limit
    if ceiling is None:
        ceiling = new_cores if card.core_limit == card.cores else max(card.core_limit, new_cores)
    if not (0 <= new_cores < WHOLE_CARD and new_cores <= ceiling <= WHOLE_CARD and ceiling > 0):
        found = f"cores {new_cores}, core limit {ceiling}"
        raise VgpuError("set", expected="0 <= cores < 100, cores <= core limit <= 100, core limit > 0", found=found)
    new_memory = card.memory if memory is None else memory
    return CardLimit(card.uuid, new_memory, new_cores, ceiling, card.oversubscribe)


def _check_room(ledger: Ledger, claim: Claim, wanted: list[CardLimit]) -> None:
    """Raise VgpuError if a card has no room for the increase. A decrease is always possible."""
    others = ledger.commitments(tuple(claim.grants), claim.container)
    for old, new in zip(claim.cards, wanted):
        if new.memory <= old.memory and new.cores <= old.cores:
            continue
        request = Request(1, new.cores, new.memory, new.core_limit, fixed=(old.uuid,))
        placement.place(request, ledger.cards, others, ledger.policy)


def _record(run_dir: str, claim: Claim, wanted: list[CardLimit]) -> None:
    """Write the claim, the limits file and the claim again.

    The first claim has the greater of the old and the new amounts. At every moment the ledger therefore counts at least
    what the container may take. It also has the limits of before, because the container may still hold as much.
    """
    if claim.lowered is not None:
        for old, new in zip(claim.cards, wanted):
            if new.memory < old.memory:
                claim.lowered[old.uuid] = max(old.memory, claim.lowered.get(old.uuid, 0))
    claim.cards = [
        CardLimit(old.uuid, max(old.memory, new.memory), max(old.cores, new.cores), max(old.core_limit, new.core_limit))
        for old, new in zip(claim.cards, wanted)
    ]
    records.write(paths.claim(run_dir, claim.container), claim.record())
    limits.update(paths.limits(run_dir, claim.container), claim.container, wanted)
    claim.cards = wanted
    records.write(paths.claim(run_dir, claim.container), claim.record())
