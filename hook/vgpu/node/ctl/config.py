"""The verb `config`: check, show, apply and import the node's configuration.

Belongs here: what the admin types and reads. The rules are vgpu.config.compiler's, the writing vgpu.config.compiled's.
"""

from __future__ import annotations

import os

import click

from vgpu.config import compiled, compiler, inventory, paths, settings
from vgpu.config.compiler import Compiled
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.ctl import peer_config
from vgpu.node.ctl.output import print_json, print_table
from vgpu.node.service import kubelet_resources

file_argument = click.argument("file", required=False, metavar="[FILE]")
node_option = click.option(
    "--node", envvar="NODE_NAME", show_envvar=True, default=lambda: os.uname().nodename, metavar="NAME",
    help="The node whose overrides apply. Default: the host's name.",
)  # fmt: skip


@click.group()
def config() -> None:
    """Check, show and apply /etc/vgpu/config.yaml.

    FILE is /etc/vgpu/config.yaml where it is not given.
    """


@config.command()
@file_argument
@node_option
def check(file: str | None, node: str) -> None:
    """Say whether FILE is right, without changing anything.

    Where this node's inventory is at hand, its cards are counted too: kubelet takes lists of devices up to 4 MiB.
    """
    made = _compile(file, node)
    unknown = _check_devices(made.settings, node)
    if unknown:
        _note(f"not checked: whether the list of devices is within kubelet's 4 MiB: {unknown}")
    click.echo(f"{made.settings.source}: ok for node {node}")


@config.command()
@file_argument
@node_option
@click.option(
    "--output", type=click.Choice(["table", "yaml", "json"]), default="table", show_default=True,
    help="Form of the result.",
)  # fmt: skip
@click.pass_obj
def show(config_path: str, file: str | None, node: str, output: str) -> None:
    """Print every setting that FILE gives, and where it comes from."""
    made = _compile(file, node)
    if output == "yaml":
        click.echo(compiler.as_yaml(made), nl=False)
    elif output == "json":
        print_json([_described(made, name) for name in settings.DEFAULTS])
    else:
        rows = [
            (name, compiler.value_text(name, made.settings[name]), compiler.origin_text(made, name))
            for name in settings.DEFAULTS
        ]
        print_table(rows, ("setting", "value", "from"))
    if not compiled.is_in_force(made.settings, config_path):
        _note(f"{config_path}: not in force yet; run: vgpuctl config apply")


@config.command()
@file_argument
@node_option
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.pass_obj
def apply(config_path: str, file: str | None, node: str, dry_run: bool) -> None:
    """Compile FILE to the settings that the hook reads. A wrong FILE changes nothing."""
    done = compiled.apply(_source(file), config_path, node, dry_run)
    for note in done.compiled.notes:
        _note(note)
    for name, old, new in done.changed:
        before = "" if old is None else f"{compiler.value_text(name, old)} -> "
        click.echo(f"{name}: {before}{compiler.value_text(name, new)}")
    if dry_run:
        click.echo(f"{config_path}: nothing written")
    else:
        click.echo(f"{config_path}: {'written' if done.written else 'in force already'}")


@config.command("import")
@click.argument("file", metavar="FILE")
@node_option
@click.option("--into", metavar="CONFIG", help="Append the section to this configuration file.")
def import_(file: str, node: str, into: str | None) -> None:
    """Turn another project's node configuration into a section nodes:.

    FILE holds the nodeConfig of gpu-manager's fork or the nodeconfig of HAMi, as JSON or in its ConfigMap. The
    section is printed, or with --into appended to a configuration that has none; a wrong result changes nothing.
    """
    imported = peer_config.read(file)
    section = peer_config.text(imported, file)
    if into is None:
        click.echo(section, nl=False)
        return
    peer_config.add(section, into, node)
    for note in peer_config.notes(imported):
        _note(f"left out: {note}")
    click.echo(f"{into}: {len(imported.nodes)} nodes added; run: vgpuctl config apply")


def _compile(file: str | None, node: str) -> Compiled:
    made = compiler.compile_source(_source(file), node)
    for note in made.notes:
        _note(note)
    return made


def _check_devices(found: Settings, node: str) -> str:
    """VgpuError when the device plugin would refuse to offer these cards so; else why that is not known, or ""."""
    if node.lower() != _own_name().lower():
        return f"the cards of node {node} are not known here"
    try:
        cards = inventory.read(found.run_dir).cards
    except VgpuError as error:
        return str(error)
    if not cards:
        return f"{paths.inventory(found.run_dir)}: has no cards"
    kubelet_resources.advertised(found, cards)
    return ""


def _own_name() -> str:
    return os.environ.get("NODE_NAME") or os.uname().nodename


def _source(file: str | None) -> str:
    """The path to read: only the default one may be missing."""
    if file is not None and not os.path.lexists(file):
        raise VgpuError(file, expected="a configuration file", found="no such file", do="correct the path")
    return file or settings.SOURCE_PATH


def _described(made: Compiled, name: str) -> dict[str, object]:
    origin = made.origins[name]
    return {
        "setting": name,
        "value": made.settings[name],
        "origin": origin.kind,
        "file": made.settings.source if origin.line else None,
        "line": origin.line or None,
    }


def _note(text: str) -> None:
    click.echo(f"vgpuctl: {text}", err=True)
