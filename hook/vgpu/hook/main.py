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

from vgpu.config import grants, request
from vgpu.config import inventory as inventories
from vgpu.config import settings as node_settings
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Inventory
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook import bundle, cgroup, devicerules, execution, freshness, hooklog, plan, processes
from vgpu.hook import identity as identities
from vgpu.hook.allocation import Allocation
from vgpu.hook.bundle import Container
from vgpu.hook.devicecgroup import AllowDevices
from vgpu.hook.identity import Identity
from vgpu.hook.ledger import Ledger, Redemption, Start
from vgpu.hook.plan import Plan, Subject
from vgpu.hook.rootfs import Rootfs
from vgpu.hook.survey import survey

STARTING = ("prestart", "createRuntime")
STOPPED = "poststop"
USAGE = "usage: vgpu-hook [--config FILE] [--dry-run] prestart|createRuntime|poststop"
PARAMETERS = ("params", "version", "registry")
IDENTITY_MAP = ["0", "0", "4294967295"]


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
        container = bundle.read(state)
        self.step = "identity"
        pid = container.pid or (os.getpid() if self.dry_run else 0)
        paths = cgroup.paths_of(pid, self.proc) if container.pid else []
        identity = identities.identify(paths, container.annotations)
        wanted = _wanted(container, identity)
        if wanted is None:
            return []
        self._refuse_rootless()
        self.step = "configuration"
        settings = node_settings.read(self.config_path)
        self.run_dir = settings.run_dir
        if not identity.kubernetes and not settings.flag("standalone.enabled"):
            expected = "standalone.enabled: true in the node's configuration"
            raise VgpuError(request.CORES, expected=expected, found="false", do="run it as a pod, or enable it")
        self.step = "inventory"
        inventory = inventories.read(settings.run_dir)
        freshness.check(inventory, settings.text("driver.proc_root"))
        ledger = Ledger(settings, inventory.cards, self.proc)
        if self.dry_run:
            return self._explain(container, pid, ledger.place(wanted, identity.holder), inventory, settings, ledger)
        return self._run(container, identity, wanted, inventory, settings, ledger)

    def _run(
        self,
        container: Container,
        identity: Identity,
        wanted: Request | Redemption,
        inventory: Inventory,
        settings: Settings,
        ledger: Ledger,
    ) -> list[str]:
        self.step = "allocation"
        started = processes.start_time(container.pid, self.proc)
        if not started:
            raise VgpuError("state JSON on stdin", expected="the pid of a living container", found=container.pid)
        start = Start(
            container.id, container.pid, started, container.bundle, identity.holder, identity.name, time.time()
        )
        made = ledger.claim(start, wanted)
        if made is None:
            return [f"holds its cards already: {container.id}"]
        try:
            notes = self._hand_over(container, made, inventory, settings, ledger)
            self.step = "record"
            ledger.confirm(start)
        except BaseException:
            ledger.withdraw(start)
            raise
        cards = ", ".join(f"{card.label()}" for card in made.cards)
        return [f"{'whole' if made.exclusive else 'share of'} {cards}", *notes, *ledger.notes]

    def _hand_over(
        self, container: Container, made: Allocation, inventory: Inventory, settings: Settings, ledger: Ledger
    ) -> list[str]:
        """Mounts, links, nodes, loader and device cgroup of `made`."""
        self.step = "root file system"
        root = execution.open_rootfs(container.pid, container.rootfs, self.proc)
        try:
            planned, access = self._plan(container, container.pid, root, made, inventory, settings, ledger)
            self.step = "mount"
            execution.execute(planned.operations, container.pid, root, self.proc)
        finally:
            root.close()
        self.step = "device cgroup"
        return [*planned.notes, access.execute(self.proc).text]

    def _plan(
        self,
        container: Container,
        pid: int,
        root: Rootfs,
        made: Allocation,
        inventory: Inventory,
        settings: Settings,
        ledger: Ledger,
    ) -> tuple[Plan, AllowDevices]:
        self.step = "plan"
        wish = container.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
        chosen = plan.capabilities(wish, settings, made.exclusive)
        stems = frozenset(library.name.partition(".so")[0] for library in inventory.libraries)
        nodes = plan.devices(inventory, made, chosen)
        facts = survey(root, stems, [device.name for device in nodes])
        subject = Subject(made, chosen, facts, ledger.limits_file(container.id))
        parameters = _parameters(settings.text("driver.proc_root")) if facts.proc_driver else {}
        planned = plan.make(subject, inventory, settings, parameters)
        numbers = tuple((device.major, device.minor) for device in planned.devices)
        rules = devicerules.from_config(container.config, f"{container.bundle}/config.json")
        return planned, AllowDevices(pid, numbers, settings.text("devices.permissions"), rules)

    def _explain(
        self,
        container: Container,
        pid: int,
        made: Allocation,
        inventory: Inventory,
        settings: Settings,
        ledger: Ledger,
    ) -> list[str]:
        try:
            root = execution.open_rootfs(pid, container.rootfs, self.proc)
        except VgpuError:
            root = execution.open_running(pid, self.proc)  # it was made already: explain what it would get
        try:
            planned, access = self._plan(container, pid, root, made, inventory, settings, ledger)
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

    def _refuse_rootless(self) -> None:
        self.step = "authority"
        with open(f"{self.proc}/self/uid_map", encoding="ascii") as stream:
            whole = stream.read().split() == IDENTITY_MAP
        if os.geteuid() != 0 or not whole:
            raise VgpuError("rootless runtime", expected="the host's root", found=f"uid {os.geteuid()}",
                            do="run the container by a runtime of the host's root")  # fmt: skip


def _wanted(container: Container, identity: Identity) -> Request | Redemption | None:
    """What the container asks for with authority; None: nothing, whatever its annotations and environment wish."""
    annotations = container.annotations
    told = {name: annotations[key] for name, key in grants.ANNOTATIONS.items() if key in annotations}
    if not identity.kubernetes:
        if request.is_standalone(annotations):
            return request.from_annotations(annotations)
        if told:
            raise VgpuError("grants", expected="a container of Kubernetes", found="a standalone one",
                            do=f"ask by {request.CORES} and {request.MEMORY}")  # fmt: skip
        return None
    if identity.sandbox:
        return None
    hints = {name: container.env[key] for name, key in grants.ENVIRONMENT.items() if container.env.get(key)}
    ids = {**hints, **told}
    if not ids:
        return None
    wishes = request.wishes_from(annotations)
    return Redemption(ids, request.core_limit_wish(annotations), wishes)


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
        state = bundle.read_state(stdin)
        lines = hook.stop(state) if stage == STOPPED else hook.start(state)
        failed = ""
    except VgpuError as error:
        lines, failed = [], f"{hook.step}: {error}"
    except Exception as error:  # a bug of ours or a dying machine: still one line, still no container without limits
        lines, failed = [], f"{hook.step}: {type(error).__name__}: {error}"
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
        print("\n".join(lines))
    elif hook.run_dir and (lines or failed):
        container = state.get("id")
        record = {"time": time.time(), "stage": stage, "container": container if isinstance(container, str) else ""}
        hooklog.write(hook.run_dir, {**record, "pid": state.get("pid", 0), "notes": lines, "error": failed})
