"""The hook's process: `vgpu-hook [OPTIONS] prestart|createRuntime|poststop`, state JSON on stdin.

Belongs here: the steps of a start and of a stop in their order, and which failures stop a container. Not how a step
works: each has its folder. The gate starts this process only for containers that carry a vgpu marker. Exit 0 means that
the hook is done or had nothing to do. Exit 1 means that the container must not start: one line on stderr,
`vgpu-hook: <step>: <cause>`, gives the reason, and the log gets the same. In poststop a failure is only a warning.

Standard library only, single-threaded, root. This process never enters a container's namespace; its child does, and
imports nothing there.
"""

from __future__ import annotations

import os
import sys
import time

from vgpu.config import context_sizes, paths
from vgpu.config import inventory as inventories
from vgpu.config import settings as node_settings
from vgpu.config.errors import VgpuError, escaped
from vgpu.config.inventory import Inventory
from vgpu.config.request import PREFIX, Request
from vgpu.config.settings import Settings
from vgpu.hook import error_line, hooklog
from vgpu.hook.inject import execute, limiter_files, plan
from vgpu.hook.inject.execute import Execution
from vgpu.hook.inject.inspect import driver_parameters, inspect
from vgpu.hook.inject.library_search import process_of
from vgpu.hook.inject.plan import Plan, PlannedContainer
from vgpu.hook.ledger import container_processes
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux import cgroup, procfs, staleness
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.hook.placement.allocation import Allocation
from vgpu.hook.request import authorization, oci_state
from vgpu.hook.request.authorization import ANY, KEY, CommandLine, Nothing
from vgpu.hook.request.identity import Identity
from vgpu.hook.request.oci_state import Container
from vgpu.hook.request.resolve_grants import WantedGrants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from vgpu.hook.devices.allow import AllowDevices

STARTING = ("prestart", "createRuntime")
STOPPED = "poststop"
USAGE = (
    "usage: vgpu-hook [--config FILE] [--dry-run] [--standalone any|key] [--annotation vgpu.io/KEY=VALUE]... "
    "prestart|createRuntime|poststop"
)


class Arguments:
    """The hook's arguments: the compiled settings, --dry-run, the stage, and the administrator's requests."""

    __slots__ = ("command_line", "config", "dry_run", "stage")

    def __init__(
        self, config: str, dry_run: bool = False, stage: str = "", command_line: CommandLine | None = None
    ) -> None:
        self.config = config
        self.dry_run = dry_run
        self.stage = stage
        self.command_line = command_line or CommandLine()


class Node:
    """The node's settings, inventory and ledger."""

    __slots__ = ("inventory", "ledger", "settings")

    def __init__(self, settings: Settings, inventory: Inventory, ledger: Ledger) -> None:
        self.settings = settings
        self.inventory = inventory
        self.ledger = ledger


class Hook:
    """One run of the hook. `step` is the step that runs, for the message of a failure; `steps` are all so far with the
    times at which they began, for the log. `proc` is the root of procfs.

    `execution` is that of the plan: it is undone when a later step fails. `name` is namespace/pod/container, or "".
    `uncovered` and `limiter` are what the claim gets of the plan.
    """

    __slots__ = (
        "command_line",
        "config_path",
        "dry_run",
        "execution",
        "limiter",
        "name",
        "proc",
        "run_dir",
        "started",
        "steps",
        "uncovered",
    )

    def __init__(self, arguments: Arguments, proc: str = "/proc") -> None:
        self.command_line = arguments.command_line
        self.config_path = arguments.config
        self.dry_run = arguments.dry_run
        self.proc = proc
        self.run_dir = ""
        self.name = ""
        self.steps = [("state", time.monotonic())]
        self.execution: Execution | None = None
        self.uncovered: tuple[str, ...] = ()
        self.limiter = 0
        self.started: tuple[Ledger, Start] | None = None  # when nothing but `keep` is left to do

    @property
    def step(self) -> str:
        return self.steps[-1][0]

    @step.setter
    def step(self, name: str) -> None:
        self.steps.append((name, time.monotonic()))

    def start(self, state: dict[str, object]) -> list[str]:
        """prestart and createRuntime. Returns lines for the log, [] when the container has no allocation."""
        container = oci_state.read(state)
        if not authorization.asks_for_cards(container, self.command_line):
            return []
        self.step = "identity"
        cgroups = cgroup.paths_of(container.pid, self.proc) if container.pid else []
        source = authorization.source_of(container, cgroups, self.command_line)
        identity, self.name = source.identity, source.identity.name
        if isinstance(source, Nothing):
            return self._in_vain(source)
        self.step = "authorization"
        authorization.refuse_rootless(self.proc)  # such a process may read neither the settings nor the key
        settings = self._settings()
        self.step = "identity"
        wanted, notes = source.request(settings)
        if wanted is None:
            return []
        node = self._node(settings)
        authorization.refuse_standalone(identity, settings)
        self.step = "allocation"
        if isinstance(wanted, WantedGrants) and identity.holder:
            # Imported here because a container outside Kubernetes has no record, and no scheduler's choice.
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
        self.step = "configuration"
        settings = node_settings.read(self.config_path)
        self.run_dir = settings.run_dir
        return settings

    def _node(self, settings: Settings) -> Node:
        self.step = "inventory"
        inventory = inventories.read(settings.run_dir)
        staleness.check(inventory, settings.text("driver.proc_root"))
        return Node(settings, inventory, Ledger(settings, inventory.cards, self.proc))

    def _run(self, container: Container, identity: Identity, wanted: Request | WantedGrants, node: Node) -> list[str]:
        started = procfs.start_time(container.pid, self.proc)
        if not started:
            raise VgpuError("state JSON on stdin", expected="the pid of a living container", found=container.pid)
        start = Start(
            container.id, container.pid, started, container.bundle, identity.holder, identity.name, time.time(),
            container_processes.own_cgroup(container.pid, self.proc),
        )  # fmt: skip
        allocation = node.ledger.claim(start, wanted)
        if allocation is None:
            return [f"holds its cards already: {container.id}"]
        try:
            notes, access = self._equip(container, allocation, node)
            self.step = "record"
            opened = {f"{major}:{minor}": path for (major, minor), path in access.nodes.items()}
            node.ledger.confirm(start, opened, self.uncovered, self.limiter)
            self.started = (node.ledger, start)
            return [*node.ledger.describe(allocation), *_too_small(allocation), *notes, *node.ledger.notes]
        except BaseException as error:
            self._undo(node.ledger, start, error)
            raise

    def keep(self) -> None:
        """Last of all: until here everything is undone when the hook is killed, and when its child cannot be told."""
        if self.started is None or self.execution is None:
            return
        self.step = "keep"
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
            raise VgpuError(f"{error_line.meaning(self.step, error)}; not undone: {left}") from error

    def _equip(self, container: Container, allocation: Allocation, node: Node) -> tuple[list[str], AllowDevices]:
        """Open the device cgroup, while a child makes the mounts, links and nodes. The cgroup needs no undoing: the
        runtime removes it with the container."""
        self.step = "root file system"
        root = execute.open_rootfs(container.pid, container.rootfs, self.proc)
        try:
            planned = self._plan(container, root, allocation, node)
            self.step = "mount"
            self.execution = Execution(planned.operations, root, paths.staging(self.run_dir))
        except BaseException:
            root.close()
            raise
        self.execution.begin(container.pid, self.proc)
        self.step = "device cgroup"
        access = _access(container, container.pid, planned, node.settings)
        opened = access.execute(self.proc)
        self.step = "mount"
        self.execution.finish()
        self.uncovered, self.limiter = planned.uncovered, limiter_files.inode(planned.limiter)
        return [*planned.notes, *self.execution.notes, opened.text], access

    def _plan(self, container: Container, root: Rootfs, allocation: Allocation, node: Node) -> Plan:
        self.step = "plan"
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
            *planned.notes,
        ]

    def stop(self, state: dict[str, object]) -> list[str]:
        """poststop. Returns lines for the log."""
        settings = self._settings()
        self.step = "release"
        ledger = Ledger(settings, [], self.proc)
        container = state.get("id")
        if not isinstance(container, str):
            raise VgpuError("state JSON on stdin", expected="an id", found=container)
        return ["released", *ledger.notes] if ledger.release(container) else ledger.notes


def _access(container: Container, pid: int, planned: Plan, settings: Settings) -> AllowDevices:
    """The opening of the planned devices. Its modules are imported here, so that the child which makes the mounts does
    not wait for them: a start comes here when that child works already."""
    from vgpu.hook.devices import rules  # noqa: PLC0415
    from vgpu.hook.devices.allow import AllowDevices  # noqa: PLC0415

    opened = {(device.major, device.minor): device.path for device in planned.devices}
    container_rules = rules.from_config(container.config, f"{container.bundle}/config.json")
    return AllowDevices(pid, tuple(opened), settings.text("devices.permissions"), container_rules, opened)


def _too_small(allocation: Allocation) -> list[str]:
    return context_sizes.too_small(allocation.cards, [limit.memory for limit in allocation.limits])


def parse(arguments: list[str]) -> Arguments | None:
    """None when the arguments are wrong."""
    made = Arguments(node_settings.COMPILED_PATH)
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--dry-run" and not equals:
            made.dry_run = True
            continue
        if not equals and rest:
            value = rest.pop(0)
        elif not equals:
            return None
        if option == "--config":
            made.config = value
        elif option == "--standalone" and value in (ANY, KEY):
            made.command_line.standalone = value
        elif option == "--annotation" and value.startswith(PREFIX) and "=" in value:
            key, _, text = value.partition("=")
            made.command_line.annotations[key] = text
        else:
            return None
    if len(rest) != 1 or rest[0] not in (*STARTING, STOPPED):
        return None
    made.stage = rest[0]
    return made


def main(arguments: list[str], stdin: int = 0) -> int:
    """Run the hook; returns its exit status."""
    parsed = parse(arguments)
    if parsed is None:
        _print(USAGE, sys.stderr)
        return 2
    stage, hook = parsed.stage, Hook(parsed)
    state: dict[str, object] = {}
    lines: list[str] = []
    failed = ""
    try:
        state = oci_state.read_state(stdin)
        lines = hook.stop(state) if stage == STOPPED else hook.start(state)
    except (Exception, KeyboardInterrupt) as error:  # a bug, too: one line, and no container without limits
        failed = error_line.line(hook.step, error)
    _report(hook, stage, state, lines, failed)
    if not failed:
        try:
            hook.keep()
        except (Exception, KeyboardInterrupt) as error:
            failed = error_line.line(hook.step, error)
            _report(hook, stage, state, [], failed)
    return 1 if failed else 0


def entry(arguments: list[str]) -> None:
    """The gate calls this. It exits at once after `main`: the interpreter's shutdown takes longer than some steps."""
    status = main(arguments)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads what is left
        pass
    os._exit(status)


def _report(hook: Hook, stage: str, state: dict[str, object], lines: list[str], failed: str) -> None:
    """What cannot be said or logged changes nothing about the start."""
    try:
        if failed:
            _print(f"vgpu-hook: {failed}", sys.stderr)
        if hook.dry_run:
            for line in lines:
                _print(escaped(line), sys.stdout)  # the maker of an image chose the names of its files
        elif hook.run_dir and (lines or failed):
            hooklog.write(hook.run_dir, hooklog.record(stage, state, lines, failed, hook.name, hook.steps))
    except (Exception, KeyboardInterrupt) as error:
        _print("vgpu-hook: " + error_line.line("report", error), sys.stderr)


def _print(line: str, stream: TextIO) -> None:
    """Where nobody reads the line, the exit status and the log remain."""
    try:
        print(line, file=stream)
    except OSError:
        return
