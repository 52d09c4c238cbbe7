"""A start: prestart and createRuntime, from the runtime's state JSON to a container with its cards.

Belongs here: the steps of a start in their order, and which failures stop a container. Not here: how a step works: each
has its folder; the process around it is main's, and a stop is in stop. This process never enters a container's
namespace; its child does, and imports nothing there. What the common start does not run is imported by the function
that needs it, in this process alone; a test has the list of what each kind of start loads.
"""

from __future__ import annotations

import os
import time

from vgpu.config import inventory as inventories
from vgpu.config import paths
from vgpu.config import settings as node_settings
from vgpu.config.errors import VgpuError, shown
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings
from vgpu.hook.hooklog import Run
from vgpu.hook.inject import execute, limiter_files, plan
from vgpu.hook.inject.execute import Execution
from vgpu.hook.inject.inspect import driver_parameters, inspect
from vgpu.hook.inject.library_search import process_of
from vgpu.hook.inject.plan import Plan, PlannedContainer
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux import cgroup, procfs, staleness
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.hook.placement.allocation import Allocation
from vgpu.hook.request import authorization, oci_state
from vgpu.hook.request.authorization import Nothing
from vgpu.hook.request.identity import Identity
from vgpu.hook.request.oci_state import CommandLine, Container
from vgpu.hook.request.resolve_grants import WantedGrants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.hook.devices.allow import AllowDevices
    from vgpu.hook.ledger.ledger import Wanted
    from vgpu.hook.linux.selinux import Labels


class Node:
    """The node's settings, inventory and ledger."""

    __slots__ = ("inventory", "ledger", "settings")

    def __init__(self, settings: Settings, inventory: Inventory, ledger: Ledger) -> None:
        self.settings = settings
        self.inventory = inventory
        self.ledger = ledger


class Hook:
    """One start. `run` has its step, for the message of a failure. `proc` is the root of procfs.

    `execution` is that of the plan: it is undone when a later step fails. `uncovered` and `limiter` are what the claim
    gets of the plan.
    """

    __slots__ = (
        "command_line", "config_path", "dry_run", "execution", "limiter", "proc", "run", "started", "uncovered",
    )  # fmt: skip

    def __init__(
        self, run: Run, config_path: str, command_line: CommandLine, dry_run: bool = False, proc: str = "/proc"
    ) -> None:
        self.run = run
        self.config_path = config_path
        self.command_line = command_line
        self.dry_run = dry_run
        self.proc = proc
        self.execution: Execution | None = None
        self.uncovered: tuple[str, ...] = ()
        self.limiter = 0
        self.started: tuple[Ledger, Start] | None = None  # when nothing but `keep` is left to do

    def start(self, state: dict[str, object]) -> list[str]:
        """prestart and createRuntime. Returns lines for the log, [] when the container has no allocation."""
        container = oci_state.read(state)
        if not authorization.asks_for_cards(container, self.command_line):
            return []
        self.run.step = "identity"
        cgroups = cgroup.paths_of(container.pid, self.proc) if container.pid else []
        source = authorization.source_of(container, cgroups, self.command_line)
        identity, self.run.name = source.identity, source.identity.name
        if isinstance(source, Nothing):
            return self._in_vain(source)
        self.run.step = "authorization"
        authorization.refuse_rootless(self.proc)  # such a process may read neither the settings nor the key
        settings = self._settings()
        self.run.step = "identity"
        wanted, notes = source.request(settings)
        if wanted is None:
            return []
        node = self._node(settings)
        authorization.refuse_standalone(identity, settings)
        self.run.step = "allocation"
        if isinstance(wanted, WantedGrants) and identity.holder:
            from vgpu.hook.request import pod_record  # noqa: PLC0415

            wanted, notes = pod_record.complete(wanted, identity.holder, container.annotations, settings)
        notes = [*notes, *settings.notes]
        if self.dry_run:
            return [*self._explain(container, node.ledger.place(wanted, identity.holder, container.id), node), *notes]
        return [*self._run(container, identity, wanted, node), *notes]

    def _in_vain(self, source: Nothing) -> list[str]:
        """Notes on a container that gets no card. Settings that cannot be read stop no such container."""
        if source.notes:
            try:
                self._settings()
            except VgpuError:
                return []
        return source.notes

    def _settings(self) -> Settings:
        """The node's settings; the log has its place from them."""
        self.run.step = "configuration"
        settings = node_settings.read(self.config_path)
        self.run.run_dir = settings.run_dir
        return settings

    def _node(self, settings: Settings) -> Node:
        self.run.step = "inventory"
        inventory = inventories.read(settings.run_dir)
        staleness.check(inventory, settings.text("driver.proc_root"))
        return Node(settings, inventory, Ledger(settings, inventory.cards, self.proc))

    def _run(self, container: Container, identity: Identity, wanted: Wanted, node: Node) -> list[str]:
        started = procfs.start_time(container.pid, self.proc)
        if not started:
            raise VgpuError("state JSON on stdin", expected="the pid of a living container", found=container.pid)
        start = Start(
            container.id, container.pid, started, container.bundle, identity.holder, identity.name, time.time(),
            cgroup.own_of(container.pid, self.proc),
        )  # fmt: skip
        allocation = node.ledger.claim(start, wanted)
        if allocation is None:
            return [f"holds its cards already: {container.id}"]
        try:
            notes, access = self._equip(container, allocation, node)
            self.run.step = "record"
            opened = {f"{major}:{minor}": path for (major, minor), path in access.nodes.items()}
            node.ledger.confirm(start, opened, self.uncovered, self.limiter)
            self.started, self.run.keep = (node.ledger, start), self.keep
            described = [*node.ledger.describe(allocation), *_too_small(allocation), *_hidden(container, allocation)]
            return [*described, *notes, *node.ledger.notes]
        except BaseException as error:
            self._undo(node.ledger, start, error)
            raise

    def keep(self) -> None:
        """Last of all: until here everything is undone when the hook is killed, and when its child cannot be told."""
        if self.started is None or self.execution is None:
            return
        self.run.step = "keep"
        try:
            self.execution.keep()
        except OSError as error:
            self._undo(*self.started, error)
            raise

    def _undo(self, ledger: Ledger, start: Start, error: BaseException) -> None:
        """VgpuError about what could not be undone."""
        try:
            left = self.execution.undo() if self.execution else ""
        finally:
            ledger.withdraw(start)
        if left:
            from vgpu.hook import error_line  # noqa: PLC0415

            raise VgpuError(f"{error_line.meaning(self.run.step, error)}; not undone: {left}") from error

    def _equip(self, container: Container, allocation: Allocation, node: Node) -> tuple[list[str], AllowDevices]:
        """Open the device cgroup, while a child makes the mounts, links and nodes. The cgroup needs no undoing: the
        runtime removes it with the container."""
        self.run.step = "root file system"
        root = execute.open_rootfs(container.pid, container.rootfs, self.proc)
        try:
            planned = self._plan(container, root, allocation, node)
            self.run.step = "mount"
            labels = _labels(container.config)
            self.execution = Execution(planned.operations, root, paths.staging(self.run.run_dir), labels)
        except BaseException:
            root.close()
            raise
        self.execution.begin(container.pid, self.proc)
        self.run.step = "device cgroup"
        access = _access(container, container.pid, planned, node.settings)
        opened = access.execute(self.proc)
        self.run.step = "mount"
        self.execution.finish()
        self.uncovered, self.limiter = planned.uncovered, limiter_files.inode(planned.limiter)
        return [*planned.notes, *self.execution.notes, opened.text], access

    def _plan(self, container: Container, root: Rootfs, allocation: Allocation, node: Node) -> Plan:
        self.run.step = "plan"
        settings, inventory = node.settings, node.inventory
        wish = container.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
        capabilities = plan.capabilities(wish, settings, allocation.exclusive)
        nodes = plan.devices(inventory, allocation, capabilities)
        process = None if allocation.exclusive else process_of(container.config, container.env)
        names = [device.name for device in nodes]
        inspection = inspect(root, plan.library_stems(inventory), names, process=process)
        limiter: dict[str, str] = {}
        notes: tuple[str, ...] = ()
        if not allocation.exclusive:
            limiter, notes = limiter_files.choose(inventory, settings.text("paths.libvcuda"))
        planned_container = PlannedContainer(
            allocation, capabilities, nodes, inspection, paths.limits(settings.run_dir, container.id),
            paths.core_schedules(settings.run_dir, container.id), limiter,
        )  # fmt: skip
        parameters = driver_parameters(settings.text("driver.proc_root")) if inspection.proc_driver else {}
        planned = plan.make(planned_container, inventory, settings, parameters)
        planned.notes += notes
        return planned

    def _explain(self, container: Container, allocation: Allocation, node: Node) -> list[str]:
        """The plan as lines. A container that has no process yet is inspected where the runtime will make its root."""
        pid = container.pid or os.getpid()
        try:
            root = execute.open_rootfs(pid, container.rootfs, self.proc)
        except VgpuError:
            root = execute.open_running(pid, self.proc)  # the container runs already: explain what it would get
        try:
            planned = self._plan(container, root, allocation, node)
        finally:
            root.close()
        lines = [f"card {card.index} {card.uuid} {card.name}" for card in allocation.cards]
        return [
            *lines,
            *(step.describe() for step in planned.operations),
            _access(container, pid, planned, node.settings).describe(),
            *_too_small(allocation),
            *_hidden(container, allocation),
            *planned.notes,
        ]


def _labels(config: dict[str, object]) -> Labels | None:
    """Those of the mounts, for a container that a runtime starts under SELinux."""
    linux = config.get("linux")
    if not (isinstance(linux, dict) and linux.get("mountLabel")):
        return None
    from vgpu.hook.linux import selinux  # noqa: PLC0415

    return selinux.labels(config)


def _access(container: Container, pid: int, planned: Plan, settings: Settings) -> AllowDevices:
    """The opening of the planned devices. Its modules are imported here, so that the child which makes the mounts does
    not wait for them: a start comes here when that child works already."""
    from vgpu.hook.devices import rules  # noqa: PLC0415
    from vgpu.hook.devices.allow import AllowDevices  # noqa: PLC0415

    opened = {(device.major, device.minor): device.path for device in planned.devices}
    container_rules = rules.from_config(container.config, f"{container.bundle}/config.json")
    return AllowDevices(pid, tuple(opened), settings.text("devices.permissions"), container_rules, opened)


def _hidden(container: Container, allocation: Allocation) -> list[str]:
    """A note where the environment names a card that is none of the container's, such as an instance's parent."""
    own = [name for card in allocation.cards for name in card.names]
    for item in container.env.get("CUDA_VISIBLE_DEVICES", "").split(","):
        if item.startswith(("GPU-", "MIG-")) and not any(name.startswith(item) for name in own):
            return [f"CUDA_VISIBLE_DEVICES names {shown(item)}, but the container's card is {own[0]}: leave it out"]
    return []


def _too_small(allocation: Allocation) -> list[str]:
    memory = [limit.memory for limit in allocation.limits]
    if all(size >= card.context for card, size in zip(allocation.cards, memory)):
        return []
    from vgpu.config import context_sizes  # noqa: PLC0415

    return context_sizes.too_small(allocation.cards, memory)
