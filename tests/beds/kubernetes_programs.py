"""Kubernetes 1.20's own programs, compiled from Debian's source package by Debian's Go, once for this machine.

Belongs here: fetching source and compiler, the one generated file that the package lacks (the API server's OpenAPI
definitions), a library of the source that fails with this Go, a patch with what servers since 1.34 have for resource
claims, the build, and Debian's packages of etcd and kubectl. No mirror has kubelet or the servers as programs.
Compiling all of them takes some six minutes on one core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import roots
import suites
from checkout import DATA

SUITE, GO, ROOT = "bookworm", "golang-1.19", "k8s.io/kubernetes"
VERSION = "v1.20.2"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_PACKAGES = {"etcd": ("etcd-server", "usr/bin/etcd"), "kubectl": ("kubernetes-client", "usr/bin/kubectl")}
#: Of the copy in the source, the first use of a custom resource ends the API server with Go 1.18 or later.
_REFLECT = ("golang-github-modern-go-reflect2-dev", "github.com/modern-go/reflect2")
#: Pods keep the names of their claims, and custom resources can be selected by spec.nodeName and spec.driver.
_PATCH = DATA / "kubernetes/claims.patch"
_NO_DEFINITIONS = ("vendor/k8s.io/code-generator/", "vendor/k8s.io/kube-openapi/", "vendor/k8s.io/sample-apiserver/")


def packaged(name: str) -> Path:
    """etcd or kubectl, out of Debian's package."""
    package, path = _PACKAGES[name]
    return suites.unpack(SUITE, package) / path


def path(name: str) -> Path:
    """Where a compiled program lies. Other instructions in this file make another one."""
    return roots.CACHE / f"kubernetes-{roots.key(Path(__file__).read_bytes(), _PATCH.read_bytes())}" / name


def build(*names: str) -> dict[str, Path]:
    """The programs `names` of k8s.io/kubernetes/cmd. One command compiles those that are missing."""
    programs = {name: path(name) for name in names}
    with roots.locked(path("kubernetes")):
        missing = [name for name, program in programs.items() if not program.exists()]
        if missing:
            _compile(missing)
    return programs


def _compile(names: list[str]) -> None:
    work = path(f".kubernetes-{os.getpid()}")
    sources = work / "path/src" / ROOT  # as before modules, which would ask the network
    try:
        sources.parent.mkdir(parents=True)
        suites.source(SUITE, "kubernetes", sources)
        subprocess.run(["patch", "-s", "-p1", "-i", _PATCH], cwd=sources, check=True)
        for part in ("go", "src"):
            subprocess.run(["cp", "-a", f"{suites.unpack(SUITE, f'{GO}-{part}')}/.", work / "debian"], check=True)
        package, library = _REFLECT
        shutil.rmtree(sources / "vendor" / library)
        shutil.copytree(suites.unpack(SUITE, package) / "usr/share/gocode/src" / library, sources / "vendor" / library)
        if "kube-apiserver" in names:
            _define(work, sources)
        _go(work, sources, work / "out", *(f"{ROOT}/cmd/{name}" for name in names))
        for name in names:
            (work / "out" / name).rename(path(name))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _define(work: Path, path: Path) -> None:
    """Generate pkg/generated/openapi from all directories with the tag, as the package's own Makefile does."""
    _go(work, path, work / "tools", f"{ROOT}/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    search = ["grep", "-Rl", "--include=*.go", "+k8s:openapi-gen=", "pkg", "cmd", "vendor/k8s.io"]
    files = subprocess.run(search, cwd=path, capture_output=True, text=True, check=True).stdout.split()
    inputs = sorted({os.path.dirname(file) for file in files if not file.startswith(_NO_DEFINITIONS)})
    _run(
        work, path, str(work / "tools/openapi-gen"), "-i", ",".join(f"{ROOT}/{name}" for name in inputs),
        "-p", f"{ROOT}/pkg/generated/openapi", "-O", "zz_generated.openapi", "-r", str(work / "violations"),
        "-h", "hack/boilerplate/boilerplate.generatego.txt", "--output-base", str(work / "path/src"),
    )  # fmt: skip


def _go(work: Path, path: Path, output: Path, *packages: str) -> None:
    """Compile one package at a time, as other tests run meanwhile."""
    output.mkdir()
    version = {"gitVersion": VERSION, "gitMajor": "1", "gitMinor": "20"}
    package = f"{ROOT}/vendor/k8s.io/component-base/version"
    flags = " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in version.items())])
    root = _goroot(work)
    command = ["build", "-p", "1", "-tags", "providerless", "-ldflags", flags, "-o", f"{output}/"]  # no clouds' clients
    _run(work, path, f"{root}/bin/go", *command, *packages)


def _goroot(work: Path) -> Path:
    return next((work / "debian/usr/lib").glob("go-*"))


def _run(work: Path, path: Path, *command: str) -> None:
    root = _goroot(work)
    environment = {
        **os.environ, "GOROOT": str(root), "GOPATH": f"{work}/path", "GOCACHE": f"{work}/cache", "GO111MODULE": "off",
        "GOPROXY": "off", "CGO_ENABLED": "0", "PATH": f"{root}/bin:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(["nice", *command], cwd=path, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:500]}: {done.stderr[-2000:]}")
