"""The verb `config`: check, show, apply and import the node's configuration.

Belongs here: the verb's arguments and its output. Does not belong here: the rules of the configuration, which are in
vgpu.config.compiler, and the writing of the compiled settings, which is in vgpu.config.compiled.
"""

from __future__ import annotations

import os

import click

from vgpu.config import compiled, compiler, inventory, paths, settings
from vgpu.config.compiler import Compiled, Labels
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.ctl import node_labels, peer_config
from vgpu.node.ctl.group import Group
from vgpu.node.ctl.output import output_option, output_option_of, print_json, print_table, wide_option
from vgpu.node.ctl.upgrade import keep
from vgpu.node.service import kubelet_resources

DIRECTORIES = ("driver.root", "driver.dev_root", "driver.proc_root")

file_argument = click.argument("file", required=False, metavar="[FILE]")
node_option = click.option(
    "--node", envvar="NODE_NAME", show_envvar=True, default=lambda: os.uname().nodename, metavar="NAME",
    help="The node whose overrides apply. Default: the host's name.",
)  # fmt: skip


@click.group(cls=Group)
def config() -> None:
    """Check, show and apply /etc/vgpu/config.yaml.

    Without FILE, the verb uses /etc/vgpu/config.yaml.
    """


@config.command()
@file_argument
@node_option
@node_labels.options
@output_option
@click.pass_obj
def check(config_path: str, file: str | None, node: str, labels: Labels | None, output: str) -> None:
    """Check whether FILE is right, and change nothing.

    On the node itself, check also that the directories of the driver exist, and, if there is an inventory, that the
    list of its devices is within the 4 MiB that kubelet accepts.
    """
    notes: list[str] = []
    try:
        source = _check(config_path, file, node, labels, notes)
    except VgpuError as error:
        if output != "json":
            raise
        errors = str(error).splitlines()
        print_json({"file": _named(file), "node": node, "ok": False, "errors": errors, "notes": notes})
        for line in errors:
            _note(line)
        raise click.exceptions.Exit(1) from error
    if output == "json":
        print_json({"file": source, "node": node, "ok": True, "errors": [], "notes": notes})
    else:
        click.echo(f"{source}: ok for node {node}")


@config.command()
@file_argument
@node_option
@node_labels.options
@output_option_of(("table", "yaml", "json"))
@wide_option
@click.pass_obj
def show(config_path: str, file: str | None, node: str, labels: Labels | None, output: str, wide: bool) -> None:
    """Print every setting that results from FILE, where its value comes from, and which profile applies."""
    result = _compile(config_path, file, node, labels)
    if output == "yaml":
        click.echo(compiler.as_yaml(result), nl=False)
    elif output == "json":
        print_json([_described(result, name) for name in settings.DEFAULTS])
    else:
        rows = [
            (name, compiler.value_text(name, result.settings[name]), compiler.origin_text(result, name))
            for name in settings.DEFAULTS
        ]
        print_table(rows, ("setting", "value", "from"), wide=wide)
    if not compiled.is_in_force(result.settings, config_path):
        _note(f"{config_path}: not in force yet; run: vgpuctl config apply")


@config.command()
@file_argument
@node_option
@node_labels.options
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@output_option
@click.pass_obj
def apply(config_path: str, file: str | None, node: str, labels: Labels | None, dry_run: bool, output: str) -> None:
    """Compile FILE to the settings that the hook reads. If FILE is wrong, change nothing."""
    done = compiled.apply(_source(file), config_path, node, dry_run, labels)
    for note in done.compiled.notes:
        _note(note)
    if output == "json":
        changed = [{"setting": name, "before": old, "after": new} for name, old, new in done.changed]
        print_json({"file": config_path, "written": done.written, "dry_run": dry_run, "changed": changed,
                    "notes": done.compiled.notes})  # fmt: skip
        return
    for name, old, new in done.changed:
        before = "" if old is None else f"{compiler.value_text(name, old)} -> "
        click.echo(f"{name}: {before}{compiler.value_text(name, new)}")
    if dry_run:
        click.echo(f"{config_path}: nothing written")
    else:
        click.echo(f"{config_path}: {'written' if done.written else 'in force already'}")


@config.command()
@file_argument
@node_option
@output_option
@click.pass_obj
def upgrade(config_path: str, file: str | None, node: str, output: str) -> None:
    """Write into FILE what a new version would change unasked, before its first apply. The package runs this."""
    source = _source(file)
    line = keep(source, config_path, node)
    if output == "json":
        print_json({"file": source, "kept": [line] if line else []})
    elif line:
        click.echo(line)


@config.command("import")
@click.argument("file", metavar="FILE")
@node_option
@click.option("--into", metavar="CONFIG", help="Append the section to this configuration file.")
@output_option
def import_(file: str, node: str, into: str | None, output: str) -> None:
    """Turn another project's node configuration into a section nodes:.

    FILE contains the nodeConfig of gpu-manager's fork or the nodeconfig of HAMi, as JSON or in its ConfigMap. The
    command prints the section. With --into it appends the section to a configuration that has none; if the result
    would be wrong, it changes nothing.
    """
    imported = peer_config.read(file)
    section = peer_config.text(imported, file)
    left_out = peer_config.notes(imported)
    if into is not None:
        peer_config.add(section, into, node)
    if output == "json":
        print_json({"file": file, "into": into, "nodes": imported.nodes, "left_out": left_out})
        return
    if into is None:
        click.echo(section, nl=False)
        return
    for note in left_out:
        _note(f"left out: {note}")
    click.echo(f"{into}: {len(imported.nodes)} nodes added; run: vgpuctl config apply")


def _check(config_path: str, file: str | None, node: str, labels: Labels | None, notes: list[str]) -> str:
    """The file that is right; VgpuError if it is not. Each note is printed, too."""
    tried = _Tried(labels or compiled.recorded_labels(config_path))
    result = _compile(config_path, file, node, tried)
    notes += result.notes
    _check_directories(result, node)
    unknown = _check_devices(result.settings, node)
    if unknown:
        tried.unchecked.append(f"whether the list of devices is within kubelet's 4 MiB: {unknown}")
    for text in tried.unchecked:
        notes.append(f"not checked: {text}")
        _note(notes[-1])
    return result.settings.source


class _Tried:
    """The node's labels, or none and a line in `unchecked` if they are not known: all profiles are checked anyway."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.unchecked: list[str] = []

    def __call__(self, names: list[str]) -> dict[str, str]:
        try:
            return self.labels(names)
        except VgpuError as error:
            self.unchecked.append(f"which profile applies to this node: {error}")
            return {}


def _compile(config_path: str, file: str | None, node: str, labels: Labels | None) -> Compiled:
    result = compiled.compile_file(_source(file), config_path, node, labels)
    for note in result.notes:
        _note(note)
    return result


def _check_directories(result: Compiled, node: str) -> None:
    """Raise VgpuError for a directory of the driver that this node lacks. `apply` accepts it: it may come later, as
    that of a driver container does."""
    if node.lower() != _own_name().lower():
        return
    for name in DIRECTORIES:
        path = result.settings.text(name)
        if path not in ("", settings.AUTO) and not os.path.isdir(path):
            found = "another file" if os.path.lexists(path) else "no such directory"
            raise VgpuError(f"{name} ({compiler.origin_text(result, name)})", expected="a directory of this node",
                            found=f"{path}: {found}", do="correct the path, or mount the driver there")  # fmt: skip


def _check_devices(found: Settings, node: str) -> str:
    """Raise VgpuError if the device plugin would refuse to advertise this node's cards with these settings.

    Return "" after the check, or the reason why the check is not possible.
    """
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
    """The path to read. Only the default file may be missing."""
    if file is not None and not os.path.lexists(file):
        raise VgpuError(file, expected="a configuration file", found="no such file", do="correct the path")
    return file or settings.SOURCE_PATH


def _described(result: Compiled, name: str) -> dict[str, object]:
    origin = result.origins[name]
    return {
        "setting": name,
        "value": result.settings[name],
        "origin": origin.kind,
        "profile": result.profile if origin.kind == "profile" else None,
        "file": result.settings.source if origin.line else None,
        "line": origin.line or None,
    }


def _named(file: str | None) -> str:
    return os.path.abspath(file or settings.SOURCE_PATH)


def _note(text: str) -> None:
    click.echo(f"vgpuctl: {text}", err=True)
