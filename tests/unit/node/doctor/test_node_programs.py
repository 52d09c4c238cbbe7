"""The programs that the doctor starts, by a process that is not there: what each answer means."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_tree import Tree, only
from pytest_subprocess import FakeProcess

from vgpu.config.settings import Settings
from vgpu.node.doctor import node
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def context(tree: Tree) -> CheckContext:
    tree.write("bin/vgpu-hook", "", 0o755)
    return replace(tree.context, python="/usr/bin/python3")


def hang(_: object) -> None:
    raise subprocess.TimeoutExpired(["x"], node.TIMEOUT)


def test_the_hook(context: CheckContext, fp: FakeProcess) -> None:
    command = [context.hook, "--version"]
    fp.register(command, stdout="vgpu-hook 1.2\n")
    assert only(node.hook, context).found == f"{context.hook}: vgpu-hook 1.2"
    fp.register(command, returncode=127, stderr="one\nno loader\n")
    finding = only(node.hook, context)
    assert (finding.status, finding.found) == (FAILURE, "no loader")


@pytest.mark.parametrize(
    ("status", "output", "result", "found"),
    [
        (0, "3 13 5\n", OK, "/usr/bin/python3 3.13.5"),
        (0, "3 8 10\n", FAILURE, "/usr/bin/python3: 3.8.10"),
        (1, "", FAILURE, "/usr/bin/python3: ImportError: ctypes"),
    ],
)
def test_the_interpreter(
    context: CheckContext, fp: FakeProcess, status: int, output: str, result: str, found: str
) -> None:
    fp.register(
        ["/usr/bin/python3", "-I", "-S", "-c", fp.any()], returncode=status, stdout=output,
        stderr="Traceback\nImportError: ctypes",
    )  # fmt: skip
    finding = only(node.python, context)
    assert (finding.status, finding.found) == (result, found)


def test_the_byte_code(tree: Tree, context: CheckContext, fp: FakeProcess) -> None:
    compiler, sources, file = map(context.path, node.BYTE_CODE)
    assert list(node.byte_code(context)) == [], "a checkout has none"
    tree.write(node.BYTE_CODE[0].lstrip("/"), "")
    command = ["/usr/bin/python3", "-I", "-S", compiler, "--check", sources, file]
    fp.register(command)
    assert only(node.byte_code, context).status == OK
    fp.register(command, returncode=1, stderr="of another Python")
    finding = only(node.byte_code, context)
    assert (finding.status, finding.found) == (WARNING, "of another Python")
    assert finding.do.startswith("run: dpkg-trigger ")


@pytest.mark.parametrize(
    ("status", "output", "error", "result"),
    [
        (0, "step\nstep\n", "", OK),
        (1, "", "vgpu-hook: allocation: no card fits 1 card", WARNING),
        (1, "", "vgpu-hook: python: broken", FAILURE),
        (0, "", "", FAILURE),
    ],
)
def test_the_dry_run(context: CheckContext, fp: FakeProcess, status: int, output: str, error: str, result: str) -> None:
    command = [context.hook, "--config", context.config_path, "--dry-run", "--standalone=any", "prestart"]
    fp.register(command, returncode=status, stdout=output, stderr=error)
    assert only(node.dry_run, context).status == result


def test_a_node_that_serves_kubernetes_alone_has_no_dry_run(context: CheckContext) -> None:
    settings = Settings({"standalone.enabled": False})
    assert only(node.dry_run, replace(context, settings=settings)).status == OK


def test_a_program_that_does_not_end(context: CheckContext, fp: FakeProcess) -> None:
    fp.register([context.hook, "--version"], callback=hang)
    finding = only(node.hook, context)
    assert (finding.status, finding.expected) == (FAILURE, f"an answer within {node.TIMEOUT} s")
