"""What test_device_cgroup does inside a mount namespace: the hook's code on a real cgroup, the answer as JSON.

Usage: python3 -I -S device_cgroup_probe.py REPOSITORY REQUEST. A request is an object:
  pid, devices, access, config   arguments of AllowDevices; or, instead of pid:
  scratch                        name of a cgroup2 directory to make, with a sleeping process in it
  attach                         [[name, permitted device, flags], ...]: programs to attach to it first
  parent                         true: attach them to the scratch cgroup, the process sits in a child of it
  old_kernel                     true: BPF_F_REPLACE is refused with EINVAL, as before Linux 5.6
  share                          true: the probe itself moves into the cgroup first
  nodes                          true: with files of the devices, by which the kernel can be asked
  vanish                         "kill" the process, or "move" it, and remove the cgroup when a program was loaded
  programs                       how many programs more than before are to be there afterwards, by default 0
  try                            what a process of the cgroup does afterwards, `c:195:0:rw`: the errno, 0 for success
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import sys
import tempfile
import time

sys.path[:0] = [f"{sys.argv[1]}/config", f"{sys.argv[1]}/hook"]

from vgpu.config.errors import VgpuError  # noqa: E402 - the path is known only now
from vgpu.hook.devices import (  # noqa: E402
    allow,
    bpf_program,
    cgroup_v1,
    cgroup_v2,
    rules,
)
from vgpu.hook.linux import bpf, cgroup  # noqa: E402

CGROUP2 = "/sys/fs/cgroup"


def note_loads(loaded: list[int]) -> None:
    """From now on `loaded` gets the id of each program that this process loads."""
    real = bpf.prog_load

    def prog_load(insns: bytes, name: str) -> int:
        fd = real(insns, name)
        loaded.append(bpf.prog_info(fd).id)
        return fd

    bpf.prog_load = prog_load


def alive(ids: list[int], expected: int) -> int:
    """How many of these programs the kernel has. It frees them a little after their last user is gone."""
    for _ in range(300):
        if sum(map(is_alive, ids)) == expected:
            break
        time.sleep(0.1)
    return sum(map(is_alive, ids))


def is_alive(prog_id: int) -> bool:
    try:
        os.close(bpf.prog_get_fd_by_id(prog_id))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


def attached(directory: str) -> list[list[object]]:
    """[id, name] of the device programs of a cgroup; none on v1."""
    if not os.path.exists(f"{directory}/cgroup.procs") or os.path.exists(f"{directory}/devices.list"):
        return []
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found: list[list[object]] = []
    for prog_id in bpf.prog_query(fd)[0]:
        prog = bpf.prog_get_fd_by_id(prog_id)
        found.append([prog_id, bpf.prog_info(prog).name.decode()])
        os.close(prog)
    os.close(fd)
    return found


def enter(directory: str) -> None:
    with open(f"{directory}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def sleeper(directory: str) -> int:
    pid = os.fork()
    if pid == 0:
        enter(directory)
        time.sleep(60)
        os._exit(0)
    while directory[len(CGROUP2) :] not in cgroup.paths_of(pid):
        time.sleep(0.01)
    return pid


def attach(directory: str, name: str, device: list[int], flags: int) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    permitted = rules.Filter(rules.opening([(device[0], device[1])], "rw"), False)
    prog = bpf.prog_load(bpf_program.program(permitted), name)
    bpf.prog_attach(fd, prog, flags)
    os.close(prog)
    os.close(fd)


def refuse_replace() -> None:
    real = bpf.prog_attach

    def prog_attach(cgroup_fd: int, prog_fd: int, attach_flags: int, replace_fd: int = 0) -> None:
        if attach_flags & bpf.BPF_F_REPLACE:
            raise OSError(errno.EINVAL, "bpf(BPF_PROG_ATTACH, ...): Invalid argument")
        real(cgroup_fd, prog_fd, attach_flags, replace_fd)

    bpf.prog_attach = prog_attach


def try_open(directory: str, requests: list[str]) -> dict[str, int]:
    """The errno of open or, for access m, of mknod by a process of the cgroup; requests are `c:195:0:rw`."""
    with tempfile.TemporaryDirectory() as nodes:
        for request in requests:
            if not request.endswith(":m"):
                make(f"{nodes}/{request}")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            enter(directory)
            os.write(writer, json.dumps({request: attempt(f"{nodes}/{request}") for request in requests}).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(pid, 0)
    return dict(json.loads(text))


def make(path: str) -> None:
    kind, major, minor, _ = os.path.basename(path).split(":")
    os.mknod(path, 0o666 | (stat.S_IFCHR if kind == "c" else stat.S_IFBLK), os.makedev(int(major), int(minor)))


def attempt(path: str) -> int:
    flags = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}.get(path.rpartition(":")[2])
    try:
        if flags is None:
            make(path)
        else:
            os.close(os.open(path, flags | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or -1
    return 0


def host_nodes(directory: str, devices: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
    paths = {device: f"{directory}/c:{device[0]}:{device[1]}:rw" for device in devices}
    for path in paths.values():
        make(path)
    return paths


def vanish(directory: str, pid: int, how: str) -> None:
    """Let the cgroup go when the new program is about to be put in place."""
    real = cgroup_v2.swap

    def swap(*arguments: int) -> None:
        if how == "kill":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        else:
            with open(f"{CGROUP2}/cgroup.procs", "w") as file:
                file.write(str(pid))
        os.rmdir(directory)
        real(*arguments)

    cgroup_v2.swap = swap


def allows(pid: int, opening: list[rules.Rule], config: dict[str, object]) -> bool:
    """Whether the process's own device cgroup permits `opening`; VgpuError when its program is none that is known."""
    place = cgroup.device_cgroup(pid)
    fd = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if place.version == 1:
            return cgroup_v1.read(fd).permit_all(opening)
        level = cgroup_v2.Level(fd, place.directory, opening, rules.from_config(config))
        return level.filter().permit_all(opening)
    finally:
        os.close(fd)


def act(request: dict[str, object], pid: int) -> dict[str, object]:
    devices = [(major, minor) for major, minor in request.get("devices", [[195, 0], [195, 255], [10, 229]])]
    wanted, config = str(request.get("access", "rw")), request.get("config", {})
    directory = cgroup.device_cgroup(pid).directory
    answer: dict[str, object] = {"directory": directory, "before": attached(directory)}
    known = [int(prog_id) for prog_id, _ in attached(directory)]
    count, fds = len(known), len(os.listdir("/proc/self/fd"))
    note_loads(known)
    with tempfile.TemporaryDirectory() as directory_of_nodes:
        nodes = host_nodes(directory_of_nodes, devices) if request.get("nodes") else {}
        try:
            container_rules = rules.from_config(config)
            access = allow.AllowDevices(pid, tuple(devices), wanted, container_rules, nodes).execute()
            answer.update(changed=access.changed, text=access.text)
        except VgpuError as error:
            answer["error"] = error.line()
    answer["new_fds"] = len(os.listdir("/proc/self/fd")) - fds
    answer["after"] = attached(directory)
    answer["new_programs"] = alive(known, count + int(request.get("programs", 0))) - count
    if request.get("vanish"):
        return answer
    try:
        answer["allowed"] = allows(pid, rules.opening(devices, wanted), config)
    except VgpuError as error:
        answer["allowed"] = error.line()
    if "try" in request:
        answer["tried"] = try_open(directory, request["try"])
    return answer


def scratch(request: dict[str, object]) -> dict[str, object]:
    """`act` on a process in a new cgroup, which is gone afterwards."""
    top = f"{CGROUP2}/{request['scratch']}"
    place = f"{top}/child" if request.get("parent") else top
    os.makedirs(place)
    pid = sleeper(place)
    try:
        for name, device, flags in request.get("attach", []):
            attach(top, name, device, flags)
        if request.get("old_kernel"):
            refuse_replace()
        if request.get("share"):
            enter(place)
        if request.get("vanish"):
            vanish(place, pid, str(request["vanish"]))
        return act(request, pid)
    finally:
        enter(CGROUP2)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for directory in dict.fromkeys((place, top)):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(directory)


def main() -> None:
    request = json.loads(sys.argv[2])
    answer = scratch(request) if "scratch" in request else act(request, request["pid"])
    print(json.dumps(answer))


main()
