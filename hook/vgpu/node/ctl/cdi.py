"""`vgpuctl cdi`: writes the CDI specification that has runtimes call the hook, and removes it.

Belongs here: options, and the refusal of two registrations on one node. Does not belong here: the specification,
which is in vgpu.node.runtimes.cdi_spec, and what is printed, which is as for any other registration.
"""

from __future__ import annotations

import os

import click

from vgpu.config.errors import VgpuError
from vgpu.node.ctl.group import Group
from vgpu.node.ctl.output import output_option
from vgpu.node.ctl.runtime import apply_change, require_programs, root_settings
from vgpu.node.runtimes import cdi_spec as specification
from vgpu.node.runtimes import places, registry
from vgpu.node.runtimes.registration import Wish
from vgpu.node.service import installation

_dry_run = click.option("--dry-run", is_flag=True, help="Print the changes as a diff, and change nothing.")


@click.group(cls=Group)
def cdi() -> None:
    """Have runtimes call vgpu's hook by a CDI device, without a change to their configuration."""


@cdi.command()
@click.option("--directory", default=specification.DIRECTORY, show_default=True, metavar="DIR",
              help="A directory from which the runtime reads CDI specifications.")  # fmt: skip
@click.option("--programs", default="", metavar="DIR", help="The directory of vgpu-hook.")
@click.option(
    "--beside-others", is_flag=True, help="Write it although kubelet's runtime is configured to call the hook."
)
@_dry_run
@output_option
@click.pass_obj
def generate(
    config_path: str, directory: str, programs: str, beside_others: bool, dry_run: bool, output: str
) -> None:  # fmt: skip
    """Write the specification. A second time nothing changes; other options replace the first ones."""
    node = root_settings("vgpuctl cdi", config_path)
    wish = Wish(
        os.path.abspath(directory), programs=os.path.abspath(programs or installation.programs()), settings=config_path,
        state_dir=node.state_dir,
    )  # fmt: skip
    require_programs(wish.hook)
    if not beside_others:
        _refuse_another()
    apply_change(node, specification.NAME, lambda: registry.configure(specification.NAME, wish), dry_run, False, output)


@cdi.command()
@_dry_run
@output_option
@click.pass_obj
def remove(config_path: str, dry_run: bool, output: str) -> None:
    """Remove the specification. Containers that exist keep their hooks; a new one that asks for the device fails."""
    node = root_settings("vgpuctl cdi", config_path)
    undo = specification.NAME
    apply_change(node, undo, lambda: registry.unconfigure(undo, node.state_dir), dry_run, False, output)


def _refuse_another() -> None:
    """VgpuError if kubelet's containers could meet the hook in two ways. Its second run would do nothing."""
    found = [where for where, _ in places.of_kubelet("/")]
    if found:
        do = "take it back (vgpuctl runtime unconfigure), or pass --beside-others if no container meets both"
        raise VgpuError("vgpuctl cdi", expected="no other registration of the hook", found=found[0], do=do)
