"""Scrapes while something is wrong on the node: garbage in usage regions, containers that vanish, NVML that fails."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from container_site import GIB, MIB, Site
from daemons import wait_for
from prometheus_client.parser import text_string_to_metric_families

from vgpu.config import inventory, rounds
from vgpu.config.inventory import nvml_of
from vgpu.plugin.exporter.server import Exporter

pytestmark = pytest.mark.root

Start = Callable[..., str]
Series = dict[str, dict[str, float]]
LIMIT = "vgpu_container_memory_limit_bytes"
REPORTED = "vgpu_container_reported_memory_used_bytes"
CARD_USED = "vgpu_card_memory_used_bytes"
#: The region comes first. The files beside it, which are there for locks, fill up the rest of the file system.
GARBAGE = "for f in /usr/local/vgpu/usage/*; do head -c 300000 /dev/urandom > $f || :; done"
#: A libnvidia-ml.so.1 whose every call fails, or never returns.
BROKEN_NVML = """
#include <unistd.h>
int nvmlInit_v2(void) { %s }
const char *nvmlErrorString(int error) { (void)error; return "broken"; }
"""


@pytest.fixture
def exporter(site: Site) -> Iterator[Exporter]:
    site.start_daemon()
    wait_for((site.node.run_dir / "metrics/round.json").exists, what=site.daemon.text())
    found = Exporter(site.node.settings, "127.0.0.1:0")
    yield found
    found.close()


@pytest.fixture
def start(site: Site) -> Start:
    """Starts a container that holds 100 MiB. Returns its id."""
    tree = site.tree()
    return lambda: site.start(site.bundle(tree, cores="10", memory="1Gi"), "cudaprobe", "hold", "100", "/end")


def scrape(exporter: Exporter) -> Series:
    """The values by name, and by container or card. A failed scrape, or one that cannot be read, is an error."""
    with urllib.request.urlopen(f"http://{exporter.address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.labels.get("container") or sample.labels.get("uuid") or ""
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def shows(exporter: Exporter, name: str, *keys: str) -> bool:
    return set(keys) <= scrape(exporter).get(name, {}).keys()


def test_garbage_in_a_usage_region_hides_no_other_container(site: Site, start: Start, exporter: Exporter) -> None:
    liar, honest = start(), start()
    wait_for(lambda: shows(exporter, REPORTED, liar, honest), what=site.daemon.text())
    for _ in range(5):
        site.execute(liar, "sh", "-c", GARBAGE)
        site.daemon.rounds(1)
        found = scrape(exporter)
        assert found["vgpu_vgpud_up"][""] == 1
        assert found[LIMIT] == {liar: GIB, honest: GIB}
        assert 100 * MIB <= found[REPORTED][honest] < GIB
    assert len(scrape(exporter)[CARD_USED]) == len(site.node.read_cards()), "cards of one name are told apart"


def test_containers_that_vanish_leave_no_series_and_no_descriptors(
    site: Site, start: Start, exporter: Exporter
) -> None:
    stays = start()
    wait_for(lambda: shows(exporter, REPORTED, stays), what=site.daemon.text())
    process = psutil.Process(site.daemon.pid)
    before = process.num_fds()
    for _ in range(6):
        ended = [start() for _ in range(2)]
        for container in ended:
            os.kill(site.pid(container), 9)
            assert scrape(exporter)[LIMIT][stays] == GIB
            site.delete(container)
    wait_for(lambda: scrape(exporter)[LIMIT].keys() == {stays}, what=site.daemon.text())
    site.daemon.rounds(2)
    wait_for(lambda: process.num_fds() <= before + 2, what=lambda: str(process.open_files()))


@pytest.mark.parametrize("call", ["return 999;", "for (;;) pause();"], ids=["error", "hang"])
def test_the_rest_is_exported_when_nvml_fails(
    site: Site, start: Start, exporter: Exporter, tmp_path: Path, call: str
) -> None:
    """vgpud's workers load the library anew, so they meet the broken one."""
    container = start()
    wait_for(lambda: shows(exporter, REPORTED, container), what=site.daemon.text())
    wait_for(lambda: CARD_USED in scrape(exporter), what=site.daemon.text())
    path = nvml_of(inventory.read(site.node.settings.run_dir).libraries)
    source, broken = tmp_path / "broken.c", tmp_path / "broken.so"
    source.write_text(BROKEN_NVML % call, encoding="ascii")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", broken, source], check=True)
    os.replace(broken, os.path.realpath(path))
    count = rounds.read(site.node.settings.run_dir)["vgpud"]["rounds"]  # type: ignore[index]
    wait_for(lambda: CARD_USED not in scrape(exporter), 150, site.daemon.text)
    found = scrape(exporter)
    assert rounds.read(site.node.settings.run_dir)["vgpud"]["rounds"] > count  # type: ignore[index]
    assert found["vgpu_vgpud_up"][""] == 1
    assert found[LIMIT] == {container: GIB}
    assert 100 * MIB <= found[REPORTED][container] < GIB
    assert len(found["vgpu_card_memory_bytes"]) == len(site.node.read_cards())
