"""`vgpuctl explain`: what something would get on this node, or why not; and what the hook did at a start.

Belongs here: which of the kinds the argument is, and the printing. Does not belong here: the plan for a bundle, which
the hook itself makes (`vgpu-hook --dry-run`), the placement of a pod (vgpu.node.ctl.pod_manifest), or what a resource
claim would get (vgpu.node.ctl.claim_manifest).
"""

from __future__ import annotations

import os
import subprocess

import click

from vgpu.config import inventory as inventories
from vgpu.config import records, settings
from vgpu.config.errors import VgpuError, escaped, shown
from vgpu.config.inventory import Card
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.ctl import claim_manifest, logs, pod_manifest
from vgpu.node.ctl.claim_manifest import Explained
from vgpu.node.ctl.output import Id, Time, output_option, print_json, print_table, print_text, wide_option
from vgpu.node.ctl.pod_manifest import Placed
from vgpu.node.daemon.container_names import Names
from vgpu.node.service import installation

MANIFESTS = (".yaml", ".yml", ".json")
STARTS = ("prestart", "createRuntime")
TIMEOUT = 30
STEPS = ("step", "ms")


@click.command()
@click.argument("what", metavar="WHAT")
@click.option("--last", is_flag=True, help="What the hook did at the last start of the container WHAT.")
@click.option("--hook", default="", metavar="PATH", help="The hook's program, if it is not the installed hook.")
@output_option
@wide_option
@click.pass_obj
def explain(config_path: str, what: str, last: bool, hook: str, output: str, wide: bool) -> None:
    """Say what a container or a pod would get on this node, or why not, and what the hook did.

    WHAT is a bundle (a directory with a config.json), the manifest of a pod, of a workload or of resource claims
    (*.yaml, *.json), or a container that has a card: its id, the beginning of it, or its name. Nothing changes, and
    what it says may be wrong a moment later. The exit status is 1 if something would be refused.
    """
    node = settings.read(config_path)
    if last:
        _print_last(_last_start(what, node), output, wide)
        return
    if os.path.isfile(what) or what.endswith(MANIFESTS):
        refused = _explain_manifest(what, node, output, wide)
    else:
        program = hook or f"{installation.programs()}/vgpu-hook"
        refused = _explain_state(_state(what, node), [program, "--config", config_path], output, wide)
    if refused:
        raise click.exceptions.Exit(1)


# A pod


def _explain_manifest(path: str, node: Settings, output: str, wide: bool) -> bool:
    """Whether one of the containers would be refused."""
    documents = pod_manifest.documents_of(path)
    ledger = Ledger(node, inventories.read(node.run_dir).cards)
    claims = claim_manifest.explain(documents, node, ledger)
    if claims:
        return _explain_claims(claims, ledger, output, wide)
    found = pod_manifest.explain(pod_manifest.read(documents, path, node), node, ledger)
    if output == "json":
        print_json({"containers": [_json(item) for item in found]})
    elif not found:
        click.echo("no container of it asks for a card by the resources of this node")
    for item in found if output != "json" else []:
        _print_placed("container", item, ledger, wide)
        if item.error:
            print_text(f"refused: {escaped(item.error)}", wide)
        click.echo()
    return any(item.error for item in found)


def _print_placed(what: str, item: Placed, ledger: Ledger, wide: bool) -> None:
    click.echo(f"{what} {shown(item.container)}: {item.wanted or 'refused'}")
    print_table([(card.index, Id(card.uuid), card.name, _says(item, card)) for card in ledger.cards],
                ("card", "uuid", "name", "would be"), wide=wide)  # fmt: skip


def _explain_claims(found: list[Explained], ledger: Ledger, output: str, wide: bool) -> bool:
    """Whether one of the claims would be refused, or would wait."""
    if output == "json":
        print_json({"claims": [
            {"claim": one.claim, "requests": [_json(item, "request") for item in one.requests], "notes": one.notes,
             "error": one.error}
            for one in found
        ]})  # fmt: skip
    for one in found if output != "json" else []:
        click.echo(one.claim)
        for item in one.requests:
            _print_placed("request", item, ledger, wide)
        for text in [*one.notes, *([f"refused: {one.error}"] if one.error else [])]:
            print_text(escaped(text), wide)
        click.echo()
    return any(one.error for one in found)


def _says(item: Placed, card: Card) -> str:
    reason = {of.uuid: text for of, text in item.reasons}.get(card.uuid, "")
    if card in item.cards:
        return "its card"
    return f"refused: {reason}" if reason else ("free for it" if item.reasons else "")


def _json(item: Placed, what: str = "container") -> dict[str, object]:
    return {
        what: item.container, "wanted": item.wanted, "cards": [card.uuid for card in item.cards],
        "error": item.error, "refusals": {card.uuid: text for card, text in item.reasons if text},
    }  # fmt: skip


# A bundle or a container


def _state(what: str, node: Settings) -> dict[str, object]:
    """The state JSON by which a runtime would call the hook."""
    state: dict[str, object] = {"ociVersion": "1.0.2", "status": "creating"}
    if os.path.isdir(what):
        return {**state, "id": "vgpu-explain", "bundle": os.path.abspath(what)}
    names = Names()
    found = [claim for claim in Ledger(node, []).claims() if what in (claim.container, names.of(claim))]
    found = found or [claim for claim in Ledger(node, []).claims() if claim.container.startswith(what)]
    if len(found) != 1:
        listed = ", ".join(claim.container for claim in found) or "none"
        raise VgpuError(shown(what), expected="a bundle, a manifest, or one container that has a card", found=listed,
                        do="see: vgpuctl ps")  # fmt: skip
    return {**state, "id": found[0].container, "pid": found[0].pid, "bundle": found[0].bundle}


def _explain_state(state: dict[str, object], hook: list[str], output: str, wide: bool) -> bool:
    """Whether the hook would refuse the container."""
    try:
        done = subprocess.run(
            [*hook, "--dry-run", "createRuntime"], input=records.encode(state), capture_output=True, text=True,
            errors="replace", check=False, timeout=TIMEOUT,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VgpuError(hook[0], expected="the hook to answer", found=str(error), do="name it with --hook") from error
    plan = done.stdout.splitlines()
    refusal = done.stderr.strip() if done.returncode else ""
    if output == "json":
        print_json({"plan": plan, "error": refusal})
        return bool(refusal)
    for line in plan:
        print_text(line, wide)
    if refusal:
        print_text(refusal, wide)
    elif not plan:
        click.echo("no card: it does not ask for one (vgpuctl request prints how)")
    return bool(refusal)


# What the hook did


def _last_start(what: str, node: Settings) -> logs.Line:
    lines, known = logs.named(node)
    wanted = logs.Wanted(what, lines, known)
    found = [line for line in lines if wanted.matches(line) and line["stage"] in STARTS]
    if not found:
        raise VgpuError(
            shown(what), expected="a container that the hook's log has", found="none", do="see: vgpuctl logs"
        )
    return found[-1]


def _print_last(line: logs.Line, output: str, wide: bool) -> None:
    steps = _steps(line)
    seconds, notes = line.get("seconds"), line["notes"]
    texts = [str(note) for note in notes] if isinstance(notes, list) else []
    if output == "json":
        print_json({
            "container": line["container"], "name": line["name"], "stage": line["stage"],
            "time": Time(logs.time_of(line)), "seconds": seconds,
            "steps": [{"step": step, "seconds": taken} for step, taken in steps], "notes": texts,
            "error": line["error"],
        })  # fmt: skip
        return
    whole = f", {seconds * 1000:.1f} ms" if isinstance(seconds, float) else ""
    click.echo(f"{line['container']} {line['name']} {line['stage']} {Time(logs.time_of(line))}{whole}\n")
    print_table([(step, f"{taken * 1000:.2f}") for step, taken in steps], STEPS, wide=wide)
    click.echo()
    for text in texts:
        print_text(escaped(text), wide)
    if line["error"]:
        print_text(f"refused: {escaped(str(line['error']))}", wide)


def _steps(line: logs.Line) -> list[tuple[str, float]]:
    """The steps in their order with the seconds of each; [] in a line of an older hook."""
    steps = line.get("steps")
    pairs = [item for item in steps if isinstance(item, list) and len(item) == 2] if isinstance(steps, list) else []
    return [(str(step), float(taken)) for step, taken in pairs if isinstance(taken, (int, float))]
