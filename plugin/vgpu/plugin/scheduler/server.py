"""The extender over HTTP: paths, statuses, certificates and limits.

Belongs here: which path calls which verb, who may call it, and how long a body may be. With certificates, every path
but health and version asks for a client certificate that the given authority has signed, and, where names are given,
with one of these names. The work is done in threads, so that a request that waits for the API server delays no other.

A malformed body is 400 and one that is too long 413, with the same error in the result. What the extender cannot answer
at this moment is 200 with an Error, because kube-scheduler shows the text of an error only then.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from aiohttp import web

from vgpu.config.errors import VgpuError
from vgpu.node.service.log import Log
from vgpu.plugin.scheduler import wire
from vgpu.plugin.scheduler.metrics import Metrics
from vgpu.plugin.scheduler.service import Refused, Service

MAX_BODY = 256 << 20  #: bytes; 5,000 whole nodes are some 100 MB
THREADS = 16
OPEN = ("/healthz", "/livez", "/readyz", "/version")  #: for everybody

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Tls:
    """The server's certificate, the authority of its clients' certificates, and the clients' names ("": any)."""

    def __init__(self, certificate: str, key: str, client_ca: str, names: tuple[str, ...] = ()) -> None:
        self.names = names
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self.context.load_cert_chain(certificate, key)
            self.context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            found = f"{certificate}, {key}, {client_ca}: {error}"
            raise VgpuError("certificates", expected="a certificate, its key and an authority", found=found) from None
        self.context.verify_mode = ssl.CERT_OPTIONAL  # probes have none


class Server:
    """The HTTP application around `service`. Without `tls` it has to listen on this host alone."""

    def __init__(self, service: Service, log: Log, tls: Tls | None = None, max_body: int = MAX_BODY) -> None:
        self.service = service
        self.log = log
        self.tls = tls
        self.metrics = Metrics()
        self.threads = ThreadPoolExecutor(THREADS, "verb")
        self.app = web.Application(client_max_size=max_body, middlewares=[self._guarded])
        post, get = self.app.router.add_post, self.app.router.add_get
        for path in ("/scheduler/predicates", "/scheduler/filter"):
            post(path, self._verb("filter", self._filter))
        for path in ("/scheduler/priorities", "/scheduler/prioritize"):
            post(path, self._verb("prioritize", self._prioritize))
        post("/scheduler/bind", self._verb("bind", self._bind))
        for path in ("/scheduler/preemption", "/scheduler/preempt"):
            post(path, self._verb("preempt", self._preempt))
        post("/scheduler/dry-run", self._verb("dry-run", self._dry_run))
        get("/version", self._version)
        get("/healthz", self._healthz)
        get("/livez", self._healthz)
        get("/readyz", self._readyz)
        get("/metrics", self._metrics)

    # The verbs: body -> (status, answer)

    def _filter(self, body: bytes) -> tuple[str, bytes]:
        found = self.service.filter(body)
        return found.Error and "refused", wire.encode(found)

    def _prioritize(self, body: bytes) -> tuple[str, bytes]:
        return "", wire.encode(self.service.prioritize(body))

    def _bind(self, body: bytes) -> tuple[str, bytes]:
        error = self.service.bind(body)
        return error and "refused", wire.encode({"Error": error})

    def _preempt(self, body: bytes) -> tuple[str, bytes]:
        return "", wire.preemption_result(self.service.preempt(body))

    def _dry_run(self, body: bytes) -> tuple[str, bytes]:
        return "", wire.encode(self.service.dry_run(body))

    def _verb(self, verb: str, work: Callable[[bytes], tuple[str, bytes]]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            begun = time.perf_counter()
            status, result, text = 200, "ok", b""
            try:
                body = await request.read()
                refused, text = await asyncio.get_running_loop().run_in_executor(self.threads, work, body)
                result = refused or "ok"
            except web.HTTPRequestEntityTooLarge as error:
                status, result, text = 413, "malformed", wire.encode({"Error": error.text or "the body is too long"})
            except VgpuError as error:
                status, result, text = 400, "malformed", wire.encode({"Error": str(error)})
            except Refused as error:
                status, result, text = 503, "refused", wire.encode({"Error": str(error)})
            self.metrics.requests.labels(verb, result).inc()
            self.metrics.seconds.labels(verb).observe(time.perf_counter() - begun)
            return web.Response(status=status, body=text, content_type="application/json")

        return handle

    # Who may call

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        problem = self._stranger(request) if self.tls is not None and request.path not in OPEN else ""
        if problem:
            self.metrics.requests.labels("any", "forbidden").inc()
            body = json.dumps({"Error": problem})
            return web.Response(status=403, text=body, content_type="application/json")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.json_response({"Error": error.reason}, status=error.status)
        except Exception as error:  # what nobody expected: the scheduler gets an error, and never a wrong answer
            self.log.warning(f"unexpected: {type(error).__name__}: {error}", path=request.path)
            return web.json_response({"Error": f"{type(error).__name__}: {error}"}, status=500)

    def _stranger(self, request: web.Request) -> str:
        """Why the caller may not call, "" if it may."""
        certificate: Any = request.get_extra_info("peercert")
        if not certificate:
            return "a client certificate is required"
        names = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
        wanted = self.tls.names if self.tls is not None else ()
        return "" if not wanted or names & set(wanted) else f"the certificate's name is not one of {', '.join(wanted)}"

    # State

    async def _version(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"version": metadata.version("vgpu")})

    async def _healthz(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        problem = self.service.not_ready()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        text = self.metrics.text(self.service.cluster, not self.service.not_ready())
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
