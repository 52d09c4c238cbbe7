"""The commands in the documents: the fenced `sh` blocks of each page, and the `text` blocks with what they print.

Belongs here: finding the blocks, what a reader without a GPU adds to them, and which of them no test types, with the
reason. Does not belong here: the machine on which they are typed (docs_node.sh), and the test
(tests/system/test_docs_commands.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from checkout import CHECKOUT

START = "docs/start-without-kubernetes.md"
#: The pages that are typed on one machine, in the order in which a reader comes to them.
PAGES = (
    "README.md", START, "docs/start-kubernetes-packages.md", "docs/runtimes.md",
    "docs/requests.md", "docs/sizing.md", "docs/commands.md", "docs/configuration.md", "docs/dialects.md",
    "docs/kubernetes.md", "docs/coexistence.md", "docs/card-health.md", "docs/cgroups.md", "docs/troubleshooting.md",
    "docs/packages.md",
)  # fmt: skip
#: (page, the beginning of a block) -> why no test types the block on that machine.
NOT_TYPED = {
    ("README.md", "make demo"): "the demonstration and all tests run by themselves",
    ("docs/benchmarks.md", "make bench"): "takes minutes; tests/component/bench runs its parts",
    ("docs/start-kubernetes.md", ""): "needs a cluster: test_plugin_cluster_node types the page in one",
    ("docs/start-kubernetes-packages.md", "kubectl"): "needs a cluster: test_plugin_cluster types it in one",
    (
        "docs/start-kubernetes-packages.md",
        "vgpuctl status\nvgpuctl set",
    ): "needs that pod: test_plugin_cluster types it",
    ("docs/chart.md", ""): "needs a cluster: test_chart_cluster types the page in one",
    ("docs/removal.md", ""): "needs a cluster: test_chart_cluster types the page in one",
    ("docs/kubernetes.md", "curl"): "needs systemd: test_plugin_unit types it there",
    ("docs/kubernetes.md", "kubectl apply"): "needs a cluster; test_chart builds the folder by kubectl",
    ("docs/cgroups.md", "systemctl show"): "needs a container below systemd: test_cgroup_matrix types it there",
    ("docs/repository.md", ""): "needs a key, and dnf and zypper: test_repository types the page",
    ("docs/packages.md", "ctr -n k8s.io images"): "needs three images, half a minute each, and a registry; "
    "test_images builds them and loads them into podman",
    ("docs/selftest.md", "kubectl"): "needs a cluster: test_plugin_cluster_node types it in one",
    ("docs/selftest.md", ""): "takes minutes: test_selftest and test_selftest_bare run it",
    ("docs/cgroups.md", "bpftool"): "a program that make setup does not install",
}
#: The lines that say how containers of which programs have simulated cards.
_MOUNTS = re.compile(r"^([a-z, ]+): (--.*) IMAGE$", re.MULTILINE)
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of `page`: `kind` is sh or text."""

    page: str
    kind: str
    text: str

    def reason(self) -> str:
        """Why nobody types it, or ""."""
        found = [why for (page, begin), why in NOT_TYPED.items() if page == self.page and self.text.startswith(begin)]
        return found[0] if found else ""


def documents() -> list[str]:
    """The documents with commands for users. Decisions record what was done once."""
    paths = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
    return [str(path.relative_to(CHECKOUT)) for path in paths]


def blocks(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    text = Path(CHECKOUT, page).read_text(encoding="utf-8")
    return [Block(page, kind, body) for kind, body in _BLOCK.findall(text)]


def mounts() -> dict[str, str]:
    """Runtime's program -> the mount of the simulated cards, which its reader is told to write before IMAGE."""
    found = _MOUNTS.findall(Path(CHECKOUT, START).read_text(encoding="utf-8"))
    return {program: mount for programs, mount in found for program in programs.split(", ")}
