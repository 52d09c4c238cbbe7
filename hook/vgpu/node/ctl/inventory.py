"""`vgpuctl inventory`: takes this node's inventory and shows it.

Belongs here: progress, warnings and tables. Does not belong here: what the inventory contains and which errors are
fatal, which vgpu.node.driver.discover decides.
"""

from __future__ import annotations

import os

import click

from vgpu.config import inventory as record
from vgpu.config import paths, records, settings
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Card, Inventory
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.ctl.group import Group
from vgpu.node.ctl.output import Bytes, Id, Time, output_option, print_json, print_table, wide_option
from vgpu.node.driver import discover


@click.group(cls=Group)
def inventory() -> None:
    """The driver's files, device nodes and cards of this node, as containers get them."""


@inventory.command()
@output_option
@wide_option
@click.pass_obj
def show(config_path: str, output: str, wide: bool) -> None:
    """Show the last inventory, with a warning if it no longer fits this node."""
    node = settings.read(config_path)
    found = record.read(node.run_dir)
    try:
        staleness.check(found, node.text("driver.proc_root"))
    except VgpuError as error:
        click.echo(f"warning: {error}", err=True)
    if output == "json":
        print_json(found.record())
        return
    click.echo(f"Driver {found.driver_version}, taken {Time(found.taken)}\n")
    for rows, headers in (_cards(found), _nodes(found), _files(found)):
        print_table(rows, headers, wide=wide)
        click.echo()


@inventory.command()
@output_option
@click.pass_obj
def refresh(config_path: str, output: str) -> None:
    """Take the inventory again: after the installation, a driver update, a change of the hardware, and at each boot."""
    node = settings.read(config_path)
    _check_access(node)
    discover.require_usable_driver(node)
    click.echo("reading the driver's files and asking NVML (some seconds without persistence mode) ...", err=True)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        click.echo(f"note: {text}", err=True)

    found = discover.take(node, note)
    path = _store(node, found)
    if output == "json":
        cards = [{"index": card.index, "uuid": card.uuid, "name": card.name} for card in found.cards]
        print_json({"path": path, "driver_version": found.driver_version, "libraries": len(found.libraries),
                    "cards": cards, "notes": notes})  # fmt: skip
        return
    names = ", ".join(card.name for card in found.cards) or "none"
    click.echo(f"driver {found.driver_version}, {len(found.libraries)} libraries, cards: {names}", err=True)
    click.echo(f"written: {path}", err=True)


def _check_access(node: Settings) -> None:
    """Refuse at once what `_store` would refuse after some seconds of NVML."""
    directory = node.run_dir
    while not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    if os.geteuid() != 0 and not os.access(directory, os.W_OK):
        path = paths.inventory(node.run_dir)
        raise VgpuError(f"{path}: cannot be written", found=f"uid {os.geteuid()}", do="run as root")


def _store(node: Settings, found: Inventory) -> str:
    path = paths.inventory(node.run_dir)
    os.makedirs(node.run_dir, mode=0o755, exist_ok=True)
    records.write(path, found.record())
    return path


Table = tuple[list[list[object]], list[str]]


def _cards(found: Inventory) -> Table:
    headers = ["card", "uuid", "name", "memory", "context", "bus id", "NUMA", "node", "links"]
    rows: list[list[object]] = [
        [
            card.index, Id(card.uuid), card.name, Bytes(card.memory), Bytes(card.context) if card.context else None,
            card.bus_id, card.numa if card.numa >= 0 else "",
            card.device.path, _links(card, found.cards),
        ]
        for card in found.cards
    ]  # fmt: skip
    return rows, headers


def _links(card: Card, cards: list[Card]) -> str:
    """The links to the other cards by index: `0:NV18 2:SYS`."""
    return " ".join(f"{other.index}:{card.links[other.uuid]}" for other in cards if other.uuid in card.links)


def _nodes(found: Inventory) -> Table:
    rows: list[list[object]] = [
        [item.path, f"{item.major}:{item.minor}", item.capability or "every"] for item in found.devices
    ]
    return rows, ["node", "number", "capability"]


def _files(found: Inventory) -> Table:
    rows: list[list[object]] = [
        [item.capability, item.bits, item.path, item.soname]
        for item in sorted(found.libraries, key=lambda item: (item.capability, item.bits, item.name))
    ]
    rows += [[item.capability, "", item.path, ""] for item in found.binaries]
    return rows, ["capability", "bits", "file", "SONAME"]
