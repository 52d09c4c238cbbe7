"""`vgpuctl request`: prints the annotation by which a container outside Kubernetes asks for a share, and makes the key.

Belongs here: the options and what is printed. Does not belong here: the grammar and the key's file, which are in
vgpu.config.standalone. Only root can read the key, so only root can print a request.
"""

from __future__ import annotations

import os

import click

from vgpu.config import settings, standalone
from vgpu.config.errors import VgpuError
from vgpu.config.request import REQUEST, Request
from vgpu.node.ctl.output import output_option, print_json

LEAST = 64 << 20  #: bytes: smaller than the context of any card that docs/reality.md or a profile knows

_PARTS = (
    ("cores", "Percent of a card: 1 to 99, or a multiple of 100 for whole cards."),
    ("memory", "Memory of a share, per card, such as 8Gi."),
    ("gpus", "On how many different cards."),
    ("core-limit", "The percentage up to which the share may grow while the card is idle."),
    ("priority", "0: first with a card's idle time."),
    ("policy", "binpack or spread."),
    ("numa-bind", "true: all cards on one NUMA node."),
    ("use-gpuuuid", "A card that may be used; may be repeated."),
    ("nouse-gpuuuid", "A card that may not be used; may be repeated."),
    ("use-gputype", "A part of the name of models that may be used; may be repeated."),
    ("nouse-gputype", "A part of the name of models that may not be used; may be repeated."),
    ("profile", "A MIG profile, such as 1g.10gb, whose instances may be used alone; may be repeated."),
    ("nouse-profile", "A MIG profile whose instances may not be used; may be repeated."),
)


def _options(command: click.Command) -> click.Command:
    """An option for each part of a request."""
    command.params[:0] = [
        click.Option([f"--{name}"], help=text, multiple=name in standalone.LISTS, metavar="TEXT")
        for name, text in _PARTS
    ]
    return command


@_options
@click.command()
@click.option("--make-key", is_flag=True, help="Make this node's key where there is none, and print nothing.")
@click.option("--rotate-key", is_flag=True, help="Make a new key: requests with the old one are refused from now on.")
@output_option
@click.pass_obj
def request(config_path: str, /, make_key: bool, rotate_key: bool, output: str, **parts: object) -> None:
    """Print the annotation by which a container outside Kubernetes asks for a share of a card.

    The annotation has this node's key in its name. It is for the administrator's commands and files; an image must not
    have it: podman run --annotation "$(vgpuctl request --cores 30 --memory 8Gi)" IMAGE
    """
    node = settings.read_or_default(config_path)  # a package makes the key before anything is configured
    path = node.text("standalone.key")
    if make_key or rotate_key:
        _make(path, rotate_key)
        if output == "json":
            print_json({"key": path})
        return
    pairs = [(name.replace("_", "-"), str(text)) for name, value in parts.items() for text in _each(value)]
    if not pairs:
        raise VgpuError("request", expected="--cores and --memory, or --gpus", found="none of them")
    value = standalone.value(pairs)
    wanted = _parsed(value)
    if str(parts["memory"] or "").isdigit() and wanted.memory < LEAST:
        click.echo(f"warning: --memory {parts['memory']} is {parts['memory']} MiB, less than any CUDA context takes; "
                   f"for GiB write {parts['memory']}Gi", err=True)  # fmt: skip
    name = REQUEST + standalone.read_key(path)
    if output == "json":
        print_json({name: value})
    else:
        click.echo(f"{name}={value}")


def _parsed(value: str) -> Request:
    """VgpuError names the option, since nobody has written an annotation."""
    try:
        return standalone.parse(value, {})
    except VgpuError as error:
        what = error.what.replace(f"{standalone.WHAT}: ", "--").replace(standalone.WHAT, "request")
        raise VgpuError(what, expected=error.expected, found=error.found, do=error.do) from None


def _each(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) if value is not None else ()


def _make(path: str, anew: bool) -> None:
    if not anew and os.path.lexists(path):
        standalone.read_key(path)
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    standalone.write_key(path, standalone.new_key())
