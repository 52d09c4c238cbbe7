"""The health monitor: finds the cards that no new container should get, and why. One thread and its probe processes.

Belongs here: starting and ending the probe processes (vgpu.plugin.cards.nvml_probe), their silence, loading and
unloading of the driver, and `<run>/health.json`, which keeps faults over a restart of the plugin.
vgpu.plugin.cards.health_rules decides when a card is unhealthy and when it returns. This module touches no running
container and never imports pynvml.

One process, the session, holds NVML open for all cards that answer, and waits for their events. The monitor removes a
card that does not answer, or has to be reset, from the session. From then on a process of the card's own probes it from
time to time. So the plugin does not block `nvidia-smi --gpu-reset`, and a card that hangs NVML affects no other card.

An error of the plugin's own process, such as a lack of descriptors or memory, says nothing of a card: what was known
stays, and a condition says what could not be looked at. A silent process counts as NVML's silence only when a process
that does not call NVML, the control, answers meanwhile: else no process of the plugin gets to run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from vgpu.config import inventory, paths, records
from vgpu.config.clock import since_boot
from vgpu.config.errors import NotKnown, VgpuError, is_absent, not_known
from vgpu.config.fields import Fields
from vgpu.config.inventory import Card
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.service.log import Conditions, Log
from vgpu.plugin.cards import xids
from vgpu.plugin.cards.health_rules import QUIET, CardState, Fault, fault_of_xid, from_answer

VERSION = 1
HOST_ROOT = "VGPU_HOST_ROOT"  #: environment variable: where a container has the host's files: NVML's library and /dev
ALL = "all"  #: in plugin.ignored_xids: no events at all, and NVML is never held open
MAX_LINE = 1 << 16  #: bytes
NOT_LOADED, MISMATCH = 9, 18  #: NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH
HANGS = "NVML hangs when asked for it"

Driver = tuple[str, int]


class Pace:
    """Intervals in seconds. `look`: between two probes of a card; `apart`: the same for a card outside the session;
    `hang`: the longest time for one answer; `tick`: between two checks of the device nodes and the driver's version;
    `quiet`: see health_rules.QUIET; `first`, `last`: the shortest and the longest pause after a failure of NVML.
    """

    def __init__(
        self, look: float = 10.0, apart: float = 30.0, hang: float = 60.0, tick: float = 5.0, quiet: float = QUIET,
        first: float = 2.0, last: float = 60.0,
    ) -> None:  # fmt: skip
        self.look = look
        self.apart = apart
        self.hang = hang
        self.tick = tick
        self.quiet = quiet
        self.first = first
        self.last = last


class HealthMonitor:
    """The monitor's thread calls `on_change` whenever `reasons()` has changed. While `away()` is true, NVML is closed.

    The constructor loads the faults that an earlier plugin recorded, from one small file. `reasons()` contains them
    before `start`. NotKnown or OSError when the file or the driver cannot be looked at: try again later.
    """

    def __init__(
        self,
        settings: Settings,
        cards: list[Card],
        log: Log,
        on_change: Callable[[], None],
        pace: Pace | None = None,
        clock: Callable[[], float] = since_boot,
        proc: str = "/proc",
        away: Callable[[], str] = str,
    ) -> None:
        self.settings = settings
        self.cards = {card.uuid: card for card in cards}
        self.log = log
        self.conditions = Conditions(log)
        self.on_change = on_change
        self.pace = pace or Pace()
        self.clock = clock
        self.away = away
        self.ignored, self.events = _ignored(settings, log)
        self._file = paths.health(settings.run_dir)
        self._saved = False
        self._to_save = True
        self._host = os.environ.get(HOST_ROOT, "").rstrip("/")
        self._boot = staleness.boot_id(proc)
        self._driver = self._driver_now()
        self._had_driver = bool(self._driver[0])
        self._states: dict[str, CardState] = {}
        self._nodes: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()
        self._session: _Probe | None = None
        self._looks: dict[str, _Probe] = {}
        self._control: _Probe | None = None
        self._leaving: list[_Probe] = []
        self._pause, self._not_before = self.pace.first, 0.0
        self._next_apart: dict[str, float] = {}
        self._selector: selectors.BaseSelector | None = None
        self._wake = (-1, -1)
        self._stopping = False
        self._seen = clock()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._load()

    def start(self) -> None:
        """Start the thread. OSError or RuntimeError when the process has no descriptor or thread left."""
        self.open()
        self._thread.start()

    def open(self) -> None:
        """Open what the thread waits for."""
        self._close()
        self._selector = selectors.DefaultSelector()
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake[0], selectors.EVENT_READ)

    def stop(self) -> None:
        """End the thread and its processes. A process that hangs in the kernel ends later by itself.

        `reasons()` stays as it is.
        """
        if self._stopping:
            return
        self._stopping = True
        self._wake_up()
        if self._thread.ident is not None:
            self._thread.join()
        self._close()

    def stopped(self) -> bool:
        return self._stopping

    def _close(self) -> None:
        if self._selector is not None:
            self._selector.close()
        for fd in self._wake:
            if fd >= 0:
                os.close(fd)
        self._selector, self._wake = None, (-1, -1)

    def wake(self) -> None:
        """Begin the next round now. The thread that starts and stops the monitor may call this."""
        if not self._stopping:
            self._wake_up()

    def _wake_up(self) -> None:
        if self._wake[1] >= 0:
            with contextlib.suppress(OSError):  # a full pipe wakes the thread, too
                os.write(self._wake[1], b".")

    def not_known(self) -> bool:
        """Whether the last round could not find out something about the cards. Any thread may call this."""
        return any(topic != "health watch: file" for topic in list(self.conditions.present))

    def reasons(self) -> dict[str, str]:
        """Card uuid -> why the card is unhealthy; without the healthy ones. Any thread may call this."""
        with self._lock:
            return dict(self._reasons)

    def silent(self) -> float:
        """Seconds since the monitor's thread began its last round, for liveness. The thread never waits for NVML."""
        return 0.0 if self._stopping else self.clock() - self._seen

    # The thread

    def _run(self) -> None:
        while not self._stopping:
            self.round()
            if not self._step("answers", self._sleep):
                time.sleep(self.pace.tick)
        self._step("file", self._save)
        for probe in [*self._probes(), *self._controls()]:
            self._step("processes", functools.partial(self._end, probe))

    def round(self) -> None:
        """All that is due now. The thread calls this after each wait."""
        self._seen = self.clock()
        self._step("driver", self._look_at_driver)
        self._step("device nodes", self._look_at_nodes)
        self._step("silence", self._judge_silence)
        self._step("processes", self._keep_asking)
        self._step("acknowledgement", self._look_at_file)
        self._step("file", self._save)
        self._publish()

    def _step(self, name: str, work: Callable[[], None]) -> bool:
        """Whether the step has succeeded. Nothing that a step meets may end the thread."""
        topic = f"health watch: {name}"
        try:
            work()
        except (VgpuError, OSError, MemoryError) as error:
            self.conditions.set(topic, f"health monitor: {name}: {error or 'no memory'}")
            return False
        self.conditions.set(topic, "")
        return True

    def _sleep(self) -> None:
        """Wait until the next round is due, or a process has sent a message."""
        assert self._selector is not None
        now = self.clock()
        pauses = [probe.deadline - now for probe in (*self._probes(), *self._controls())]
        for key, _ in self._selector.select(min([self.pace.tick, *(pause for pause in pauses if pause > 0)])):
            if key.data is not None:
                self._hear(key.data)
            else:
                os.read(self._wake[0], 4096)

    def _probes(self) -> Iterator[_Probe]:
        yield from [self._session] if self._session else []
        yield from list(self._looks.values())

    def _controls(self) -> Iterator[_Probe]:
        yield from [self._control] if self._control else []

    # Messages of the processes

    def _hear(self, probe: _Probe) -> None:
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
                self.conditions.set("NVML", "")
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
        self.conditions.set("NVML", f"the cards' health is not known: {text}")
        if code == MISMATCH:
            self._mark_all("the driver's library and its kernel module differ: reboot, or load the new module")
        elif code == NOT_LOADED:
            with contextlib.suppress(NotKnown):
                if not staleness.driver_version(self.settings.text("driver.proc_root")):
                    self._mark_all("the driver is not loaded")

    def _mark_all(self, error: str) -> None:
        for state in self._states.values():
            state.saw(from_answer({"error": error, "gone": True}), self.clock())

    # Starting and ending the processes

    def _keep_asking(self) -> None:
        """Keep one session for the cards that answer, and now and then probe each card outside the session."""
        self._leaving = [probe for probe in self._leaving if not probe.gone()]
        if self.away():
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

    def _start(self, uuids: list[str], interval: float) -> _Probe:
        """A process for these cards; for none it is the control, which does not call NVML."""
        assert self._selector is not None
        task = {
            "library": self._library() if uuids else "", "cards": {uuid: self.cards[uuid].bus_id for uuid in uuids},
            "interval": interval, "parent": os.getpid(),
        }  # fmt: skip
        probe = _Probe(uuids, task, self.clock() + self.pace.hang)
        try:
            os.set_blocking(probe.fd, False)
            self._selector.register(probe.fd, selectors.EVENT_READ, probe)
        except OSError:
            try:
                probe.end()
            finally:
                self._leaving.append(probe)
            raise
        return probe

    def _library(self) -> str:
        """NVML's path in the current inventory; an update of the driver changes it."""
        found = inventory.nvml_of(inventory.read(self.settings.run_dir).libraries)
        return self._host + found

    def _end(self, probe: _Probe) -> None:
        """End a process that is not needed any more, or silent."""
        self._forget(probe)
        try:
            probe.end()
        finally:
            if not probe.gone():
                self._leaving.append(probe)

    def _drop(self, probe: _Probe) -> None:
        """A process has ended by itself: a single probe normally, the session because NVML failed."""
        without_a_word = (probe is self._session or not probe.messages) and "NVML" not in self.conditions.present
        if without_a_word:
            self.conditions.set("NVML", "the cards' health is not known: the process that probes them has ended")
        if probe is self._session:
            self._not_before = self.clock() + self._pause
            self._pause = min(self._pause * 2, self.pace.last)
        self._end(probe)

    def _forget(self, probe: _Probe) -> None:
        if probe is self._session:
            self._session = None
        elif probe is self._control:
            self._control = None
        else:
            self._looks = {uuid: other for uuid, other in self._looks.items() if other is not probe}
        assert self._selector is not None
        self._selector.unregister(probe.fd)

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
            self.conditions.set("NVML", "the cards' health is not known: the plugin's processes do not get to run")

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
            self._mark_all("the driver is not loaded")
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
                status = _status(self._host + card.device.path)
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
        found = self._found()
        with self._lock:
            before, self._reasons = self._reasons, found
        if found == before:
            return
        self.on_change()

    def _found(self) -> dict[str, str]:
        return {uuid: reason for uuid, state in self._states.items() if (reason := state.reason())}

    def _look_at_file(self) -> None:
        """Whoever removes the file declares all recorded faults settled."""
        if not self._saved or _status(self._file):
            return
        for state in self._states.values():
            state.reset()
        self._saved, self._to_save = False, True

    def _save(self) -> None:
        """Write the faults, when they have changed. What cannot be written is written later."""
        if not self._to_save:
            return
        faults = [
            {"card": uuid, "text": state.fault.text, "at": state.fault.at, "reset": state.fault.reset}
            for uuid, state in self._states.items()
            if state.fault is not None
        ]
        record = {"version": VERSION, "boot_id": self._boot, "driver": list(self._driver), "faults": faults}
        records.write(self._file, record)
        self._saved, self._to_save = True, False

    def _load(self) -> None:
        """Load the faults of an earlier plugin, unless the node was booted or the driver loaded again since."""
        try:
            faults = self._read()
        except NotKnown:
            raise
        except VgpuError as error:
            self.log.warning(f"earlier faults are not known: {error}")
            faults = {}
        self._states = {uuid: CardState(faults.get(uuid), self.pace.quiet) for uuid in self.cards}
        self._reasons = self._found()

    def _read(self) -> dict[str, Fault]:
        try:
            fields = Fields(records.read(self._file), self._file)
        except FileNotFoundError:
            return {}
        fields.version(VERSION)
        if fields.text("boot_id") != self._boot or fields.items("driver") != list(self._driver):
            return {}
        return {
            item.text("card"): Fault(item.text("text"), item.time("at"), item.flag("reset"))
            for item in fields.objects("faults")
        }


class _Probe:
    """A process of vgpu.plugin.cards.nvml_probe for `cards`. `at`: the card that it is probing, "" for none;
    `deadline`: the time by which the next message is due; `messages`: how many have come; `ended`: no message will
    follow. OSError when the process cannot be started.
    """

    def __init__(self, cards: list[str], task: dict[str, object], deadline: float) -> None:
        self.cards = cards
        self.deadline = deadline
        self.at = ""
        self.messages = 0
        self.ended = False
        self._data = bytearray()
        path = [entry for entry in sys.path if entry]
        program = f"import sys; sys.path[:] = {path!r}; from vgpu.plugin.cards import nvml_probe; nvml_probe.main()"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", program, records.encode(task)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()

    def read(self) -> list[dict[str, object]]:
        """The messages that have arrived. Sets `ended` at the end of the stream, or when a message is malformed."""
        try:
            data = os.read(self.fd, MAX_LINE)
        except BlockingIOError:
            return []
        self._data += data
        *lines, rest = bytes(self._data).split(b"\n")
        self._data = bytearray(rest)
        self.ended = not data or len(rest) > MAX_LINE
        try:
            return [records.decode_object(line, "health monitor") for line in lines]
        except VgpuError:
            self.ended = True
            return []

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def gone(self) -> bool:
        """Whether the process has ended; one that hangs in the driver stays until the driver returns."""
        return self._process.poll() is not None


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
