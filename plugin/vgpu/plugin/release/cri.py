"""What the node's container runtime says of itself over Kubernetes' container runtime interface (CRI, v1).

Belongs here: one call, Status, and what of its answer decides whether a CDI device reaches a container. Does not belong
here: changing the runtime's configuration, which nothing of the DaemonSet does.

containerd 1.7 and 2.1, which tests run, print their configuration in the answer's `info` (`enableCDI`, `cdiSpecDirs`).
CRI-O, which no test has run, is taken to have CDI on, with the usual directories.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import grpc

from vgpu.config.errors import VgpuError, shown
from vgpu.plugin.kubelet.proto import cri_pb2 as messages
from vgpu.plugin.release import cdi

#: Where runtimes have their sockets: containerd and CRI-O, and the containerd of k3s and RKE2, k0s, MicroK8s.
SOCKETS = (
    "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock", "/var/snap/microk8s/common/run/containerd.sock",
)  # fmt: skip
TIMEOUT = 30.0  #: seconds
DO_ENABLE = "set enable_cdi = true in the runtime's configuration (containerd 1.7), or update it (1.6 has no CDI)"


@dataclass(frozen=True)
class Runtime:
    """`directories`: those from which it reads CDI specifications; none where CDI is off."""

    name: str
    version: str
    directories: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def ask(host: str, wished: str) -> Runtime:
    """Ask the runtime at the socket `wished`, or at the first of SOCKETS that is there. VgpuError if none answers."""
    sockets = [wished] if wished else [one for one in SOCKETS if os.path.exists(host + one)]
    if not sockets:
        raise VgpuError("container runtime", expected="its socket", found=f"none of {', '.join(SOCKETS)}",
                        do="set runtime.socket to the runtime's")  # fmt: skip
    with grpc.insecure_channel(f"unix://{host}{sockets[0]}") as channel:
        try:
            version = _call(channel, "Version", messages.VersionRequest(), messages.VersionResponse)
            status = _call(channel, "Status", messages.StatusRequest(verbose=True), messages.StatusResponse)
        except grpc.RpcError as error:
            found = shown(error.details() if isinstance(error, grpc.Call) else str(error))
            raise VgpuError(sockets[0], expected="a container runtime that answers", found=found) from error
    name = str(version.runtime_name)
    return Runtime(name, str(version.runtime_version), _directories(name, dict(status.info)))


def require_cdi(runtime: Runtime) -> None:
    """VgpuError where the runtime takes no CDI devices."""
    if not runtime.directories:
        raise VgpuError(str(runtime), expected="a runtime with CDI on", found="CDI off", do=DO_ENABLE)


def _call(channel: grpc.Channel, method: str, request: Any, response: Any) -> Any:
    call = channel.unary_unary(
        f"/runtime.v1.RuntimeService/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return call(request, timeout=TIMEOUT)


def _directories(name: str, info: dict[str, str]) -> tuple[str, ...]:
    if "containerd" not in name:
        return cdi.DIRECTORIES
    config: Any = json.loads(info.get("config") or "{}")
    if not config.get("enableCDI"):
        return ()
    return tuple(os.path.normpath(str(one)) for one in config.get("cdiSpecDirs") or ())
