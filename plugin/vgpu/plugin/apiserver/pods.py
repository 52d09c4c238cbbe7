"""This node's pods, followed: list, then watch, over and over; their records for the hook; the sign that it is so.

Belongs here: the one loop and its back-off. While a watch is alive the lock on `<run>/pods/.watched` is held, and the
hook may count on a record to come. Nothing is lost when a watch breaks: the next list tells what was missed.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote

from vgpu.config import paths, pods
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.apiserver.pod_objects import Seen

PATH = "/api/v1/pods"
PAGE = "100"
WATCH_LIFE = 240  #: seconds that the server is asked to keep a watch open
SILENCE = 300.0  #: seconds without a word, bookmarks included, after which a watch is dead
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
TOPIC = "pods"


class PodWatch:
    """The pods by uid, as the API server has them; `changed` is called after each change. `run` ends with `stopped`."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        conditions: Conditions,
        stopped: threading.Event,
        changed: Callable[[], None],
    ) -> None:
        self.run_dir = settings.run_dir
        self.node = node
        self.conditions = conditions
        self.stopped = stopped
        self.changed = changed
        self.names = pod_objects.interesting(settings)
        self.first_pause = FIRST_PAUSE
        self._pods: dict[str, Seen] = {}
        self._guard = threading.Lock()
        self._sign = Sign(paths.pods_watched(self.run_dir))

    def pods(self) -> list[Seen]:
        """Those that ask for cards."""
        with self._guard:
            return list(self._pods.values())

    def run(self, api: Api) -> None:
        pause = self.first_pause
        while not self.stopped.is_set():
            try:
                self._follow(api, self._list(api))
                pause = self.first_pause
                continue
            except ApiError as error:
                if error.kind == "gone":
                    pause = min(pause, self.first_pause)  # the list that follows makes up for it
                else:
                    self._sign.lower()
                    self.conditions.set(TOPIC, f"pods are not followed: {error}")
            except (OSError, VgpuError) as error:
                self._sign.lower()
                self.conditions.set(TOPIC, f"pods' records are not kept: {error}")
            self.stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  # so that not all nodes ask at once
            pause = min(pause * 2, LONGEST_PAUSE)
        self._sign.lower()

    def stop(self) -> None:
        """At once, whatever the thread waits for."""
        self._sign.lower(for_good=True)

    def _list(self, api: Api) -> str:
        """Learn of all pods; returns the version to watch from."""
        found: dict[str, Seen] = {}
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
        self._sign.raise_()
        self.conditions.set(TOPIC, "")
        return version

    def _replace(self, found: dict[str, Seen]) -> None:
        for uid in pods.uids(self.run_dir):
            if uid not in found or found[uid].ended:
                pods.remove(self.run_dir, uid)
        with self._guard:
            before, self._pods = self._pods, found
        for uid, pod in found.items():
            self._keep(pod, before.get(uid) if os.path.exists(paths.pod(self.run_dir, uid)) else None)
        self.changed()

    def _follow(self, api: Api, version: str) -> None:
        """Watch from `version` on, watch after watch, until one breaks."""
        while not self.stopped.is_set():
            seen = 0
            for event in self._watch(api, version):
                version = self._apply(event) or version
                seen += 1
                if self.stopped.is_set():
                    return
            if not seen:
                self.stopped.wait(self.first_pause)  # a server that ends every watch at once is not asked without end

    def _watch(self, api: Api, version: str) -> Iterator[Object]:
        return api.watch(
            PATH, SILENCE, fieldSelector=f"spec.nodeName={self.node}", resourceVersion=version,
            allowWatchBookmarks="true", timeoutSeconds=str(WATCH_LIFE),
        )  # fmt: skip

    def _apply(self, event: Object) -> str:
        """Take one event in; returns the version that it brings."""
        kind, value = event.get("type"), event.get("object")
        if kind == "ERROR":
            code = value.get("code") if isinstance(value, dict) else None
            raise ApiError("gone" if code == 410 else "refused", f"watch of {PATH}: error {code}")
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not isinstance(value, dict):
            raise ApiError("garbage", f"watch of {PATH}: expected an event of a pod")
        pod = self._mine(value) if kind != "BOOKMARK" else None
        if pod is not None:
            self._take(pod, kind == "DELETED")
        return pod_objects.version_of(value)

    def _mine(self, value: object) -> Seen | None:
        """The pod in `value`, if it is one of this node that asks for cards."""
        pod = pod_objects.seen(value, self.names)
        return pod if pod is not None and pod.asks and pod.pod.node == self.node else None

    def _take(self, pod: Seen, deleted: bool) -> None:
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
        self.changed()

    def _keep(self, pod: Seen, before: Seen | None) -> None:
        """Write the pod's record where it has changed; a pod that has ended starts no container any more."""
        if pod.ended:
            pods.remove(self.run_dir, pod.pod.uid)
        elif before is None or before.pod.record() != pod.pod.record():
            pods.write(self.run_dir, pod.pod)


class Sign:
    """The lock on `<run>/pods/.watched`, by which the hook knows that records follow the API server."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._guard = threading.Lock()
        self._over = False

    def raise_(self) -> None:
        """Hold it. Another plugin that holds it is as good."""
        with self._guard:
            if self._fd >= 0 or self._over:
                return
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            for _ in range(100):  # a hook that looks holds it for an instant
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._fd = fd
                    return
                except OSError:
                    threading.Event().wait(0.002)
            os.close(fd)

    def lower(self, for_good: bool = False) -> None:
        with self._guard:
            self._over = self._over or for_good
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def node_path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"
