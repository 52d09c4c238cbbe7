"""From a pod's limits to its container: kubelet's stand-in, the device plugin, grants, containerd 1.6, the hook.

Only kubelet and the GPU are simulated. The plugin is a process and answers on its sockets. The container prints what it
got, which the tests compare with its claim and its limits file.
"""

from __future__ import annotations

import random
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import containerd_bed
import nodes
import pytest
from container_site import MIB
from daemons import wait_for
from kubelet import Container
from pod_site import (
    CORE,
    EXAMPLES,
    LOOK,
    MEMORY,
    SHIPPED,
    UNIT,
    GatedRuntime,
    PodSite,
    ends,
    event,
    forget,
    plugin_settings,
    runs,
    share,
)

from vgpu.config import grants
from vgpu.config.settings import DEFAULTS

pytestmark = pytest.mark.root

LIMIT = "tencent.com/vcuda-core-limit"
PATTERNS = ("vgpu.io/*", "tencent.com/*", "nvidia.com/*")
DEFAULT_GRACE = {"plugin.grant_grace": DEFAULTS["plugin.grant_grace"]}
ORDERS = {"cores-first": sorted, "memory-first": lambda names: sorted(names, reverse=True)}
MakeSite = Callable[..., PodSite]


@pytest.fixture(scope="module")
def bed(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[containerd_bed.Containerd]:
    directory = tmp_path_factory.mktemp("node")
    settings = plugin_settings(directory / "node/kubelet", **{"plugin.grant_grace": 1})
    node = nodes.SimulatedNode(directory / "node", "a100x2", **settings)
    node.take_inventory()
    made = containerd_bed.Containerd(directory / "bed", Path("/usr/bin"), node, patterns=PATTERNS)
    yield made.start(image)
    made.stop()


@pytest.fixture
def make_site(bed: containerd_bed.Containerd) -> Iterator[MakeSite]:
    """Makes a node that has never had a pod, with settings that may differ from the usual ones."""
    node = bed.node
    usual = dict(node.settings._values)
    made: list[PodSite] = []

    def make(**settings: object) -> PodSite:
        node.change_settings(**settings)
        made.append(PodSite(node, GatedRuntime(bed), node.directory / "kubelet"))
        return made[-1]

    yield make
    for each in made:
        each.end()
    bed.remove_pods()
    node.settings._values.clear()
    node.change_settings(**usual)
    shutil.rmtree(node.directory / "kubelet", ignore_errors=True)
    forget(node)


@pytest.fixture
def site(make_site: MakeSite) -> PodSite:
    return make_site().start()


def node_boots_anew(site: PodSite) -> None:
    """From now on the grants on disk are of an earlier boot. The real boot's id stays as it is."""
    for grant in site.node.grants():
        assert grant.boot_id
        grants.write(site.node.settings.state_dir, grants.changed(grant, boot_id=str(uuid.uuid4())))


# The example pods


@pytest.mark.parametrize("order", ORDERS)
def test_half_a_card_with_a_limit_on_cores(make_site: MakeSite, order: str) -> None:
    """With any order in which kubelet allocates the resources and merges the answers."""
    site = make_site()
    site.kubelet.order = ORDERS[order]
    site.start()
    pod = site.runs(share(50, 8), annotations={LIMIT: "80"})
    site.checked(pod, "c", [(8 * UNIT // MIB, 50, 80)])
    assert sorted(grant.resource for grant in site.node.grants()) == ["cores", "memory"]


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_the_shipped_pods(make_site: MakeSite, name: str) -> None:
    """They are as in their files, but for the image and the commands."""
    make_site(**SHIPPED[name][0]).start().check_example(name)


@pytest.fixture
def divided(bed: containerd_bed.Containerd) -> Iterator[None]:
    """The node's second card in MIG mode."""
    bed.node.divide(1, "3g.20gb", "1g.5gb")
    bed.node.take_inventory()
    yield
    nodes.simctl().set_mig(str(bed.node.sim), 1, False)
    bed.node.show_layout()
    bed.node.take_inventory()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_pods_beside_instances(make_site: MakeSite, divided: None, name: str) -> None:
    """Those that need two cards are refused: there is one whole card."""
    settings, containers = SHIPPED[name]
    site = make_site(**settings).start()
    if max(map(len, containers.values())) == 1:
        site.check_example(name)
    else:
        assert "only 1 of 3 cards fits 2 cards" in event(site.run_example(name), "UnexpectedAdmissionError")


def test_whole_instances_by_the_resources_of_their_profiles(make_site: MakeSite, divided: None) -> None:
    """kubelet counts each instance once. One that is divided anew is another resource."""
    site = make_site(**{"resources.mig_strategy": "mixed"}).start()
    node, three, two = site.node, "nvidia.com/mig-3g.20gb", "nvidia.com/mig-2g.10gb"
    assert site.kubelet.ready(three).devices.allocatable()[CORE] == 100
    pod = site.runs(Container("c", {three: 1}, LOOK))
    size = node.instances()["3g.20gb"].memory
    claim = site.checked(pod, "c", [(size // MIB, 100, 100)])
    assert [card.uuid for card in claim.cards] == [node.instances()["3g.20gb"].uuid]
    assert abs(int(site.seen(pod)["card0.total"]) - size) < 1024 * MIB, "but for what the driver keeps"
    assert site.checked_card(site.runs(share(60, 4)), 60, 4) not in {card.uuid for card in node.instances().values()}
    assert "UnexpectedAdmissionError" in event(site.run(Container("c", {three: 1})), "UnexpectedAdmissionError")
    assert "UnexpectedAdmissionError" in event(site.run(share(60, 4)), "UnexpectedAdmissionError")
    node.destroy(1, int(node.instances()["1g.5gb"].names[1].split("/")[1]))
    node.divide(1, "2g.10gb")
    node.take_inventory()
    again = site.kubelet.ready(two) and site.runs(Container("c", {two: 1}, LOOK))
    assert [card.uuid for card in site.claim(again).cards] == [node.instances()["2g.10gb"].uuid]
    assert site.claim(pod).container == claim.container, "the first runs on"
    held = {grant.resource: grant.amount for grant in node.grants() if grant.holder}
    assert held == {"mig": 1, "cores": 60, "memory": 4 * UNIT}


def test_nvidia_smi_as_the_command(site: PodSite) -> None:
    """0.3 card and 20 x 256 MiB."""
    pod = site.run(share(30, 20, command=["/usr/local/nvidia/bin/nvidia-smi"]), restart="Never")
    assert "5120MiB" in ends(pod).output()


# Look-alikes


def test_lookalikes_started_at_the_same_moment_each_get_their_own(site: PodSite) -> None:
    """Amounts differ by one unit, so a mixed-up grant is visible. A card is never committed twice."""
    chance = random.Random(5)
    asked = [(chance.randint(5, 14), chance.randint(2, 6)) for _ in range(14)]
    with ThreadPoolExecutor(len(asked)) as pool:
        pods = list(pool.map(lambda amounts: site.run(share(*amounts)), asked))
    for pod in pods:
        runs(pod)
    for pod, (cores, units) in zip(pods, asked):
        site.checked_card(pod, cores, units)
    held = site.held()
    assert sum(held.values()) == sum(cores for cores, _ in asked)
    assert max(held.values()) <= 100


# Restarts


def test_init_containers_hand_their_devices_on(site: PodSite) -> None:
    """Two pods fill both cards, each with an init container as large as its successor. No amount counts twice."""
    init = share(80, 80, "prepare", ["sh", "-c", "cudaprobe info"])
    pods = [site.run(share(80, 80), inits=[init]) for _ in range(2)]
    cards = {site.checked_card(runs(pod), 80, 80) for pod in pods}
    assert len(cards) == 2
    for pod in pods:
        assert str(80 * UNIT) in pod.output("prepare")
    rest = [site.runs(share(20, 20)) for _ in range(2)]
    assert {site.checked_card(pod, 20, 20) for pod in rest} == cards


def test_a_container_that_starts_again_has_the_same_card(site: PodSite) -> None:
    pod = site.runs(share(30, 4))
    card = site.checked_card(pod, 30, 4)
    other = site.runs(share(60, 4))
    asked = site.kubelet.devices.allocations
    site.runtime.kill(pod.sandbox, pod.statuses["c"].id)
    wait_for(lambda: pod.statuses["c"].started == 2 and pod.running, 120, str(pod.events))
    assert site.checked_card(pod, 30, 4) == card
    assert site.checked_card(other, 60, 4)
    assert site.kubelet.devices.allocations == asked


def test_the_plugin_dies_between_allocate_and_the_start(site: PodSite) -> None:
    site.runtime.gate.clear()
    pod = site.run(share(30, 4))
    assert pod.active
    site.plugin.kill()
    wait_for(lambda: site.kubelet.devices.allocatable() == {CORE: 0, MEMORY: 0})
    site.plugin.start()
    site.ready()
    site.runtime.gate.set()
    site.checked_card(runs(pod), 30, 4)
    site.checked_card(site.runs(share(31, 5)), 31, 5)


def test_kubelet_restarts(site: PodSite) -> None:
    """The plugin registers again by itself. Running containers are left alone, and restart with the same cards."""
    pod = site.runs(share(30, 4))
    card, life = site.checked_card(pod, 30, 4), pod.statuses["c"].id
    site.kubelet.restart()
    site.ready()
    assert site.plugin.alive
    assert pod.statuses["c"].id == life
    site.runtime.kill(pod.sandbox, life)
    wait_for(lambda: pod.statuses["c"].id != life and pod.running, 120, str(pod.events))
    assert site.checked_card(pod, 30, 4) == card
    other = site.runs(share(70, 4), share(40, 5, "d"))
    site.checked_card(other, 70, 4)
    site.checked_card(other, 40, 5, "d")
    assert max(site.held().values()) <= 100


def test_the_node_reboots(site: PodSite) -> None:
    """Containers and /run are gone. kubelet's checkpoint and the grants remain, and containers get their own again."""
    asked = [(60, 8), (30, 4), (70, 7), (20, 2)]
    pods = [site.runs(share(*amounts)) for amounts in asked]
    cards = [site.checked_card(pod, *amounts) for pod, amounts in zip(pods, asked)]
    allocations = site.kubelet.devices.allocations
    site.power_off()
    node_boots_anew(site)
    shutil.rmtree(site.node.run_dir)
    site.node.take_inventory()
    site.start().kubelet.resume()
    for pod, amounts, card in zip(pods, asked, cards):
        assert site.checked_card(runs(pod), *amounts) == card
    assert site.kubelet.devices.allocations == 0 < allocations


# Tenants' attempts, and full cards


@pytest.mark.parametrize("handler", ["base", "dropped"])
def test_another_pods_grants_are_refused(site: PodSite, handler: str) -> None:
    """They are in the environment or in the pod's annotations, with own grants or without."""
    site.runtime.handler = handler
    victim = site.runs(share(30, 4))
    stolen = {grant.resource: grant.id for grant in site.node.grants()}
    env = [(grants.ENVIRONMENT[name], id) for name, id in stolen.items()]
    annotations = {grants.ANNOTATIONS[name]: id for name, id in stolen.items()}
    thief = site.run(Container("c", {}, LOOK, env))
    assert victim.uid in event(thief, "vgpu-hook: ")
    both = site.run(Container("c", {CORE: 10, MEMORY: 2}, LOOK, env), annotations=annotations)
    if handler == "base":
        site.checked_card(runs(both), 10, 2)  # the container's own annotation counts
    else:
        assert victim.uid in event(both, "vgpu-hook: ")  # its env comes last, as with kubelet
        assert not both.running
    assert not thief.running
    site.checked_card(victim, 30, 4)


def test_a_pods_annotations_are_no_grants(site: PodSite) -> None:
    victim = site.runs(share(30, 4))
    stolen = {grants.ANNOTATIONS[grant.resource]: grant.id for grant in site.node.grants()}
    script = ["sh", "-c", "ls /dev; sleep 86400"]
    thief = site.run(Container("c", {}, script), annotations=stolen)
    wait_for(lambda: thief.running or thief.events, 120)
    assert not thief.running or "nvidia" not in thief.sandbox.output()
    site.checked_card(victim, 30, 4)


def test_a_full_node_reports_it_and_starts_the_pod_later(site: PodSite) -> None:
    """Enough units are free, but on two cards. kubelet does not see that, the hook does."""
    first, second = (site.runs(share(60, 4)) for _ in range(2))
    late = site.run(share(70, 4))
    line = event(late, "vgpu-hook: allocation")
    for card in site.node.read_cards():
        assert card["uuid"] in line
    assert "40 cores free" in line
    assert late.active
    assert not late.running
    site.kubelet.delete(first)
    site.checked_card(runs(late, 90), 70, 4)
    site.checked_card(second, 60, 4)


def test_memory_of_two_whole_cards(site: PodSite) -> None:
    """Only the hook sees cores and memory together. The same memory is too much for a share or one whole card."""
    for cores in (30, 100):
        pod = site.run(Container("c", {CORE: cores, MEMORY: 158}, LOOK))
        assert "MiB in all" in event(pod, "vgpu-hook: allocation: no card fits 1 card")
        site.kubelet.delete(pod)
    pod = site.runs(Container("c", {CORE: 200, MEMORY: 314}, LOOK))
    claim = site.claim(pod)
    assert claim.exclusive
    assert {card.uuid for card in claim.cards} == {card["uuid"] for card in site.node.read_cards()}


def test_what_the_node_can_never_serve_is_refused(site: PodSite) -> None:
    pod = site.run(Container("c", {CORE: 150, MEMORY: 4}, LOOK))
    assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "code = InvalidArgument" in pod.message
    assert "150" in pod.message
    later = site.runs(share(30, 4))
    site.checked_card(later, 30, 4)


# The end of grants


@pytest.mark.parametrize("restart", ["Always", "Never"])
@pytest.mark.parametrize("end", ["deleted", "ended"])
def test_whole_cards_start_once_the_shares_pods_are_over(make_site: MakeSite, end: str, restart: str) -> None:
    """kubelet has their units back, so nothing that the plugin still has to learn may refuse the next pod."""
    site = make_site(**DEFAULT_GRACE).start()
    command = ["sh", "-c", "cudaprobe info; sleep 1"] if end == "ended" else LOOK
    shares = [site.run(share(60, 4, command=command), restart="Never") for _ in range(2)]
    for pod in shares:
        wait_for(lambda pod=pod: pod.statuses["c"].started, 60, f"{pod.events}")
        if end == "ended":
            ends(pod)
        else:
            site.kubelet.delete(pod)
    whole = runs(site.run(Container("c", {CORE: 200}, LOOK), restart=restart), 30)
    assert site.seen(whole)["cards"] == "2"
    assert whole.events == []


def test_a_crash_loop_keeps_its_share(make_site: MakeSite) -> None:
    """The pod's cgroup is there between two lives of its container. A pod that wants the room waits."""
    site = make_site(**DEFAULT_GRACE).start()
    crash = site.runs(share(60, 4, command=["sh", "-c", "cudaprobe info; sleep 1; exit 1"]))
    card = site.claim(crash).cards[0].uuid
    other = site.runs(share(60, 4))
    greedy = site.run(share(70, 4))
    status = crash.statuses["c"]
    for started in range(2, 6):
        wait_for(lambda started=started: status.started >= started and crash.running, 120, f"{crash.events}")
        assert not greedy.running
    assert crash.events == []
    assert site.checked_card(other, 60, 4) != card
    site.kubelet.delete(crash)
    assert site.checked_card(runs(greedy, 30), 70, 4) == card


def test_no_secret_in_the_plugins_log(site: PodSite) -> None:
    """A reader of the log must not be able to claim a grant that is not claimed yet."""
    site.runs(share(30, 4))
    ids = [grant.id for grant in site.node.grants()]
    assert ids
    assert not [id for id in ids if re.search(id, site.plugin.text())]
