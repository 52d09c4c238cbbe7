"""Registration with kubelet: when it is due, the call, and the pauses between attempts that fail.

Belongs here: kubelet's socket and the meaning of its changes. A kubelet that starts deletes the content of its
directory and creates a socket with a new inode. A kubelet that has ended its ListAndWatch call expects the plugin to
register again. Nothing here blocks: `look` does what is due and returns when to look again. The servers' sockets belong
to vgpu.plugin.kubelet.server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from vgpu.config.errors import VgpuError, escaped
from vgpu.node.service.file_signature import Signature, signature
from vgpu.node.service.log import Conditions
from vgpu.plugin.kubelet import server
from vgpu.plugin.kubelet.proto import deviceplugin_pb2 as protocol
from vgpu.plugin.kubelet.proto import services
from vgpu.plugin.kubelet.server import ResourceServer

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
TIMEOUT = 5.0  #: seconds
FIRST_PAUSE, LAST_PAUSE = 0.02, 10.0  #: seconds between two attempts that fail, doubling
FIRST_PATIENCE, LAST_PATIENCE = 2.0, 60.0  #: seconds to wait for ListAndWatch after registration, doubling
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost"))


@dataclass
class RegistrationState:
    """The registration of one resource. `kubelet`: the socket that it is registered with, () for none."""

    kubelet: Signature = ()
    seen: Signature = ()
    due: float = 0.0
    pause: float = FIRST_PAUSE
    since: float = 0.0  #: the time of the registration
    silent_since: float = -1.0  #: -1: kubelet has a ListAndWatch call open
    patience: float = FIRST_PATIENCE


class Registrar:
    """Keeps all servers bound and registered with the kubelet of `socket_dir`."""

    def __init__(self, socket_dir: str, conditions: Conditions, clock: Callable[[], float]) -> None:
        self.socket_dir = socket_dir
        self.kubelet = f"{socket_dir}/{KUBELET}"
        self.conditions = conditions
        self.clock = clock
        self.states: dict[str, RegistrationState] = {}
        self._now: Signature = ()

    def look(self, servers: list[ResourceServer]) -> float:
        """One round; returns the seconds until the next is due, at most LAST_PAUSE."""
        self.states = {one.name: self.states.get(one.name, RegistrationState()) for one in servers}
        for topic in [topic for topic in self.conditions.present if topic.startswith(TOPIC)]:
            if topic[len(TOPIC) :] not in self.states:
                self.conditions.set(topic, "")
        kubelet = self._now = signature(self.kubelet, self._now)
        missing = f"no kubelet at {self.kubelet}; registering as soon as there is one"
        self.conditions.set("kubelet", missing if servers and not kubelet else "")
        for one in servers:
            self._look_at(one, self.states[one.name], kubelet)
        now = self.clock()
        return min([LAST_PAUSE, *(max(state.due - now, 0.0) for state in self.states.values() if kubelet)])

    def registered(self) -> bool:
        """Whether all resources are registered with the running kubelet."""
        kubelet = signature(self.kubelet, self._now)
        return bool(self.states) and all(state.kubelet == kubelet != () for state in self.states.values())

    def _look_at(self, one: ResourceServer, state: RegistrationState, kubelet: Signature) -> None:
        if kubelet != state.seen:  # a new kubelet: register at once
            state.seen, state.kubelet, state.due = kubelet, (), 0.0
            state.pause, state.patience = FIRST_PAUSE, FIRST_PATIENCE
        if not kubelet:
            return
        if state.kubelet and not one.bound():
            state.kubelet, state.due = (), 0.0
        if not (state.kubelet and self._kubelet_listens(one, state)) and self.clock() >= state.due:
            self._attempt(one, state, kubelet)

    def _kubelet_listens(self, one: ResourceServer, state: RegistrationState) -> bool:
        """Whether kubelet has a ListAndWatch call open. If not, the next attempt is due after `patience` seconds."""
        now = self.clock()
        if one.device_list.streams:
            if now - state.since > LAST_PATIENCE:
                state.patience = FIRST_PATIENCE
            state.silent_since, state.due = -1.0, now + LAST_PAUSE
            return True
        if state.silent_since < 0:
            state.silent_since = now
            state.due = now + state.patience
        return False

    def _attempt(self, one: ResourceServer, state: RegistrationState, kubelet: Signature) -> None:
        topic = TOPIC + one.name
        unheard = bool(state.kubelet)
        try:
            if not one.bound():
                one.bind()
            register(self.kubelet, one.name, one.endpoint)
        except (VgpuError, OSError, RuntimeError) as error:  # RuntimeError: no thread is left
            state.kubelet, state.due = (), self.clock() + state.pause
            state.pause = min(state.pause * 2, LAST_PAUSE)
            if state.pause > 1:  # failures while kubelet starts are not logged
                self.conditions.set(topic, f"{one.name} is not registered: {error}")
            return
        self.conditions.set(topic, "")
        why = "kubelet did not listen any more" if unheard else ""
        self.conditions.log.info("registered", resource=one.name, devices=one.device_list.resource.count(), again=why)
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
