"""`vgpuctl cluster`: the cards of all nodes in one look, and why a pod finds none.

Belongs here: reading nodes, pods and quotas once, by a kubeconfig, and printing. What a card owes and why a node does
not fit are the extender's own answers (vgpu.plugin.scheduler.cluster, vgpu.plugin.scheduler.service), in its own words.
Nothing is written, and neither the extender nor a node is asked: the nodes' annotations and the pods say it all.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import click

from vgpu.config.errors import VgpuError
from vgpu.node.ctl.output import output_option, print_json, print_table, wide_option
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.apiserver.client import Api, ApiError
from vgpu.plugin.scheduler import quota, watches
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.demand import MIB
from vgpu.plugin.scheduler.node_cards import FREE, NodeCards
from vgpu.plugin.scheduler.options import Options

CONDITIONS = Conditions(Log(name="vgpuctl"))
QUOTA_MAP = ("kube-system", "gpuquota")
COLUMNS = ("node", "pool", "cards", "free cards", "largest share", "free in all", "ill")


@click.group(invoke_without_command=True)
@click.option("--kubeconfig", default="", metavar="PATH", help="The kubeconfig; without it, as kubectl finds it.")
@output_option
@wide_option
@click.pass_context
def cluster(ctx: click.Context, kubeconfig: str, output: str, wide: bool) -> None:
    """Show the cards of all nodes of the cluster: free ones, the largest share that fits, and ill ones."""
    ctx.obj = kubeconfig
    if ctx.invoked_subcommand:
        return
    seen = read(kubeconfig)
    rows = [row_of(seen, name) for name in sorted(seen.names())]
    if output == "json":
        print_json({"nodes": rows})
        return
    print_table([_cells(row) for row in [*rows, sum_of(rows)]], COLUMNS, wide=wide)
    for row in rows:
        for line in [row["problem"]] if row["problem"] else row["ill"]:
            click.echo(f"{row['node']}: {line}", err=True)


@cluster.command()
@click.argument("pod")
@click.option("--namespace", "-n", default="default", show_default=True, help="The pod's namespace.")
@output_option
@wide_option
@click.pass_obj
def why(kubeconfig: str, pod: str, namespace: str, output: str, wide: bool) -> None:
    """Say for each node why POD finds no cards there, or which it would get."""
    try:
        from vgpu.plugin.scheduler.service import Service  # noqa: PLC0415  # not needed for the look at the cards
    except ModuleNotFoundError as error:
        raise VgpuError("cluster why", expected="what the extender needs of Python", found=str(error),
                        do="pip install msgspec") from error  # fmt: skip
    api = _api(kubeconfig)
    found = _called(lambda: api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}"))
    service = Service(read(kubeconfig), api, lambda: "", Options())
    service.quotas = _quotas(api)
    answer = service.dry_run(json.dumps({"pod": found}).encode())
    if answer.get("error"):
        raise VgpuError(f"pod {namespace}/{pod}", expected="a pod that asks for cards", found=answer["error"])
    if output == "json":
        print_json(answer)
        return
    rows = [(name, "fits" if one["fits"] else one["reason"]) for name, one in sorted(answer["nodes"].items())]
    print_table([list(row) for row in rows], ("node", "answer"), wide=wide)


def read(kubeconfig: str) -> Cluster:
    """The cluster as its API server lists it now; VgpuError when it cannot be asked."""
    api, seen = _api(kubeconfig), Cluster()
    for watch in (watches.nodes(seen, CONDITIONS, lambda: 0.0), watches.pods(seen, CONDITIONS, Options())):
        _called(functools.partial(watch.list, api))
    return seen


def _quotas(api: Api) -> quota.Quotas:
    """Those of the extender's ConfigMap by its usual name; none where they may not be read."""
    texts: list[str | None] = []
    try:
        watches.quota_map(*QUOTA_MAP, texts.append, CONDITIONS).list(api)
    except ApiError as error:
        click.echo(f"quotas are not known: {error}", err=True)
    return quota.parse(texts[0]) if texts and texts[0] is not None else quota.Quotas()


def row_of(seen: Cluster, name: str) -> dict[str, Any]:
    """One node. Amounts are percent of a card and MiB; `largest` is of the card with the most cores free."""
    node = seen.cards(name) or NodeCards(name, [])
    free = [
        (0, 0) if held.whole else
        (max(node.policy.cores() - held.cores, 0), max(node.policy.memory(card) - held.memory, 0) // MIB)
        for card, held in zip(node.cards, seen.held(name))
    ]  # fmt: skip
    usable = [one for one in free if all(one)]
    return {
        "node": name, "pool": seen.labels(name).get(quota.POOL_LABEL, ""),
        "cards": len(node.cards) + len(node.unhealthy), "free_cards": sum(one == FREE for one in seen.held(name)),
        "largest": list(max(usable, default=(0, 0))), "free": [sum(one[at] for one in usable) for at in (0, 1)],
        "ill": [f"{uuid}: {text}" for uuid, text in sorted(node.unhealthy.items())],
        "problem": "" if node.cards or node.unhealthy else node.problem,
    }  # fmt: skip


def sum_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The line below the nodes."""
    return {
        "node": "all", "pool": "", "cards": sum(row["cards"] for row in rows),
        "free_cards": sum(row["free_cards"] for row in rows),
        "largest": max((row["largest"] for row in rows), default=[0, 0]),
        "free": [sum(row["free"][at] for row in rows) for at in (0, 1)],
        "ill": [one for row in rows for one in row["ill"]],
    }  # fmt: skip


def _cells(row: dict[str, Any]) -> list[object]:
    amounts = [f"{cores} cores, {mib} MiB" for cores, mib in (row["largest"], row["free"])]
    return [row["node"], row["pool"], row["cards"], row["free_cards"], *amounts, len(row["ill"])]


def _api(kubeconfig: str) -> Api:
    try:
        return Api(kubeconfig)
    except ImportError as error:
        raise VgpuError("Kubernetes", expected="Python's client of it", found=str(error),
                        do="install python3-kubernetes") from error  # fmt: skip


def _called(call: Any) -> Any:
    try:
        return call()
    except ApiError as error:
        raise VgpuError("API server", expected="an answer", found=str(error)) from error
