"""Kubernetes 1.36's own Go types of resource.k8s.io/v1: definitions of custom resources, and a strict decoder.

Belongs here: compiling data/kubernetes/resource.go with Debian's packages of the types and Debian's Go, once for this
machine. Nothing of a schema is written by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import roots
import suites
from checkout import DATA

SUITE, GO = "sid", "golang-1.27"
SOURCE = DATA / "kubernetes/resource.go"
PACKAGES = (
    "github-fxamacker-cbor", "github-go-logr-logr", "github-gogo-protobuf", "github-google-gnostic-models",
    "github-json-iterator-go", "github-modern-go-concurrent", "github-modern-go-reflect2", "github-x448-float16",
    "golang-x-net", "golang-x-text", "gopkg-inf.v0", "gopkg-yaml.v2", "gopkg-yaml.v3", "k8s-api", "k8s-apimachinery",
    "k8s-klog", "k8s-kube-openapi", "k8s-sigs-json", "k8s-sigs-randfill", "k8s-sigs-structured-merge-diff-v6",
    "k8s-sigs-yaml", "k8s-streaming", "k8s-utils",
)  # fmt: skip


def definitions(dropped: Collection[str] = ()) -> list[dict[str, Any]]:
    """A CustomResourceDefinition for each kind. Without the fields whose paths end as one of `dropped`."""
    done = subprocess.run([_program(), "definitions"], capture_output=True, text=True, check=True)
    return [_without(one, tuple(f".{end}" for end in dropped)) for one in json.loads(done.stdout)]


def _without(schema: Any, ends: tuple[str, ...], path: str = "") -> Any:
    """The path of a field has no `properties` and no `items`."""
    if isinstance(schema, list):
        return [_without(one, ends, path) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, one in schema.items():
        inner = path if key in ("properties", "items", "additionalProperties") else f"{path}.{key}"
        if not inner.endswith(ends or "\0"):
            found[key] = _without(one, ends, inner)
    return found


def errors(objects: Sequence[Any]) -> list[str]:
    """For each object what a server with strict validation of fields says; "" for nothing."""
    lines = "".join(f"{json.dumps(one)}\n" for one in objects)
    done = subprocess.run([_program(), "decode"], input=lines, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _program() -> Path:
    place = roots.CACHE / f"kubernetes-types-{roots.key(SOURCE.read_bytes(), GO, *PACKAGES)}"
    with roots.making(place) as new:
        if new:
            new.mkdir(parents=True)
            try:
                _compile(new)
            finally:
                subprocess.run(["rm", "-rf", new / "go", new / "cache"], check=True)
    return place / "resource"


def _compile(place: Path) -> None:
    for part in ("go", "src"):
        subprocess.run(["cp", "-a", f"{suites.unpack(SUITE, f'{GO}-{part}')}/.", place / "go"], check=True)
    (root,) = (place / "go/usr/lib").glob("go-*")
    paths = [str(suites.unpack(SUITE, f"golang-{name}-dev") / "usr/share/gocode") for name in PACKAGES]
    environment = {
        **os.environ, "GOROOT": str(root), "GOPATH": ":".join(paths), "GOCACHE": str(place / "cache"),
        "GO111MODULE": "off", "GOPROXY": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0",
    }  # fmt: skip
    command = ["nice", root / "bin/go", "build", "-p", "1", "-o", place / "resource", SOURCE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"go build: {done.stderr[-2000:]}")
