"""`vgpuctl doctor`: runs every check on this node, shows what each one found, and has some of it mended.

With --image it looks at an image instead.

Belongs here: the order of the checks, the table and the exit status. Does not belong here: the checks themselves and
the repairs, which are in vgpu.node.doctor.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace

import click

from vgpu.config import settings
from vgpu.config.errors import VgpuError, escaped
from vgpu.config.settings import Settings
from vgpu.node.ctl.output import output_option, print_json, print_table, print_text, wide_option
from vgpu.node.doctor import (
    card_health,
    causes,
    cdi_devices,
    coexistence,
    host,
    image,
    node,
    repairs,
    runtimes,
    selinux,
)
from vgpu.node.doctor.findings import FAILURE, OK, Check, CheckContext, Finding, examine
from vgpu.node.doctor.repairs import Repair
from vgpu.node.service import installation, privilege

CHECKS: dict[str, Check] = {
    "settings": node.settings,
    "driver": node.driver,
    "nodes": node.nodes,
    "uvm": node.uvm,
    "inventory": node.inventory,
    "contexts": node.contexts,
    "libvcuda": node.libvcuda,
    "kernel": host.kernel,
    "leases": host.leases,
    "cgroups": host.cgroups,
    selinux.NAME: selinux.selinux,
    "python": node.python,
    "hook": node.hook,
    "byte code": node.byte_code,
    "requests": node.requests,
    "dry run": node.dry_run,
    "registration": runtimes.runtime_configuration,
    "CDI": cdi_devices.cdi,
    "card health": card_health.card_health,
    "daemon": node.daemon,
    "device plugin": node.device_plugin,
    "NVIDIA's runtime": runtimes.nvidia,
    "containers": coexistence.containers,
    "MIG instances": coexistence.instances,
    "open nodes": coexistence.holders,
    "cards in use": coexistence.foreign_users,
}
HEADERS = ("check", "status", "found")
IMAGE_HEADERS = ("path", "status", "found")


@click.command()
@output_option
@wide_option
@click.option("--hook", default="", metavar="PATH", help="The hook's program, if it is not the installed hook.")
@click.option(
    "--fix",
    is_flag=True,
    help="Make missing nodes of the driver and take a stale inventory again; then check once more.",
)
@click.option(
    "--image", "root", default="", metavar="ROOT", help="Look at the unpacked image or bundle in ROOT instead."
)
@click.option(
    "--image-config", default="", metavar="FILE", help="The image's configuration, as skopeo and podman print it."
)
@click.option(
    "--env", multiple=True, metavar="NAME=VALUE", help="A variable of the image's containers; may be repeated."
)
@click.pass_obj
def doctor(
    config_path: str, output: str, wide: bool, hook: str, fix: bool, root: str, image_config: str, env: tuple[str, ...]
) -> None:
    """Check this node's driver, settings, cgroups, runtimes and cards. Only --fix changes anything.

    A finding that follows from another one names that one, and no advice of its own: mend the cause first. The exit
    status is 1 if a check fails. After a warning containers still have their limits, but an administrator
    should look at the cause. --fix does only what vgpud would do: for all else, as for a runtime that does not call the
    hook, the finding has the command.

    With --image it lists the copies of libcuda and of NVML in an image: those that the hook covers in a share, and
    those that would stay. The exit status is 1 if one would stay. The environment that decides comes from the
    bundle's config.json, from --image-config and from --env.
    """
    if root:
        _print_image(image.examine(root, env, image_config), output, wide)
        return
    context = _context(config_path, hook)
    findings = diagnose(context)
    if fix:
        findings = _mended(findings, context)
    if output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings, wide)
    if any(finding.status == FAILURE for finding in findings):
        raise click.exceptions.Exit(1)


def _print_image(copies: list[image.Copy], output: str, wide: bool) -> None:
    if output == "json":
        print_json([asdict(copy) for copy in copies])
    elif copies:
        print_table([(escaped(one.path), one.status, escaped(one.found)) for one in copies], IMAGE_HEADERS, wide=wide)
    else:
        click.echo("no copy of libcuda or NVML")
    if any(copy.status == image.STAYS for copy in copies):
        raise click.exceptions.Exit(1)


def diagnose(context: CheckContext) -> list[Finding]:
    """All findings, in the order of the checks."""
    return causes.fold([finding for name, check in CHECKS.items() for finding in examine(name, check, context)])


def _mended(findings: list[Finding], context: CheckContext) -> list[Finding]:
    """The findings after the repairs, of which each is also printed to stderr."""
    done = repairs.mend(findings, context)
    for repair in done:
        click.echo(f"mended: {repair.check}: {repair.done}" if repair.done else f"not mended: {repair.error}", err=True)
    if not done:
        click.echo("nothing to mend by itself", err=True)
        return findings
    return [replace(item, mended=_texts(done, item.check)) for item in diagnose(context)]


def _texts(done: list[Repair], check: str) -> str:
    return "; ".join(repair.done for repair in done if repair.check == check and repair.done)


def _context(config_path: str, hook: str) -> CheckContext:
    if os.geteuid() != 0:  # without root nearly every check would fail, for this one reason
        raise VgpuError("doctor", expected="root", found=f"uid {os.geteuid()}", do=privilege.ADVICE)
    try:
        found = settings.read(config_path)
    except VgpuError:
        found = Settings()  # the check "settings" reports the error; the other checks use the defaults
    installed = hook or f"{installation.programs()}/vgpu-hook"
    context = CheckContext(config_path, found, hook=installed)
    return replace(context, python=sys.executable) if installation.release() else context


def _print(findings: list[Finding], wide: bool) -> None:
    print_table([(item.check, item.status, _found(item)) for item in findings], HEADERS, wide=wide)
    for text in dict.fromkeys(_advice(item) for item in findings if item.status != OK and not item.cause):
        if text:
            click.echo()
            print_text(text, wide)


def _advice(item: Finding) -> str:
    """What to do about a finding, or "". Several findings of one check may have the same."""
    expected = f"expected {item.expected}" if item.expected else ""
    advice = "; ".join(part for part in (expected, item.do) if part)
    return f"{item.check}, {item.status}: {advice}" if advice else ""


def _found(item: Finding) -> str:
    return f"follows from: {item.cause}" if item.cause else escaped(item.found)
