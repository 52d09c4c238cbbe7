"""The program vgpuctl: its global options, the loading of its verbs, and the printing of errors.

Belongs here: what all verbs have in common. Does not belong here: anything of one verb. Verbs are click objects in the
entry-point group `vgpu.ctl`, so another package can add its own. If a verb cannot be loaded, vgpuctl prints one line
and loads the other verbs. `ctx.obj` of every verb is the path of the compiled settings (`--config`).
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

import click

from vgpu.config import settings
from vgpu.config.errors import VgpuError, shown
from vgpu.node.ctl.group import LONGEST_SUMMARY
from vgpu.node.ctl.output import print_errors_as_json
from vgpu.node.service import privilege

GROUP = "vgpu.ctl"
OWN = "vgpu."
PLUGIN = "vgpu.plugin."  #: these verbs come with the package of the device plugin
#: The first sentences of vgpu's own verbs. `vgpuctl --help` prints them and loads no verb, and no library of one.
SUMMARIES = {
    "cdi": "Have runtimes call vgpu's hook by a CDI device, without a change to their configuration.",
    "cluster": "Show the cards of all nodes of the cluster: free ones, the largest share that fits, and ill ones.",
    "config": "Check, show and apply /etc/vgpu/config.yaml.",
    "doctor": "Check this node's driver, settings, cgroups, runtimes and cards.",
    "explain": "Say what a container or a pod would get on this node, or why not, and what the hook did.",
    "gc": "Remove what ended containers and killed programs have left on this node.",
    "grant": "Amounts that this node has granted to pods.",
    "health": "Print the status of vgpud and of this node.",
    "inventory": "The driver's files, device nodes and cards of this node, as containers get them.",
    "logs": "Print what the hook and vgpud did for containers, the oldest first.",
    "ps": "List the containers with cards: their processes, shares, limits and use.",
    "report": "Print for how long containers have held how much of the cards: cards times hours, and GiB times hours.",
    "request": "Print the annotation by which a container outside Kubernetes asks for a share of a card.",
    "runtime": "Have container runtimes call vgpu's hook, take that back, and prove it.",
    "selftest": "Show on this node's own card whether what vgpu promises holds, and print the report.",
    "set": "Change the share of a running CONTAINER, and print what changed.",
    "status": "Show the cards with what is committed of them, and the containers with what they hold and use.",
    "top": "Show what the cards and the containers with cards use, again and again.",
}


def entry_points() -> list[metadata.EntryPoint]:
    """The entry points of the group, vgpu's own first."""
    try:
        found: Any = metadata.entry_points(group=GROUP)
    except TypeError:  # Python 3.9 takes no selection
        found = metadata.entry_points().get(GROUP, ())
    found = [one for one in found if not one.value.startswith(PLUGIN) or find_spec("vgpu.plugin")]
    return sorted(set(found), key=lambda entry: (not entry.value.startswith(OWN), entry.name, entry.value))


def load(entry: metadata.EntryPoint) -> click.Command:
    """The verb that `entry` names; VgpuError if it cannot be loaded."""
    what = f"verb {shown(entry.name)} ({shown(entry.value)})"
    do = "repair or remove the package that brings it"
    try:
        verb = entry.load()
    except (Exception, SystemExit) as error:  # whatever a third party's module raises while it is imported
        raise VgpuError(what, expected="a module to import", found=f"{type(error).__name__}: {error}", do=do) from error
    if not isinstance(verb, click.Command):
        raise VgpuError(what, expected="a click command", found=type(verb).__name__, do=do)
    return verb


def report(error: VgpuError | str) -> None:
    """Print each line of `error` to stderr."""
    for line in str(error).splitlines():
        click.echo(f"vgpuctl: {line}", err=True)


class Verbs(click.Group):
    """A group whose commands are entry points. After an error of a verb it prints the error and exits with status 1."""

    def entries(self) -> dict[str, metadata.EntryPoint]:
        entries: dict[str, metadata.EntryPoint] = {}
        for entry in entry_points():
            first = entries.setdefault(entry.name, entry)
            if first.value != entry.value:
                report(VgpuError(f"verb {shown(entry.name)}", expected="one definition", found=entry.value,
                                 do=f"{first.value} is used"))  # fmt: skip
        return entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs that can be loaded. Each other verb is reported on stderr."""
        names = []
        for name, entry in sorted(self.entries().items()):
            try:
                load(entry)
            except VgpuError as error:
                report(error)
            else:
                names.append(name)
        return names

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name, entry in sorted(self.entries().items()):
            text = SUMMARIES.get(name) if entry.value.startswith(OWN) else None
            try:
                rows.append((name, load(entry).get_short_help_str(LONGEST_SUMMARY) if text is None else text))
            except VgpuError as error:
                report(error)
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entries = self.entries()
        if not entries:
            raise VgpuError(f"entry points {GROUP}", expected="vgpu's own verbs", found="none",
                            do="install vgpu (in a checkout: pip install -e .)")  # fmt: skip
        return load(entries[cmd_name]) if cmd_name in entries else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends quietly when nobody reads the output
        except (VgpuError, OSError) as error:
            text = privilege.line(error, "vgpuctl")
            report(text)
            print_errors_as_json(ctx, text.splitlines())
        return ctx.exit(1)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"vgpuctl {metadata.version('vgpu')}")
        ctx.exit(0)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "config_path", default=settings.COMPILED_PATH, show_default=True, metavar="PATH",
    help="The compiled settings (JSON) that this node's hook reads.",
)  # fmt: skip
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version and exit."
)
@click.pass_context
def main(ctx: click.Context, config_path: str) -> None:
    """Show and change the GPU shares of this node."""
    ctx.obj = config_path
