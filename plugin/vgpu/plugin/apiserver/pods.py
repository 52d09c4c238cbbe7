"""Follows this node's pods: lists them, watches them, and writes their records for the hook.

Belongs here: the loop of lists and watches, and its back-off. While a watch is alive, the informer holds the lock on
`<run>/pods/.watched`, and a hook that sees the lock waits for a record. A broken watch loses nothing: the next list
contains what was missed. The form of a record belongs to vgpu.config.pods.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from vgpu.config import paths, pods
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.apiserver.outage import Outage
from vgpu.plugin.apiserver.pod_objects import PodObject

PATH = "/api/v1/pods"
PAGE = "100"  #: pods in one answer of a list
WATCH_LIFE = 240  #: seconds after which the server should end a watch
SILENCE = 300.0  #: seconds without an event, bookmarks included, after which a watch counts as dead
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  #: seconds between attempts that fail, doubling
TOPIC = "pods"
MAX_GONE = 4096  #: uids of pods that are over, the latest ones; kubelet's list decides about the grants of older ones


class PodInformer:
    """The pods by uid, as the API server has them.

    Calls `changed` after each change, and `pod_over` when a pod was deleted or has ended. `claims_seen` gets namespace
    and names of the resource claims of each new pod; without it pods that only have claims are left out. `run` returns
    once `stopped` is set.
    """

    def __init__(
        self,
        settings: Settings,
        node: str,
        conditions: Conditions,
        stopped: threading.Event,
        changed: Callable[[], None],
        pod_over: Callable[[], None],
        outage: Outage,
        claims_seen: Callable[[str, frozenset[str]], None] | None = None,
    ) -> None:
        self.claims_seen = claims_seen
        self.run_dir = settings.run_dir
        self.node = node
        self.conditions = conditions
        self.stopped = stopped
        self.changed = changed
        self.pod_over = pod_over
        self.outage = outage
        self.names = pod_objects.card_resources(settings)
        self.first_pause = FIRST_PAUSE
        self._pods: dict[str, PodObject] = {}
        self._gone: dict[str, None] = {}
        self._listed = False  # the last list was read, and its watch may have broken
        self._guard = threading.Lock()
        self._watch_lock = WatchLock(paths.pods_watched(self.run_dir))

    def pods(self) -> list[PodObject]:
        """The pods that request cards."""
        with self._guard:
            return [pod for pod in self._pods.values() if pod.requests_cards]

    def gone(self) -> set[str]:
        """The uids of pods of this node that were deleted, or have ended and start no container any more.

        Only pods that the server has shown on this node: a wrong node name, for example, makes no pod seem deleted. No
        uid comes back, so this stays true while the server is away.
        """
        with self._guard:
            return set(self._gone)

    def run(self, api: Api) -> None:
        pause = self.first_pause
        while not self.stopped.is_set():
            try:
                version = self._list(api)
                pause = self.first_pause
                self._follow(api, version)
                continue
            except ApiError as error:
                if error.kind == "gone":
                    pause = min(pause, self.first_pause)  # the list that follows contains the missed events
                else:
                    self._watch_lock.release()
                    self._report(error)
            except (OSError, VgpuError) as error:
                self._watch_lock.release()
                self.conditions.set(TOPIC, f"pods' records are not kept: {error}")
            self.stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads the nodes' requests
            pause = min(pause * 2, LONGEST_PAUSE)
        self._watch_lock.release()

    def _report(self, error: ApiError) -> None:
        """Log that pods are not followed. A watch that breaks is no outage yet: the next list shows whether it is."""
        if not error.is_outage:
            self.conditions.set(TOPIC, f"pods are not followed: {error}")
            self.outage.set(TOPIC, "")
        elif not self._listed:
            self.outage.set(TOPIC, str(error))
        self._listed = False

    def stop(self) -> None:
        """Release the lock at once, even while the thread waits for the server."""
        self._watch_lock.release(for_good=True)

    def _list(self, api: Api) -> str:
        """List all pods of the node; returns the version to watch from."""
        found: dict[str, PodObject] = {}
        token, version = "", ""
        while True:
            more = {"continue": token} if token else {}
            page = api.get(PATH, fieldSelector=f"spec.nodeName={self.node}", limit=PAGE, **more)
            items = page.get("items")
            version = pod_objects.version_of(page)
            if not isinstance(items, list) or not version:
                raise ApiError("garbage", f"GET {PATH}: expected a list of pods")
            found.update({pod.pod.uid: pod for pod in map(self._mine, items) if pod})
            metadata = page.get("metadata")
            token = str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
            if not token:
                break
        self._replace(found)
        self._watch_lock.acquire()
        self.conditions.set(TOPIC, "")
        self.outage.set(TOPIC, "")
        self._listed = True
        return version

    def _replace(self, found: dict[str, PodObject]) -> None:
        """Take over a list of all pods. Its request began after the pods that are missing in it were seen."""
        recorded = pods.uids(self.run_dir)
        for uid in recorded:
            if uid not in found or found[uid].ended:
                pods.remove(self.run_dir, uid)
        with self._guard:
            before, self._pods = self._pods, found
        ended = [uid for uid, pod in found.items() if pod.ended]
        self._is_over([*(uid for uid in (*recorded, *before) if uid not in found), *ended])
        for uid, pod in found.items():
            self._keep(pod, before.get(uid) if os.path.exists(paths.pod(self.run_dir, uid)) else None)
        self.changed()

    def _follow(self, api: Api, version: str) -> None:
        """Watch from `version` on; open the next watch when one ends, until one breaks."""
        while not self.stopped.is_set():
            seen = 0
            for event in self._watch(api, version):
                version = self._apply(event) or version
                seen += 1
                if self.stopped.is_set():
                    return
            if not seen:
                self.stopped.wait(self.first_pause)  # a server may end every watch at once

    def _watch(self, api: Api, version: str) -> Iterator[Object]:
        return api.watch(
            PATH, SILENCE, fieldSelector=f"spec.nodeName={self.node}", resourceVersion=version,
            allowWatchBookmarks="true", timeoutSeconds=str(WATCH_LIFE),
        )  # fmt: skip

    def _apply(self, event: Object) -> str:
        """Apply one event; returns the version in it, "" for none."""
        kind, value = pod_objects.event_of(event, PATH)
        pod = self._mine(value) if kind != "BOOKMARK" else None
        if pod is not None:
            self._take(pod, kind == "DELETED")
        return pod_objects.version_of(value)

    def _mine(self, value: object) -> PodObject | None:
        """The pod in `value`, if it belongs to this node and requests cards, or may do so by a resource claim."""
        pod = pod_objects.parse(value, self.names)
        if pod is None or pod.pod.node != self.node:
            return None
        return pod if pod.requests_cards or (pod.claims and self.claims_seen) else None

    def _take(self, pod: PodObject, deleted: bool) -> None:
        uid = pod.pod.uid
        with self._guard:
            before = self._pods.get(uid)
            if deleted:
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = pod
        if deleted:
            pods.remove(self.run_dir, uid)
        else:
            self._keep(pod, before)
        if deleted or pod.ended:
            self._is_over([uid])
        self.changed()

    def _is_over(self, uids: Iterable[str]) -> None:
        """Record that these pods are over, and say so if that is new."""
        with self._guard:
            new = [uid for uid in uids if uid not in self._gone]
            self._gone.update(dict.fromkeys(new))
            for uid in list(self._gone)[:-MAX_GONE]:
                del self._gone[uid]
        if new:
            self.pod_over()

    def _keep(self, pod: PodObject, before: PodObject | None) -> None:
        """Write the pod's record if it has changed; remove it once the pod has ended and starts no container."""
        if self.claims_seen and pod.claims and not pod.ended and (before is None or before.claims != pod.claims):
            self.claims_seen(pod.pod.namespace, pod.claims)
        if pod.ended or not pod.requests_cards:
            pods.remove(self.run_dir, pod.pod.uid)
        elif before is None or before.pod.record() != pod.pod.record():
            pods.write(self.run_dir, pod.pod)


class WatchLock:
    """The lock on `<run>/pods/.watched`. While it is held, the records are current, and the hook waits for them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._guard = threading.Lock()
        self._over = False

    def acquire(self) -> None:
        """Take the lock. If another plugin holds it, that serves the hook as well."""
        with self._guard:
            if self._fd >= 0 or self._over:
                return
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            for _ in range(100):  # a hook that tests the lock holds it for an instant
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._fd = fd
                    return
                except OSError:
                    threading.Event().wait(0.002)
            os.close(fd)

    def release(self, for_good: bool = False) -> None:
        with self._guard:
            self._over = self._over or for_good
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def node_path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"
