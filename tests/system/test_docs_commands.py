"""The commands of the documents, typed in a reader's order on one machine with the built package.

Belongs here: what a reader without a GPU types, and that it prints what the page shows. The packages are the
fixture's, and IMAGE is a root file system, because no registry can be reached. All else runs as it is printed, and
nothing besides.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cgroup_trees
import docs_commands
import oci_images
import pytest
import roots
import suites
import trees
from checkout import BUILD, CHECKOUT

pytestmark = pytest.mark.root

SCRIPT = CHECKOUT / "tests/beds/docs_node.sh"
MARK = "@@@@ "
TIMEOUT = 1200  #: seconds, for a machine with much else to do
IMAGE = "vgpu-test.local/image:1"
#: What a page needs before its first command.
BEFORE = {
    docs_commands.START: "image_of_containerd; image_of_docker",
    "docs/dialects.md": "files_of_peers",
    "docs/card-health.md": "touch /run/vgpu/health.json",
}


@pytest.fixture(scope="module")
def printed(deb: Path, cudaprobe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """page -> what its commands printed. All pages are typed once, on one machine."""
    directory = tmp_path_factory.mktemp("docs")
    rootfs = trees.make("debian", directory / "rootfs", {"cudaprobe": cudaprobe})
    image = oci_images.write(rootfs, directory / "image.tar", IMAGE, ["true"])
    (directory / "commands").write_text("\n".join(typed(rootfs)) + "\n")
    (directory / "overlay").mkdir()
    docker = f"{suites.unpack('trixie', 'docker.io')}/usr/sbin:{suites.unpack('trixie', 'docker-cli')}/usr/bin"
    command = [
        "unshare", "-m", "-p", "-f", "--kill-child", "sh", SCRIPT, deb.parent, directory / "overlay", CHECKOUT,
        BUILD, image, docker, directory / "commands", roots.node(), roots.CACHE,
    ]  # fmt: skip
    output = directory / "output"
    with output.open("wb") as stream, cgroup_trees.own() as enter:
        done = subprocess.run(
            [*enter, *command], stdout=stream, stderr=stream, check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL
        )
    parts = re.split(rf"^{MARK}(.*)\n", output.read_text(), flags=re.MULTILINE)
    assert done.returncode == 0, parts[-1][-6000:]
    yield dict(zip(parts[1::2], parts[2::2]))


def typed(rootfs: Path) -> Iterator[str]:
    """The lines of the script: the pages' commands, with the mount of the cards that their reader is told to write."""
    mounts = docs_commands.mounts()
    images = {
        "podman": f"{mounts['podman']} --rootfs {rootfs}",
        "docker": f"{mounts['docker']} --network=host {IMAGE}",
        "ctr": f"{mounts['ctr']} {IMAGE}",
    }
    for page in docs_commands.PAGES:
        yield f"{{ set +x; }} 2>/dev/null; echo '{MARK}{page}'; {BEFORE.get(page, ':')}; set -x"
        for block in docs_commands.blocks(page):
            if block.kind == "sh" and not block.reason():
                for line in block.text.splitlines():
                    yield line.replace("IMAGE", images.get(line.split(" ")[0], "IMAGE"))
    yield f"echo '{MARK}end'"


@pytest.mark.parametrize("page", docs_commands.PAGES)
def test_a_page_prints_what_it_shows(printed: dict[str, str], page: str) -> None:
    output = {masked(line) for line in printed[page].splitlines()}
    typed_last = False
    for block in docs_commands.blocks(page):
        if block.kind == "sh":
            typed_last = not block.reason()
        elif typed_last:
            missing = [line for line in block.text.splitlines() if not any(masked(line) in one for one in output)]
            assert not missing, printed[page]


def masked(line: str) -> str:
    """A line without what differs from run to run: ids, times, widths of columns."""
    line = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", line)
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", "TIME", line)
    return " ".join(re.sub(r"-{3,}", "---", line).split())


def test_a_container_sees_its_share(printed: dict[str, str]) -> None:
    seen = re.findall(r"0MiB / +8192MiB", printed[docs_commands.START])
    assert len(seen) == 4  # podman, Docker with an annotation and with a share of its own, containerd


COMMANDS = "docs/commands.md"
ROW = re.compile(r"^\| `([a-z ]+)` \| (.*) \|$", re.MULTILINE)


def test_json_has_the_documented_keys(printed: dict[str, str]) -> None:
    table = (CHECKOUT / COMMANDS).read_text(encoding="utf-8").split("| verb | keys |")[1]
    shown = re.split(r"^\+ vgpuctl (.*)$", printed[COMMANDS], flags=re.MULTILINE)
    outputs = dict(zip(shown[1::2], shown[2::2]))
    checked = 0
    for verb, row in ROW.findall(table):
        calls = (call for call in outputs if call.startswith(f"{verb} ") and call.endswith(" --output json"))
        output = outputs.get(next(calls, ""))
        if output is not None:
            begin = min(at for at in map(output.find, ("[\n", "{\n")) if at >= 0)
            value = json.JSONDecoder().raw_decode(output[begin:])[0]
            assert documented(row, value) <= keys(value), verb
            checked += 1
    assert checked >= 10


def documented(row: str, value: object) -> set[str]:
    """The keys in a row of the table, without those in objects of which the node has none now."""
    for name, within in re.findall(r"`(\w+)` (\([^)]*\))", row):
        if isinstance(value, dict) and not value.get(name):
            row = row.replace(within, "")
    return set(re.findall(r"`([a-z_]+)`", row)) - {"health"}


def keys(value: object) -> set[str]:
    """All keys in a JSON value."""
    if isinstance(value, dict):
        return {str(key) for key in value} | {key for item in value.values() for key in keys(item)}
    return {key for item in value for key in keys(item)} if isinstance(value, list) else set()
