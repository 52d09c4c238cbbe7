"""A stand-in for the client of the API server, with resource claims and slices in memory.

It has what the DRA driver uses: get, list, post with dry run, put, delete, watch, and faults on demand. `drops` are the
fields that it drops of a device, as a server with a gate off does.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

from vgpu.plugin.apiserver.client import ApiError

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
Object = dict[str, Any]


class ResourceApi:
    def __init__(self, node: str = "n") -> None:
        self.objects: dict[str, Object] = {f"/api/v1/nodes/{node}": {"metadata": {"name": node, "uid": "node-uid"}}}
        self.drops: tuple[str, ...] = ()
        self.failures: list[str] = []  #: kinds of the errors of the next reads of claims
        self.gets: list[str] = []
        self._version = 1
        self._change = threading.Condition()
        self._interrupted = 0

    def claim(self, name: str, uid: str, results: list[Object], pods: list[str], namespace: str = "default") -> Object:
        """Put an allocated claim, which is reserved for these pods."""
        made: Object = {
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": f"p{at}", "uid": uid} for at, uid in enumerate(pods)],
            },
        }
        self.put(CLAIMS.format(namespace=namespace, name=name), made)
        return made

    def slices(self) -> list[Object]:
        with self._change:
            return copy.deepcopy([one for path, one in self.objects.items() if path.startswith(SLICES)])

    def get(self, path: str, **_: str) -> Object:
        with self._change:
            self.gets.append(path)
            if self.failures and "/resourceclaims/" in path:
                raise ApiError(self.failures.pop(0), f"GET {path}")
            if path == SLICES:
                items = [one for at, one in self.objects.items() if at.startswith(SLICES)]
                return copy.deepcopy({"metadata": {"resourceVersion": str(self._version)}, "items": items})
            if path not in self.objects:
                raise ApiError("missing", f"GET {path}: 404")
            return copy.deepcopy(self.objects[path])

    def post(self, path: str, body: Object, **query: str) -> Object:
        at = f"{path}/{body['metadata']['name']}"
        return self._kept(body) if query.get("dryRun") == "All" else self.put(at, body)

    def put(self, path: str, body: Object) -> Object:
        return self._store(path, self._kept(body))

    def delete(self, path: str) -> Object:
        return self._store(path, None)

    def watch(self, path: str, silence: float, **query: str) -> Iterator[Object]:
        assert path == SLICES
        with self._change:
            seen, interrupted = int(query["resourceVersion"]), self._interrupted
            self._change.wait_for(lambda: self._version != seen or self._interrupted != interrupted, silence)
            if self._interrupted != interrupted:
                raise ApiError("unreachable", "interrupted")
        yield {"type": "MODIFIED", "object": {}}

    def interrupt(self) -> None:
        with self._change:
            self._interrupted += 1
            self._change.notify_all()

    def _kept(self, body: Object) -> Object:
        kept = copy.deepcopy(body)
        for device in kept.get("spec", {}).get("devices", []):
            for field in self.drops:
                device.pop(field, None)
        return kept

    def _store(self, path: str, value: Object | None) -> Object:
        with self._change:
            self._version += 1
            if value is None:
                self.objects.pop(path)
            else:
                value["metadata"]["resourceVersion"] = str(self._version)
                self.objects[path] = value
            self._change.notify_all()
            return copy.deepcopy(value or {})
