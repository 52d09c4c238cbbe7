"""From a pod's limits to its container: kubelet's stand-in, the device plugin, grants, containerd 1.6, the hook.

Only kubelet and the GPU are simulated. The plugin is a process and answers on its sockets. The container prints what it
got, which the tests compare with its claim and its limits file.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import containerd_bed
import nodes
import oci_images
import pytest
import yaml
from daemons import wait_for
from kubelet import FAILED, Container, Kubelet, Pod, Spec
from kubelet_runtimes import CriRuntime
from plugin_process import Plugin

from vgpu.config import claims, grants
from vgpu.config.settings import DEFAULTS

pytestmark = pytest.mark.root

MIB = 1 << 20
UNIT = 256 * MIB
CORE, MEMORY, GPU = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "nvidia.com/gpu"
LIMIT = "tencent.com/vcuda-core-limit"
PATTERNS = ("vgpu.io/*", "tencent.com/*", "nvidia.com/*")
GRACE = 1
LOOK = ["sh", "-c", "cudaprobe info; sleep 86400"]
FORK: dict[str, object] = {
    "resources__core_name": "nvidia.com/vcuda-core",
    "resources__memory_name": "nvidia.com/vcuda-memory",
    "resources__memory_unit": MIB,
}
ORDERS = {"cores-first": sorted, "memory-first": lambda names: sorted(names, reverse=True)}


class GatedRuntime(CriRuntime):
    """Containers start only while `gate` is set, so a test can act between a pod's admission and its start."""

    def __init__(self, bed: containerd_bed.Containerd) -> None:
        super().__init__(bed)
        self.gate = threading.Event()
        self.gate.set()

    def start(self, sandbox: Any, container: Container, options: Any) -> str:
        self.gate.wait(60)
        return super().start(sandbox, container, options)


class Site:
    """A node with kubelet's stand-in, plugin and containerd. `settings` are those of the plugin's next start."""

    def __init__(self, node: nodes.SimulatedNode, bed: containerd_bed.Containerd) -> None:
        self.node, self.bed = node, bed
        self.runtime = GatedRuntime(bed)
        self.kubelet = Kubelet(node.directory / "kubelet", self.runtime)
        self.plugin = Plugin(node)
        self.resources: tuple[str, ...] = (CORE, MEMORY)

    def start(self) -> Site:
        self.kubelet.start()
        self.plugin.start()
        return self.ready()

    def ready(self) -> Site:
        try:
            self.kubelet.ready(*self.resources)
        except AssertionError:
            raise AssertionError(self.plugin.text()) from None
        return self

    def end(self) -> None:
        self.runtime.gate.set()
        self.plugin.kill()
        self.kubelet.end()

    def claim_of(self, pod: Pod, container: str = "c") -> claims.Claim:
        return claims.read(self.node.settings.run_dir, pod.statuses[container].id)

    def held(self) -> dict[str, int]:
        """The sum of the cores in living containers' claims, per card."""
        total: dict[str, int] = {}
        for path in Path(self.node.settings.run_dir, "containers").glob("*/claim.json"):
            for card in claims.read(self.node.settings.run_dir, path.parent.name).cards:
                total[card.uuid] = total.get(card.uuid, 0) + card.cores
        return total

    def node_boots_anew(self) -> None:
        """From now on the grants on disk are of an earlier boot. The real boot's id stays as it is."""
        for grant in self.grants():
            assert grant.boot_id
            grants.write(self.node.settings.state_dir, grants.changed(grant, boot_id=str(uuid.uuid4())))

    def grants(self) -> list[grants.Grant]:
        return grants.read_all(self.node.settings.state_dir)[0]


@pytest.fixture(scope="module")
def image(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("image") / "base.tar"
    return oci_images.write(base_trees["debian"], archive, containerd_bed.IMAGE, ["sleep", "86400"])


@pytest.fixture(scope="module")
def bed(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[containerd_bed.Containerd]:
    directory = tmp_path_factory.mktemp("node")
    sockets = directory / "node/kubelet"
    settings = {
        "plugin.socket_dir": str(sockets / "device-plugins"),
        "plugin.pod_resources_socket": str(sockets / "pod-resources/kubelet.sock"),
        "plugin.grant_grace": GRACE,
        "plugin.http": "",
        "metrics.listen": "",
        "kubernetes.api": "never",
    }
    node = nodes.SimulatedNode(directory / "node", "a100x2", **settings)
    node.take_inventory()
    made = containerd_bed.Containerd(directory / "bed", Path("/usr/bin"), node, patterns=PATTERNS)
    yield made.start(image)
    made.stop()


@pytest.fixture
def make_site(bed: containerd_bed.Containerd) -> Iterator[Callable[..., Site]]:
    """Makes a node that has never had a pod, with settings that may differ from the usual ones."""
    node = bed.node
    usual = dict(node.settings._values)
    made: list[Site] = []

    def make(**settings: object) -> Site:
        node.settings._values.update({name.replace("__", "."): value for name, value in settings.items()})
        node.write_settings()
        made.append(Site(node, bed))
        return made[-1]

    yield make
    for each in made:
        each.end()
    bed.remove_pods()
    node.settings._values.clear()
    node.settings._values.update(usual)
    node.write_settings()
    shutil.rmtree(Path(node.settings.state_dir) / "grants", ignore_errors=True)
    shutil.rmtree(node.directory / "kubelet", ignore_errors=True)
    left = remaining_claims(node)
    shutil.rmtree(Path(node.settings.run_dir, "containers"), ignore_errors=True)  # the next test has a node of its own
    assert left == {}, "every claim has ended with its container"


def remaining_claims(node: nodes.SimulatedNode) -> dict[str, str]:
    """The containers that have a directory, with their claims. No vgpud is here: a claim ends with its poststop."""
    directories = Path(node.settings.run_dir, "containers").glob("*")
    return {path.name: "\n".join(file.read_text() for file in path.glob("claim.json")) for path in directories}


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site().start()


def share(cores: int, units: int, name: str = "c", command: list[str] = LOOK) -> Container:
    return Container(name, {CORE: cores, MEMORY: units}, command)


def runs(pod: Pod, seconds: float = 60) -> Pod:
    wait_for(lambda: pod.running or pod.phase == FAILED, seconds, lambda: f"{pod.phase} {pod.message} {pod.events}")
    assert pod.running, f"{pod.message} {pod.events}"
    return pod


def ends(pod: Pod, seconds: float = 60) -> Pod:
    wait_for(lambda: pod.phase == "Succeeded", seconds, lambda: f"{pod.phase} {pod.message} {pod.events}")
    return pod


def seen(site: Site, pod: Pod, container: str = "c") -> dict[str, str]:
    """The container's output, as soon as there is any."""
    attempt = site.runtime._attempts[pod.statuses[container].id]
    wait_for(lambda: "nvml_total" in pod.sandbox.output(attempt), 120, "the container prints nothing")
    return dict(line.split(" ", 1) for line in pod.sandbox.output(attempt).splitlines() if " " in line)


def checked_card(site: Site, pod: Pod, cores: int, units: int, container: str = "c") -> str:
    """The card of a container. Asserts the requested amounts in its claim, its limits and its own output."""
    claim = site.claim_of(pod, container)
    assert claim.holder is not None
    assert (claim.holder.pod_uid, claim.holder.container) == (pod.uid, container)
    (card,) = claim.cards
    assert (card.cores, card.memory) == (cores, units * UNIT)
    found = seen(site, pod, container)
    assert found["cards"] == "1"
    assert {found["card0.total"], found["card0.nvml_total"]} == {str(units * UNIT)}
    return card.uuid


def event(pod: Pod, text: str, seconds: float = 30) -> str:
    """The first event of a pod with `text`."""
    wait_for(lambda: any(text in line for line in pod.events), seconds, f"no {text!r} in {pod.events}")
    return next(line for line in pod.events if text in line)


# The example pods


@pytest.mark.parametrize("order", ORDERS)
def test_half_a_card_with_a_limit_on_cores(make_site: Callable[..., Site], order: str) -> None:
    """With any order in which kubelet allocates the resources and merges the answers."""
    site = make_site()
    site.kubelet.order = ORDERS[order]
    site.start()
    pod = runs(site.kubelet.run(Spec([share(50, 8)], annotations={LIMIT: "80"})))
    checked_card(site, pod, 50, 8)
    (card,) = site.claim_of(pod).cards
    assert card.core_limit == 80
    assert sorted(grant.resource for grant in site.grants()) == ["cores", "memory"]


@pytest.mark.parametrize("memory", [{}, {MEMORY: 4}], ids=["cores-alone", "with-memory"])
def test_two_whole_cards(site: Site, memory: dict[str, int]) -> None:
    pod = runs(site.kubelet.run(Spec([Container("c", {CORE: 200, **memory}, LOOK)])))
    claim = site.claim_of(pod)
    assert claim.exclusive
    found = seen(site, pod)
    assert found["cards"] == "2"
    every = {card["uuid"][4:].replace("-", "") for card in site.node.read_cards()}
    assert {found["card0.uuid"], found["card1.uuid"]} == every
    assert int(found["card0.total"]) > 39 << 30, "no limit"


#: The nodes' settings for them, and (cores, memory, core limit) of each container. Without amounts: whole cards.
SHIPPED: dict[str, tuple[dict[str, object], list[tuple[int, int, int] | int]]] = {
    "half-a-card": (FORK, [(50, 2048, 50)]),
    "one-card": ({}, [1]),
    "third-of-a-card": ({}, [(30, 20 * 256, 30)]),
    "two-cards": (FORK, [2]),
    "two-containers": (FORK, [(20, 1000, 20), (20, 2000, 20)]),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_pods(make_site: Callable[..., Site], repository: Path, name: str) -> None:
    """They are as in their files, but for the image, and for commands other than the driver's programs."""
    settings, expected = SHIPPED[name]
    (document,) = yaml.safe_load_all((repository / f"packaging/kubernetes/examples/{name}.yaml").read_text())
    site = make_site(**settings)
    site.resources = tuple(str(site.node.settings[f"resources.{kind}_name"]) for kind in ("core", "memory"))
    site.start()
    containers = [shipped(item) for item in document["spec"]["containers"]]
    annotations = document["metadata"].get("annotations", {})
    pod = runs(site.kubelet.run(Spec(containers, annotations=annotations, name=document["metadata"]["name"])))
    for container, amounts in zip(containers, expected):
        claim = site.claim_of(pod, container.name)
        if isinstance(amounts, int):
            assert claim.exclusive and len(claim.cards) == amounts
        else:
            (card,) = claim.cards
            assert (card.cores, card.memory >> 20, card.core_limit) == amounts


def shipped(item: dict[str, Any]) -> Container:
    command = item.get("command", LOOK)
    limits = {key: int(value) for key, value in item["resources"]["limits"].items() if "/" in key}
    return Container(item["name"], limits, command if command[0].startswith("/usr/local/nvidia/") else LOOK)


def test_nvidia_smi_as_the_command(site: Site) -> None:
    """0.3 card and 20 x 256 MiB."""
    spec = Spec([share(30, 20, command=["/usr/local/nvidia/bin/nvidia-smi"])], restart="Never")
    assert "5120MiB" in ends(site.kubelet.run(spec)).output()


def test_units_of_nvidia_com_gpu(make_site: Callable[..., Site]) -> None:
    site = make_site(resources__mode="gpu")
    site.resources = (GPU,)
    site.start()
    assert site.kubelet.devices.allocatable() == {GPU: 4}
    one = runs(site.kubelet.run(Spec([Container("c", {GPU: 1}, LOOK)])))
    two = runs(site.kubelet.run(Spec([Container("c", {GPU: 2}, LOOK)])))
    (half,) = site.claim_of(one).cards
    assert half.cores == 50
    assert int(seen(site, one)["card0.total"]) == half.memory
    whole = int(site.node.read_cards()[0]["memory_total"]) if "memory_total" in site.node.read_cards()[0] else 40 << 30
    assert half.memory <= whole // 2
    assert seen(site, two)["cards"] == "2"
    assert len({card.uuid for card in site.claim_of(two).cards}) == 2


# Look-alikes


def test_lookalikes_started_at_the_same_moment_each_get_their_own(site: Site) -> None:
    """Amounts differ by one unit, so a mixed-up grant is visible. A card is never committed twice."""
    chance = random.Random(5)
    asked = [(chance.randint(5, 14), chance.randint(2, 6)) for _ in range(14)]
    with ThreadPoolExecutor(len(asked)) as pool:
        pods = list(pool.map(lambda amounts: site.kubelet.run(Spec([share(*amounts)])), asked))
    for pod in pods:
        runs(pod)
    for pod, (cores, units) in zip(pods, asked):
        checked_card(site, pod, cores, units)
    held = site.held()
    assert sum(held.values()) == sum(cores for cores, _ in asked)
    assert max(held.values()) <= 100


def test_containers_of_one_pod_do_not_mix_up_theirs(site: Site) -> None:
    pod = runs(site.kubelet.run(Spec([share(10, 4, "a"), share(20, 2, "b"), share(10, 3, "d")])))
    for name, cores, units in (("a", 10, 4), ("b", 20, 2), ("d", 10, 3)):
        checked_card(site, pod, cores, units, name)


# Restarts


def test_init_containers_hand_their_devices_on(site: Site) -> None:
    """Two pods fill both cards, each with an init container as large as its successor. No amount counts twice."""
    init = share(80, 80, "prepare", ["sh", "-c", "cudaprobe info"])
    pods = [site.kubelet.run(Spec([share(80, 80)], [init])) for _ in range(2)]
    cards = {checked_card(site, runs(pod), 80, 80) for pod in pods}
    assert len(cards) == 2
    for pod in pods:
        assert str(80 * UNIT) in pod.output("prepare")
    rest = [runs(site.kubelet.run(Spec([share(20, 20)]))) for _ in range(2)]
    assert {checked_card(site, pod, 20, 20) for pod in rest} == cards


def test_a_container_that_starts_again_has_the_same_card(site: Site) -> None:
    pod = runs(site.kubelet.run(Spec([share(30, 4)])))
    card = checked_card(site, pod, 30, 4)
    other = runs(site.kubelet.run(Spec([share(60, 4)])))
    asked = site.kubelet.devices.allocations
    site.runtime.kill(pod.sandbox, pod.statuses["c"].id)
    wait_for(lambda: pod.statuses["c"].started == 2 and pod.running, 120, str(pod.events))
    assert checked_card(site, pod, 30, 4) == card
    assert checked_card(site, other, 60, 4)
    assert site.kubelet.devices.allocations == asked


def test_the_plugin_dies_between_allocate_and_the_start(site: Site) -> None:
    site.runtime.gate.clear()
    pod = site.kubelet.run(Spec([share(30, 4)]))
    assert pod.active
    site.plugin.kill()
    wait_for(lambda: site.kubelet.devices.allocatable() == {CORE: 0, MEMORY: 0})
    site.plugin.start()
    site.ready()
    site.runtime.gate.set()
    checked_card(site, runs(pod), 30, 4)
    checked_card(site, runs(site.kubelet.run(Spec([share(31, 5)]))), 31, 5)


def test_kubelet_restarts(site: Site) -> None:
    """The plugin registers again by itself. Running containers are left alone, and restart with the same cards."""
    pod = runs(site.kubelet.run(Spec([share(30, 4)])))
    card, life = checked_card(site, pod, 30, 4), pod.statuses["c"].id
    site.kubelet.restart()
    site.ready()
    assert site.plugin.alive
    assert pod.statuses["c"].id == life
    site.runtime.kill(pod.sandbox, life)
    wait_for(lambda: pod.statuses["c"].id != life and pod.running, 120, str(pod.events))
    assert checked_card(site, pod, 30, 4) == card
    other = runs(site.kubelet.run(Spec([share(70, 4), share(40, 5, "d")])))
    checked_card(site, other, 70, 4)
    checked_card(site, other, 40, 5, "d")
    assert max(site.held().values()) <= 100


def test_the_node_reboots(site: Site) -> None:
    """Containers and /run are gone. kubelet's checkpoint and the grants remain, and containers get their own again.

    The power goes for all at once. A plugin that lived on would see that kubelet is away and that the pods' cgroups are
    gone, in the boot that stands in the grants, which proves that the pods are over.
    """
    asked = [(60, 8), (30, 4), (70, 7), (20, 2)]
    pods = [runs(site.kubelet.run(Spec([share(*amounts)]))) for amounts in asked]
    cards = [checked_card(site, pod, *amounts) for pod, amounts in zip(pods, asked)]
    allocations = site.kubelet.devices.allocations
    site.plugin.kill()
    site.kubelet.power_off()
    site.node_boots_anew()
    shutil.rmtree(site.node.settings.run_dir)
    site.node.take_inventory()
    site.kubelet.start()
    site.plugin.start()
    site.ready()
    site.kubelet.resume()
    for pod, amounts, card in zip(pods, asked, cards):
        assert checked_card(site, runs(pod), *amounts) == card
    assert site.kubelet.devices.allocations == 0 < allocations


# Tenants' attempts, and full cards


@pytest.mark.parametrize("handler", ["base", "dropped"])
def test_another_pods_grants_are_refused(site: Site, handler: str) -> None:
    """They are in the environment or in the pod's annotations, with own grants or without."""
    site.runtime.handler = handler
    victim = runs(site.kubelet.run(Spec([share(30, 4)])))
    stolen = {grant.resource: grant.id for grant in site.grants()}
    env = [(grants.ENVIRONMENT[name], id) for name, id in stolen.items()]
    annotations = {grants.ANNOTATIONS[name]: id for name, id in stolen.items()}
    thief = site.kubelet.run(Spec([Container("c", {}, LOOK, env)]))
    assert victim.uid in event(thief, "vgpu-hook: ")
    both = site.kubelet.run(Spec([Container("c", {CORE: 10, MEMORY: 2}, LOOK, env)], annotations=annotations))
    if handler == "base":
        checked_card(site, runs(both), 10, 2)  # the container's own annotation counts
    else:
        assert victim.uid in event(both, "vgpu-hook: ")  # its env comes last, as with kubelet
        assert not both.running
    assert not thief.running
    checked_card(site, victim, 30, 4)


def test_a_pods_annotations_are_no_grants(site: Site) -> None:
    victim = runs(site.kubelet.run(Spec([share(30, 4)])))
    stolen = {grants.ANNOTATIONS[grant.resource]: grant.id for grant in site.grants()}
    script = ["sh", "-c", "ls /dev; sleep 86400"]
    thief = site.kubelet.run(Spec([Container("c", {}, script)], annotations=stolen))
    wait_for(lambda: thief.running or thief.events, 120)
    assert not thief.running or "nvidia" not in thief.sandbox.output()
    checked_card(site, victim, 30, 4)


def test_a_full_node_reports_it_and_starts_the_pod_later(site: Site) -> None:
    """Enough units are free, but on two cards. kubelet does not see that, the hook does."""
    first, second = (runs(site.kubelet.run(Spec([share(60, 4)]))) for _ in range(2))
    late = site.kubelet.run(Spec([share(70, 4)]))
    line = event(late, "vgpu-hook: allocation")
    for card in site.node.read_cards():
        assert card["uuid"] in line
    assert "40 cores free" in line
    assert late.active
    assert not late.running
    site.kubelet.delete(first)
    checked_card(site, runs(late, 90), 70, 4)
    checked_card(site, second, 60, 4)


def test_memory_of_two_whole_cards(site: Site) -> None:
    """Only the hook sees cores and memory together. The same memory is too much for a share or one whole card."""
    for cores in (30, 100):
        pod = site.kubelet.run(Spec([Container("c", {CORE: cores, MEMORY: 161}, LOOK)]))
        assert "MiB in all" in event(pod, "vgpu-hook: allocation: no card fits 1 card")
        site.kubelet.delete(pod)
    pod = runs(site.kubelet.run(Spec([Container("c", {CORE: 200, MEMORY: 320}, LOOK)])))
    run_dir = site.node.settings.run_dir
    (claim,) = [claims.read(run_dir, name) for name in os.listdir(f"{run_dir}/containers")]
    assert claim.exclusive
    assert {card.uuid for card in claim.cards} == {card["uuid"] for card in site.node.read_cards()}


def test_what_the_node_can_never_serve_is_refused(site: Site) -> None:
    pod = site.kubelet.run(Spec([Container("c", {CORE: 150, MEMORY: 4}, LOOK)]))
    assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "code = InvalidArgument" in pod.message or "code = " in pod.message
    assert "150" in pod.message
    later = runs(site.kubelet.run(Spec([share(30, 4)])))
    checked_card(site, later, 30, 4)


def test_cores_without_memory_do_not_start(site: Site) -> None:
    pod = site.kubelet.run(Spec([Container("c", {CORE: 30}, LOOK)]))
    assert "memory" in event(pod, "vgpu-hook: ")
    assert pod.active


# The end of grants


@pytest.mark.parametrize("restart", ["Always", "Never"])
@pytest.mark.parametrize("end", ["deleted", "ended"])
def test_whole_cards_start_once_the_shares_pods_are_over(
    make_site: Callable[..., Site], end: str, restart: str
) -> None:
    """kubelet has their units back, so nothing that the plugin still has to learn may refuse the next pod."""
    site = make_site(plugin__grant_grace=DEFAULTS["plugin.grant_grace"]).start()
    command = ["sh", "-c", "cudaprobe info; sleep 1"] if end == "ended" else LOOK
    shares = [site.kubelet.run(Spec([share(60, 4, command=command)], restart="Never")) for _ in range(2)]
    for pod in shares:
        wait_for(lambda pod=pod: pod.statuses["c"].started, 60, f"{pod.events}")
        if end == "ended":
            ends(pod)
        else:
            site.kubelet.delete(pod)
    whole = runs(site.kubelet.run(Spec([Container("c", {CORE: 200}, LOOK)], restart=restart)), 30)
    assert seen(site, whole)["cards"] == "2"
    assert whole.events == []


def test_a_crash_loop_keeps_its_share(make_site: Callable[..., Site]) -> None:
    """The pod's cgroup is there between two lives of its container. A pod that wants the room waits."""
    site = make_site(plugin__grant_grace=DEFAULTS["plugin.grant_grace"]).start()
    crash = runs(site.kubelet.run(Spec([share(60, 4, command=["sh", "-c", "cudaprobe info; sleep 1; exit 1"])])))
    card = site.claim_of(crash).cards[0].uuid
    other = runs(site.kubelet.run(Spec([share(60, 4)])))
    greedy = site.kubelet.run(Spec([share(70, 4)]))
    status = crash.statuses["c"]
    for started in range(2, 6):
        wait_for(lambda started=started: status.started >= started and crash.running, 120, f"{crash.events}")
        assert not greedy.running
    assert crash.events == []
    assert checked_card(site, other, 60, 4) != card
    site.kubelet.delete(crash)
    assert checked_card(site, runs(greedy, 30), 70, 4) == card


def test_grants_end_with_their_pod_and_not_before(site: Site) -> None:
    """They do not end while kubelet is silent, while the plugin restarts, or while a container is restarted."""
    kept = runs(site.kubelet.run(Spec([share(30, 4)])))
    gone = runs(site.kubelet.run(Spec([share(20, 2)])))
    mine = set(site.claim_of(kept).grants)
    theirs = set(site.claim_of(gone).grants)
    site.kubelet.delete(gone)
    wait_for(lambda: not theirs & {grant.id for grant in site.grants()}, 60, site.plugin.text())
    assert {grant.id for grant in site.grants()} == mine
    site.kubelet.stop()
    site.plugin.kill()
    site.plugin.start()
    threading.Event().wait(15)  # more than a round of the plugin, without kubelet
    assert {grant.id for grant in site.grants()} == mine
    site.kubelet.start()
    site.ready()
    site.kubelet.resume()
    threading.Event().wait(12)
    assert {grant.id for grant in site.grants()} == mine
    checked_card(site, kept, 30, 4)


def test_an_init_containers_grants_live_as_long_as_it_may_start(site: Site) -> None:
    """kubelet's pod-resources service does not list init containers. Their grants must not count as orphans."""
    init = share(30, 4, "prepare", ["sh", "-c", "cudaprobe info; sleep 86400"])
    site.runtime.gate.clear()
    pod = site.kubelet.run(Spec([Container("c", {}, ["sleep", "86400"])], [init]))
    threading.Event().wait(14)  # a slow image, longer than the grace period
    site.runtime.gate.set()
    wait_for(lambda: pod.statuses["prepare"].running, 120, f"{pod.events}")
    threading.Event().wait(14)
    site.runtime.kill(pod.sandbox, pod.statuses["prepare"].id)
    wait_for(lambda: pod.statuses["prepare"].started == 2, 120, f"{pod.events}")
    checked_card(site, pod, 30, 4, "prepare")


def test_no_secret_in_the_plugins_log(site: Site) -> None:
    """A reader of the log must not be able to claim a grant that is not claimed yet."""
    runs(site.kubelet.run(Spec([share(30, 4)])))
    ids = [grant.id for grant in site.grants()]
    assert ids
    assert not [id for id in ids if re.search(id, site.plugin.text())]
