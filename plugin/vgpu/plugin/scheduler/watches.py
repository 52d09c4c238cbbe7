"""Follows nodes, pods and the ConfigMap of quotas: lists them, then watches from there, in one thread each.

Belongs here: lists, watches, their back-off, and whether the state is current. A watch that breaks makes the state
stale at once, until the next one is open; a watch that the server ends in order goes on from its last version. Version
410 means a new list. The list that follows contains what was missed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.scheduler import demand, quota
from vgpu.plugin.scheduler.cluster import Cluster
from vgpu.plugin.scheduler.demand import PodSpec
from vgpu.plugin.scheduler.options import Options

PAGE = "500"
WATCH_LIFE = 240  #: seconds after which the server should end a watch
SILENCE = 120.0  #: seconds without an event, bookmarks included, after which a watch counts as dead
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0  #: seconds between attempts that fail, doubling


class Watch:
    """One kind of objects. `replace` takes a whole list, `apply` one event's type and object."""

    def __init__(
        self,
        path: str,
        replace: Callable[[list[Any]], None],
        apply: Callable[[str, Any], None],
        conditions: Conditions,
        slim: Callable[[Any], Any] = lambda value: value,
        **query: str,
    ) -> None:
        self.path = path
        self.query = query
        self.replace = replace
        self.apply = apply
        self.conditions = conditions
        self.slim = slim  #: what is kept of an object while a list is read
        self.problem = "it has not listed yet"  #: why the state is not current, "" while it is
        self.stopped = threading.Event()

    def run(self, api: Api) -> None:
        pause = FIRST_PAUSE
        while not self.stopped.is_set():
            try:
                version = self.list(api)
                self.problem, pause = "", FIRST_PAUSE
                self.conditions.set(self.path, "")
                while not self.stopped.is_set():
                    version = self._watch(api, version)
                continue
            except ApiError as error:
                self.problem = str(error)
                if error.kind != "gone":
                    self.conditions.set(self.path, str(error))
            except Exception as error:  # an object that nobody expected: without it the state is not current
                self.problem = f"{type(error).__name__}: {error}"
                self.conditions.set(self.path, self.problem)
            self.stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads the replicas' requests
            pause = min(pause * 2, LONGEST_PAUSE)

    def list(self, api: Api) -> str:
        """Read the whole list and hand it over; returns its version. ApiError when there is none."""
        found: list[Any] = []
        token = ""
        while True:
            more = {"continue": token} if token else {}
            page = api.get(self.path, limit=PAGE, **self.query, **more)
            items, version = page.get("items"), pod_objects.version_of(page)
            if not isinstance(items, list) or not version:
                raise ApiError("garbage", f"GET {self.path}: expected a list")
            found += [self.slim(item) for item in items]
            meta = page.get("metadata")
            token = str(meta.get("continue") or "") if isinstance(meta, dict) else ""
            if not token:
                self.replace(found)
                return version

    def _watch(self, api: Api, version: str) -> str:
        """Follow one watch to its end; returns the version to go on from."""
        seen = 0
        events = api.watch(
            self.path, SILENCE, **self.query, resourceVersion=version, allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_LIFE),
        )  # fmt: skip
        for event in events:
            version = self._event(event) or version
            seen += 1
            if self.stopped.is_set():
                break
        if not seen:
            self.stopped.wait(FIRST_PAUSE)  # a server may end every watch at once
        return version

    def _event(self, event: Object) -> str:
        kind, value = pod_objects.event_of(event, self.path)
        if kind != "BOOKMARK":
            self.apply(kind, value)
        return pod_objects.version_of(value)


def nodes(cluster: Cluster, conditions: Conditions, clock: Callable[[], float]) -> Watch:
    def replace(found: list[Any]) -> None:
        with cluster.guard:
            cluster.replace_nodes([value for value in found if _name(value)], clock())

    def apply(kind: str, value: Any) -> None:
        if not _name(value):
            raise ApiError("garbage", "watch of /api/v1/nodes: expected a node")
        with cluster.guard:
            if kind == "DELETED":
                cluster.remove_node(_name(value))
            else:
                cluster.put_node(value, clock())
            cluster.arrived.notify_all()

    return Watch("/api/v1/nodes", replace, apply, conditions, _slim_node)


def pods(cluster: Cluster, conditions: Conditions, options: Options) -> Watch:
    def parsed(value: Any) -> PodSpec | tuple[str, str, str] | None:
        return demand.parse(value, options.names, options.gpu) or _other(value)

    def replace(found: list[Any]) -> None:
        specs = [one for one in found if isinstance(one, PodSpec)]
        others = {one[0]: one[1:] for one in found if isinstance(one, tuple)}
        with cluster.guard:
            cluster.replace_pods(specs, others)

    def apply(kind: str, value: Any) -> None:
        one = parsed(value)
        with cluster.guard:
            if one is None:
                return
            if kind == "DELETED":
                cluster.remove_pod(one.uid if isinstance(one, PodSpec) else one[0])
                cluster.arrived.notify_all()
            elif isinstance(one, PodSpec):
                cluster.put_pod(one)
            else:
                cluster.put_other(*one)

    return Watch("/api/v1/pods", replace, apply, conditions, parsed)


def quota_map(namespace: str, name: str, take: Callable[[str | None], None], conditions: Conditions) -> Watch:
    """`take` gets the text of the quotas, None where there is no map."""

    def text_of(value: Any) -> str:
        data = value.get("data")
        text = data.get(quota.KEY) if isinstance(data, dict) else None
        return text if isinstance(text, str) else ""

    def replace(found: list[Any]) -> None:
        take(text_of(found[0]) if found else None)

    def apply(kind: str, value: Any) -> None:
        take(None if kind == "DELETED" else text_of(value))

    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return Watch(path, replace, apply, conditions, fieldSelector=f"metadata.name={name}")


def _name(value: Any) -> str:
    meta = value.get("metadata") if isinstance(value, dict) else None
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else ""


def _slim_node(value: Any) -> Any:
    """A node without its status, images and the like."""
    meta = value.get("metadata") if isinstance(value, dict) else None
    kept = {key: meta.get(key) for key in ("name", "annotations", "labels")} if isinstance(meta, dict) else {}
    return {"metadata": kept}


def _other(value: Any) -> tuple[str, str, str] | None:
    """uid, namespace and name of a pod that asks for no card; None for what is no pod."""
    meta = value.get("metadata") if isinstance(value, dict) else None
    found = tuple(meta.get(key) for key in ("uid", "namespace", "name")) if isinstance(meta, dict) else ()
    return found if len(found) == 3 and all(isinstance(part, str) and part for part in found) else None  # type: ignore[return-value]
