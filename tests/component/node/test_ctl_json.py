"""`--output json` of every verb of vgpuctl: one document on stdout, whether it succeeds or fails, and errors on stderr.

The verbs come from the tree of click commands, so a verb without the option, or without a call here, fails the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import click
import nodes
import pytest
import yaml
from checkout import CHECKOUT
from daemons import Daemon

from vgpu.config import standalone
from vgpu.config.inventory import read as read_inventory
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time
from vgpu.node.ctl import main as ctl
from vgpu.node.selftest import report

pytestmark = pytest.mark.root

GRANT = "a" * 32
#: verb -> (arguments that succeed, the exit status then, arguments that fail). Names in braces are files of the node.
#: The status 3 says that CRI-O starts no container.
CALLS = {
    "cdi generate": ("--directory {cdi} --programs {programs} --beside-others", 0, "--programs /none"),
    "cdi remove": ("", 0, ""),
    "config apply": ("{source}", 0, "{wrong}"),
    "config check": ("{source}", 0, "{wrong}"),
    "config import": ("{peers}", 0, "{missing}"),
    "config show": ("{source}", 0, "{wrong}"),
    "config upgrade": ("{source}", 0, "{missing}"),
    "doctor": ("--hook {hook}", 0, ""),  # or 1: its verdict on this machine
    "explain": ("{pod}", 0, "{missing}.yaml"),
    "gc": ("--dry-run", 0, ""),
    "grant add": ("--cores 30 --memory 1Gi", 0, "--cores 300000"),
    "grant list": ("", 0, ""),
    "grant remove": (GRANT, 0, GRANT[:30]),
    "health": ("", 0, ""),
    "inventory refresh": ("", 0, ""),
    "inventory show": ("", 0, ""),
    "logs": ("", 0, ""),
    "ps": ("", 0, ""),
    "report": ("", 0, "--since never"),
    "request": ("--cores 30 --memory 1Gi", 0, "--cores 30"),
    "runtime check": ("--runtime crio", 3, "--runtime crio"),
    "runtime configure": (
        "--runtime crio --config {hooks} --programs {programs}",
        0,
        "--runtime crio --programs /none",
    ),
    "runtime unconfigure": ("--runtime crio", 0, "--runtime crio"),
    "selftest": ("--show {report}", 0, "--show {missing}"),
    "set": ("train --cores 40", 0, "train --cores 400"),
    "status": ("", 0, ""),
    "top": ("--sort memory", 0, ""),
}
#: These need what another one leaves.
ORDER = ("inventory refresh", "runtime configure", "runtime check", "runtime unconfigure")


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from leaves(found, f"{name} {word}".strip())
    else:
        yield name, command


#: The cluster's verbs ask an API server: component/plugin/test_scheduler.py.
VERBS = {name: verb for name, verb in leaves(ctl.main) if not name.startswith("cluster")}


def test_every_verb_has_the_option_and_is_called_here() -> None:
    assert set(VERBS) == set(CALLS)
    for name, verb in VERBS.items():
        choices = [
            option.type.choices for option in verb.params if option.name == "output" and hasattr(option.type, "choices")
        ]
        assert len(choices) == 1, name
        assert {"json", "table"} <= set(choices[0]), name


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nodes.SimulatedNode]:
    """A node with vgpud, a grant, and a share that this process holds."""
    made = nodes.SimulatedNode(tmp_path_factory.mktemp("node"))
    made.take_inventory()
    standalone.write_key(made.settings.text("standalone.key"), "a" * 32)
    ledger = Ledger(made.settings, read_inventory(made.settings.run_dir).cards)
    start = Start("train", os.getpid(), start_time(os.getpid()), "/b", None, "", time.time())
    assert ledger.claim(start, Request(1, 30, 1 << 30))
    ledger.confirm(start)
    grants = Path(made.settings.state_dir, "grants")
    grants.mkdir(parents=True, exist_ok=True)
    (grants / made.grant("cores", 30)).with_suffix(".json").rename(grants / f"{GRANT}.json")
    names = (
        "paths.state", "paths.run", "paths.libvcuda", "driver.root", "driver.dev_root", "driver.proc_root",
        "standalone.key",
    )  # fmt: skip
    directory = made.directory
    (directory / "source.yaml").write_text(yaml.safe_dump(nested({name: made.settings[name] for name in names})))
    standalone.write_key(made.settings.text("standalone.key"), standalone.new_key())
    (directory / "wrong.yaml").write_text("cores: 1\n")
    (directory / "peers.json").write_text('{"nodeConfig": [{"name": "a", "deviceMemoryScaling": 1}]}')
    (directory / "damaged.json").write_text("{")
    head = {"vgpu": "0.1.0", "date": "2026-11-28", "way": "bare", "depth": "quick", "seconds": 1, "driver": "",
            "cuda": "12.4", "kernel": "", "machine": "", "notes": [], "profile": {},
            "card": {"uuid": "", "name": "", "memory": 0, "capability": [7, 5]}}  # fmt: skip
    (directory / "report.json").write_text(json.dumps(report.document(head, [report.Row("a.b", "", "", report.PASS)])))
    daemon = Daemon(made).start().ready()
    yield made
    daemon.stop()


def nested(values: dict[str, object]) -> dict[str, dict[str, object]]:
    result: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        result.setdefault(section, {})[key] = value
    return result


def call(node: nodes.SimulatedNode, verb: str, arguments: str, damaged: bool) -> subprocess.CompletedProcess[str]:
    """The verb on the node, or with damaged settings."""
    directory = node.directory
    files = {
        "source": directory / "source.yaml", "wrong": directory / "wrong.yaml", "peers": directory / "peers.json",
        "missing": directory / "missing", "hooks": directory / "hooks.d", "programs": node.hook.parent,
        "hook": node.hook, "cdi": directory / "cdi", "report": directory / "report.json",
        "pod": CHECKOUT / "packaging/kubernetes/examples/third-of-a-card.yaml",
    }  # fmt: skip
    program, *_ = node.vgpuctl_command()
    settings = str(directory / "damaged.json") if damaged else str(node.config)
    words = [program, "--config", settings, *verb.split(), *arguments.format(**files).split(), "--output", "json"]
    return subprocess.run(words, env=node.environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("verb", [*ORDER, *sorted(set(CALLS) - set(ORDER))])
def test_one_document_on_success_and_on_failure(node: nodes.SimulatedNode, verb: str) -> None:
    succeeding, status, failing = CALLS[verb]
    done = call(node, verb, succeeding, damaged=False)
    assert done.returncode == status or verb == "doctor", done.stdout + done.stderr
    json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    done = call(node, verb, failing, damaged=not verb.startswith("config") or verb == "config apply")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    if verb == "doctor":  # damaged settings are one of its findings
        assert "failure" in {item["status"] for item in found}
        return
    assert found["errors"]
    lines = done.stderr.splitlines()
    assert all(f"vgpuctl: {line}" in lines for line in found["errors"]), done.stderr
