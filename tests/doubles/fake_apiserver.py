"""A small API server over real HTTP. It lists, watches and patches pods, nodes and events, and fails on demand.

It has what the plugin uses and no more: field selectors, paging, resource versions with a history that expires (410),
bookmarks, JSON merge patches with preconditions, objects of resource.k8s.io, a token. `break_next` makes requests fail
in the ways in which servers, proxies and networks fail.
"""

from __future__ import annotations

import bisect
import copy
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
Selected = Callable[[Object], bool]
KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "configmaps": "ConfigMap",
    "leases": "Lease",
    "resourceslices": "ResourceSlice",
}
TOKEN = "a-token"


class FakeApiServer:
    """`requests` are (method, path and query) in order; `pods` and `nodes` are by name (pods: namespace/name)."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.pods: dict[str, Object] = {}
        self.nodes: dict[str, Object] = {}
        self.objects: dict[str, Object] = {}  #: leases and ConfigMaps by path
        self.bindings: list[Object] = []
        self.delay = 0.0  #: seconds that a write takes
        self.events: list[Object] = []
        self.requests: list[tuple[str, str]] = []
        self.patches: list[tuple[str, Object]] = []
        self.forbidden: list[tuple[str, str]] = []  #: (method, part of the path)
        self.page = 500
        self.bookmarks = 0.0
        self._faults: list[tuple[str, str, str]] = []
        self._history: list[tuple[int, str, Object]] = []
        self._version = 100
        self._oldest = 100
        self._change = threading.Condition()
        self._watches: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.api = self
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.hang_up()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._server.connections:  # those that clients keep open for later requests
            _shut(connection)

    def __enter__(self) -> FakeApiServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kubeconfig(self, path: Path) -> str:
        """Write a kubeconfig for this server to `path`."""
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return str(path)

    # Objects

    def put_node(self, name: str, **annotations: str) -> Object:
        return self._put(self.nodes, name, {"kind": "Node", "metadata": {"name": name, "annotations": annotations}})

    def annotate_node(self, name: str, **annotations: str) -> None:
        with self._change:
            self.nodes[name]["metadata"]["annotations"].update(annotations)
            self._record("MODIFIED", self.nodes[name])

    def label_node(self, name: str, **labels: str | None) -> None:
        """Set labels, or remove those that are None."""
        with self._change:
            merge(self.nodes[name]["metadata"], {"labels": labels})
            self._record("MODIFIED", self.nodes[name])

    def labels(self, node: str) -> dict[str, str]:
        with self._change:
            return dict(self.nodes[node]["metadata"].get("labels", {}))

    def remove_node(self, name: str) -> None:
        with self._change:
            self._record("DELETED", self.nodes.pop(name))

    def put_object(self, path: str, value: Object) -> None:
        """Put an object of any other kind at its path."""
        self._put(self.objects, path, value)

    def put_whole_pod(self, pod: Object) -> None:
        """Put a pod as its manifest has it."""
        self._put(self.pods, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", pod)

    def put_pod(
        self,
        name: str,
        node: str,
        uid: str,
        limits: dict[str, dict[str, object]],
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        init: tuple[str, ...] = (),
        phase: str = "Pending",
    ) -> Object:
        """Put a pod into the namespace default. Its containers are the keys of `limits`, those in `init` first."""
        containers = [{"name": key, "resources": {"limits": value}} for key, value in limits.items()]
        metadata = {"name": name, "namespace": "default", "uid": uid, "annotations": dict(annotations or {})}
        metadata["managedFields"] = [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}]
        pod: Object = {
            "kind": "Pod",
            "metadata": {**metadata, "labels": dict(labels or {})},
            "spec": {
                "nodeName": node,
                "initContainers": [item for item in containers if item["name"] in init],
                "containers": [item for item in containers if item["name"] not in init],
            },
            "status": {"phase": phase},
        }
        return self._put(self.pods, f"default/{name}", pod)

    def remove_pod(self, name: str) -> None:
        with self._change:
            self._record("DELETED", self.pods.pop(f"default/{name}"))

    def pod(self, name: str) -> Object:
        with self._change:
            return copy.deepcopy(self.pods[f"default/{name}"])

    def annotations(self, node: str) -> dict[str, str]:
        with self._change:
            return dict(self.nodes[node]["metadata"]["annotations"])

    # Faults

    def break_next(self, fault: str, path: str = "", method: str = "", times: int = 1) -> None:
        """Break the next `times` requests with `path` in their path: a status, or garbage, hang, close, cut, html."""
        with self._change:
            self._faults += [(fault, path, method)] * times

    def mend(self) -> None:
        with self._change:
            self._faults = []

    def forget_history(self) -> None:
        """Answer older watches with 410, as a server does after compaction."""
        with self._change:
            self._version += 1
            self._oldest = self._version
            self._history = []

    def hang_up(self) -> None:
        """Cut all watches, as a server does that dies."""
        with self._change:
            for connection in self._watches:
                _shut(connection)
            self._watches.clear()
            self._change.notify_all()

    def send_garbage(self, line: bytes) -> None:
        """Write `line` into every watch."""
        with self._change:
            for connection in self._watches:
                connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))

    def watching(self) -> int:
        with self._change:
            return len(self._watches)

    # For the handler, which holds the condition

    def fault(self, method: str, path: str) -> str:
        with self._change:
            self.requests.append((method, path))
            if any(of == method and part in path for of, part in self.forbidden):
                return "403"
            for at, (fault, part, of) in enumerate(self._faults):
                if part in path and of in ("", method):
                    del self._faults[at]
                    return fault
        return ""

    def _record(self, kind: str, value: Object) -> None:
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, copy.deepcopy(value)))
        self._change.notify_all()

    def _put(self, objects: dict[str, Object], name: str, value: Object) -> Object:
        with self._change:
            known = name in objects
            objects[name] = value
            self._record("MODIFIED" if known else "ADDED", value)
        return value

    def list_objects(self, path: str, selected: Selected, limit: int, token: str) -> Object:
        with self._change:
            every = self._collection(path)
            names = [name for name, value in sorted(every.items()) if selected(value)]
            start = int(token or 0)
            end = start + min(limit, self.page)
            metadata = {"resourceVersion": str(self._version)}
            if end < len(names):
                metadata["continue"] = str(end)
            items = [copy.deepcopy(every[name]) for name in names[start:end]]
            return {"kind": "List", "metadata": metadata, "items": items}

    def _collection(self, path: str) -> dict[str, Object]:
        """The objects of a path that names many; their kind is that of the path."""
        of = {"pods": self.pods, "nodes": self.nodes}.get(path.rpartition("/")[2])
        return of if of is not None else {at: value for at, value in self.objects.items() if at.startswith(path + "/")}

    def find(self, path: str) -> Object | None:
        """The object at `path`."""
        if path in self.objects:
            return self.objects[path]
        parts = path.removesuffix("/status").split("/")
        if parts[3] == "nodes":
            return self.nodes.get(parts[4])
        return self.pods.get(f"{parts[4]}/{parts[6]}") if len(parts) == 7 else None

    def get(self, path: str) -> Object | None:
        with self._change:
            return copy.deepcopy(self.find(path))

    def patch(self, path: str, body: Object) -> tuple[int, Object]:
        with self._change:
            value = self.find(path)
            if value is None:
                return 404, _status(404, "not found")
            for field in ("uid", "resourceVersion"):
                told = body.get("metadata", {}).get(field)
                if told and told != value["metadata"].get(field):
                    return 409, _status(409, f"precondition failed: {field}")
            self.patches.append((path, body))
            merge(value, body)
            self._record("MODIFIED", value)
            return 200, copy.deepcopy(value)

    def bind(self, path: str, body: Object) -> tuple[int, Object]:
        """Set the pod's node and merge the annotations in one write, as the API server does."""
        with self._change:
            pod = self.find(path.removesuffix("/binding"))
            if pod is None:
                return 404, _status(404, "not found")
            uid = body["metadata"].get("uid")
            if uid and uid != pod["metadata"]["uid"]:
                return 409, _status(409, "precondition failed: uid")
            if pod["spec"].get("nodeName"):
                return 409, _status(409, f"pod is already assigned to node {pod['spec']['nodeName']}")
            self.bindings.append(body)
            pod["spec"]["nodeName"] = body["target"]["name"]
            pod["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations") or {})
            self._record("MODIFIED", pod)
            return 201, _status(201, "bound")

    def create(self, path: str, body: Object, dry: bool = False) -> tuple[int, Object]:
        """Create a lease, or an object of resource.k8s.io."""
        at, body = f"{path}/{body['metadata']['name']}", copy.deepcopy(body)
        with self._change:
            if at in self.objects:
                return 409, _status(409, "already exists")
            if not dry:
                self.objects[at] = body
                self._record("ADDED", body)
            return 201, copy.deepcopy(body)

    def replace(self, path: str, body: Object) -> tuple[int, Object]:
        with self._change:
            known = self.objects.get(path)
            if known is None:
                return 404, _status(404, "not found")
            told = body["metadata"].get("resourceVersion")
            if told and told != known["metadata"]["resourceVersion"]:
                return 409, _status(409, "the object has been modified")
            self.objects[path] = body = copy.deepcopy(body)
            self._record("MODIFIED", body)
            return 200, copy.deepcopy(body)

    def remove(self, path: str) -> tuple[int, Object]:
        with self._change:
            if path not in self.objects:
                return 404, _status(404, "not found")
            self._record("DELETED", self.objects.pop(path))
            return 200, {"kind": "Status", "status": "Success"}

    def watch(self, handler: _Handler, kind: str, selected: Selected, version: int, seconds: float) -> None:
        """Send the events after `version` for `seconds`, or until either side closes the connection."""
        end = time.monotonic() + seconds
        with self._change:
            if version < self._oldest:
                handler.event({"type": "ERROR", "object": _status(410, "too old resource version")})
                return
            self._watches.add(handler.connection)
            try:
                while handler.connection in self._watches and time.monotonic() < end:
                    later = bisect.bisect_left(self._history, (version + 1,))
                    for at, change, value in self._history[later:]:
                        if at > version and value["kind"] == kind and selected(value):
                            handler.event({"type": change, "object": value})
                    version = max(version, self._version)
                    self._change.wait(min(self.bookmarks or 10.0, max(end - time.monotonic(), 0.0)))
                    if self.bookmarks:
                        mark = {"kind": kind, "metadata": {"resourceVersion": str(version)}}
                        handler.event({"type": "BOOKMARK", "object": mark})
            except OSError:
                return
            finally:
                self._watches.discard(handler.connection)


def merge(value: Object, patch: Object) -> None:
    """RFC 7396."""
    for key, item in patch.items():
        if item is None:
            value.pop(key, None)
        elif isinstance(item, dict):
            inner = value.get(key)
            if not isinstance(inner, dict):
                inner = value[key] = {}
            merge(inner, item)
        else:
            value[key] = item


def _selected(selector: str) -> Selected:
    """What a field selector lets through, such as pods of a node, or an object by its name."""
    terms = [term.partition("=")[::2] for term in selector.split(",") if term]
    known = [(field.split("."), value) for field, value in terms if field.startswith(("spec.", "metadata.name"))]
    return lambda one: all(one.get(part, {}).get(key) == value for (part, key), value in known)


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: FakeApiServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """Tests have clients that close the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if self._refused():
            return
        api = self.server.api
        kind = KINDS.get(url.path.rpartition("/")[2])
        if kind is None:
            found = api.get(url.path)
            self._answer(200, found) if found else self._answer(404, _status(404, "not found"))
            return
        selected = _selected(query.get("fieldSelector", ""))
        if query.get("watch") == "true":
            self._begin_watch()
            seconds = float(query.get("timeoutSeconds", "300"))
            api.watch(self, kind, selected, int(query["resourceVersion"]), seconds)
            self._end_watch()
        else:
            limit, token = int(query.get("limit", "500")), query.get("continue", "")
            self._answer(200, api.list_objects(url.path, selected, limit, token))

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        if self.headers["Content-Type"] != "application/merge-patch+json":
            self._answer(415, _status(415, "expected a merge patch"))
            return
        time.sleep(self.server.api.delay)
        self._answer(*self.server.api.patch(self.path, body))

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._refused():
            self._answer(*self.server.api.replace(self.path, body))

    def do_DELETE(self) -> None:
        if not self._refused():
            self._answer(*self.server.api.remove(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        time.sleep(self.server.api.delay)
        if self.path.endswith("/binding"):
            self._answer(*self.server.api.bind(self.path, body))
            return
        path, _, query = self.path.partition("?")
        if path.endswith("/leases") or "/resource.k8s.io/" in path:
            self._answer(*self.server.api.create(path, body, "dryRun=All" in query))
            return
        name = body["metadata"].get("name")
        if name and any(event["metadata"].get("name") == name for event in self.server.api.events):
            self._answer(409, _status(409, f"events {name!r} already exists"))
            return
        self.server.api.events.append(body)
        self._answer(201, body)

    def event(self, value: Object) -> None:
        line = json.dumps(value).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _refused(self) -> bool:
        """Whether the request got a fault that the test ordered, or lacks the token."""
        scheme, _, token = str(self.headers["Authorization"]).partition(" ")
        if (scheme.lower(), token) != ("bearer", TOKEN):
            self._answer(401, _status(401, "Unauthorized"))
            return True
        fault = self.server.api.fault(self.command, self.path)
        if not fault:
            return False
        if fault.isdigit():
            self._answer(int(fault), _status(int(fault), f"fault {fault}"))
        elif fault == "hang":
            time.sleep(0.3)
            self.close_connection = True
        elif fault == "close":
            self.close_connection = True
            _shut(self.connection)
        elif fault == "cut":
            self._raw(b'{"kind": "Pod', 1000)
            self.close_connection = True
        else:
            self._raw({"garbage": b"\0\xff{{{", "html": b"<html>Sign in</html>", "empty": b"{}"}[fault])
        return True

    def _answer(self, code: int, value: Object) -> None:
        self._raw(json.dumps(value).encode(), code=code)

    def _raw(self, data: bytes, length: int = 0, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length or len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _begin_watch(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _end_watch(self) -> None:
        self.close_connection = True
        try:
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            return
