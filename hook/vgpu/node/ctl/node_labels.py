"""The labels of the node in Kubernetes, by which config.yaml chooses a profile: --label, or the API server.

Belongs here: the two options, and the one request to the API server, with the service account of the pod. vgpuctl makes
it by the standard library, because the package does not depend on the Kubernetes client. Does not belong here: the
choice of the profile (vgpu.config.compiler), and what the device plugin does at the API server.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable
from typing import Any

import click

from vgpu.config import records
from vgpu.config.compiler import Labels
from vgpu.config.errors import VgpuError

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  #: the directory of token and ca.crt in a pod
#: The server leaves out the node's status then, which names its images.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
TIMEOUT = 15.0  #: seconds
MAX_ANSWER = 4 << 20  #: bytes


def options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The options --label and --labels-from-api. The verb gets `labels`, or None if neither says anything."""

    @click.option("--label", multiple=True, envvar="VGPU_NODE_LABELS", show_envvar=True, metavar="NAME=VALUE",
                  help="A label of the node, for the choice of a profile. Repeat it for each label.")  # fmt: skip
    @click.option("--labels-from-api", is_flag=True,
                  help="Read the node's labels from the API server. This is the default in a pod.")  # fmt: skip
    @functools.wraps(verb)
    def with_labels(*arguments: Any, node: str, label: tuple[str, ...], labels_from_api: bool, **others: Any) -> Any:
        return verb(*arguments, node=node, labels=_source(node, label, labels_from_api), **others)

    return with_labels


def _source(node: str, label: tuple[str, ...], from_api: bool) -> Labels | None:
    if label and from_api:
        raise click.UsageError("--label and --labels-from-api exclude each other")
    if label:
        named = _named(label)
        return lambda names: named
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and os.path.exists(f"{SERVICE_ACCOUNT}/token")
    return functools.partial(read, node) if from_api or in_pod else None


def _named(label: tuple[str, ...]) -> dict[str, str]:
    """The labels that the options name; `NAME=` is a label with an empty value."""
    wrong = [text for text in label if not text.partition("=")[0] or "=" not in text]
    if wrong:
        raise click.BadParameter(f"{wrong[0]}: expected NAME=VALUE", param_hint="--label")
    return {name: value for name, _, value in (text.partition("=") for text in label)}


def read(node: str, names: list[str]) -> dict[str, str]:
    """All labels of `node` according to the API server; VgpuError when it does not say them."""
    del names
    try:
        found = json.loads(_answer(f"/api/v1/nodes/{node}"))["metadata"].get("labels") or {}
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ImportError, KeyError, ValueError, TypeError, AttributeError) as error:
        do = "allow the service account to get nodes, or name the labels with --label"
        what = f"labels of node {node} at the API server"
        raise VgpuError(what, expected="the node", found=str(error) or type(error).__name__, do=do) from error


def _answer(path: str) -> bytes:
    """The body of the server's answer; ValueError for any other than 200."""
    import ssl  # noqa: PLC0415 - slow to load, and needed for profiles only
    from http import client  # noqa: PLC0415

    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    token = records.read_bounded(f"{SERVICE_ACCOUNT}/token").decode("ascii").strip()
    context = ssl.create_default_context(cafile=f"{SERVICE_ACCOUNT}/ca.crt")
    headers = {"Authorization": f"Bearer {token}", "Accept": METADATA, "User-Agent": "vgpuctl"}
    with contextlib.closing(client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)) as connection:
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER)
        except client.HTTPException as error:
            raise ValueError(str(error) or type(error).__name__) from error
        if answer.status != client.OK:
            raise ValueError(f"{answer.status} {answer.reason}")
        return data
