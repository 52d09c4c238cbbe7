"""The process that holds NVML for the health monitor: probes cards, and sends their answers and events.

Belongs here: the calls of pynvml for it, and the form of the messages. vgpu.node.cards.health_rules judges the
answers. It is a process of its own for three reasons: NVML may hang in the kernel for ever, it keeps a replaced library
loaded, and it prevents the reset of a card that it holds open. All three end with the process and do not affect
vgpud.

Messages on stdout, one JSON object each:
  {"begun": true}                      the process runs; without cards it ends then, and has not called NVML
  {"at": uuid}                         about to probe this card; if nothing follows, NVML hangs at this card
  {"look": uuid, "error": ..., ...}    the card's answer, see health_rules.Look
  {"round": true}                      all cards were probed
  {"event": uuid, "kind": "xid" | "ecc", "data": n}    uuid is "" when NVML does not name the card
  {"fatal": text, "code": n}           NVML cannot be used any more; the process ends
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import pynvml  # type: ignore[import-untyped]

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.driver import nvml

STDOUT = 1
RECOVERY_ACTION = 230  #: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; older versions of pynvml lack the name
MILLISECONDS = 1000
PAUSE = 1.0  #: seconds, the shortest time between two probes

#: Errors of a card that is gone, or must be reset before it answers.
GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT,
    getattr(pynvml, "NVML_ERROR_RESET_REQUIRED", 16), 28,
)  # fmt: skip
#: The same errors from the wait for events, which does not name the card.
LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, getattr(pynvml, "NVML_ERROR_RESET_REQUIRED", 16))
#: Errors that concern no single card: NVML must be initialised again, or this process lacks a right or a resource.
FATAL = (
    pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_NO_PERMISSION,
    getattr(pynvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18), *nvml.OF_THE_PROCESS,
)  # fmt: skip
#: Exceptions where a card, a driver or pynvml does not support a call.
UNKNOWN = (AttributeError, pynvml.NVMLError)


def send(**message: object) -> None:
    try:
        os.write(STDOUT, (records.encode(message) + "\n").encode("ascii"))
    except BrokenPipeError:  # nobody waits for this process any more
        os._exit(0)


class Probe:
    """`wanted`: uuid -> bus id, from the inventory. `interval`: seconds between two probes, 0.0 for a single one."""

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

    # Probing

    def _round(self) -> None:
        for uuid in self.wanted:
            self._look(uuid)
        self._looked = time.monotonic()
        send(round=True)

    def _look(self, uuid: str) -> None:
        send(at=uuid)
        try:
            answer = self._query(self._handle(uuid))
        except pynvml.NVMLError as error:
            if error.value in FATAL:
                raise
            answer = {"error": f"NVML reports: {error}", "gone": error.value in GONE}
        send(look=uuid, **answer)

    def _handle(self, uuid: str) -> Any:
        """The card's handle by bus id. A look-up by uuid or index may open other cards, which may hang."""
        if uuid not in self.handles:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(self.wanted[uuid].encode())
            found = pynvml.nvmlDeviceGetUUID(handle)
            if (found.decode() if isinstance(found, bytes) else found) != uuid:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # another card has taken its place
            self.handles[uuid] = handle
            self.names[_address(handle)] = uuid
            if self.interval:
                self._register(handle)
        return self.handles[uuid]

    def _query(self, handle: Any) -> dict[str, object]:
        pynvml.nvmlDeviceGetMemoryInfo(handle)  # every card supports this call
        return {"pages": _pages(handle), "rows": _rows(handle), "action": _action(handle), "ecc": _ecc(handle)}

    # Waiting

    def _register(self, handle: Any) -> None:
        """Register the event types that this card supports. A card without any is only probed."""
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
        """Wait until the next probe is due, or an error makes one due now."""
        while (left := until - time.monotonic()) > 0:
            if self.events is None:
                time.sleep(left)
                return
            try:
                self._send_event(pynvml.nvmlEventSetWait(self.events, int(left * MILLISECONDS) + 1))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                if error.value not in LOST:
                    raise
                time.sleep(PAUSE)
                return
            until = min(until, self._looked + PAUSE)  # probe after an error, but not once for each error

    def _send_event(self, event: Any) -> None:
        kind = "xid" if event.eventType == pynvml.nvmlEventTypeXidCriticalError else "ecc"
        send(event=self._named(event.device), kind=kind, data=int(event.eventData))

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
    """Whether a page waits to be retired (cards before Ampere)."""
    try:
        return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    except UNKNOWN:
        return False


def _rows(handle: Any) -> bool:
    """Whether remapping a row has failed. A remapping that waits for a reset is harmless: its page is offline."""
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


def run(library: str, wanted: dict[str, str], interval: float) -> None:
    """Do the process's work: NVML at `library`, for the cards `wanted` (uuid -> bus id). It ends by itself."""
    send(begun=True)
    if not wanted:
        return
    try:
        with nvml.nvml(library):
            Probe(wanted, interval).run()
    except (VgpuError, pynvml.NVMLError) as error:
        cause = error.__cause__ or error
        send(fatal=str(error), code=getattr(cause, "value", 0))
