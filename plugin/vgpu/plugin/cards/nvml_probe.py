"""The process that holds NVML for the health watch: looks at cards, waits for their events, tells both line by line.

Belongs here: pynvml's calls for it, and the form of the messages. A process of its own, because NVML may hang for ever
in the kernel, keeps a replaced library loaded, and keeps a card from being reset as long as it is open: all three end
with the process, and none of them is the device plugin's then. Judging is vgpu.plugin.cards.health_rules's.

Messages on stdout, one JSON object each:
  {"at": uuid}                         about to ask this card; if nothing follows, this is where NVML hangs
  {"look": uuid, "error": ..., ...}    what it said, see cardstate.Look
  {"round": true}                      all cards were looked at
  {"event": uuid, "kind": "xid" | "ecc", "data": n}    uuid "" when NVML does not say whose
  {"fatal": text, "code": n}           NVML is of no more use; the process ends
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

import pynvml  # type: ignore[import-untyped]

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import syscalls
from vgpu.node.driver import nvml

RECOVERY_ACTION = 230  #: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older packages do not name
MILLISECONDS = 1000
PAUSE = 1.0  #: seconds, the least between two looks

#: What says that the card itself is away, or wants a reset before it answers.
GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT,
    getattr(pynvml, "NVML_ERROR_RESET_REQUIRED", 16), 28,
)  # fmt: skip
#: The same of the wait, which does not say whose it is.
LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, getattr(pynvml, "NVML_ERROR_RESET_REQUIRED", 16))
#: What says nothing of the card: NVML has to be started anew, or we may not ask.
FATAL = (
    pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_NO_PERMISSION,
    getattr(pynvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18),
)  # fmt: skip
#: What a card, a driver or a package that does not know a question answers.
UNKNOWN = (AttributeError, pynvml.NVMLError)


def tell(**message: object) -> None:
    sys.stdout.write(records.encode(message) + "\n")
    sys.stdout.flush()


class Watch:
    """`wanted`: uuid -> bus id, of the inventory. `interval`: seconds from look to look, 0.0 for one look only."""

    def __init__(self, wanted: dict[str, str], interval: float) -> None:
        self.wanted = wanted
        self.interval = interval
        self.handles: dict[str, Any] = {}
        self.names: dict[int, str] = {}  # a handle's address -> uuid
        self.events: Any = None
        self._looked = 0.0

    def run(self) -> None:
        self._round()
        while self.interval:
            self._wait(self._looked + self.interval)
            self._round()

    # Looking

    def _round(self) -> None:
        for uuid in self.wanted:
            self._look(uuid)
        self._looked = time.monotonic()
        tell(round=True)

    def _look(self, uuid: str) -> None:
        tell(at=uuid)
        try:
            answer = self._asked(self._handle(uuid))
        except pynvml.NVMLError as error:
            if error.value in FATAL:
                raise
            answer = {"error": f"NVML says: {error}", "gone": error.value in GONE}
        tell(look=uuid, **answer)

    def _handle(self, uuid: str) -> Any:
        """By bus id, which opens this card only: by uuid or index NVML may go through others, which may hang."""
        if uuid not in self.handles:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(self.wanted[uuid].encode())
            found = pynvml.nvmlDeviceGetUUID(handle)
            if (found.decode() if isinstance(found, bytes) else found) != uuid:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # another card in its place
            self.handles[uuid] = handle
            self.names[_address(handle)] = uuid
            if self.interval:
                self._register(handle)
        return self.handles[uuid]

    def _asked(self, handle: Any) -> dict[str, object]:
        pynvml.nvmlDeviceGetMemoryInfo(handle)  # the question that every card answers
        return {"pages": _pages(handle), "rows": _rows(handle), "action": _action(handle), "ecc": _ecc(handle)}

    # Waiting

    def _register(self, handle: Any) -> None:
        """For what this card can tell; one that can tell nothing is only looked at."""
        try:
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            kinds &= pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
            if not kinds:
                return
            if self.events is None:
                self.events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, kinds, self.events)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                raise

    def _wait(self, until: float) -> None:
        """Until the next look is due, or an error asks for one now."""
        while (left := until - time.monotonic()) > 0:
            if self.events is None:
                time.sleep(left)
                return
            try:
                self._tell(pynvml.nvmlEventSetWait(self.events, int(left * MILLISECONDS) + 1))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                if error.value not in LOST:
                    raise
                time.sleep(PAUSE)
                return
            until = min(until, self._looked + PAUSE)  # what the card says after an error, but not a look for each

    def _tell(self, event: Any) -> None:
        kind = "xid" if event.eventType == pynvml.nvmlEventTypeXidCriticalError else "ecc"
        tell(event=self._named(event.device), kind=kind, data=int(event.eventData))

    def _named(self, handle: Any) -> str:
        uuid = self.names.get(_address(handle))
        if uuid is None:
            try:
                found = pynvml.nvmlDeviceGetUUID(handle)
                uuid = found.decode() if isinstance(found, bytes) else found
            except pynvml.NVMLError:
                uuid = ""
        return uuid if uuid in self.wanted else ""


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _pages(handle: Any) -> bool:
    """Whether a page waits to be retired: cards before Ampere."""
    try:
        return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    except UNKNOWN:
        return False


def _rows(handle: Any) -> bool:
    """Whether remapping a row has failed. A remapping that waits for a reset does no harm: its page is offline."""
    try:
        return bool(pynvml.nvmlDeviceGetRemappedRows(handle)[3])
    except UNKNOWN:
        return False


def _action(handle: Any) -> int:
    try:
        value = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
    except UNKNOWN:
        return -1
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else -1


def _ecc(handle: Any) -> int:
    try:
        return int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    except UNKNOWN:
        return -1


def main() -> None:
    """The task is one JSON argument: library, cards (uuid -> bus id), interval, parent (a pid)."""
    task = records.decode_object(os.fsencode(sys.argv[1]), "task")
    syscalls.die_with_parent()
    if os.getppid() != task["parent"]:
        return
    library, wanted, interval = task["library"], task["cards"], task["interval"]
    assert isinstance(library, str)
    assert isinstance(wanted, dict)
    assert isinstance(interval, (int, float))
    try:
        with nvml.nvml(library):
            Watch(wanted, float(interval)).run()
    except (VgpuError, pynvml.NVMLError) as error:
        cause = error.__cause__ or error
        tell(fatal=str(error), code=getattr(cause, "value", 0))
    sys.stdout.flush()
    os._exit(0)  # not through the destructors of a library whose driver may be gone
