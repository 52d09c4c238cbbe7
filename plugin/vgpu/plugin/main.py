"""The device plugin's process: one instance per node, one loop, signals.

Belongs here: the order of the steps. Settings, inventory, sockets and registration come first and load no library but
grpc. The background services (API server, garbage collection of grants, probes) start afterwards.
Between rounds the process sleeps in poll(2) until kubelet's directory changes, a stream ends, a signal arrives, or TICK
seconds are over. What a step does belongs to the modules that it calls. Runs as root.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable

from vgpu.config import paths, plugin_state
from vgpu.config import settings as node_settings
from vgpu.config.clock import since_boot
from vgpu.config.errors import NotKnown, VgpuError, could_not_look
from vgpu.config.inventory import Card
from vgpu.config.prepared import HOOK
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.service import descriptors, kubelet_resources, privilege, single_instance
from vgpu.node.service.file_signature import signature
from vgpu.node.service.kubelet_resources import Resource
from vgpu.node.service.log import Conditions, Log
from vgpu.node.service.sd_notify import Notifier
from vgpu.plugin import inotify
from vgpu.plugin.background import NODE_NAME, BackgroundServices
from vgpu.plugin.cards.driver_upgrade import DriverUpgrade
from vgpu.plugin.cards.health import CardHealth
from vgpu.plugin.cards.inventory import InventoryMonitor
from vgpu.plugin.kubelet import device_tags
from vgpu.plugin.kubelet.allocate import Allocator
from vgpu.plugin.kubelet.registration import Registrar
from vgpu.plugin.kubelet.server import DeviceList, ResourceServer, Servicer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.plugin.dra.service import DraService

TICK = 2.0  #: seconds between rounds; a round costs a stat of settings and inventory, and three small files of /proc
LOCK_PAUSE = 1.0  #: seconds between two attempts to take the lock of another instance
INIT_PATIENCE = 30.0  #: seconds to wait for the first inventory, with fail_on_init_error: vgpud may be starting
MAX_LATE = 60.0  #: seconds by which a round may be late before the loop counts as hanging
STOP_GRACE = 3.0  #: seconds that calls in progress have to end
FIXED = ("paths.run", "paths.state")  #: settings that need a restart


class DevicePlugin:
    """The device plugin of the node that the compiled settings at `config_path` describe."""

    def __init__(self, config_path: str, log: Log, notifier: Notifier, hook: str = HOOK) -> None:
        self.config_path = config_path
        self.hook = hook
        self.log = log
        self.notifier = notifier
        self.conditions = Conditions(log)
        self.clock = time.monotonic
        self.started = self.clock()
        self.settings = node_settings.read(config_path)
        self._settings_file = signature(config_path)
        self.servers: list[ResourceServer] = []
        self.lock = -1
        self.stopping = self.reload = self.ready = False
        self.selector = selectors.DefaultSelector()
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.selector.register(self._wake[0], selectors.EVENT_READ, lambda: _drain(self._wake[0]))
        self._watch, self._watched = -1, (0, 0)
        self._due = 0.0
        self.inventory = InventoryMonitor(self.settings, self.clock)
        self.tags: dict[str, str] = {}  # card uuid -> its tag in device ids
        self._state: plugin_state.State = {}  # as vgpud knows it
        self._state_written = 0.0
        self.boot_id = staleness.boot_id()
        self.health = CardHealth(self.settings.run_dir, self.boot_id)
        self._parts(Allocator(self.settings))

    def _parts(self, allocator: Allocator) -> None:
        self.conditions.set("newer settings", "; ".join(self.settings.notes))
        self.inventory.settings = self.settings
        self.driver_upgrade = DriverUpgrade(self.settings.run_dir, boot_id=self.boot_id)
        self.registrar = Registrar(self.settings.text("plugin.socket_dir"), self.conditions, self.clock)
        self.allocator = allocator
        self.dra = self._dra_service() if self.settings.flag("kubernetes.dra") else None
        checks = {"/healthz": self.is_alive, "/readyz": self.is_ready}
        self.background = BackgroundServices(
            self.settings, self.conditions, checks, self.wake, lambda: dict(self._unhealthy), self.clock,
            lambda: dict(self._faults), self.driver_upgrade, lambda: self.health.not_known,
            self.dra.claims_seen if self.dra else None,
        )  # fmt: skip
        self._offered: tuple[list[Card], dict[str, str]] | None = None
        self._unhealthy: dict[str, str] = {}  # card uuid -> why it is unhealthy; replaced as a whole, never modified
        self._faults: dict[str, str] = {}  # card uuid -> card and reason, of those out of order themselves; likewise

    def _dra_service(self) -> DraService:
        from vgpu.plugin.dra.service import DraService  # noqa: PLC0415  # it loads what the device plugin loads later

        node = os.environ.get(NODE_NAME) or self.settings.node
        return DraService(self.settings, node, self.hook, self.config_path, self.boot_id, self.conditions)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT; VgpuError when the plugin cannot continue."""
        self._take_signals()
        self.log.info("started", run=self.settings.run_dir, sockets=self.settings.text("plugin.socket_dir"))
        try:
            while not self.stopping:
                self.round()
                if not self._part("wait", self._sleep):
                    time.sleep(TICK)
        finally:
            self.close()

    def round(self) -> None:
        alone = self.lock >= 0 or self._take_lock()
        if not alone:
            self._due = self.clock() + LOCK_PAUSE
        if alone or self.dra:
            self._reload_if_due()
            self._look_at_upgrade()
            self.inventory.look()
            self.conditions.set("cards not known", self.inventory.not_known)
            self.health.look()
            self.conditions.set("card health not known", self.health.not_known)
            self._part("cards", lambda: self._offer_claims(alone) if self.dra else self._offer())
        if alone:
            self._watch_kubelet()
            self._due = self.clock() + TICK
            self._part("registration", self._register)
        self._part("services", lambda: self.background.look(bool(self.servers) or (alone and self.dra is not None)))
        self._part("state", self._record_state)
        if not self.ready:  # kubelet may be ordered after this unit, so readiness does not wait for kubelet
            self.ready = True
            self.notifier.ready()
        self.notifier.status(self.is_ready()[1])
        self.notifier.alive()

    def _part(self, name: str, work: Callable[[], None]) -> bool:
        """Whether a part of the round has succeeded. Without descriptors, memory or rights the plugin goes on."""
        try:
            work()
        except (NotKnown, OSError, MemoryError) as error:
            self.conditions.set(f"part: {name}", f"{name}: {error or 'no memory'}; trying again")
            return False
        self.conditions.set(f"part: {name}", "")
        return True

    def _register(self) -> None:
        self._due = self.clock() + min(TICK, self.registrar.look(self.servers))

    def health_known(self) -> bool:
        """Whether the last round could look at the cards."""
        blind = self.inventory.not_known or self.health.not_known
        return not (blind or "driver upgrade file" in self.conditions.present)

    def _record_state(self) -> None:
        """Write the plugin's state for vgpud, when it has changed or is about to be too old."""
        state: plugin_state.State = {
            "alive": self.is_alive()[0], "ready": self.is_ready()[0], "health_known": self.health_known(),
            "node": os.environ.get(NODE_NAME, ""),
            "warnings": [*self.conditions.present.values(), *self.background.warnings()],
        }  # fmt: skip
        if self.lock >= 0 and (state != self._state or since_boot() - self._state_written >= plugin_state.EVERY):
            plugin_state.write(self.settings.run_dir, state, self.boot_id, since_boot())
            self._state, self._state_written = state, since_boot()

    def close(self) -> None:
        self.notifier.stopping()
        for one in self.servers:
            one.close(STOP_GRACE)
        if self.dra:
            self.dra.stop(STOP_GRACE)
        self.background.stop()
        self.selector.close()
        for fd in (*self._wake, self._watch, self.lock):
            if fd >= 0:
                os.close(fd)
        self.log.info("stopped")

    def is_ready(self) -> tuple[bool, str]:
        """(whether kubelet can place pods here, the state in words)."""
        if self.lock < 0:
            return False, "another device plugin runs on this node"
        if self.dra:
            return self.dra.is_ready()
        if not self.servers:
            return False, "no cards: " + (self.inventory.error or self.inventory.not_known or "waiting for one")
        if not self.registrar.registered():
            return False, "not registered with kubelet"
        unhealthy = len(self._unhealthy)
        cards = len(self.inventory.cards)
        return True, f"registered, {cards} cards" + (f", {unhealthy} of them unhealthy" if unhealthy else "")

    def is_alive(self) -> tuple[bool, str]:
        """(whether the main loop and the services make progress, the state in words)."""
        late = self.clock() - self._due
        hanging = "the main loop hangs" if late > MAX_LATE else ""
        return not hanging, hanging or "ok"

    def wake(self) -> None:
        """Begin the next round now. Any thread may call this."""
        with contextlib.suppress(OSError):  # the pipe is full and wakes the loop anyway, or the plugin has closed it
            os.write(self._wake[1], b"\0")

    # What is offered

    def _look_at_upgrade(self) -> None:
        """While the GPU operator upgrades the driver NVML is closed, and no card is offered."""
        problem = ""
        try:
            self.driver_upgrade.look()
        except NotKnown as error:
            problem = f"whether the driver is being upgraded is as it was known last: {error}"
        except OSError as error:
            problem = f"vgpud does not learn of the driver's upgrade: {error}"
        self.conditions.set("driver upgrade file", problem)
        reason = self.driver_upgrade.reason
        self.conditions.set("driver upgrade", f"NVML is closed, no card is offered: {reason}" if reason else "")
        self.inventory.stale_counts = bool(reason)

    def _offer(self) -> None:
        """Create the servers for the resources of settings and cards, and update their device lists."""
        cards = self.inventory.cards
        if not cards:
            self._without_cards()
            return
        reasons = self._reasons()
        if self._offered == (cards, reasons):
            return
        self.conditions.set("cards", "")
        try:
            offered = kubelet_resources.advertised(self.settings, cards, self._kept_tags(cards))
        except VgpuError as error:
            if not self.servers:
                raise
            self.conditions.set("resources", f"nothing changed: {error}")
            return
        self.conditions.set("resources", "")
        self._offered, self._unhealthy, self._faults = (cards, reasons), reasons, self._cards_at_fault()
        for uuid in self.inventory.known:
            text = f"{self.inventory.known[uuid].label()} is unhealthy: {reasons[uuid]}" if uuid in reasons else ""
            self.conditions.set(f"card {uuid}", text)
        served = {one.name for one in self.servers}  # a MIG profile may be new
        self._serve([resource for resource in offered if resource.name not in served], reasons)
        by_name = {resource.name: resource for resource in offered}
        for one in self.servers:
            resource = by_name[one.name]
            if one.device_list.update(resource, reasons):
                self.log.info("list changed", resource=resource.name, devices=resource.count())

    def _offer_claims(self, alone: bool) -> None:
        """The round of the DRA driver. It runs without cards, and beside another instance, too."""
        assert self.dra is not None
        reasons = self._reasons()
        self._unhealthy, self._faults = reasons, self._cards_at_fault()
        version = self.inventory.driver_version
        self.dra.look(self.inventory.cards, reasons, self._faults, version, alone)

    def _cards_at_fault(self) -> dict[str, str]:
        """The cards with a reason of their own.

        A stale inventory makes all cards unhealthy, and none faulty. So does an upgrade of the driver.
        """
        if self.driver_upgrade.reason:
            return {}
        found = {**self.inventory.lost(), **self.health.reasons}
        return {uuid: f"{self.inventory.known[uuid].label()}: {text}" for uuid, text in found.items()}

    def _kept_tags(self, cards: list[Card]) -> dict[str, str]:
        self.tags, problem = device_tags.keep(self.settings.state_dir, [card.uuid for card in cards], self.tags)
        self.conditions.set("card tags", problem)
        return self.tags

    def _without_cards(self) -> None:
        """No card has ever been found: wait for one, or raise the reason."""
        reason = self.inventory.error or self.inventory.not_known or "this node's inventory has no cards"
        late = self.inventory.ever or self.clock() - self.started > INIT_PATIENCE
        final = late and not self.inventory.not_known
        if self.settings.flag("plugin.fail_on_init_error") and final and not self.driver_upgrade.reason:
            do = "with plugin.fail_on_init_error: false it would wait for a card"
            raise VgpuError(f"no cards to offer: {reason}", do=do)
        self.conditions.set("cards", f"no cards to offer, waiting: {reason}")

    def _serve(self, offered: list[Resource], reasons: dict[str, str]) -> None:
        """Create servers for these resources. The registrar binds and registers them."""
        policy = kubelet_resources.policy_of(self.settings)
        for resource in offered:
            device_list = DeviceList(resource, reasons)
            device_list.ended = self.wake
            servicer = Servicer(device_list, self.allocator, policy, self.log, self.background.handed_over)
            self.servers.append(ResourceServer(self.settings.text("plugin.socket_dir"), servicer))

    def _reasons(self) -> dict[str, str]:
        if self.driver_upgrade.reason:
            return dict.fromkeys(self.inventory.known, self.driver_upgrade.reason)
        return {**self.health.reasons, **self.inventory.reasons()}

    # Settings

    def _reload_if_due(self) -> None:
        changed = signature(self.config_path, self._settings_file)
        if not (self.reload or changed != self._settings_file):
            return
        self.reload, self._settings_file = False, changed
        try:
            found = node_settings.read(self.config_path)
            self._check_reload(found)
            allocator = Allocator(found)
        except (VgpuError, OSError) as error:
            if could_not_look(error):
                self._settings_file = ()  # the next round tries again
            self.conditions.set("settings", f"the settings in force stay: {error}")
            return
        self.conditions.set("settings", "")
        if all(found[name] == self.settings[name] for name in node_settings.DEFAULTS):
            return
        self.log.info("settings read again", path=self.config_path)
        self._put_in_force(found, allocator)

    def _check_reload(self, found: Settings) -> None:
        for name in FIXED:
            if found[name] != self.settings[name]:
                raise VgpuError(name, expected=self.settings.text(name), found=found[name],
                                do="restart vgpu-device-plugin")  # fmt: skip
        if self.inventory.cards:
            kubelet_resources.advertised(found, self.inventory.cards, self.tags)

    def _put_in_force(self, found: Settings, allocator: Allocator) -> None:
        self.background.stop()
        for one in self.servers:
            one.close(STOP_GRACE)
        if self.dra:
            self.dra.stop(STOP_GRACE)
        self.servers = []
        self.settings = found
        self._parts(allocator)

    # The loop

    def _take_lock(self) -> bool:
        self.lock = single_instance.take(paths.plugin_lock(self.settings.run_dir))
        other = "another device plugin runs on this node; waiting for its end" if self.lock < 0 else ""
        self.conditions.set("instance", other)
        return self.lock >= 0

    def _watch_kubelet(self) -> None:
        """Watch kubelet's directory by inotify; if that fails, the loop polls it every TICK seconds."""
        directory = self.settings.text("plugin.socket_dir")
        try:
            status = os.stat(directory)
            found = (status.st_dev, status.st_ino)
            if self._watch >= 0 and found == self._watched:
                return
            self._unwatch()
            watch = inotify.open_watch(directory)
            try:
                self.selector.register(watch, selectors.EVENT_READ, lambda: inotify.drain(self._watch))
            except OSError:
                os.close(watch)
                raise
            self._watch, self._watched = watch, found
        except OSError:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._watch >= 0:
            self.selector.unregister(self._watch)
            os.close(self._watch)
            self._watch = -1

    def _sleep(self) -> None:
        pause = max(self._due - self.clock(), 0.0)
        if self.notifier.interval:
            pause = min(pause, self.notifier.interval)
        if self.stopping or self.reload:
            return
        for key, _ in self.selector.select(pause):
            key.data()

    def _take_signals(self) -> None:
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _hang_up(self, *_: object) -> None:
        self.reload = True


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def run(config_path: str, hook: str = HOOK) -> None:
    """Be the device plugin until SIGTERM or SIGINT. `hook` is the hook's program on the host."""
    log = Log(name="vgpu-device-plugin")
    descriptors.raise_limit()
    try:
        DevicePlugin(config_path, log, Notifier(os.environ, os.getpid()), hook).run()
    except (VgpuError, OSError) as error:
        log.warning(privilege.line(error, "vgpu-device-plugin"))
        sys.exit(1)
