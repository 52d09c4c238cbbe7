"""`vgpuctl grant`: creates, lists and removes grants of this node.

Belongs here: what the device plugin does on Allocate, for a node without that plugin. There, another plugin may answer
with these annotations, or an administrator may follow one pod by hand. Does not belong here: the form of a grant,
which is in vgpu.config.grants. Only root can read and write the records.
"""

from __future__ import annotations

import os
import time

import click

from vgpu.config import grants, paths, settings
from vgpu.config.errors import VgpuError, shown
from vgpu.config.grants import Grant
from vgpu.config.request import WHOLE_CARD, parse_size, split_cores
from vgpu.node.ctl.group import Group
from vgpu.node.ctl.output import (
    LEAST_HEX,
    SHORT_ID,
    Bytes,
    Id,
    Time,
    output_option,
    output_option_of,
    print_json,
    print_table,
    wide_option,
)

HEADERS = ("id", "resource", "amount", "holder", "cards", "created")


@click.group(cls=Group)
def grant() -> None:
    """Amounts that this node has granted to pods. The annotations of a pod name its grants."""


@grant.command("list")
@output_option
@wide_option
@click.pass_obj
def list_grants(config_path: str, output: str, wide: bool) -> None:
    """List all grants of this node, with the pod and the cards that each grant is bound to."""
    found, damaged = grants.read_all(settings.read(config_path).state_dir)
    for message in damaged:
        click.echo(f"warning: {message}", err=True)
    print_table([_row(item) for item in found], HEADERS, output, wide, ("created",))


@grant.command()
@click.option("--cores", type=int, help="Percent of a card: 1 to 99, or a multiple of 100.")
@click.option("--memory", help="Memory of a share, such as 2Gi or 1536Mi.")
@output_option_of(default="json")
@click.pass_obj
def add(config_path: str, cores: int | None, memory: str | None, output: str) -> None:
    """Create the grants of one container, and print the annotations that name them, as JSON by default."""
    state_dir = settings.read(config_path).state_dir
    amounts = {}
    if cores is not None:
        most = grants.MAX_AMOUNTS["cores"]
        if not 1 <= cores <= most:
            raise VgpuError("--cores", expected=f"1 to 99, or a multiple of 100 up to {most}", found=cores)
        split_cores(cores, 0, "--cores")
        amounts["cores"] = cores
    if memory is not None:
        amounts["memory"] = parse_size(memory, "--memory")
    if "cores" not in amounts or (amounts["cores"] < WHOLE_CARD and "memory" not in amounts):
        found = sorted(amounts)
        raise VgpuError("grant", expected="--cores and --memory, or whole cards by --cores alone", found=found)
    created = {grants.ANNOTATIONS[name]: _create(state_dir, name, amount) for name, amount in amounts.items()}
    if output == "json":
        print_json(created)
    else:
        print_table(list(created.items()), ("annotation", "value"), wide=True)


@grant.command()
@click.argument("ids", nargs=-1, required=True)
@output_option
@click.pass_obj
def remove(config_path: str, ids: tuple[str, ...], output: str) -> None:
    """Remove grants, each by its id or the beginning of its id. If one of them does not exist, remove none.

    A running container keeps the amounts that it has already received.
    """
    state_dir = settings.read(config_path).state_dir
    found = list(dict.fromkeys(_whole_id(state_dir, grant_id) for grant_id in ids))
    for whole in found:
        try:
            os.lstat(paths.grant(state_dir, whole))
        except FileNotFoundError:
            raise _no_grant(whole) from None
    for whole in found:
        try:
            os.unlink(paths.grant(state_dir, whole))
        except FileNotFoundError:
            raise _no_grant(whole) from None
        if output != "json":
            click.echo(f"removed: {whole}")
    if output == "json":
        print_json({"removed": found})


def _no_grant(grant_id: str) -> VgpuError:
    return VgpuError(f"grant {grant_id}", expected="a grant of this node", found="none")


def _whole_id(state_dir: str, wanted: str) -> str:
    """The one id that begins with `wanted`, if that has as many digits as a table shows; otherwise `wanted`."""
    if not SHORT_ID <= len(wanted) < LEAST_HEX or set(wanted) - set("0123456789abcdef"):
        return wanted
    found = [item.id for item in grants.read_all(state_dir)[0] if item.id.startswith(wanted)]
    if len(found) != 1:
        raise VgpuError(f"grant {shown(wanted)}", expected="the beginning of the id of one grant of this node",
                        found=f"that of {len(found)}", do="see: vgpuctl grant list --wide")  # fmt: skip
    return found[0]


def _create(state_dir: str, resource: str, amount: int) -> str:
    new = Grant(grants.new_id(), resource, amount, time.time())
    grants.write(state_dir, new)
    return new.id


def _row(item: Grant) -> list[object]:
    amount: object = Bytes(item.amount) if item.resource == "memory" else item.amount
    holder = item.holder.describe() if item.holder else None
    cards = [Id(card) for card in item.cards]
    return [Id(item.id), item.resource, amount, holder, cards, Time(item.created)]
