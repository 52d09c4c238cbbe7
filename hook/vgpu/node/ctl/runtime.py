"""`vgpuctl runtime`: has container runtimes call the hook, takes that back, and proves it by a container.

Belongs here: options, what is printed, and restarting a daemon. Does not belong here: what a runtime needs in which
file, which is in vgpu.node.runtimes. Installing the package configures no runtime; only this command does.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click

from vgpu.config import annotations as names
from vgpu.config import request, settings
from vgpu.config.errors import VgpuError, shown
from vgpu.config.settings import Settings
from vgpu.node.ctl.group import Group
from vgpu.node.ctl.output import output_option, print_json
from vgpu.node.doctor import cdi_devices
from vgpu.node.doctor.findings import CheckContext
from vgpu.node.runtimes import programs, registered_files, registry, verify
from vgpu.node.runtimes.registered_files import Edit, Record
from vgpu.node.runtimes.registration import HANDLER, MODES, RUNTIMES, Wish
from vgpu.node.runtimes.registry import Change
from vgpu.node.service import installation

OF_KUBELET = ("containerd", "crio")  #: the runtimes of kubelet's containers, which may come to the hook by CDI
NOT_PROVEN = 3
RESTART_TIMEOUT = 300

_runtime = click.option("--runtime", "name", type=click.Choice(RUNTIMES), required=True, help="The container runtime.")
_dry_run = click.option("--dry-run", is_flag=True, help="Print the changes as a diff, and change nothing.")
_restart = click.option("--restart", is_flag=True, help="Restart the daemon, where it has to be restarted.")


@click.group(cls=Group)
def runtime() -> None:
    """Have container runtimes call vgpu's hook, take that back, and prove it."""


@runtime.command()
@_runtime
@click.option("--config", "path", default="", metavar="PATH",
              help="Another file of containerd or Docker, or another directory of hooks.")  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), default=HANDLER, show_default=True,
              help="A handler of its own; the default handler; or (containerd) hooks in the default handler's "
              "base specification.")  # fmt: skip
@click.option("--handler", default="vgpu", show_default=True, metavar="NAME", help="The handler's or runtime's name.")
@click.option("--share", multiple=True, metavar="KEY=VALUE",
              help="Docker: a share for each container of the runtime, such as cores=30 or memory=8Gi.")  # fmt: skip
@click.option("--standalone", type=click.Choice(("any", "key")),
              help="Outside Kubernetes: all annotations are requests, those of an image, too; or only those with this "
              "node's key. Default: the setting standalone.requests.")  # fmt: skip
@click.option("--programs", default="", metavar="DIR", help="The directory of vgpu-hook and vgpu-runtime.")
@click.option("--force", is_flag=True, help="Configure kubelet's runtime although the node uses CDI.")
@_dry_run
@_restart
@output_option
@click.pass_obj
def configure(
    config_path: str, name: str, path: str, mode: str, handler: str, share: tuple[str, ...],
    standalone: str | None, programs: str, force: bool, dry_run: bool, restart: bool, output: str,
) -> None:  # fmt: skip
    """Have a runtime call the hook. A second time nothing changes; other options replace the first ones."""
    node = root_settings("vgpuctl runtime", config_path)
    if share and name != "docker":
        raise VgpuError("--share", expected="--runtime docker: other runtimes take annotations", found=name)
    if not programs:
        _require_packages()
    wish = Wish(
        os.path.abspath(path) if path else "", mode, handler, os.path.abspath(programs or installation.programs()),
        config_path, node.state_dir, tuple(_pair(one) for one in share), standalone or "",
    )  # fmt: skip
    _check_share(wish)
    if name in OF_KUBELET and not force:
        _refuse_beside_cdi(config_path, node)
    require_programs(wish.hook, wish.shim)
    apply_change(node, name, lambda: registry.configure(name, wish), dry_run, restart, output)


@runtime.command()
@_runtime
@_dry_run
@_restart
@output_option
@click.pass_obj
def unconfigure(config_path: str, name: str, dry_run: bool, restart: bool, output: str) -> None:
    """Take a registration back. A file that nobody edited since is as it was, to the byte."""
    node = root_settings("vgpuctl runtime", config_path)
    apply_change(node, name, lambda: registry.unconfigure(name, node.state_dir), dry_run, restart, output)


@runtime.command()
@_runtime
@output_option
@click.pass_obj
def check(config_path: str, name: str, output: str) -> None:
    """Look whether a runtime is configured, and start two containers by it: a plain one, and one with a share.

    The exit status is 0 if the containers prove it, 1 if something is wrong, and 3 if the files are right and the
    runtime could not be asked.
    """
    node = root_settings("vgpuctl runtime", config_path)
    _require_packages()
    found = verify.examine(name, node, config_path)
    if output == "json":
        print_json({"runtime": name, "result": found.result, "steps": [list(step) for step in found.steps]})
    else:
        for status, text in found.steps:
            click.echo(f"{status}: {text}")
    if found.result != verify.PROVEN:
        raise click.exceptions.Exit(1 if found.result == verify.WRONG else NOT_PROVEN)


def root_settings(verb: str, config_path: str) -> Settings:
    """The node's settings, or the defaults: a runtime can be configured before the first settings are compiled."""
    if os.geteuid() != 0:
        raise VgpuError(verb, expected="root", found=f"uid {os.geteuid()}", do="run as root")
    return settings.read_or_default(config_path)


def apply_change(
    node: Settings, name: str, plan: Callable[[], Change], dry_run: bool, restart: bool, output: str
) -> None:  # fmt: skip
    """Execute the plan, unless that is not wanted, and print what was done."""
    if dry_run:
        outcome = _Outcome(name, plan(), dry_run=True)
        if output == "json":
            print_json(outcome.as_json())
        else:
            click.echo(outcome.change.diff() or f"{name}: nothing to change\n", nl=False)
        return
    with registered_files.locked(node.state_dir):
        before = Record.read(node.state_dir, name)
        registered_files.remove_orphans(before)
        change = plan()
        changes = change.changes()
        if changes or bool(change.registration) != bool(before.files):
            change.execute()
    command = change.registration.restart if change.registration else before.options.get("restart", ())
    outcome = _Outcome(name, change, tuple(command) if changes or restart else (), restart)
    if output != "json":
        click.echo("\n".join(outcome.lines()))
    if outcome.restarted:
        _run(name, outcome.command)
    if output == "json":
        print_json(outcome.as_json())
    elif outcome.command:
        click.echo(f"{'done' if outcome.restarted else 'now run'}: {shlex.join(outcome.command)}")


@dataclass(frozen=True)
class _Outcome:
    """What a verb did, or with `dry_run` would do. `command` is what has the daemon read its files."""

    name: str
    change: Change
    command: tuple[str, ...] = ()
    restart: bool = False
    dry_run: bool = False

    @property
    def restarted(self) -> bool:
        return self.restart and bool(self.command)

    def lines(self) -> Iterator[str]:
        """For people."""
        change = self.change
        changes = change.changes()
        if not changes:
            yield f"{self.name}: {'configured already' if change.registration else 'not configured'}; nothing changed"
        for edit in change.edits:
            if edit.changes():
                yield f"{_action(edit)}: {edit.path}"
        yield from (f"kept: {path}, for {registry.SHARING[self.name]}" for path in change.kept)
        if change.registration:
            yield from (f"backup: {path}" for path in (change.backups() if changes else ()))
            yield f"applies to: {change.registration.applies}"
            yield from (f"note: {note}" for note in change.registration.notes)

    def as_json(self) -> dict[str, object]:
        change, made = self.change, self.change.registration
        files = [{"path": edit.path, "action": _action(edit)} for edit in change.edits if edit.changes()]
        return {
            "runtime": self.name, "dry_run": self.dry_run, "changed": change.changes(), "files": files,
            "kept": list(change.kept), "diff": change.diff(),
            "backups": change.backups() if made and not self.dry_run else [],
            "applies": made.applies if made else "", "notes": list(made.notes) if made else [],
            "restart": list(self.command), "restarted": self.restarted,
        }  # fmt: skip


def _action(edit: Edit) -> str:
    return "removed" if edit.after is None else "written"


def _run(name: str, command: Sequence[str]) -> None:
    """Restart the daemon."""
    do = f"the files are written; repair {name} and run it again"
    try:
        done = programs.run(command, RESTART_TIMEOUT)
    except VgpuError as error:
        raise VgpuError(error.what, expected=error.expected, found=error.found, do=do) from error
    if done.returncode:
        raise VgpuError(shlex.join(command), expected="exit status 0", found=shown(done.stderr.strip()), do=do)


def _require_packages() -> None:
    """A release has neither the shim nor a configuration of a runtime: its hook comes by CDI alone."""
    release = installation.release()
    if release:
        raise VgpuError("vgpuctl runtime", expected="vgpu's packages", found=f"a release, {release}",
                        do="runtimes call its hook by CDI, which vgpuctl doctor checks")  # fmt: skip


def require_programs(*paths: str) -> None:
    """A configuration that names a missing program would fail every container that meets it."""
    for program in paths:
        if not os.access(program, os.X_OK):
            raise VgpuError(program, expected="vgpu's program", found="none", do="install vgpu, or name its directory "
                            "by --programs")  # fmt: skip


def _refuse_beside_cdi(config_path: str, node: Settings) -> None:
    """VgpuError if kubelet's containers come to the hook by CDI already: its second run would do nothing."""
    found = cdi_devices.in_use(CheckContext(config_path, node))
    if found:
        do = "end CDI (plugin.cdi: false, vgpuctl cdi remove), or pass --force if no container meets both"
        raise VgpuError("vgpuctl runtime configure", expected="a node without CDI", found=found, do=do)


def _check_share(wish: Wish) -> None:
    """VgpuError for a share that the hook would refuse to every container of the runtime."""
    annotations = {request.PREFIX + key: value for key, value in wish.share}
    for key in names.misspelled(annotations):
        near = names.nearest(key).removeprefix(request.PREFIX)
        do = f"did you mean {near}?" if near else "see: docs/requests.md"
        raise VgpuError("--share", expected="a name that vgpu reads", found=key.removeprefix(request.PREFIX), do=do)
    if annotations:
        request.from_annotations(annotations)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise VgpuError("--share", expected="KEY=VALUE, such as cores=30", found=text)
    return key.removeprefix("vgpu.io/"), value
