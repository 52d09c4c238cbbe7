"""systemd's own opinion of a container's devices: asked for, and told of new ones, before the kernel is.

Belongs here: DevicePolicy=, DeviceAllow= and BPFProgram= of the unit that a container's cgroup belongs to. systemd
keeps these and applies them again on `daemon-reload`; what only the kernel was told is lost then. Does not belong here:
the wire (dbus), and what is written in the kernel (devicelists, deviceprograms).

Only a scope is changed, which a runtime made for this one container. A service or a slice that restricts devices is the
administrator's: when it lacks the devices, that is an error which names it. A unit that does not restrict is left
alone, because a first DeviceAllow= would make it restrict.
"""

from __future__ import annotations

import time

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown
from vgpu.hook.linux.dbus import Bus, BusError, ErrorReply

TIMEOUT = 10.0  # seconds for all of it: a daemon-reload of a large node keeps systemd from answering for some
NUMBERS_SINCE = 240  # /dev/char/<major>:<minor> needs no such file from this version on

_MANAGER = "org.freedesktop.systemd1.Manager"
_OBJECT = "/org/freedesktop/systemd1"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
_NO_SUCH_PROPERTY = "org.freedesktop.DBus.Error.UnknownProperty"
_INTERFACES = {"scope": "org.freedesktop.systemd1.Scope", "service": "org.freedesktop.systemd1.Service"}

RELOAD = "the next `systemctl daemon-reload` may take the devices away"


class Notice:
    """What systemd was told. `told`: its list has the devices. `pins`: files of programs that it applies besides."""

    __slots__ = ("pins", "text", "told")

    def __init__(self, told: bool, text: str, pins: tuple[str, ...] = ()) -> None:
        self.told = told
        self.text = text
        self.pins = pins


class Unit:
    """A loaded unit's properties, as far as they are about devices. `allow` maps paths to accesses."""

    __slots__ = ("allow", "path", "pins", "policy", "version")

    def __init__(self, path: str, policy: str, allow: dict[str, str], pins: tuple[str, ...], version: int) -> None:
        self.path = path
        self.policy = policy
        self.allow = allow
        self.pins = pins
        self.version = version

    @property
    def restricts(self) -> bool:
        """As systemd decides it: `auto` means everything, unless there is a list."""
        return self.policy != "auto" or bool(self.allow)


def tell(
    unit: str, devices: tuple[tuple[int, int], ...], access: str, nodes: dict[tuple[int, int], str],
    run: str = "/run", timeout: float = TIMEOUT,
) -> Notice:  # fmt: skip
    """Have `unit` permit character `devices`; `nodes` are their files on the host. VgpuError when it should and cannot.

    When systemd does not answer, what it wrote down about the unit decides: one that restricts is an error, because
    the container would lose its devices in the middle of its work; else it is a remark.
    """
    try:
        bus = _connect(run, time.monotonic() + timeout)
        try:
            return _tell(bus, unit, devices, access, nodes)
        finally:
            bus.close()
    except ErrorReply as error:
        raise _failed(unit, str(error)) from error
    except BusError as error:
        if _restricts_by_files(unit, run):
            raise _failed(unit, str(error)) from error
        return Notice(False, f"systemd could not be asked about {unit} ({error}): {RELOAD}")


def _failed(unit: str, found: str) -> VgpuError:
    return VgpuError(
        f"systemd unit {unit}", expected="systemd's consent to the devices (SetUnitProperties)", found=found,
        do=f"without it {RELOAD}; see `systemctl status {unit}`, then start the container again",
    )  # fmt: skip


def _connect(run: str, deadline: float) -> Bus:
    """systemd itself, by the socket that systemctl uses as root; by way of the bus where it has none.

    Whoever accepts and then is silent is systemd: the bus would only pass the question on to it.
    """
    try:
        return Bus(f"{run}/systemd/private", "", deadline, hello=False)
    except BusError as error:
        if error.waited:
            raise
        first = error
    try:
        return Bus(f"{run}/dbus/system_bus_socket", "org.freedesktop.systemd1", deadline, hello=True)
    except (BusError, ErrorReply) as error:
        raise BusError(f"{first}; {error}") from None


def _tell(
    bus: Bus, name: str, devices: tuple[tuple[int, int], ...], access: str, nodes: dict[tuple[int, int], str]
) -> Notice:
    try:
        unit = _read(bus, name)
    except ErrorReply as error:
        if error.name != _NO_SUCH_UNIT:
            raise
        return Notice(False, f"systemd knows no unit {name}: kernel level only")
    if not unit.restricts:
        return Notice(False, "", unit.pins)
    wanted = {_path_for(device, nodes, unit.version): access for device in devices}
    if _has(unit.allow, wanted):
        return Notice(True, f"{name} has the devices already", unit.pins)
    if not name.endswith(".scope"):
        _refuse(name, unit, wanted)
    pairs = ("a(ss)", list(wanted.items()))
    bus.call(_OBJECT, _MANAGER, "SetUnitProperties", "sba(sv)", (name, True, [("DeviceAllow", pairs)]), "")
    # The answer comes before systemd applies the list, but a second call is taken up only after that.
    after = _read(bus, name)
    if not _has(after.allow, wanted):
        raise _failed(name, "a DeviceAllow= without them: " + ", ".join(after.allow))
    return Notice(True, f"{name}: DeviceAllow= has {', '.join(wanted)} ({access})", unit.pins)


def _refuse(name: str, unit: Unit, wanted: dict[str, str]) -> None:
    lines = " ".join(f"DeviceAllow={path} {access}" for path, access in wanted.items())
    raise VgpuError(
        f"systemd unit {name}", expected=f"DevicePolicy=auto, or {lines}", found=f"DevicePolicy={unit.policy} without",
        do=f"the unit is not the container's own, so it is yours to change: `systemctl edit {name}`",
    )  # fmt: skip


def _has(allow: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(set(access) <= set(allow.get(path, "")) for path, access in wanted.items())


def _path_for(device: tuple[int, int], nodes: dict[tuple[int, int], str], version: int) -> str:
    """How `device` is named in DeviceAllow=. An older systemd looks at the file: the node itself, if it is known."""
    number = f"/dev/char/{device[0]}:{device[1]}"
    return nodes.get(device, number) if version < NUMBERS_SINCE else number


def _read(bus: Bus, name: str) -> Unit:
    """The unit's properties; ErrorReply when systemd does not know it."""
    path = str(bus.call(_OBJECT, _MANAGER, "GetUnit", "s", (name,), "o")[0])
    interface = _INTERFACES[name.rpartition(".")[2]]
    asked = ((path, interface, "DevicePolicy"), (path, interface, "DeviceAllow"), (path, interface, "BPFProgram"),
             (_OBJECT, _MANAGER, "Version"))  # fmt: skip
    serials = [bus.send(where, _PROPERTIES, "Get", "ss", (of, member)) for where, of, member in asked]
    policy = _text(bus.answer(serials[0], "v")[0])
    allow = dict(_pairs(bus.answer(serials[1], "v")[0]))
    try:
        programs = _pairs(bus.answer(serials[2], "v")[0])
    except ErrorReply as error:  # before systemd 249
        if error.name != _NO_SUCH_PROPERTY:
            raise
        programs = []
    version = _version(_text(bus.answer(serials[3], "v")[0]))
    return Unit(path, policy, allow, tuple(path for kind, path in programs if kind == "device"), version)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BusError(f"a property that is no text: {shown(value)}")
    return value


def _pairs(value: object) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        raise BusError(f"a property that is no list: {shown(value)}")
    pairs = []
    for item in value:
        if not isinstance(item, tuple) or len(item) != 2:
            raise BusError(f"a property that is no list of pairs: {shown(value)}")
        pairs.append((_text(item[0]), _text(item[1])))
    return pairs


def _version(text: str) -> int:
    """247 of `247.3-7+deb11u5`, `v259-1.fc44`; 0, which takes the older way, for what is not understood."""
    digits = ""
    for letter in text.lstrip("v"):
        if not letter.isdigit():
            break
        digits += letter
    return int(digits[:6] or "0")


def _restricts_by_files(unit: str, run: str) -> bool:
    """Whether what systemd wrote down about a transient unit restricts devices. Unreadable is unknown: False."""
    directory = f"{run}/systemd/transient/{unit}"
    names = [directory, *(f"{directory}.d/50-{name}.conf" for name in ("DevicePolicy", "DeviceAllow", "BPFProgram"))]
    for name in names:
        try:
            text = records.read_bounded(name, records.MAX_RECORD).decode("utf-8", "replace")
        except (OSError, VgpuError):
            continue
        for line in text.split("\n"):
            key, _, value = line.partition("=")
            if value and (key in ("DeviceAllow", "BPFProgram") or (key == "DevicePolicy" and value != "auto")):
                return True
    return False
