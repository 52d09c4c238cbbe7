"""The command line of vgpud.

Belongs here: its options. Does not belong here: what vgpud does (vgpu.node.daemon.main). That is loaded only to run it,
so --help and --version work without root and without vgpud's libraries.
"""

from __future__ import annotations

import click

from vgpu.config import settings


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib import metadata  # noqa: PLC0415 - only this option needs it

        click.echo(f"vgpud {metadata.version('vgpu')}")
        ctx.exit(0)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "config_path", default=settings.COMPILED_PATH, show_default=True, metavar="PATH",
    help="The compiled settings (JSON) of this node.",
)  # fmt: skip
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version and exit."
)
def main(config_path: str) -> None:
    """Maintain this node's inventory and claims, and answer requests at <run>/vgpud.sock."""
    from vgpu.node.daemon import main as process  # noqa: PLC0415 - see above

    process.run(config_path)
