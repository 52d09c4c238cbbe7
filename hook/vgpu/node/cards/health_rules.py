"""When a card counts as unhealthy, and when it returns. Pure: answers and events of NVML in, a reason or "" out.

Belongs here: the rules, which docs/card-health.md explains. vgpu.node.cards.xids has the meaning of each Xid.
vgpu.node.cards.nvml_probe calls NVML. vgpu.node.cards.health_monitor runs that process, and owns the file that
keeps faults over a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpu.node.cards import xids

QUIET = 300.0  #: seconds without a further error after which a card that needs no reset returns
GOOD = 2  #: answers in succession after which a card that did not answer counts as healthy again

#: nvmlDeviceGpuRecoveryAction_t, which drivers since 570 report.
ACTIONS = {
    1: "the card reset", 2: "the node rebooted", 3: "peer-to-peer work drained", 4: "the card drained and reset",
    5: "its IMEX domain recovered", 6: "its bus reset", 7: "the system rebooted",
}  # fmt: skip


class Look:
    """One answer of a card. `error` is "" when it answered; `gone`: it is lost, or must be reset before anything else.

    `pages`: a page waits to be retired; `rows`: remapping a row has failed; `action`: the recovery that the driver
    requests, -1 when unknown; `ecc`: uncorrected errors since the driver initialised the card, -1 when unknown.
    """

    __slots__ = ("action", "ecc", "error", "gone", "pages", "rows")

    def __init__(
        self,
        error: str = "",
        gone: bool = False,
        pages: bool = False,
        rows: bool = False,
        action: int = -1,
        ecc: int = -1,
    ) -> None:
        self.error = error
        self.gone = gone
        self.pages = pages
        self.rows = rows
        self.action = action
        self.ecc = ecc


class Fault:
    """An error that NVML reported at the time `at`. `reset`: the card has to be reset before it returns."""

    __slots__ = ("at", "reset", "text")

    def __init__(self, text: str, at: float, reset: bool) -> None:
        self.text = text
        self.at = at
        self.reset = reset


def fault_of_xid(number: int, at: float) -> Fault:
    meaning = xids.RESET.get(number)
    return Fault(f"Xid {number}" + (f", {meaning}" if meaning else ""), at, meaning is not None)


class CardState:
    """The state of one card. Times are those of the caller's clock."""

    def __init__(self, fault: Fault | None = None, quiet: float = QUIET) -> None:
        self.fault = fault
        self.quiet = quiet
        self.error = ""  #: what was wrong at the last look
        self.last = Look()
        self._good = 0
        self._gone = False  # at the last look
        self._was_gone = False  # at some time since the fault

    def happened(self, fault: Fault) -> None:
        """Record an error. An error that needs no reset does not replace one that needs a reset."""
        if self.fault is not None and self.fault.reset and not fault.reset:
            return
        self.fault = fault
        self._was_gone = self._gone

    def saw(self, look: Look, now: float) -> None:
        self._gone = look.gone
        self._was_gone = self._was_gone or look.gone
        if look.error:
            self.error, self._good = look.error, 0
            return
        self._good += 1
        if self.error and self._good < GOOD:
            return
        self.error = ""
        if 0 <= self.last.ecc < look.ecc:
            self.happened(Fault(f"{look.ecc - self.last.ecc} uncorrected memory errors", now, False))
        self.last = look
        if self.fault is not None and self._over(self.fault, now):
            self.fault = None

    def reset(self) -> None:
        """The driver was loaded again, or an administrator declared the recorded faults settled."""
        self.fault = None

    def reason(self) -> str:
        """Why no container should get this card; "" when it is healthy. The text is stable until the state changes."""
        if self.error:
            return self.error
        if self.last.action > 0:
            return f"the driver wants {ACTIONS.get(self.last.action, f'recovery {self.last.action}')}"
        if self.last.rows:
            return "remapping a failing memory row has failed: the card wants replacing"
        if self.last.pages:
            return "a failing memory page waits for a reset to be retired"
        if self.fault is not None:
            return f"{self.fault.text}; " + ("reset the card" if self.fault.reset else "returns when it stays quiet")
        return ""

    def apart(self) -> bool:
        """Whether vgpud must not hold the card open: the card is to be reset, or may answer slowly."""
        return bool(self.error) or self.last.action > 0 or (self.fault is not None and self.fault.reset)

    def _over(self, fault: Fault, now: float) -> bool:
        """Whether `fault` is over, on a card that answers."""
        if fault.reset and self._was_gone:
            return True  # the card was gone and came back, so it was reset
        quiet = now - fault.at >= self.quiet
        return quiet and (not fault.reset or self.last.action == 0)


def from_answer(answer: Mapping[str, object]) -> Look:
    """The Look in a message of vgpu.node.cards.nvml_probe; missing fields are unknown."""

    def number(name: str) -> int:
        value = answer.get(name)
        return value if isinstance(value, int) else -1

    error = answer.get("error")
    return Look(
        error if isinstance(error, str) else "", answer.get("gone") is True, answer.get("pages") is True,
        answer.get("rows") is True, number("action"), number("ecc"),
    )  # fmt: skip
