"""The runtimes' own clients: how each starts a container on a root file system, a further program in it, and ends it.

Belongs here: command lines, and what a client needs beforehand. The containers of podman, Docker and containerd meet
the hook by the node's own registration (vgpu.node.runtimes); those of runc and crun have it in their config.json. Does
not belong here: the root file system, and what runs in it (container.py).
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from typing import Any

from vgpu.config.errors import VgpuError, shown
from vgpu.config.settings import Settings
from vgpu.node.runtimes import cdi_spec, programs, registry, verify
from vgpu.node.runtimes.registered_files import Record
from vgpu.node.runtimes.registration import DEFAULT, RUNTIMES, Wish
from vgpu.node.selftest.program import NAME, NotJudged

OCI = ("runc", "crun")
NAMES = (*OCI, "containerd", "docker", "podman")
CONTAINER = "CONTAINER"  #: stands for a container's name in a command
ENDINGS = "endings.json"  #: the commands that end what a killed run has left
HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
PROGRAM = f"/{NAME}"


class Client(abc.ABC):
    """`ending` are the commands that end a container, `last` those that remove what the client itself has made."""

    ending: list[list[str]]
    last: list[list[str]]

    @abc.abstractmethod
    def run(self, container: str, path: str, annotations: Mapping[str, str]) -> list[str]:
        """The command that runs the program in a new container; `path` has `rootfs`, and place for files."""

    @abc.abstractmethod
    def further(self, container: str, *words: str) -> list[str]:
        """The command that runs a further program in the container."""

    def id_of(self, container: str) -> str:
        """The id by which the hook knows a running container."""
        return container


class Oci(Client):
    """runc or crun, on a bundle that names the hook."""

    def __init__(self, runtime: str, directory: str, hook: str, config_path: str) -> None:
        self.command = [runtime, "--root", f"{directory}/state"]
        self.hook, self.config_path = hook, config_path
        self.ending, self.last = [[*self.command, "delete", "--force", CONTAINER]], []

    def run(self, container: str, path: str, annotations: Mapping[str, str]) -> list[str]:
        with open(f"{path}/config.json", "w", encoding="utf-8") as file:
            json.dump(self._spec(annotations), file)
        return [*self.command, "run", "--bundle", path, container]

    def further(self, container: str, *words: str) -> list[str]:
        return [*self.command, "exec", container, *words]

    def _spec(self, annotations: Mapping[str, str]) -> dict[str, Any]:
        hooks = {
            stage: [{"path": self.hook, "args": ["vgpu-hook", "--config", self.config_path, stage],
                     "env": HOOK_ENVIRONMENT}]
            for stage in ("createRuntime", "poststop")
        }  # fmt: skip
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False, "user": {"uid": 0, "gid": 0}, "args": [PROGRAM], "cwd": "/",
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "noNewPrivileges": True,
                "capabilities": {key: ["CAP_MKNOD"] for key in ("bounding", "effective", "permitted")},
            },
            "root": {"path": "rootfs"}, "mounts": mounts, "hooks": hooks, "annotations": dict(annotations),
            "linux": {
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
                "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            },
        }  # fmt: skip


class Podman(Client):
    def __init__(self) -> None:
        self.ending, self.last = [["podman", "kill", CONTAINER], ["podman", "rm", "--force", CONTAINER]], []

    def run(self, container: str, path: str, annotations: Mapping[str, str]) -> list[str]:
        return [*_run(["podman"], container, annotations), "--rootfs", f"{path}/rootfs", PROGRAM]

    def further(self, container: str, *words: str) -> list[str]:
        return ["podman", "exec", "--interactive", container, *words]

    def id_of(self, container: str) -> str:
        return _inspected(["podman"], container)


class Docker(Client):
    """Docker wants an image, which is made of the first container's root file system."""

    def __init__(self, wish: Wish) -> None:
        if wish.share:
            raise NotJudged("--runtime docker", expected="a registration without --share", found="one with it")
        self.command = ["docker", *verify.docker_host(wish)]
        self.named = [] if wish.mode == DEFAULT else [f"--runtime={wish.name}"]
        self.ending, self.last = [[*self.command, "rm", "--force", CONTAINER]], [[*self.command, "rmi", NAME]]
        self.has_image = False

    def run(self, container: str, path: str, annotations: Mapping[str, str]) -> list[str]:
        if not self.has_image:
            packed = f"{path}/rootfs.tar"
            with tarfile.open(packed, "w") as archive:
                archive.add(f"{path}/rootfs", ".")
            done = programs.run([*self.command, "import", packed, NAME])
            if done.returncode:
                raise NotJudged("docker import", expected="an image", found=shown(done.stderr))
            self.has_image = True
        return [*_run(self.command, container, annotations), *self.named, NAME, PROGRAM]

    def further(self, container: str, *words: str) -> list[str]:
        return [*self.command, "exec", "--interactive", container, *words]

    def id_of(self, container: str) -> str:
        return _inspected(self.command, container)


class Containerd(Client):
    """containerd by ctr, in a namespace of its own, with the handler that the registration has made. Where a CDI device
    takes its place, its `hooks` are put into the specification here: ctr adds no device to one that it is given."""

    def __init__(self, wish: Wish, hooks: Mapping[str, Any]) -> None:
        self.hooks = hooks
        self.command, self.handler, self.binary = verify.containerd_client(wish, NAME)
        self.further_programs = 0
        # `rm --force` waits until the task has ended; after `tasks kill` a removal may come too early.
        endings = (("tasks", "rm", "--force", CONTAINER), ("containers", "rm", CONTAINER))
        self.ending = [[*self.command, *words] for words in endings]
        self.last = [[*self.command, "namespaces", "remove", NAME]]

    def run(self, container: str, path: str, annotations: Mapping[str, str]) -> list[str]:
        spec = verify.specification(self.handler, f"{path}/rootfs", [PROGRAM], container, annotations)
        spec.update({"hooks": self.hooks} if self.hooks else {})
        with open(f"{path}/config.json", "w", encoding="utf-8") as file:
            json.dump(spec, file)
        return [*self.command, "run", "--rm", *self.binary, "--config", file.name, container]

    def further(self, container: str, *words: str) -> list[str]:
        self.further_programs += 1
        return [*self.command, "tasks", "exec", "--exec-id", f"program{self.further_programs}", container, *words]


def _run(client: list[str], container: str, annotations: Mapping[str, str]) -> list[str]:
    places = ["run", "--rm", "--interactive", "--network=none", "--cap-add=MKNOD", f"--name={container}"]
    return [*client, *places, *(f"--annotation={key}={value}" for key, value in annotations.items())]


def _inspected(client: list[str], container: str) -> str:
    return programs.run([*client, "inspect", "--format", "{{.Id}}", container]).stdout.strip()


def chosen(name: str) -> str:
    """The runtime to use; NotJudged if there is none, or no client of it starts a container without a pod."""
    if name and name not in NAMES:
        do = "CRI-O starts its containers by one of them" if name in RUNTIMES else "see: docs/selftest.md"
        raise NotJudged("--runtime", expected=" or ".join(NAMES), found=name, do=do)
    program = "ctr" if name == "containerd" else name
    found = name if program and shutil.which(program) else next(filter(shutil.which, () if name else OCI), "")
    if not found:
        raise NotJudged(
            program or "a runtime", expected=program or " or ".join(OCI), found="none", do="install it, or --bare"
        )
    return found


def make(name: str, directory: str, node: Settings, hook: str, config_path: str) -> Client:
    """The client of a runtime, for a run in `directory`, where it notes how to end what the run has started."""
    made = Oci(name, directory, hook, config_path) if name in OCI else _registered(name, node, config_path)
    with open(f"{directory}/{ENDINGS}", "w", encoding="utf-8") as file:
        json.dump([made.ending, made.last], file)
    return made


def _registered(name: str, node: Settings, config_path: str) -> Client:
    record = Record.read(node.state_dir, name)
    try:
        if name == "containerd" and not record.files and (hooks := cdi_spec.hooks(node.state_dir)):
            return Containerd(Wish(mode=DEFAULT), hooks)
        if not record.files:
            do = f"vgpuctl runtime configure --runtime {name}"
            raise VgpuError(name, expected="vgpu's registration", found="none", do=do)
        wish = verify.wish_of(record, node.state_dir, config_path)
        registry.configure(name, wish)  # reads the runtime's files
        return Podman() if name == "podman" else Docker(wish) if name == "docker" else Containerd(wish, {})
    except VgpuError as error:
        raise NotJudged(error.what, expected=error.expected, found=error.found, do=error.do) from error


def end(directory: str) -> None:
    """End the containers that a run in this directory has left, and what its client has made."""
    with contextlib.suppress(FileNotFoundError):
        with open(f"{directory}/{ENDINGS}", encoding="utf-8") as file:
            ending, last = json.load(file)
        left = [name for name in os.listdir(directory) if name.startswith(f"{NAME}-")]
        for command in [*(_named(words, name) for name in left for words in ending), *last]:
            with contextlib.suppress(VgpuError):  # a runtime that is gone has none
                programs.run(command)


def end_container(client: Client, container: str) -> None:
    for words in client.ending:
        programs.run(_named(words, container))


def _named(words: list[str], container: str) -> list[str]:
    return [container if word == CONTAINER else word for word in words]
