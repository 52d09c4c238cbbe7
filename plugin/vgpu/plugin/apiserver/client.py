"""A client of the API server over plain JSON: get, patch, post, put, delete and watch.

Belongs here: finding the server and authenticating to it by the kubernetes package's own configuration (in the cluster,
or a kubeconfig), and turning every failure into an ApiError of a kind. The client returns raw JSON objects: the
package's models of them would use more memory than the rest of the plugin. Every answer has a size limit. What the
objects mean belongs to vgpu.plugin.apiserver.pod_objects.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown

MAX_ANSWER = 64 << 20  #: bytes
MAX_EVENT = 4 << 20  #: bytes
CONNECT_TIMEOUT = 5.0  #: seconds
ANSWER_TIMEOUT = 15.0  #: seconds
MERGE = "application/merge-patch+json"
KINDS = {401: "forbidden", 403: "forbidden", 404: "missing", 409: "conflict", 410: "gone"}

Object = dict[str, object]


class ApiError(Exception):
    """`kind`: forbidden, missing, conflict, gone, failing (500 and above), refused (any other status), unreachable or
    garbage.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind

    @property
    def is_outage(self) -> bool:
        """Whether the server is away, as opposed to a server that refuses."""
        return self.kind in ("unreachable", "failing")


class Api:
    """One API server; safe for several threads. VgpuError where no configuration names a server."""

    def __init__(self, kubeconfig: str = "", server: str = "") -> None:
        """`server` overrides the URL that the configuration names; with it, none is needed."""
        self._configuration, self.host = _configured(kubeconfig, server)
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415  # see the package's docstring

        self._pool: Any = RESTClientObject(self._configuration).pool_manager
        self._watched: list[Any] = []

    def get(self, path: str, **query: str) -> Object:
        return self._object("GET", path, query)

    def patch(self, path: str, body: Object) -> Object:
        """A JSON merge patch: None removes a key; metadata.resourceVersion makes it conditional."""
        return self._object("PATCH", path, {}, body, MERGE)

    def post(self, path: str, body: Object, **query: str) -> Object:
        return self._object("POST", path, query, body, "application/json")

    def put(self, path: str, body: Object) -> Object:
        return self._object("PUT", path, {}, body, "application/json")

    def delete(self, path: str) -> Object:
        return self._object("DELETE", path, {})

    def watch(self, path: str, silence: float, **query: str) -> Iterator[Object]:
        """Events of a watch until the server ends it; ApiError when it breaks, or is silent for `silence` seconds."""
        response = self._send("GET", path, {**query, "watch": "true"}, None, "", silence)
        self._watched.append(response)
        try:
            for line in _lines(_chunks(response, f"watch of {path}")):
                yield _decoded(line, f"watch of {path}")
        finally:
            self._watched.remove(response)
            response.close()

    def interrupt(self) -> None:
        """Break the watches that other threads read; those threads get an ApiError."""
        for response in list(self._watched):
            transport = getattr(getattr(response, "connection", None), "sock", None)
            if transport is not None:
                with contextlib.suppress(OSError):
                    transport.shutdown(socket.SHUT_RDWR)

    def _object(
        self, method: str, path: str, query: dict[str, str], body: Object | None = None, kind: str = ""
    ) -> Object:
        response = self._send(method, path, query, body, kind, ANSWER_TIMEOUT)
        try:
            data = b"".join(_bounded(_chunks(response, f"{method} {path}"), path))
        finally:
            response.close()
        return _decoded(data, f"{method} {path}")

    def _send(
        self, method: str, path: str, query: dict[str, str], body: Object | None, kind: str, silence: float
    ) -> Any:
        from urllib3 import Timeout  # noqa: PLC0415

        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else records.encode(body).encode("ascii")
        with _Failures(f"{method} {path}"):
            response = self._pool.request(
                method, url, body=data, headers=self._headers(kind), preload_content=False, retries=False,
                redirect=False, timeout=Timeout(connect=CONNECT_TIMEOUT, read=silence),
            )  # fmt: skip
        if not 200 <= response.status < 300:
            text = _reason(response)
            response.close()
            kind = KINDS.get(response.status, "failing" if response.status >= 500 else "refused")
            raise ApiError(kind, f"{method} {path}: {response.status} {text}")
        return response

    def _headers(self, kind: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "vgpu-device-plugin"}
        for setting in self._configuration.auth_settings().values():  # for each request: tokens are renewed meanwhile
            if setting and setting.get("in") == "header" and setting.get("value"):
                headers[setting["key"]] = setting["value"]
        return {**headers, "Content-Type": kind} if kind else headers


def _chunks(response: Any, what: str) -> Iterator[bytes]:
    """The parts of the answer to `what` as they arrive."""
    with _Failures(what):
        yield from response.stream(1 << 16, decode_content=True)


class _Failures:
    """Turns the transport's exceptions into ApiError."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        if isinstance(error, (HTTPError, OSError)):
            raise ApiError("unreachable", f"{self.what}: {shown(cause_of(error))}") from error


def cause_of(error: BaseException) -> str:
    """The cause of a transport's exception in plain words, always the same for the same cause.

    The library's own text names objects by their addresses in memory and counts bytes. The cause is an exception that
    the library has wrapped.
    """
    chain = list(_wrapped(error))
    plain = next(filter(None, map(_plain_text, chain)), "")
    texts = [one.strerror for one in chain if isinstance(one, OSError) and one.strerror]
    return plain or (texts[-1] if texts else type(error).__name__)


def _plain_text(error: BaseException) -> str:
    """The meaning of an exception whose own text is not plain; "" for others."""
    from urllib3 import exceptions  # noqa: PLC0415

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'reason', '') or type(error).__name__}"
    meanings: tuple[tuple[Any, str], ...] = (
        (exceptions.NewConnectionError, ""),  # it wraps the cause; in some versions it is a ConnectTimeoutError, too
        (exceptions.ConnectTimeoutError, f"no connection within {CONNECT_TIMEOUT:.0f} s"),
        ((exceptions.ReadTimeoutError, socket.timeout, TimeoutError), "no answer in time"),
        (http.client.RemoteDisconnected, "it closed the connection without an answer"),
        ((http.client.IncompleteRead, exceptions.IncompleteRead), "its answer ended early"),
    )
    return next((text for kind, text in meanings if isinstance(error, kind)), "")


def _wrapped(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, and those that it wraps: as its reason, an argument, its cause or its context."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        inner = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((one for one in inner if isinstance(one, BaseException)), None)


def _configured(kubeconfig: str, server: str = "") -> tuple[Any, str]:
    """(configuration, URL) from the named kubeconfig, else the service account, else the usual kubeconfig.

    With `server` and no kubeconfig there are no credentials, as with client-go's programs.
    """
    from kubernetes import client  # noqa: PLC0415
    from kubernetes import config as loader  # noqa: PLC0415

    config: Any = loader
    configuration = client.Configuration()
    try:
        if kubeconfig:
            config.load_kube_config(kubeconfig, client_configuration=configuration)
        elif not server:
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                config.load_kube_config(client_configuration=configuration)
    except Exception as error:  # the package passes on every exception of YAML, base64, open and exec plugins
        expected = "a service account, or a kubeconfig that names the API server"
        do = "set kubernetes.kubeconfig, or kubernetes.api: never"
        raise VgpuError(kubeconfig or "API server", expected=expected, found=str(error), do=do) from error
    return configuration, str(server or configuration.host).rstrip("/")


def _reason(response: Any) -> str:
    """The message of a Status object, else the name of the HTTP status."""
    try:
        message = records.decode_object(response.read(1 << 16), "status").get("message")
    except Exception:  # the name of the HTTP status is enough then
        message = None
    return shown(str(message)) if message else shown(str(response.reason))


def _decoded(data: bytes, what: str) -> Object:
    try:
        return records.decode_object(data, what)
    except VgpuError as error:
        raise ApiError("garbage", str(error)) from None


def _bounded(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_ANSWER:
            raise ApiError("garbage", f"{path}: expected at most {MAX_ANSWER} bytes, found more")
        yield chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines in `chunks` that are not empty; ApiError when the last one is incomplete."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)
        if len(rest) > MAX_EVENT:
            raise ApiError("garbage", f"watch: expected at most {MAX_EVENT} bytes of an event, found more")
    if rest:
        raise ApiError("garbage", "watch: ended in the middle of an event")
