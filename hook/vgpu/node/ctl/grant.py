"""`vgpuctl grant`: the grants of this node, made by hand, shown and removed.

Belongs here: what the device plugin does on Allocate, for a node without it: another plugin that answers with these
annotations, or an administrator who wants to see the way of one pod. Root only, as the records are.
"""

from __future__ import annotations

import os
import time

import click

from vgpu.config import grants, paths, settings
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.request import WHOLE_CARD, parse_size, split_cores
from vgpu.node.ctl.output import Bytes, output_option, print_json, print_table

HEADERS = ("id", "resource", "amount", "holder", "cards", "created")


@click.group()
def grant() -> None:
    """Amounts that were handed to pods: what backs their annotations."""


@grant.command("list")
@output_option
@click.pass_obj
def list_grants(config_path: str, output: str) -> None:
    """All grants of this node, with the pod and the cards they are bound to."""
    found, damaged = grants.read_all(settings.read(config_path).state_dir)
    for message in damaged:
        click.echo(f"warning: {message}", err=True)
    print_table([_row(item) for item in found], HEADERS, output)


@grant.command()
@click.option("--cores", type=int, help="Percent of a card: 1 to 99, or a multiple of 100.")
@click.option("--memory", help="Memory of a share, such as 2Gi or 100Mi.")
@click.pass_obj
def add(config_path: str, cores: int | None, memory: str | None) -> None:
    """Make the grants of one container; prints the annotations that redeem them, as JSON."""
    state_dir = settings.read(config_path).state_dir
    made = {}
    if cores is not None:
        most = grants.MAX_AMOUNTS["cores"]
        if not 1 <= cores <= most:
            raise VgpuError("--cores", expected=f"1 to 99, or a multiple of 100 up to {most}", found=cores)
        split_cores(cores, 0, "--cores")
        made["cores"] = cores
    if memory is not None:
        made["memory"] = parse_size(memory, "--memory")
    if "cores" not in made or (made["cores"] < WHOLE_CARD and "memory" not in made):
        raise VgpuError("grant", expected="--cores and --memory, or whole cards by --cores alone", found=sorted(made))
    print_json({grants.ANNOTATIONS[name]: _made(state_dir, name, amount) for name, amount in made.items()})


@grant.command()
@click.argument("ids", nargs=-1, required=True)
@click.pass_obj
def remove(config_path: str, ids: tuple[str, ...]) -> None:
    """End grants; a container that lives on one keeps what it has."""
    state_dir = settings.read(config_path).state_dir
    for grant_id in ids:
        try:
            os.unlink(paths.grant(state_dir, grant_id))
        except FileNotFoundError:
            raise VgpuError(f"grant {grant_id}", expected="a grant of this node", found="none") from None


def _made(state_dir: str, resource: str, amount: int) -> str:
    new = Grant(grants.new_id(), resource, amount, time.time())
    grants.write(state_dir, new)
    return new.id


def _row(item: Grant) -> list[object]:
    amount: object = Bytes(item.amount) if item.resource == "memory" else item.amount
    holder = item.holder.describe() if item.holder else None
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.created))
    return [item.id, item.resource, amount, holder, item.cards, created]
