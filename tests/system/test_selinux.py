"""The SELinux module: it compiles, and the policy with it allows what a start and a program with a share do.

No kernel here has SELinux. So the accesses are those of a trace (strace) of real processes, and Debian's policy with
the module answers for each. The hook's domain there is the container engine's. A path of the test's node stands for the
installed one, and a mount without a label for one that has the label of vgpu.hook.linux.selinux.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import selinux_policy
from checkout import BUILD, CHECKOUT
from container_site import Site

from vgpu.hook.linux import selinux

pytestmark = pytest.mark.root

HOOK, CONTAINER = "container_engine_t", "container_t"
WRITABLE, READ_ONLY = "container_file_t", selinux.READ_ONLY_TYPE
CHANGES = {"append", "create", "link", "relabelfrom", "relabelto", "rename", "setattr", "unlink", "write"}
OUTSIDE = ("/proc/", "/sys/", "/memfd:", "/run/vgpu-sim/")  #: what any process may reach, and the simulator's own
CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>.*)")
CHILD = re.compile(r"^(?:fork|vfork|clone3?)\(.* = (\d+)(?: /\* (\d+) in strace's PID NS \*/)?$", re.MULTILINE)
DESCRIPTOR = re.compile(r"\d+<(/[^>]*)>")
NAME_BELOW = re.compile(r'(?:\d+|AT_FDCWD)<(/[^>]*)>, "([^"]+)"')
NAME = re.compile(r'"(/[^"]*)"')
#: Call -> class, permissions on the file, permissions on its directory.
NEEDED: dict[str, tuple[str, set[str], set[str]]] = {
    "execve": ("file", {"execute", "open", "read"}, set()),
    "fchmod": ("file", {"setattr"}, set()),
    "flock": ("file", {"lock"}, set()),
    "ftruncate": ("file", {"setattr", "write"}, set()),
    "getdents64": ("dir", {"read"}, set()),
    "mkdir": ("dir", {"create"}, {"add_name", "write"}),
    "mkdirat": ("dir", {"create"}, {"add_name", "write"}),
    "rename": ("file", {"rename"}, {"add_name", "remove_name", "write"}),
    "rmdir": ("dir", {"rmdir"}, {"remove_name", "write"}),
    "symlinkat": ("lnk_file", {"create"}, {"add_name", "write"}),
    "unlink": ("file", {"unlink"}, {"remove_name", "write"}),
}
KINDS = {"S_IFDIR": "dir", "S_IFLNK": "lnk_file", "S_IFCHR": "chr_file"}

Access = tuple[str, str, str]  #: path, class, permission


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> selinux_policy.Policy:
    directory = tmp_path_factory.mktemp("selinux")
    subprocess.run([CHECKOUT / "packaging/selinux/build", directory / "module"], check=True, capture_output=True)
    return selinux_policy.Policy(directory / "module/vgpu.cil")


def accesses(trace: str) -> Iterator[Access]:
    """What the kernel has granted: O_PATH needs no right on the file, and ENXIO comes after the rights were checked."""
    for call in filter(None, map(CALL.match, trace.splitlines())):
        arguments, result = call["arguments"], call["result"]
        if "O_PATH" in arguments or result[0] == "?" or (result[0] == "-" and "ENXIO" not in result):
            continue
        path = _path(arguments)
        kind, permissions, parents = _needed(call["name"], arguments, path)
        yield from ((path, kind, permission) for permission in permissions)
        yield from ((os.path.dirname(path), "dir", permission) for permission in parents)


def _path(arguments: str) -> str:
    below, opened, name = NAME_BELOW.search(arguments), DESCRIPTOR.search(arguments), NAME.search(arguments)
    if below:
        return os.path.join(below[1], below[2])
    return (opened or name or ("", ""))[1]


def _needed(name: str, arguments: str, path: str) -> tuple[str, set[str], set[str]]:
    if name in ("open", "openat", "openat2"):
        kind = "dir" if "O_DIRECTORY" in arguments else "chr_file" if "/dev/nvidia" in path else "file"
        changes = {"write"} if re.search("O_WRONLY|O_RDWR", arguments) else set()
        created = {"add_name", "write"} if "O_EXCL" in arguments else set()
        reads = set() if "O_WRONLY" in arguments else {"read"}
        return kind, {"open", *reads, *changes, *({"create"} if created else ())}, created
    if name == "newfstatat":
        return KINDS.get(arguments.partition("st_mode=")[2][:7], "file"), {"getattr"}, set()
    if name == "mmap" and path:
        changes = {"write"} if "MAP_SHARED" in arguments and "PROT_WRITE" in arguments else set()
        return "file", {"map", "read", *changes, *({"execute"} if "PROT_EXEC" in arguments else ())}, set()
    if name == "fcntl" and "SETLK" in arguments:
        return "file", {"lock"}, set()
    return NEEDED.get(name, ("", set(), set()))


def descendants(texts: dict[str, str], first: str) -> str:
    """The trace of the process `first` and of all that it has started."""
    children = (match[2] or match[1] for match in CHILD.finditer(texts[first]))
    return texts[first] + "".join(descendants(texts, child) for child in children)


def traced(site: Site, directory: Path) -> tuple[list[str], str, str]:
    """The container's mounts, and the traces of the hook and of a program, each with all its processes."""
    program = "cudaprobe open /dev/nvidiactl; exec cudaprobe work 64 4096 /tmp/rounds 2"
    options = ("-ff", "-y", "-qq", "-s", "0", "--pidns-translation", "-o", str(directory / "trace"))
    site.runtime.command[:0] = ["strace", *options, "-e", "verbose=all"]
    output = site.output(site.share("sh", "-c", f"cat /proc/self/mountinfo; {program}"))
    texts = {path.suffix[1:]: path.read_text() for path in directory.glob("trace.*")}
    hooks = [pid for pid, text in texts.items() if f'\nexecve("{BUILD}/bin/vgpu-hook"' in text]
    (inside,) = (pid for pid, text in texts.items() if '\nexecve("/usr/bin/sh"' in text)
    return (
        [line for line in output.splitlines() if " - " in line],
        "".join(descendants(texts, pid).partition(f'\nexecve("{BUILD}/bin/vgpu-hook"')[2] for pid in hooks),
        descendants(texts, inside).partition('\nexecve("/usr/bin/sh"')[2],
    )


def installed(site: Site, path: str) -> str:
    """Where a path of the test's node lies on a node with the packages."""
    node = site.node
    places = {
        node.settings.run_dir: "/run/vgpu", node.settings.state_dir: "/var/lib/vgpu",
        str(node.config): "/var/lib/vgpu/config.json",
        str(node.driver): "", f"{BUILD}/bin": "/usr/bin", f"{BUILD}/lib": "/usr/lib/vgpu/vcuda",
        f"{CHECKOUT}/hook": "/usr/lib/vgpu/python", f"{CHECKOUT}/config": "/usr/lib/vgpu/python",
        str(site.directory): "/run/containerd/bundle", str(node.directory): "/var/lib/vgpu",
    }  # fmt: skip
    for place, there in places.items():
        if path == place or path.startswith(f"{place}/"):
            return there + path[len(place) :]
    return path


def denials(policy: selinux_policy.Policy, source: str, asked: set[Access]) -> list[str]:
    """What the policy denies to `source`, of accesses to types or, by their paths, to files of the host."""
    needed = []
    for kind in sorted({kind for _, kind, _ in asked}):
        here = sorted(one for one in asked if one[1] == kind)
        types = policy.types_of({path for path, _, _ in here if path.startswith("/")}, kind)
        needed += [((source, types.get(path, path), kind), permission, path) for path, _, permission in here]
    allowed = policy.allowed(question for question, _, _ in needed)
    return [f"{one}, for {path}" for *one, path in needed if one[1] not in allowed[one[0]]]


def test_the_policy_allows_what_a_start_does_and_containers_write_nothing_of_it(
    site: Site, policy: selinux_policy.Policy, tmp_path: Path
) -> None:
    mounts, hook, program = traced(site, tmp_path)
    asked = set(of_the_hook(site, hook))
    assert {("/run/vgpu/ledger.lock", "file", "lock"), (READ_ONLY, "lnk_file", "create")} <= asked
    assert denials(policy, HOOK, asked) == []

    asked = set(of_the_program(site, program, mounts))
    presence = next(path for path, _, permission in asked if permission == "lock" and path.startswith("/run/vgpu/"))
    assert presence.startswith("/run/vgpu/presence-")
    assert asked >= {
        (WRITABLE, "file", "write"), (READ_ONLY, "file", "execute"), (presence, "file", "map"),
        ("/dev/nvidiactl", "chr_file", "write"),
    }  # fmt: skip
    assert denials(policy, CONTAINER, asked) == []

    targets, kinds = (READ_ONLY, "vgpu_run_t", "vgpu_state_t", "lib_t"), ("file", "dir", "lnk_file")
    device = (CONTAINER, "xserver_misc_device_t", "chr_file")
    allowed = policy.allowed([device, *((CONTAINER, target, kind) for target in targets for kind in kinds)])
    assert allowed.pop(device) >= {"ioctl", "map"}, "the driver's own calls, which the simulated one does not make"
    assert {question for question, found in allowed.items() if found & CHANGES} == set()
    assert not allowed[CONTAINER, "vgpu_state_t", "file"]
    assert "read" not in allowed[CONTAINER, "vgpu_run_t", "dir"]


def of_the_hook(site: Site, trace: str) -> Iterator[Access]:
    made = {os.path.join(*match.groups()) for match in re.finditer(r'\d+<(/)>, "([^"/][^"]*)"', trace)}
    for path, kind, permission in accesses(trace):
        if "/__pycache__" in path:  # a checkout's: the package has the hook's byte code
            continue
        there = installed(site, path)
        if path in made or (path == "/" and permission in ("add_name", "write")):  # in a mount that is not attached yet
            yield from ((label, kind, permission) for label in (WRITABLE, READ_ONLY))
        elif "/rootfs-" in path:
            yield WRITABLE, kind, permission
        elif there.startswith("/") and there != "/" and not there.startswith(OUTSIDE):  # "/": of any detached mount
            yield there, kind, permission
    if "fsmount(" in trace:  # with a label
        yield from (("tmpfs_t", "filesystem", "relabelfrom"), ("fs_t", "filesystem", "relabelfrom"))
        for label in (WRITABLE, READ_ONLY):
            yield from ((label, "filesystem", permission) for permission in ("mount", "relabelto"))


def of_the_program(site: Site, trace: str, mounts: list[str]) -> Iterator[Access]:
    """By the container's mounts: those that vgpu made have its labels, and the others are the host's files."""
    places = {fields[4]: fields for fields in map(str.split, mounts)}
    shared = next(fields[3] for place, fields in places.items() if place == "/run/vgpu-sim").rpartition("/node/")[0]
    for path, kind, permission in accesses(trace):
        if not path.startswith("/") or path.startswith(OUTSIDE):
            continue
        place = max((one for one in places if path == one or path.startswith(f"{one.rstrip('/')}/")), key=len)
        _, _, _, root, _, options, *_ = fields = places[place]
        if fields[-2].startswith("vgpu"):
            yield READ_ONLY if options.startswith("ro") else WRITABLE, kind, permission
        elif root.startswith(f"{shared}/node/"):
            host = f"{site.node.directory}{root.removeprefix(f'{shared}/node')}{path[len(place) :]}"
            yield installed(site, host), kind, permission
        else:
            yield WRITABLE, kind, permission
