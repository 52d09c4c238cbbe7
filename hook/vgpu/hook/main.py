"""The hook's process: `vgpu-hook [--config FILE] [--dry-run] prestart|createRuntime|poststop`, state JSON on stdin.

Belongs here: the order of an allocation, and which failures stop a container. The gate starts this only for containers
that carry a vgpu marker. Exit 0: done, or nothing to do. Exit 1: the container must not start; one line on stderr says
`vgpu-hook: <step>: <cause>`, the same goes to the log. In poststop nothing can be stopped any more: it only warns.

Standard library only, single-threaded, root; everything is imported before a container's namespace is entered.
"""

from __future__ import annotations

import os
import sys
import time

from vgpu.config import inventory as inventories
from vgpu.config import paths
from vgpu.config import settings as node_settings
from vgpu.config.errors import VgpuError, escaped
from vgpu.config.inventory import Inventory
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook import hooklog
from vgpu.hook.devices import rules as devicerules
from vgpu.hook.devices.allow import AllowDevices
from vgpu.hook.inject import execute, plan
from vgpu.hook.inject.inspect import survey
from vgpu.hook.inject.plan import Plan, Subject
from vgpu.hook.ledger import container_processes
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux import cgroup, procfs, staleness
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.hook.placement.allocation import Allocation
from vgpu.hook.request import authorization, oci_state, pod_record
from vgpu.hook.request import identity as identities
from vgpu.hook.request.identity import Identity
from vgpu.hook.request.oci_state import Container
from vgpu.hook.request.resolve_grants import Redemption

STARTING = ("prestart", "createRuntime")
STOPPED = "poststop"
USAGE = "usage: vgpu-hook [--config FILE] [--dry-run] prestart|createRuntime|poststop"
PARAMETERS = ("params", "version", "registry")


class Node:
    """What this node is: its settings, its inventory and its ledger."""

    __slots__ = ("inventory", "ledger", "settings")

    def __init__(self, settings: Settings, inventory: Inventory, ledger: Ledger) -> None:
        self.settings = settings
        self.inventory = inventory
        self.ledger = ledger


class Hook:
    """One run of the hook. `step` is where it is, for the message if it fails; `proc` the root of procfs."""

    __slots__ = ("config_path", "dry_run", "proc", "run_dir", "step")

    def __init__(self, config_path: str, dry_run: bool, proc: str = "/proc") -> None:
        self.config_path = config_path
        self.dry_run = dry_run
        self.proc = proc
        self.run_dir = ""
        self.step = "state"

    def start(self, state: dict[str, object]) -> list[str]:
        """prestart and createRuntime; returns lines for the log, [] when the container has no allocation."""
        container = oci_state.read(state)
        if not authorization.asks(container):
            return []
        self.step = "identity"
        cgroups = cgroup.paths_of(container.pid, self.proc) if container.pid else []
        identity = identities.identify(cgroups, container.annotations)
        wanted = authorization.wanted(container, identity)
        if wanted is None:
            return []
        self.step = "authority"
        authorization.refuse_rootless(self.proc)
        node = self._node()
        authorization.refuse_standalone(identity, node.settings)
        self.step = "allocation"
        notes: list[str] = []
        if isinstance(wanted, Redemption) and identity.holder:
            wanted, notes = pod_record.complete(wanted, identity.holder, container.annotations, node.settings)
        if self.dry_run:
            return [*self._explain(container, node.ledger.place(wanted, identity.holder, container.id), node), *notes]
        return [*self._run(container, identity, wanted, node), *notes]

    def _node(self) -> Node:
        self.step = "configuration"
        settings = node_settings.read(self.config_path)
        self.run_dir = settings.run_dir
        self.step = "inventory"
        inventory = inventories.read(settings.run_dir)
        staleness.check(inventory, settings.text("driver.proc_root"))
        return Node(settings, inventory, Ledger(settings, inventory.cards, self.proc))

    def _run(self, container: Container, identity: Identity, wanted: Request | Redemption, node: Node) -> list[str]:
        started = procfs.start_time(container.pid, self.proc)
        if not started:
            raise VgpuError("state JSON on stdin", expected="the pid of a living container", found=container.pid)
        start = Start(
            container.id, container.pid, started, container.bundle, identity.holder, identity.name, time.time(),
            container_processes.own_cgroup(container.pid, self.proc),
        )  # fmt: skip
        made = node.ledger.claim(start, wanted)
        if made is None:
            return [f"holds its cards already: {container.id}"]
        try:
            notes, access = self._hand_over(container, made, node)
            self.step = "record"
            node.ledger.confirm(start, {f"{major}:{minor}": path for (major, minor), path in access.nodes.items()})
        except BaseException:
            node.ledger.withdraw(start)
            raise
        return [*_described(made, node.ledger), *notes, *node.ledger.notes]

    def _hand_over(self, container: Container, made: Allocation, node: Node) -> tuple[list[str], AllowDevices]:
        """Device cgroup, mounts, links, nodes and loader of `made`. The cgroup first: it goes with the container."""
        self.step = "root file system"
        root = execute.open_rootfs(container.pid, container.rootfs, self.proc)
        try:
            planned, access = self._plan(container, container.pid, root, made, node)
            self.step = "device cgroup"
            opened = access.execute(self.proc)
            self.step = "mount"
            execute.execute(planned.operations, container.pid, root, self.proc)
        finally:
            root.close()
        return [*planned.notes, opened.text], access

    def _plan(
        self, container: Container, pid: int, root: Rootfs, made: Allocation, node: Node
    ) -> tuple[Plan, AllowDevices]:
        self.step = "plan"
        settings, inventory = node.settings, node.inventory
        wish = container.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
        chosen = plan.capabilities(wish, settings, made.exclusive)
        stems = frozenset(library.name.partition(".so")[0] for library in inventory.libraries)
        nodes = plan.devices(inventory, made, chosen)
        facts = survey(root, stems, [device.name for device in nodes])
        own = paths.limits(settings.run_dir, container.id), paths.card_pages(settings.run_dir, container.id)
        subject = Subject(made, chosen, facts, *own, paths.presence(settings.run_dir))
        parameters = _parameters(settings.text("driver.proc_root")) if facts.proc_driver else {}
        planned = plan.make(subject, inventory, settings, parameters)
        opened = {(device.major, device.minor): device.path for device in planned.devices}
        rules = devicerules.from_config(container.config, f"{container.bundle}/config.json")
        return planned, AllowDevices(pid, tuple(opened), settings.text("devices.permissions"), rules, opened)

    def _explain(self, container: Container, made: Allocation, node: Node) -> list[str]:
        """The plan in words. A container that is not there yet is looked for where the runtime will make it."""
        pid = container.pid or os.getpid()
        try:
            root = execute.open_rootfs(pid, container.rootfs, self.proc)
        except VgpuError:
            root = execute.open_running(pid, self.proc)  # it was made already: explain what it would get
        try:
            planned, access = self._plan(container, pid, root, made, node)
        finally:
            root.close()
        lines = [f"card {card.index} {card.uuid} {card.name}" for card in made.cards]
        return [*lines, *(step.describe() for step in planned.operations), access.describe(), *planned.notes]

    def stop(self, state: dict[str, object]) -> list[str]:
        """poststop; returns lines for the log."""
        settings = node_settings.read(self.config_path)
        self.run_dir = settings.run_dir
        self.step = "release"
        ledger = Ledger(settings, [], self.proc)
        container = state.get("id")
        if not isinstance(container, str):
            raise VgpuError("state JSON on stdin", expected="an id", found=container)
        return ["released", *ledger.notes] if ledger.release(container) else ledger.notes


def _described(made: Allocation, ledger: Ledger) -> list[str]:
    """For the log: the cards, and who else is on them that the ledger knows nothing of."""
    cards = ", ".join(card.label() for card in made.cards)
    foreign = ledger.foreign()
    others = [(card, user) for card in made.cards for user in foreign.get(card.uuid, [])]
    described = [f"{card.label()}: {user.describe()} is there too" for card, user in others]
    return [f"{'whole' if made.exclusive else 'share of'} {cards}", *described]


def _parameters(proc_root: str) -> dict[str, bytes]:
    """The host's files of /proc/driver/nvidia that the container sees."""
    found = {}
    for name in PARAMETERS:
        try:
            with open(f"{proc_root}/driver/nvidia/{name}", "rb") as stream:
                found[name] = stream.read(1 << 16)
        except FileNotFoundError:
            continue
    return found


def parse(arguments: list[str]) -> tuple[str, bool, str] | None:
    """(configuration, dry run, stage), None when the arguments are not ours."""
    config_path, dry_run, rest = node_settings.COMPILED_PATH, False, list(arguments)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option == "--dry-run":
            dry_run = True
        elif option == "--config" and rest:
            config_path = rest.pop(0)
        elif option.startswith("--config="):
            config_path = option.partition("=")[2]
        else:
            return None
    if len(rest) != 1 or rest[0] not in (*STARTING, STOPPED):
        return None
    return config_path, dry_run, rest[0]


def main(arguments: list[str], stdin: int = 0) -> int:
    """Run the hook; returns its exit status."""
    parsed = parse(arguments)
    if parsed is None:
        print(USAGE, file=sys.stderr)
        return 2
    config_path, dry_run, stage = parsed
    hook = Hook(config_path, dry_run)
    state: dict[str, object] = {}
    try:
        state = oci_state.read_state(stdin)
        lines = hook.stop(state) if stage == STOPPED else hook.start(state)
        failed = ""
    except VgpuError as error:
        lines, failed = [], f"{hook.step}: {error}"
    except Exception as error:  # a bug of ours or a dying machine: still one line, still no container without limits
        lines, failed = [], escaped(f"{hook.step}: {type(error).__name__}: {error}")
    _report(hook, stage, state, lines, failed)
    return 1 if failed else 0


def entry(arguments: list[str]) -> None:
    """The gate's way in: as `main`, then out at once; tearing an interpreter down takes longer than some steps."""
    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _report(hook: Hook, stage: str, state: dict[str, object], lines: list[str], failed: str) -> None:
    if failed:
        print(f"vgpu-hook: {failed}", file=sys.stderr)
    if hook.dry_run:
        for line in lines:
            print(escaped(line))  # names of files in an image are its maker's
    elif hook.run_dir and (lines or failed):
        container, pid = state.get("id"), state.get("pid")
        record = {"time": time.time(), "stage": stage, "container": container if isinstance(container, str) else ""}
        pid = pid if isinstance(pid, int) else 0
        hooklog.write(hook.run_dir, {**record, "pid": pid, "notes": lines, "error": failed})
