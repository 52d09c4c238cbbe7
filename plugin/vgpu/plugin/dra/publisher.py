"""Keeps the node's ResourceSlices at the API server as they should be.

Belongs here: one thread that lists, writes and watches the slices, and that publishes nothing where the server drops a
field of them. kubelet deletes the node's slices when it starts, and 30 s after it has lost the driver; anybody may edit
them. So each change of a slice is a reason to look again. Not here: what is in the slices (devices).
"""

from __future__ import annotations

import copy
import threading
from urllib.parse import quote

from vgpu.config.errors import VgpuError
from vgpu.config.prepared import DRIVER
from vgpu.node.service import claim_devices
from vgpu.node.service.claim_allocation import CAPACITY_GATE
from vgpu.node.service.claim_devices import PARTS, Device
from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver.client import Api, ApiError, Object

PATH = "/apis/resource.k8s.io/v1/resourceslices"
WATCH_LIFE = 240  #: seconds after which the server should end a watch
SILENCE = 300.0  #: seconds without an event after which a watch counts as dead
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  #: seconds between attempts that fail, doubling
TOPIC = "resource slices"
CLASSES, CLASSES_TOPIC = "/apis/resource.k8s.io/v1/deviceclasses", "device classes"
#: The fields of a device that a server drops in silence, each with the feature gate that it needs.
GATED = (
    ("allowMultipleAllocations", CAPACITY_GATE), ("capacity", CAPACITY_GATE), ("taints", "DRADeviceTaints"),
    ("consumesCounters", "DRAPartitionableDevices"),
)  # fmt: skip
NAME, NAME_GATE = "extendedResourceName", "DRAExtendedResource"  #: likewise, of a DeviceClass


class Offer:
    """What is to be published. `withheld`: why nothing is, or "". `parts`: halves, quarters and eighths, too."""

    def __init__(
        self, offered: list[Device], driver_version: str, effect: str, withheld: str = "", parts: bool = False
    ) -> None:
        self.devices = offered
        self.driver_version = driver_version
        self.effect = effect
        self.withheld = withheld
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offer) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # an offer is compared and not kept in a set


class Publisher:
    """Publishes the latest offer until `stop`. `published`: whether the server has it."""

    def __init__(self, node: str, conditions: Conditions) -> None:
        self.node = node
        self.conditions = conditions
        self.published = False
        self.selector = f"spec.nodeName={node},spec.driver={DRIVER}"
        self._api: Api | None = None
        self._offer: Offer | None = None
        self._guard = threading.Lock()
        self._changed = threading.Event()
        self._stopped = False

    def offer(self, offer: Offer) -> None:
        """Publish this from now on. Never blocks."""
        with self._guard:
            if offer == self._offer:
                return
            self._offer = offer
        self._wake()

    def stop(self) -> None:
        """End the thread; the slices stay, for the instance that follows."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self._api is not None:
            self._api.interrupt()

    def run(self, api: Api) -> None:
        self._api, pause = api, FIRST_PAUSE
        while not self._stopped:
            self._changed.clear()
            with self._guard:
                offer = self._offer
            try:
                if offer is None:
                    self._changed.wait(LONGEST_PAUSE)
                    continue
                version, wrote = self.sync(api, offer)
                pause = pause if wrote else FIRST_PAUSE
                self._follow(api, version)
                if not wrote:
                    continue
            except ApiError as error:
                if not self._changed.is_set() and error.kind != "gone":
                    self.published = False
                    self._report(error)
            except VgpuError as error:
                self.published = False
                self.conditions.set(TOPIC, str(error))
            self._changed.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _report(self, error: ApiError) -> None:
        absent = "; resource.k8s.io/v1 needs Kubernetes 1.34" if error.kind == "missing" else ""
        self.conditions.set(TOPIC, f"the cards are not published: {error}{absent}")

    def sync(self, api: Api, offer: Offer) -> tuple[str, bool]:
        """Make the server's slices those of `offer`. Returns the version to watch from, and whether it wrote: after
        that comes a pause, in case that somebody writes something else each time. ApiError, or VgpuError where the
        server drops a field."""
        listed = api.get(PATH, fieldSelector=self.selector)
        present = {str(_metadata(one).get("name")): one for one in _items(listed) if _is_mine(one, self.node)}
        wanted = [] if offer.withheld else self._wanted(api, offer)
        wrote = not _matches(present, wanted)
        if wrote:
            try:
                if wanted:
                    self._check(api, wanted[0], offer.effect)
            except VgpuError:
                self._write(api, present, [])
                raise
            self._write(api, present, wanted)
        self.published = bool(wanted)
        self.conditions.set(TOPIC, f"no card is published: {offer.withheld}" if offer.withheld else "")
        self.conditions.set(CLASSES_TOPIC, _of_classes(api) if wanted and offer.parts else "")
        return str(_metadata(listed).get("resourceVersion") or ""), wrote

    def _wanted(self, api: Api, offer: Offer) -> list[Object]:
        node = api.get(f"/api/v1/nodes/{quote(self.node, safe='')}")
        uid = str(_metadata(node).get("uid"))
        return claim_devices.slices(offer.devices, self.node, uid, offer.driver_version, offer.effect, offer.parts)

    def _check(self, api: Api, wanted: Object, effect: str) -> None:
        """VgpuError where the server drops a field: by a dry run, with a taint that the cards may need later."""
        probe = copy.deepcopy(wanted)
        probe["metadata"] = {"name": f"{self.node}-{DRIVER}-probe"}
        spec = _object(probe, "spec")
        _object(spec, "pool").update(generation=1, resourceSliceCount=1)
        first = _listed(spec, "devices")[0]
        spec["devices"] = [{**first, "taints": [claim_devices.taint(effect)]}]
        answer = api.post(PATH, probe, dryRun="All")
        kept = _listed(_object(answer, "spec"), "devices")
        for field, gate in GATED:
            if not kept or not _contains(kept[0].get(field), _listed(spec, "devices")[0].get(field)):
                do = f"turn the feature gate {gate} on in the API server"
                raise VgpuError("resource slices", expected=f"the server to keep {field} of a device",
                                found="that it drops it; no card is published", do=do)  # fmt: skip

    def _write(self, api: Api, present: dict[str, Object], wanted: list[Object]) -> None:
        generations = [_object(_object(one, "spec"), "pool").get("generation") for one in present.values()]
        generation = max([number for number in generations if isinstance(number, int)], default=0) + 1
        for one in wanted:
            _object(_object(one, "spec"), "pool")["generation"] = generation
        for one in wanted:
            name = str(_metadata(one)["name"])
            old = present.get(name)
            if old is None:
                api.post(PATH, one)
            else:
                version = {"resourceVersion": _metadata(old).get("resourceVersion")}
                api.put(f"{PATH}/{name}", {**one, "metadata": {**_metadata(one), **version}})
        for name in set(present) - {str(_metadata(one)["name"]) for one in wanted}:
            try:
                api.delete(f"{PATH}/{quote(name, safe='')}")
            except ApiError as error:
                if error.kind != "missing":
                    raise

    def _follow(self, api: Api, version: str) -> None:
        """Until a slice of this node has changed, or the offer."""
        events = api.watch(
            PATH, SILENCE, fieldSelector=self.selector, resourceVersion=version,
            allowWatchBookmarks="true", timeoutSeconds=str(WATCH_LIFE),
        )  # fmt: skip
        for event in events:
            if self._changed.is_set() or event.get("type") != "BOOKMARK":
                return


def _of_classes(api: Api) -> str:
    """Why pods cannot ask for parts of a card by extended resources, or ""."""
    for part in PARTS:
        name = f"{part}.{DRIVER}"
        what = f"DeviceClass {name}: expected {NAME} {DRIVER}/{part}, found"
        try:
            found = _object(api.get(f"{CLASSES}/{name}"), "spec").get(NAME)
        except ApiError as error:
            return f"{what} {error}; apply the chart with dra.parts"
        if found != f"{DRIVER}/{part}":
            do = f"turn the feature gate {NAME_GATE} on in the API server, and apply it again"
            return f"{what} {found or 'none'}; {do}"
    return ""


def _matches(present: dict[str, Object], wanted: list[Object]) -> bool:
    """Whether the server has the wanted slices, all of one generation, and no others."""
    pools = [_object(_object(one, "spec"), "pool") for one in present.values()]
    names = [str(_metadata(one)["name"]) for one in wanted]
    if sorted(present) != sorted(names) or len({pool.get("generation") for pool in pools}) > 1:
        return False
    return all(_same(present[name], one) for name, one in zip(names, wanted))


def _same(present: Object, wanted: Object) -> bool:
    """Whether the server has what is wanted, beside the generation, and the times that it adds to taints."""
    spec = copy.deepcopy(_object(present, "spec"))
    _object(spec, "pool").pop("generation", None)
    for device in _listed(spec, "devices"):
        for one in _listed(device, "taints"):
            one.pop("timeAdded", None)
    return spec == _object(wanted, "spec")


def _contains(found: object, wanted: object) -> bool:
    """Whether `found` has all that `wanted` has."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        pairs = zip(found, wanted) if isinstance(found, list) and len(found) == len(wanted) else None
        return pairs is not None and all(_contains(one, other) for one, other in pairs)
    return found == wanted


def _is_mine(one: Object, node: str) -> bool:
    spec = _object(one, "spec")
    return spec.get("driver") == DRIVER and spec.get("nodeName") == node


def _items(listed: Object) -> list[Object]:
    return _listed(listed, "items")


def _listed(value: Object, key: str) -> list[Object]:
    found = value.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _metadata(value: Object) -> Object:
    return _object(value, "metadata")


def _object(value: Object, key: str) -> Object:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}
