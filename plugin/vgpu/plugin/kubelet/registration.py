"""Registration with kubelet: when it is due, the call, and the pauses between attempts that fail.

Belongs here: kubelet's socket and what its changes mean. A kubelet that starts deletes what lies in its directory and
makes a socket of a new inode; one that has stopped listening to a plugin wants it to register again. Nothing here
waits: `look` does what is due and says when to look again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from vgpu.config.errors import VgpuError, escaped
from vgpu.node.service.log import Conditions
from vgpu.plugin.kubelet import server
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as protocol
from vgpu.plugin.kubelet.proto import services
from vgpu.plugin.kubelet.server import ResourceServer

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
TIMEOUT = 5.0
FIRST_PAUSE, LAST_PAUSE = 0.02, 10.0  #: between two attempts that fail, doubling
FIRST_PATIENCE, LAST_PATIENCE = 2.0, 60.0  #: with a kubelet that does not listen, doubling
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost"))

Signature = tuple[int, ...]


@dataclass
class Standing:
    """How one resource stands: `kubelet` is the socket that it is registered with, () for none."""

    kubelet: Signature = ()
    seen: Signature = ()
    due: float = 0.0
    pause: float = FIRST_PAUSE
    since: float = 0.0  #: of the registration
    silent_since: float = -1.0  #: -1: kubelet listens
    patience: float = FIRST_PATIENCE


class Registrar:
    """Keeps all servers bound and registered with the kubelet of `socket_dir`."""

    def __init__(self, socket_dir: str, conditions: Conditions, clock: Callable[[], float]) -> None:
        self.socket_dir = socket_dir
        self.kubelet = f"{socket_dir}/{KUBELET}"
        self.conditions = conditions
        self.clock = clock
        self.standings: dict[str, Standing] = {}

    def look(self, servers: list[ResourceServer]) -> float:
        """One round; seconds until the next is due, at most LAST_PAUSE."""
        self.standings = {one.name: self.standings.get(one.name, Standing()) for one in servers}
        for topic in [topic for topic in self.conditions.present if topic.startswith(TOPIC)]:
            if topic[len(TOPIC) :] not in self.standings:
                self.conditions.set(topic, "")
        kubelet = _signature(self.kubelet)
        missing = f"no kubelet at {self.kubelet}; registering as soon as there is one"
        self.conditions.set("kubelet", missing if servers and not kubelet else "")
        for one in servers:
            self._look_at(one, self.standings[one.name], kubelet)
        now = self.clock()
        return min([LAST_PAUSE, *(max(state.due - now, 0.0) for state in self.standings.values() if kubelet)])

    def registered(self) -> bool:
        """Whether all resources are registered with the kubelet that is there."""
        kubelet = _signature(self.kubelet)
        return bool(self.standings) and all(state.kubelet == kubelet != () for state in self.standings.values())

    def _look_at(self, one: ResourceServer, state: Standing, kubelet: Signature) -> None:
        if kubelet != state.seen:  # another kubelet: at once
            state.seen, state.kubelet, state.due = kubelet, (), 0.0
            state.pause, state.patience = FIRST_PAUSE, FIRST_PATIENCE
        if not kubelet:
            return
        if state.kubelet and not one.bound():
            state.kubelet, state.due = (), 0.0
        if not (state.kubelet and self._is_heard(one, state)) and self.clock() >= state.due:
            self._attempt(one, state, kubelet)

    def _is_heard(self, one: ResourceServer, state: Standing) -> bool:
        """Whether kubelet listens. When it does not, the next attempt is due when our patience is over."""
        now = self.clock()
        if one.listing.streams:
            if now - state.since > LAST_PATIENCE:
                state.patience = FIRST_PATIENCE
            state.silent_since, state.due = -1.0, now + LAST_PAUSE
            return True
        if state.silent_since < 0:
            state.silent_since = now
            state.due = now + state.patience
        return False

    def _attempt(self, one: ResourceServer, state: Standing, kubelet: Signature) -> None:
        topic = TOPIC + one.name
        unheard = bool(state.kubelet)
        try:
            if not one.bound():
                one.bind()
            register(self.kubelet, one.name, one.endpoint)
        except (VgpuError, OSError) as error:
            state.kubelet, state.due = (), self.clock() + state.pause
            state.pause = min(state.pause * 2, LAST_PAUSE)
            if state.pause > 1:  # a kubelet that is just starting is no news
                self.conditions.set(topic, f"{one.name} is not registered: {error}")
            return
        self.conditions.set(topic, "")
        why = "kubelet did not listen any more" if unheard else ""
        self.conditions.log.info("registered", resource=one.name, devices=one.listing.resource.count(), again=why)
        now = self.clock()
        state.kubelet, state.pause, state.since, state.silent_since = kubelet, FIRST_PAUSE, now, now
        state.patience = min(state.patience * 2, LAST_PATIENCE) if unheard else state.patience
        state.due = now + state.patience


TOPIC = "registration of "


def register(kubelet: str, resource: str, endpoint: str) -> None:
    """One Register call at the socket `kubelet`; VgpuError with kubelet's own reason when it fails."""
    request = protocol.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=server.options()
    )
    with grpc.insecure_channel(f"unix:{kubelet}", options=OPTIONS) as channel:
        try:
            services.Client(channel, protocol, "Registration").Register(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            found = f"{error.code().name}: {escaped(error.details() or '')}"
            raise VgpuError("kubelet", expected=f"to register {resource}", found=found) from None


def _signature(path: str) -> Signature:
    """Of kubelet's socket; () where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns
