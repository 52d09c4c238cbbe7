"""Checks of what vgpu and the driver install: settings, driver, nodes, inventory, libvcuda, hook, Python, vgpud
and the device plugin.

Belongs here: these checks. One of them runs the hook with --dry-run for a bundle that the doctor creates. Does not
belong here: the kernel and the cgroups (vgpu.node.doctor.host), and the runtimes (vgpu.node.doctor.runtimes).
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator

from vgpu.config import compiled, plugin_state, records, standalone
from vgpu.config import inventory as inventories
from vgpu.config import settings as node_settings
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Device
from vgpu.config.request import CORES, MEMORY
from vgpu.hook.formats import elf
from vgpu.hook.inject import limiter_files
from vgpu.hook.linux import staleness
from vgpu.node.daemon import client
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, CheckContext, Finding, failure
from vgpu.node.driver import device_nodes, discover, library_copies
from vgpu.node.runtimes.registered_files import Record
from vgpu.node.runtimes.registration import RUNTIMES
from vgpu.node.service import installation

MIB = 1 << 20
SMALLEST_SHARE = 1 << 30  #: bytes: the README's
TIMEOUT = 30
OLDEST_PYTHON = (3, 9)
NO_ROOM = ("no card fits", "no cards for", "no NUMA node", "only ")
#: The package's compiler of the hook, its sources, and what it wrote.
BYTE_CODE = ("/usr/lib/vgpu/bytecode/compile_hook.py", "/usr/lib/vgpu/python", "/usr/lib/vgpu/hook.bytecode")
LIMITERS = {"libcuda.so.1": "libcuda", "libnvidia-ml.so.1": "libnvidia-ml"}


def settings(context: CheckContext) -> Iterator[Finding]:
    node_settings.read(context.config_path)
    source = records.read(context.config_path).get("source")
    if isinstance(source, str) and os.path.exists(source):
        node = context.settings.node or os.uname().nodename
        wanted = compiled.compile_file(source, context.config_path, node).settings
        if not compiled.is_in_force(wanted, context.config_path):
            found = f"{context.config_path} differs from {source}"
            expected = "the settings of the configuration file to be in force"
            yield Finding("settings", WARNING, found, expected, "run: vgpuctl config apply")
            return
    yield Finding("settings", OK, context.config_path)


def driver(context: CheckContext) -> Iterator[Finding]:
    version = staleness.driver_version(context.settings.text("driver.proc_root"))
    if version:
        yield Finding("driver", OK, version)
    else:
        found = f"no {context.settings.text('driver.proc_root')}/driver/nvidia/version"
        yield Finding("driver", FAILURE, found, "the NVIDIA kernel module", "install the driver, run nvidia-smi")


def nodes(context: CheckContext) -> Iterator[Finding]:
    """The nodes of the driver and of each card, and their numbers. The check `uvm` examines those of nvidia-uvm."""
    found = context.inventory()
    wanted = (
        [*found.devices, *(node for card in found.cards for node in card.nodes)] if found else _nodes_without(context)
    )
    once = {device.name: device for device in wanted if not device.name.startswith("nvidia-uvm")}
    wrong = [_wrong(device) for device in once.values()]
    bad = [item for item in wrong if item]
    for device, text in bad:
        yield Finding("nodes", FAILURE, f"{device.path}: {text}", f"character device {device.major}:{device.minor}",
                      f"remove it if it is there, and run: {device_nodes.command_for(device)}")  # fmt: skip
    if not bad:
        yield Finding("nodes", OK, f"{len(wrong)} nodes")


def _nodes_without(context: CheckContext) -> list[Device]:
    proc_root, directory = context.settings.text("driver.proc_root"), discover.dev_dir(context.settings)
    shared = device_nodes.shared_nodes(directory, device_nodes.majors(proc_root))
    return [*shared, *(device_nodes.card_node(directory, minor) for minor in device_nodes.minors(proc_root).values())]


def _wrong(device: Device) -> tuple[Device, str] | None:
    try:
        status = os.stat(device.path)
    except OSError as error:
        return device, error.strerror or str(error)
    number = os.major(status.st_rdev), os.minor(status.st_rdev)
    if not stat.S_ISCHR(status.st_mode):
        return device, stat.filemode(status.st_mode)
    return None if number == (device.major, device.minor) else (device, f"number {number[0]}:{number[1]}")


def uvm(context: CheckContext) -> Iterator[Finding]:
    """The nodes of nvidia-uvm. No CUDA program starts without them. After a boot, only the first use creates them."""
    proc_root, directory = context.settings.text("driver.proc_root"), discover.dev_dir(context.settings)
    shared = device_nodes.shared_nodes(directory, device_nodes.majors(proc_root))
    for device in shared:
        wrong = _wrong(device) if device.name.startswith("nvidia-uvm") else None
        if wrong:
            expected = f"character device {device.major}:{device.minor}"
            yield Finding(
                "uvm", FAILURE, f"{device.path}: {wrong[1]}", expected, f"run: {device_nodes.command_for(device)}"
            )
            return
    yield Finding("uvm", OK, f"{directory}/nvidia-uvm")


def inventory(context: CheckContext) -> Iterator[Finding]:
    found = inventories.read(context.settings.run_dir)
    staleness.check(found, context.settings.text("driver.proc_root"))
    gone = [item.path for item in found.libraries if not os.path.exists(item.path)]
    if gone:
        yield Finding("inventory", FAILURE, f"{gone[0]} and {len(gone) - 1} more are gone" if gone[1:] else gone[0],
                      "the files that it lists", inventories.DO)  # fmt: skip
    elif not found.cards:
        yield Finding("inventory", FAILURE, "no usable card", "at least one", "look at the output of nvidia-smi")
    else:
        taken = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(found.taken))
        yield Finding("inventory", OK, f"{len(found.cards)} cards, driver {found.driver_version}, taken {taken}")


def contexts(context: CheckContext) -> Iterator[Finding]:
    """What a CUDA context takes of each model of card: a share needs more than that to be of use."""
    found = context.inventory()
    unit = int(context.settings.number("resources.memory_unit"))
    models = {card.name: card for card in found.cards} if found else {}
    if not models:
        yield Finding("contexts", OK, "not known without an inventory that has cards")
    for card in models.values():
        size = -(-card.context // MIB)
        if not size:
            yield Finding(
                "contexts", OK, f"{card.name}: size not known; vgpud sees it when a share runs a CUDA program"
            )
        elif card.context >= SMALLEST_SHARE:
            yield Finding(
                "contexts", WARNING, f"{card.name}: {size} MiB ({card.context_source})",
                f"less than {SMALLEST_SHARE // MIB} MiB, the smallest share that the documentation offers",
                f"give shares of this card more than {size} MiB",
            )  # fmt: skip
        else:
            units = f", so at least {card.context // unit + 1} units of {unit // MIB} MiB"
            yield Finding("contexts", OK, f"{card.name}: {size} MiB ({card.context_source}); a share needs more{units}")


def libvcuda(context: CheckContext) -> Iterator[Finding]:
    """libvcuda's files. With a wrong SONAME, or without the driver's library in NEEDED, a share has no limits."""
    directory = context.settings.text("paths.libvcuda")
    for name in LIMITERS:
        path = f"{directory}/{name}"
        found = elf.read(path)
        if found.soname != name:
            yield Finding("libvcuda", FAILURE, f"{path}: SONAME {found.soname or 'none'}", name,
                          installation.install_again())  # fmt: skip
            return
        real = [needed for needed in found.needed if needed.endswith("/" + name)]
        if not real:
            yield Finding("libvcuda", FAILURE, f"{path}: NEEDED {', '.join(found.needed) or 'nothing'}",
                          f"the driver's own {name} behind it", installation.install_again())  # fmt: skip
            return
    yield Finding("libvcuda", OK, directory)
    yield from _copies(context, directory)


def _copies(context: CheckContext, directory: str) -> Iterator[Finding]:
    """Whether shares get the copies of libvcuda that were made for this driver (vgpu.node.driver.library_copies)."""
    found = context.inventory()
    if not found:
        return
    expected = "in a share the names that the driver has, and no other"
    _, notes = limiter_files.choose(found, directory)
    for note in notes:
        yield Finding("libvcuda", WARNING, note, expected, "run: vgpuctl inventory refresh")
    for copy in found.copies:
        if copy.path and not notes:
            digest = library_copies.digest(copy.path)
            if digest != copy.digest:
                yield Finding("libvcuda", FAILURE, f"{copy.path}: SHA-256 {digest}", copy.digest,
                              f"remove {os.path.dirname(copy.path)}, run: vgpuctl inventory refresh")  # fmt: skip
            else:
                yield Finding("libvcuda", OK, f"{copy.path}: without {copy.hidden} names that this driver lacks")


def hook(context: CheckContext) -> Iterator[Finding]:
    do = f"{installation.install_again()}, or name it with --hook"
    if not context.hook or not os.access(context.hook, os.X_OK):
        yield Finding("hook", FAILURE, f"{context.hook or 'no path'} is not a program", "the hook", do)
        return
    real = os.path.realpath(context.hook)
    status = os.stat(real)
    if context.real and (status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        found = f"{real}: uid {status.st_uid}, {stat.filemode(status.st_mode)}"
        yield Finding("hook", FAILURE, found, "a program that only root can write", do)
        return
    done = _run([context.hook, "--version"])
    if done.returncode:
        yield Finding("hook", FAILURE, _last_line(done.stderr), f"{context.hook} to run", do)
    else:
        yield Finding("hook", OK, f"{context.hook}: {done.stdout.strip()}")


def byte_code(context: CheckContext) -> Iterator[Finding]:
    """The file that the gate of an installed package runs instead of the hook's sources. A checkout has none."""
    compiler, sources, file = map(context.path, BYTE_CODE)
    if not os.path.exists(compiler):
        return
    done = _run([context.python, "-I", "-S", compiler, "--check", sources, file])
    if done.returncode:
        do = "run: dpkg-trigger --by-package=vgpu /usr/bin/python3 && dpkg --triggers-only vgpu"
        yield Finding("byte code", WARNING, _last_line(done.stderr), "the byte code of the installed hook", do)
    else:
        yield Finding("byte code", OK, file)


def python(context: CheckContext) -> Iterator[Finding]:
    """The interpreter that the gate starts. Debian's python3-minimal lacks ctypes."""
    code = "import sys, os, ctypes, _json, fcntl; print('%d %d %d' % sys.version_info[:3])"
    expected = "Python 3.9 or newer with its standard library"
    do = installation.install_again() if installation.release() else "install python3"
    try:
        done = _run([context.python, "-I", "-S", "-c", code])
    except OSError as error:
        yield Finding("python", FAILURE, f"{context.python}: {error.strerror}", expected, do)
        return
    version = tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
    text = ".".join(map(str, version))
    if not version or version < OLDEST_PYTHON:
        yield Finding("python", FAILURE, f"{context.python}: {text or _last_line(done.stderr)}", expected, do)
    else:
        yield Finding("python", OK, f"{context.python} {text}")


def requests(context: CheckContext) -> Iterator[Finding]:
    """Whose word counts outside Kubernetes."""
    if not context.settings.flag("standalone.enabled"):
        yield Finding("requests", OK, "none outside Kubernetes: standalone.enabled is false")
        return
    opened = [
        f"vgpuctl runtime configure --runtime {name} --standalone any" for name in RUNTIMES
        if Record.read(context.settings.state_dir, name).options.get("standalone") == "any"
    ]  # fmt: skip
    if context.settings.text("standalone.requests") != "key":
        opened.append("standalone.requests: annotations")
    for what in opened:
        yield Finding(
            "requests", WARNING, f"{what}: an image that podman runs can ask for a whole card",
            "requests with this node's key", "annotate by vgpuctl request, and take that setting back",
        )  # fmt: skip
    try:
        standalone.read_key(context.settings.text("standalone.key"))
    except VgpuError as error:
        yield failure("requests", error, WARNING)
    else:
        if not opened:
            yield Finding("requests", OK, "only those with this node's key, and those of the hook's command line")


def dry_run(context: CheckContext) -> Iterator[Finding]:
    """Run the hook without its last step, for a container that asks for the smallest share."""
    if not context.settings.flag("standalone.enabled"):
        yield Finding("dry run", OK, "not done: standalone.enabled is false, so a container would need a grant")
        return
    with tempfile.TemporaryDirectory(prefix="vgpu-doctor-") as bundle:
        state = _test_container(bundle)
        command = [context.hook, "--config", context.config_path, "--dry-run", "--standalone=any", "prestart"]
        done = _run(command, (records.encode(state) + "\n"))
    if done.returncode == 0 and done.stdout:
        yield Finding("dry run", OK, f"{len(done.stdout.splitlines())} steps planned")
        return
    line = _last_line(done.stderr) or "the hook did nothing"
    full = any(text in line for text in NO_ROOM)
    yield Finding("dry run", WARNING if full else FAILURE, line, "a plan for a test container")


def _test_container(bundle: str) -> dict[str, object]:
    """Create a bundle with an empty root that looks like Debian's, and return the container's state."""
    for directory in ("etc", "usr/bin", "usr/lib", "dev", "proc", "run"):
        os.makedirs(f"{bundle}/rootfs/{directory}")
    records.write_bytes(f"{bundle}/rootfs/etc/debian_version", b"12\n")
    annotations = {CORES: "1", MEMORY: "1Mi"}
    config = {
        "ociVersion": "1.0.2", "process": {"args": ["true"], "env": [], "cwd": "/"}, "root": {"path": "rootfs"},
        "annotations": annotations, "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }  # fmt: skip
    records.write(f"{bundle}/config.json", config)
    return {"ociVersion": "1.0.2", "id": "vgpu-doctor", "status": "creating", "bundle": bundle,
            "annotations": annotations}  # fmt: skip


def daemon(context: CheckContext) -> Iterator[Finding]:
    try:
        answer = client.ask(context.settings.run_dir, "health")
    except VgpuError as error:
        yield failure("daemon", error, WARNING)
        return
    warnings = answer.get("warnings")
    for warning in warnings if isinstance(warnings, list) else []:
        do = _remedy(VGPUD_REMEDIES, str(warning), run=context.settings.run_dir)
        yield Finding("daemon", WARNING, str(warning), do=do or f"see: {installation.log_of_vgpud()}")
    if not warnings:
        yield Finding("daemon", OK, f"vgpud {answer.get('version')} runs, pid {answer.get('pid')}")


#: What a warning of vgpud has -> what to do; {0} is the expression's group.
VGPUD_REMEDIES = (
    (r"if it is gone, remove (/\S+)", "once no such container runs, run: rm -r {0}"),
    (r"(/\S+): expected .*found a directory", "run: rm -r {0}"),
    (r"no space on its file system", "make room; to see what takes it, run: du -ax {run} | sort -n | tail"),
)
#: The same for the device plugin; {api} is a command that asks the API server.
PLUGIN_REMEDIES = (
    (r"(/\S+/grants/[0-9a-f]+\.json): .*JSON", "once its pod is gone, run: rm {0}"),
    ("the API server is away", "the plugin tries again; run: {api} get --raw /readyz"),
    (": 401 ", "its credentials are not valid; run: {api} auth whoami"),
    (": 403 ", "it lacks a right, see the chart's rbac; run: {api} auth can-i --list"),
)


def device_plugin(context: CheckContext) -> Iterator[Finding]:
    """What the device plugin warns of, by its record of its own state."""
    boot = staleness.boot_id(context.path("/proc"))
    state = plugin_state.read(context.settings.run_dir, boot, since_boot())
    if not state:
        yield Finding("device plugin", OK, "none has run on this node since it booted")
        return
    log = installation.log_of_plugin()
    if not state["alive"]:
        yield Finding("device plugin", WARNING, "it has written nothing for a minute", "it to run", f"see: {log}")
        return
    kubeconfig = context.settings.text("kubernetes.kubeconfig")
    api = f"kubectl --kubeconfig {kubeconfig}" if kubeconfig else "kubectl"
    warnings = state["warnings"]
    for text in warnings if isinstance(warnings, list) else []:
        do = _remedy(PLUGIN_REMEDIES, str(text), api=api) or f"see: {log}"
        yield Finding("device plugin", WARNING, text, do=do)
    if not warnings:
        yield Finding("device plugin", OK, "runs")


def _remedy(table: tuple[tuple[str, str], ...], warning: str, **words: str) -> str:
    """What to do about the warning; "" where the table has nothing for it."""
    found = ((re.search(expression, warning), do) for expression, do in table)
    return next((do.format(*match.groups(), **words) for match, do in found if match), "")


def _run(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise VgpuError(command[0], expected=f"an answer within {TIMEOUT} s", found="none") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
