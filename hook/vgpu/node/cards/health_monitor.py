"""The health monitor of vgpud: finds the cards that no new container should get, and why.

Belongs here: starting and ending the probe processes (vgpu.node.cards.nvml_probe), their silence, loading and unloading
of the driver, and `<run>/health.json`, which tells others, and keeps faults over a restart of vgpud.
vgpu.node.cards.health_rules decides when a card is ill and when it returns. This module touches no running container,
never imports pynvml, and has no thread: vgpud's loop calls it in each round, and when a process has sent something.

One process, the session, holds NVML open for all cards that answer, and waits for their events. The monitor removes a
card that does not answer, or has to be reset, from the session. From then on a process of the card's own probes it from
time to time. So vgpud does not block `nvidia-smi --gpu-reset`, and a card that hangs NVML affects no other card.

An error of vgpud's own process, such as a lack of descriptors or memory, says nothing of a card: what was known stays,
and a condition says what could not be looked at. A silent process counts as NVML's silence only when a process that
does not call NVML, the control, answers meanwhile: else no process of vgpud gets to run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import stat
from collections.abc import Callable, Iterator

from vgpu.config import health, inventory, paths
from vgpu.config.clock import since_boot
from vgpu.config.errors import NotKnown, VgpuError, is_absent, not_known
from vgpu.config.inventory import Card, Inventory
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.cards import xids
from vgpu.node.cards.health_rules import QUIET, CardState, Fault, fault_of_xid, from_answer
from vgpu.node.cards.probe_process import ProbeProcess
from vgpu.node.service.log import Conditions, Log

NVML = "card health: NVML"  #: the condition that says why NVML answers for no card
ALL = "all"  #: in plugin.ignored_xids: no events at all, and NVML is never held open
NOT_LOADED, MISMATCH = 9, 18  #: NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH
HANGS = "NVML hangs when asked for it"
NOT_LOADED_TEXT = "the driver is not loaded"
MISMATCH_TEXT = "the driver's library and its kernel module differ: reboot, or load the new module"

Driver = tuple[str, int]


class Pace:
    """Intervals in seconds. `look`: between two probes of a card; `apart`: the same for a card outside the session;
    `hang`: the longest time for one answer; `quiet`: see health_rules.QUIET; `first`, `last`: the shortest and the
    longest pause after a failure of NVML.
    """

    def __init__(
        self, look: float = 10.0, apart: float = 30.0, hang: float = 60.0, quiet: float = QUIET, first: float = 2.0,
        last: float = 60.0,
    ) -> None:  # fmt: skip
        self.look = look
        self.apart = apart
        self.hang = hang
        self.quiet = quiet
        self.first = first
        self.last = last


class HealthMonitor:
    """Call `look` in each round. The processes answer through `selector`, whose data is to be called with the events.

    `conditions` say what could not be looked at. While `away()` has a reason, NVML is closed. Until the first look that
    can read the faults which an earlier vgpud recorded, nothing is judged and nothing is written.
    """

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        selector: selectors.BaseSelector,
        proc: str = "/proc",
        away: Callable[[], str] = str,
        pace: Pace | None = None,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        self.settings = settings
        self.cards: dict[str, Card] = {}  # by the uuid of the card that NVML is asked for: of an instance its parent's
        self._instances: list[Card] = []
        self.log = conditions.log
        self.conditions = conditions
        self.selector = selector
        self.proc = proc
        self.away = away
        self.pace = pace or Pace()
        self.clock = clock
        self.ignored, self.events = _ignored(settings, self.log)
        self._file = paths.health(settings.run_dir)
        self._saved = False
        self._to_save = True
        self._written = -health.EVERY
        self._boot = ""
        self._recorded: dict[str, Fault] | None = None  # what an earlier vgpud has left; None before it was read
        self._driver: Driver = ("", 0)
        self._had_driver = False
        self._states: dict[str, CardState] = {}
        self._nodes: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._blind: set[str] = set()
        self._usable = False
        self._session: ProbeProcess | None = None
        self._looks: dict[str, ProbeProcess] = {}
        self._control: ProbeProcess | None = None
        self._leaving: list[ProbeProcess] = []
        self._pause, self._not_before = self.pace.first, 0.0
        self._next_apart: dict[str, float] = {}

    def look(self, found: Inventory | None) -> None:
        """All that is due now. A card that has left the inventory stays known: it is probed, and may come back.

        Without an inventory NVML is closed: a driver that is going must not be held.
        """
        self._usable = found is not None
        if not (self._step("record", self._begin) and self._step("cards", lambda: self._take(found))):
            return
        self._step("driver", self._look_at_driver)
        self._step("device nodes", self._look_at_nodes)
        self._step("silence", self._judge_silence)
        self._step("processes", self._keep_asking)
        self._step("acknowledgement", self._look_at_file)
        self._publish()

    def reload(self, settings: Settings) -> None:
        """Use other settings of the same run directory. What is known of the cards stays."""
        self.settings = settings
        self.ignored, self.events = _ignored(settings, self.log)
        for probe in [*self._probes(), *self._controls()]:
            self._step("processes", functools.partial(self._end, probe))

    def close_nvml(self) -> None:
        """End the processes that have NVML open, because `away()` has a reason now."""
        for probe in list(self._probes()):
            self._step("processes", functools.partial(self._end, probe))

    def stop(self) -> None:
        """End the processes. A process that hangs in the kernel ends later by itself. `reasons()` stays as it is."""
        for probe in [*self._probes(), *self._controls()]:
            self._step("processes", functools.partial(self._end, probe))
        if self._recorded is not None:
            self._step("file", self._save)

    def not_known(self) -> bool:
        """Whether the last round could not find out something about the cards."""
        return bool(self._blind - {"file"}) or NVML in self.conditions.present

    def reasons(self) -> dict[str, str]:
        """Card uuid -> why the card is ill; without the healthy ones."""
        return dict(self._reasons)

    def _step(self, name: str, work: Callable[[], None]) -> bool:
        """Whether the step has succeeded. Nothing that a step meets may end vgpud or another step."""
        topic = f"card health: {name}"
        try:
            work()
        except (VgpuError, OSError, MemoryError) as error:
            self._blind.add(name)
            self.conditions.set(topic, f"health of the cards: {name}: {error or 'no memory'}")
            return False
        self._blind.discard(name)
        self.conditions.set(topic, "")
        return True

    def _begin(self) -> None:
        """Read the faults of an earlier vgpud, once, unless the node was booted or the driver loaded again since."""
        if self._recorded is not None:
            return
        boot = staleness.boot_id(self.proc)
        driver = self._driver_now()
        try:
            found = health.read(self.settings.run_dir, boot)
        except NotKnown:
            raise
        except VgpuError as error:
            self.log.warning(f"earlier faults of cards are not known: {error}")
            found = None
        faults = found.faults if found and found.driver == list(driver) else []
        self._boot, self._driver, self._had_driver = boot, driver, bool(driver[0])
        self._recorded = {str(one["card"]): _fault(one) for one in faults}

    def _take(self, found: Inventory | None) -> None:
        """Watch the cards of the inventory. A card that has another address now is probed anew."""
        assert self._recorded is not None
        if found:
            self._instances = [card for card in found.cards if card.parent]
        for card in found.cards if found else []:
            uuid = card.physical
            before = self.cards.get(uuid)
            place = (card.minor, card.bus_id, card.parent)
            if before is not None and (before.minor, before.bus_id, before.parent) == place:
                continue
            self.cards[uuid] = card
            if before is None:
                self._states[uuid] = CardState(self._recorded.get(uuid), self.pace.quiet)
            self._to_save = True
            for probe in [probe for probe in self._probes() if uuid in probe.cards]:
                self._end(probe)

    def _probes(self) -> Iterator[ProbeProcess]:
        yield from [self._session] if self._session else []
        yield from list(self._looks.values())

    def _controls(self) -> Iterator[ProbeProcess]:
        yield from [self._control] if self._control else []

    # Messages of the processes

    def _hear(self, probe: ProbeProcess, _mask: int) -> None:
        """Take what a process has sent. vgpud's loop calls this."""
        self._step("answers", lambda: self._take_messages(probe))
        self._publish()

    def _take_messages(self, probe: ProbeProcess) -> None:
        for message in probe.read():
            probe.deadline = self.clock() + self.pace.hang
            probe.messages += 1
            if "at" in message:
                probe.at = str(message["at"])
            elif "look" in message:
                probe.at = ""
                self._saw(str(message["look"]), message)
            elif "round" in message:
                self._pause = self.pace.first
                probe.deadline += self.pace.look
                self.conditions.set(NVML, "")
            elif "event" in message:
                self._happened(str(message["event"]), message.get("kind"), message.get("data"))
            elif "fatal" in message:
                self._failed(str(message["fatal"]), message.get("code"))
        if probe.ended and probe is not self._control:
            self._drop(probe)

    def _saw(self, uuid: str, message: dict[str, object]) -> None:
        state = self._states[uuid]
        had_fault = state.fault is not None
        state.saw(from_answer(message), self.clock())
        if state.error and not message.get("error"):  # one answer is not enough: probe again soon
            self._next_apart[uuid] = self.clock() + self.pace.look
        self._to_save |= had_fault != (state.fault is not None)

    def _happened(self, uuid: str, kind: object, data: object) -> None:
        number = data if isinstance(data, int) else 0
        if kind == "xid" and (number in self.ignored or number in xids.NOTICES):
            self.log.info(f"Xid {number}: not the card's fault", card=uuid)
            return
        now = self.clock()
        fault = fault_of_xid(number, now) if kind == "xid" else Fault("uncorrectable memory error", now, False)
        for card in [uuid] if uuid else list(self._states):
            self._states[card].happened(fault)
        self.log.warning(fault.text, card=uuid or "all: NVML does not name the card")
        self._to_save = True

    def _failed(self, text: str, code: object) -> None:
        """NVML itself fails. Without a driver no card is usable; else the cards' state is not known and stays."""
        self.conditions.set(NVML, f"the cards' health is not known: {text}")
        if code == MISMATCH:
            self._mark_all(MISMATCH_TEXT)
        elif code == NOT_LOADED:
            with contextlib.suppress(NotKnown):
                if not staleness.driver_version(self.settings.text("driver.proc_root")):
                    self._mark_all(NOT_LOADED_TEXT)

    def _mark_all(self, error: str) -> None:
        for state in self._states.values():
            state.saw(from_answer({"error": error, "gone": True}), self.clock())

    # Starting and ending the processes

    def _keep_asking(self) -> None:
        """Keep one session for the cards that answer, and now and then probe each card outside the session."""
        self._leaving = [probe for probe in self._leaving if not probe.gone()]
        if self.away() or not self._usable:
            for probe in list(self._probes()):
                self._end(probe)
            self._pause, self._not_before, self._next_apart = self.pace.first, 0.0, {}
            return
        apart = {uuid for uuid, state in self._states.items() if state.apart() or not self.events}
        together = [uuid for uuid in self.cards if uuid not in apart]
        if self._session and set(self._session.cards) != set(together):
            self._end(self._session)
        if not self._driver_loaded() or self.clock() < self._not_before:
            return
        if together and self._session is None:
            self._session = self._start(together, self.pace.look)
        for uuid in apart:
            free = uuid not in self._looks and not any(uuid in probe.cards for probe in self._leaving)
            if free and self.clock() >= self._next_apart.get(uuid, 0.0):
                self._next_apart[uuid] = self.clock() + self.pace.apart
                self._looks[uuid] = self._start([uuid], 0.0)

    def _start(self, uuids: list[str], interval: float) -> ProbeProcess:
        """A process for these cards; for none it is the control, which does not call NVML."""
        library = self._library() if uuids else ""
        addresses = {uuid: self.cards[uuid].bus_id for uuid in uuids}
        probe = ProbeProcess(library, addresses, interval, self.clock() + self.pace.hang)
        try:
            self.selector.register(probe.fd, selectors.EVENT_READ, functools.partial(self._hear, probe))
        except OSError:
            try:
                probe.end()
            finally:
                self._leaving.append(probe)
            raise
        return probe

    def _library(self) -> str:
        """NVML's path in the current inventory; an update of the driver changes it."""
        return inventory.nvml_of(inventory.read(self.settings.run_dir).libraries)

    def _end(self, probe: ProbeProcess) -> None:
        """End a process that is not needed any more, or silent."""
        self._forget(probe)
        try:
            probe.end()
        finally:
            if not probe.gone():
                self._leaving.append(probe)

    def _drop(self, probe: ProbeProcess) -> None:
        """A process has ended by itself: a single probe normally, the session because NVML failed."""
        without_a_word = (probe is self._session or not probe.messages) and NVML not in self.conditions.present
        if without_a_word:
            self.conditions.set(NVML, "the cards' health is not known: the process that probes them has ended")
        if probe is self._session:
            self._not_before = self.clock() + self._pause
            self._pause = min(self._pause * 2, self.pace.last)
        self._end(probe)

    def _forget(self, probe: ProbeProcess) -> None:
        if probe is self._session:
            self._session = None
        elif probe is self._control:
            self._control = None
        else:
            self._looks = {uuid: other for uuid, other in self._looks.items() if other is not probe}
        self.selector.unregister(probe.fd)

    def _judge_silence(self) -> None:
        """Judge the processes that are silent for too long, when the control has answered or is silent as well.

        Each of them hangs at the card that it named last, or in NVML itself, which affects all its cards; unless the
        control does not answer either. It starts after they were late, so they have had the time to run that it has.
        """
        late = [probe for probe in self._probes() if self.clock() >= probe.deadline]
        control = self._control
        if control is None:
            if late:
                self._control = self._start([], 0.0)
            return
        if not control.ended and self.clock() < control.deadline:
            return
        runs = control.messages > 0
        self._end(control)
        for probe in late:
            for uuid in ([probe.at] if probe.at else probe.cards) if runs else []:
                self._states[uuid].saw(from_answer({"error": HANGS}), self.clock())
            self._end(probe)
        if late and not runs:
            self.conditions.set(NVML, "the cards' health is not known: vgpud's processes do not get to run")

    # Checks without NVML

    def _driver_now(self) -> Driver:
        """(version, inode of the loaded module): one of them changes when the driver is loaded again. NotKnown when
        they cannot be looked at."""
        proc_root = self.settings.text("driver.proc_root")
        status = _status(os.path.join(os.path.dirname(proc_root), "sys/module/nvidia"))
        module = status.st_ino if status else 0
        return staleness.driver_version(proc_root), module

    def _driver_loaded(self) -> bool:
        return bool(self._driver[0]) or not self._had_driver

    def _look_at_driver(self) -> None:
        now = self._driver_now()
        if now == self._driver:
            return
        for probe in list(self._probes()):
            self._end(probe)
        self._driver = now
        self._had_driver = True
        self._pause, self._not_before, self._next_apart = self.pace.first, 0.0, {}
        if not now[0]:
            self._mark_all(NOT_LOADED_TEXT)
            return
        self.log.info("driver loaded anew", driver=now[0])
        for state in self._states.values():
            state.reset()
        self._to_save = True

    def _look_at_nodes(self) -> None:
        """Mark a card whose device node has disappeared. The inventory reports a node that never existed."""
        problem: NotKnown | None = None
        for uuid, card in self.cards.items():
            try:
                status = _status(card.device.path)
            except NotKnown as error:
                problem = error
                continue
            if status and stat.S_ISCHR(status.st_mode):
                self._nodes.add(uuid)
            elif uuid in self._nodes:
                answer = {"error": f"its device node {card.device.path} is gone", "gone": True}
                self._states[uuid].saw(from_answer(answer), self.clock())
        if problem:
            raise problem

    # Reasons and their file

    def _publish(self) -> None:
        """Let others know what has changed, and from time to time that this process still looks."""
        cards = [*(card for card in self.cards.values() if not card.parent), *self._instances]
        labels = {card.uuid: card.label() for card in cards}
        found = {card.uuid: reason for card in cards if (reason := self._states[card.physical].reason())}
        for uuid in {**self._reasons, **found}:
            text = f"{labels[uuid]} is ill: {found[uuid]}" if uuid in found else ""
            self.conditions.set(f"card {uuid}", text)
        self._to_save |= found != self._reasons
        self._reasons = found
        if self._to_save or self.clock() - self._written >= health.EVERY:
            self._step("file", self._save)

    def _look_at_file(self) -> None:
        """Whoever removes the file declares all recorded faults settled."""
        if not self._saved or _status(self._file):
            return
        for state in self._states.values():
            state.reset()
        self._saved, self._to_save = False, True

    def _save(self) -> None:
        """Write the record. Before a card is known, that of an earlier vgpud stays; what fails is written later."""
        if not self.cards:
            return
        faults: list[dict[str, object]] = [
            {"card": uuid, "text": state.fault.text, "at": state.fault.at, "reset": state.fault.reset}
            for uuid, state in self._states.items()
            if state.fault is not None
        ]
        now = self.clock()
        record = health.Health(self._reasons, not self.not_known(), now, list(self._driver), faults)
        health.write(self.settings.run_dir, record, self._boot)
        self._saved, self._to_save, self._written = True, False, now


def _fault(record: dict[str, object]) -> Fault:
    at = record["at"]
    return Fault(str(record["text"]), at if isinstance(at, float) else 0.0, record["reset"] is True)


def _ignored(settings: Settings, log: Log) -> tuple[set[int], bool]:
    """(the Xids to ignore, whether the session waits for events at all)."""
    found = settings.texts("plugin.ignored_xids")
    for text in found:
        if not text.isdigit() and text not in (ALL, xids.CATALOG):
            log.warning(f"plugin.ignored_xids: expected numbers, {xids.CATALOG} or {ALL}, found {text}")
    harmless = xids.HARMLESS if xids.CATALOG in found else set()
    return {int(text) for text in found if text.isdigit()} | harmless, ALL not in found


def _status(path: str) -> os.stat_result | None:
    """None when there is no such file; NotKnown when that cannot be found out."""
    try:
        return os.stat(path)
    except OSError as error:
        if is_absent(error):
            return None
        raise not_known(path, error) from error
