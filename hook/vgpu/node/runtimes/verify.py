"""The proof of a registration: its files are right, the daemon has read them, and two containers show it.

Belongs here: starting a plain container and one with the smallest share by the runtime's own client, and reading in the
hook's log whether the hook was called. The containers' program is the gate itself, a static program, so no image is
needed. Does not belong here: what the files contain.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from vgpu.config import paths, standalone
from vgpu.config.errors import VgpuError, shown
from vgpu.config.request import PREFIX, REQUEST
from vgpu.config.settings import Settings
from vgpu.node.runtimes import (
    base_spec,
    containerd,
    docker,
    json_text,
    nested_values,
    programs,
    registered_files,
    registry,
    toml_text,
)
from vgpu.node.runtimes.registered_files import Record
from vgpu.node.runtimes.registration import BASE_SPEC, DEFAULT, WITHOUT_PROGRAM, Wish

PROVEN, WRONG, UNPROVEN = "proven", "wrong", "not proven"
OK, FAILURE, WARNING = "ok", "failure", "not proven"
SHARE = [("cores", "1"), ("memory", "64Mi")]
TIMEOUT, TIMED_OUT = 60, 124
#: The kernel reports when it booted in whole seconds, and a process's start relative to that.
CLOCK = 2
Command = Callable[[bool], "subprocess.CompletedProcess[str]"]


@dataclass
class Proof:
    """What was found, in its order: (status, text)."""

    steps: list[tuple[str, str]] = field(default_factory=list)

    def add(self, status: str, text: str) -> None:
        self.steps.append((status, text))

    @property
    def result(self) -> str:
        found = {status for status, _ in self.steps}
        return WRONG if FAILURE in found else UNPROVEN if WARNING in found else PROVEN


@dataclass(frozen=True)
class Site:
    """What the proof of one runtime needs: its wish, its files, the node, and a place for a root file system."""

    wish: Wish
    record: Record
    node: Settings
    directory: str

    @property
    def rootfs(self) -> str:
        return f"{self.directory}/rootfs"

    @property
    def request(self) -> dict[str, str]:
        return request_annotations(self.node, SHARE, self.wish.standalone)


def request_annotations(node: Settings, pairs: list[tuple[str, str]], mode: str = "") -> dict[str, str]:
    """The annotations that ask for a share: plain where the node needs no key and has none, else with the key.

    `mode` is a registration's own, in the place of the setting standalone.requests.
    """
    path = node.text("standalone.key")
    if (mode or node.text("standalone.requests")) == "key" or os.path.exists(path):
        return {REQUEST + standalone.read_key(path): standalone.value(pairs)}
    return {PREFIX + name: ",".join(value for key, value in pairs if key == name) for name, _ in pairs}


def examine(name: str, node: Settings, config_path: str) -> Proof:
    """The proof of the runtime `name`."""
    proof = Proof()
    record = Record.read(node.state_dir, name)
    if not record.files:
        proof.add(FAILURE, f"{name} is not configured: vgpuctl runtime configure --runtime {name}")
        return proof
    wish = wish_of(record, node.state_dir, config_path)
    if not _files(proof, name, wish):
        return proof
    with tempfile.TemporaryDirectory(prefix="vgpu-check-") as directory:
        site = Site(wish, record, node, directory)
        _make_rootfs(site)
        with _CLIENTS[name](proof, site) as command:
            if command is not None:
                _containers(proof, site, command)
    return proof


def wish_of(record: Record, state_dir: str, config_path: str) -> Wish:
    """The wish that the record's registration came from."""
    saved: dict[str, Any] = record.options
    share = tuple((str(key), str(value)) for key, value in saved.get("share", []))
    words = {key: str(saved[key]) for key in ("config", "mode", "name", "programs", "standalone") if key in saved}
    return Wish(settings=str(saved.get("settings", config_path)), state_dir=state_dir, share=share, **words)


def _files(proof: Proof, name: str, wish: Wish) -> bool:
    """Whether the files are as a registration would write them now, and their own program accepts them."""
    change = registry.configure(name, wish)
    changed = [edit.path for edit in change.edits if edit.changes()]
    for path in changed:
        proof.add(FAILURE, f"{path} is not as configured: {wish.command(name)} (--dry-run prints the difference)")
    for program in (wish.hook, wish.shim):
        if not os.access(program, os.X_OK):
            proof.add(
                FAILURE, f"{program}: expected vgpu's program, found none; install vgpu again: {WITHOUT_PROGRAM[name]}"
            )
    if proof.steps:
        return False
    assert change.registration is not None
    try:
        change.registration.verify()
    except VgpuError as error:
        proof.add(FAILURE, str(error))
        return False
    proof.add(OK, f"files: {', '.join(edit.path for edit in change.edits)}")
    proof.add(OK, f"applies to: {change.registration.applies}")
    return True


def _make_rootfs(site: Site) -> None:
    """A root file system with one static program and the directories that runtimes mount on."""
    for name in ("proc", "dev", "sys", "etc", "tmp", "run", "usr/lib", "usr/bin"):
        os.makedirs(f"{site.rootfs}/{name}")
    shutil.copy(site.wish.hook, f"{site.rootfs}/vgpu-hook")


#: In a container the gate reads no state, finds no marker, and leaves: exit status 0.
PROGRAM = ["/vgpu-hook", "createRuntime"]


def _containers(proof: Proof, site: Site, command: Command) -> None:
    """A container without a share, which must start and not meet the hook's work, and one with a share."""
    plain = command(False)
    if plain.returncode:
        proof.add(FAILURE, f"a plain container does not start: {_last(plain)}")
        return
    proof.add(OK, "a plain container starts")
    before = _log(site)
    done = command(True)
    called = [item for item in _log(site)[len(before) :] if item.get("stage") in ("createRuntime", "prestart")]
    if done.returncode == 0 and called and not called[-1].get("error"):
        proof.add(
            OK,
            "a container with a share starts, and the hook set it up",
        )
    elif "vgpu-hook: " in done.stderr or called:
        line = str(called[-1]["error"]) if called else done.stderr[done.stderr.index("vgpu-hook: ") :].splitlines()[0]
        proof.add(OK, "a container with a share meets the hook")
        proof.add(WARNING, f"the hook gave it no share: {shown(line)}")
    elif done.returncode == 0:
        proof.add(FAILURE, "a container with a share starts, and nobody called the hook")
    else:
        proof.add(FAILURE, f"a container with a share does not start: {_last(done)}")


def _log(site: Site) -> list[dict[str, Any]]:
    """The records of the hook's log, of the rotated one too."""
    lines: list[str] = []
    log = paths.hook_log(site.node.run_dir)
    for path in (f"{log}.1", log):
        lines += (registered_files.read(path) or "").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def _last(done: subprocess.CompletedProcess[str]) -> str:
    """The line of a client that names the error, or its last one: Docker's last line names its help."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return shown((named or lines)[-1]) if lines else f"exit status {done.returncode}"


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, TIMED_OUT, "", f"{command[0]}: no end within {TIMEOUT} s")


def _annotations(site: Site, share: bool) -> list[str]:
    return [f"--annotation={key}={value}" for key, value in site.request.items()] if share else []


# The clients


@contextmanager
def _podman(proof: Proof, site: Site) -> Iterator[Command | None]:
    if not shutil.which("podman"):
        proof.add(WARNING, "podman is not installed here: no container was started")
        yield None
        return

    def command(share: bool) -> subprocess.CompletedProcess[str]:
        places = ["podman", "run", "--rm", "--network=none", *_annotations(site, share)]
        return _run([*places, "--rootfs", site.rootfs, *PROGRAM])

    yield command


@contextmanager
def _crio(proof: Proof, site: Site) -> Iterator[Command | None]:
    """CRI-O has no client of its own, and a pod needs a network and an image."""
    proof.add(WARNING, "CRI-O has no client that starts a container without a pod: no container was started")
    yield None


@contextmanager
def _docker(proof: Proof, site: Site) -> Iterator[Command | None]:
    client = ["docker", *docker_host(site.wish)]
    image = f"vgpu-check:{os.getpid()}"
    if not shutil.which("docker") or _run([*client, "version"]).returncode:
        proof.add(WARNING, "no Docker answers here: no container was started")
        yield None
        return
    archive = f"{site.directory}/rootfs.tar"
    with tarfile.open(archive, "w") as made:
        made.add(site.rootfs, ".")
    imported = _run([*client, "import", archive, image])
    if imported.returncode:
        proof.add(WARNING, f"docker import gives no image: {_last(imported)}")
        yield None
        return
    annotated = not site.wish.share and "--annotation" in _run([*client, "run", "--help"]).stdout
    if not annotated and not site.wish.share:
        proof.add(WARNING, "this Docker has no --annotation: a share comes by --share of vgpuctl runtime configure")

    def command(share: bool) -> subprocess.CompletedProcess[str]:
        unnamed = site.wish.mode == DEFAULT or (site.wish.share and not share)
        named = [] if unnamed else [f"--runtime={site.wish.name}"]
        options = ["run", "--rm", "--network=none", *named, *_annotations(site, share and annotated)]
        return _run([*client, *options, image, *PROGRAM])

    try:
        yield command
    finally:
        _run([*client, "rmi", image])


def docker_host(wish: Wish) -> list[str]:
    """The client's option for a socket that daemon.json names. Another form, such as fd://, is for dockerd alone."""
    path = wish.config or docker.CONFIG
    hosts = json_text.parse(registered_files.read(registered_files.followed(path)) or "{}", path).get("hosts")
    sockets = [one for one in (hosts if isinstance(hosts, list) else []) if str(one).startswith("unix://")]
    return ["--host", sockets[0]] if sockets else []


@contextmanager
def _containerd(proof: Proof, site: Site) -> Iterator[Command | None]:
    path, dump, address = _configured(site.wish)
    since = _daemon_start(address)
    if not shutil.which("ctr") or since is None or path.endswith(".tmpl"):
        proof.add(WARNING, f"no containerd answers on {address}: no container was started")
        yield None
        return
    late = [item["path"] for item in site.record.files if os.stat(item["path"]).st_mtime > since + CLOCK]
    if late:
        proof.add(FAILURE, f"containerd runs since before {late[0]} was written: {' '.join(containerd.restart(path))}")
        yield None
        return
    handler, options = _handler(site.wish, dump)
    client = ["ctr", "--address", address, "--namespace", "vgpu-check"]
    for name in failed_cri_plugins(_run([*client, "plugins", "ls"]).stdout):
        proof.add(
            FAILURE, f"containerd's plugin {name} did not start: kubelet has no runtime; look into containerd's log"
        )

    def command(share: bool) -> subprocess.CompletedProcess[str]:
        name = f"vgpu-check-{os.getpid()}-{'share' if share else 'plain'}"
        path = f"{site.directory}/{name}.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(specification(handler, site.rootfs, PROGRAM, name, site.request if share else {}), file)
        done = _run([*client, "run", "--rm", "--null-io", *options, "--config", path, name])
        if done.returncode == TIMED_OUT:
            _run([*client, "tasks", "rm", "--force", name])
        if done.returncode:
            _run([*client, "containers", "rm", name])
        return done

    yield command
    _run([*client, "namespaces", "remove", "vgpu-check"])


def failed_cri_plugins(text: str) -> list[str]:
    """The CRI plugins that `ctr plugins ls` shows with an error: columns TYPE, ID, PLATFORMS and STATUS."""
    rows = [line.split() for line in text.splitlines()]
    return [f"{row[0]}.{row[1]}" for row in rows if row[-1:] == ["error"] and "cri" in f"{row[0]}.{row[1]}".split(".")]


def containerd_client(wish: Wish, namespace: str) -> tuple[list[str], dict[str, Any], list[str]]:
    """How ctr is called, the handler of the registration, and ctr's options for it; VgpuError if no daemon answers."""
    path, dump, address = _configured(wish)
    if path.endswith(".tmpl") or _daemon_start(address) is None:
        raise VgpuError("containerd", expected=f"one that answers on {address}", found="none", do="or --runtime runc")
    handler, options = _handler(wish, dump)
    return ["ctr", "--address", address, "--namespace", namespace], handler, options


def _configured(wish: Wish) -> tuple[str, dict[str, Any], str]:
    """containerd's file, its settings as it reads them, and its socket."""
    path = wish.config or containerd.place()
    dump = {} if path.endswith(".tmpl") else _dump(path)
    return path, dump, str(nested_values.look_up(dump, ("grpc", "address")) or "/run/containerd/containerd.sock")


def _dump(path: str) -> dict[str, Any]:
    done = programs.run(["containerd", "--config", path, "config", "dump"])
    return toml_text.parse(done.stdout, "containerd config dump") if done.returncode == 0 else {}


def _handler(wish: Wish, dump: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The handler of the registration as containerd reads it, and ctr's options for the same runtime."""
    cri = containerd.of_document(dump)
    handler = dict(cri.handlers.get(cri.default if wish.mode in (BASE_SPEC, DEFAULT) else wish.name, {}))
    options = handler.get("options") or {}
    binary = ["--runc-binary", str(options["BinaryName"])] if options.get("BinaryName") else []
    return handler, binary


def specification(
    handler: dict[str, Any], rootfs: str, program: list[str], name: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """A specification for ctr: the handler's base specification, or ctr's own."""
    base = handler.get("base_runtime_spec")
    spec: dict[str, Any] = json.loads((registered_files.read(str(base)) if base else base_spec.default()) or "{}")
    spec["root"] = {"path": rootfs}
    spec["process"].update(args=program, terminal=False, cwd="/")
    spec["linux"]["cgroupsPath"] = f"/{name}"  # runc removes it, but no parent
    spec["annotations"] = dict(annotations)
    return spec


def _daemon_start(address: str) -> float | None:
    """When the process that listens on a Unix socket was started; None if nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(address)
        except OSError:
            return None
        pid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return float(psutil.Process(pid).create_time())


_CLIENTS = {"containerd": _containerd, "crio": _crio, "docker": _docker, "podman": _podman}
