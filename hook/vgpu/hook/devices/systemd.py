"""systemd's device lists: the hook reads a unit's list and adds the devices, before it changes the kernel's rules.

Belongs here: DevicePolicy=, DeviceAllow= and BPFProgram= of the unit of a container's cgroup. systemd keeps these and
applies them again on `daemon-reload`; rules that only the kernel has are lost then. Not here: the D-Bus protocol
(vgpu.hook.linux.dbus), and rules in the kernel (cgroup_v1, cgroup_v2).

Only a scope is changed, because a runtime made it for this one container. A service or a slice that restricts devices
is the administrator's: if it lacks the devices, that is an error that names it. A unit that does not restrict stays as
it is, because a first DeviceAllow= would make it restrict.
"""

from __future__ import annotations

import time

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown
from vgpu.hook.linux.dbus import Bus, BusError, ErrorReply

TIMEOUT = 10.0  # seconds for everything; a daemon-reload on a large node delays systemd's answer by some
NUMBERS_SINCE = 240  # from this version on /dev/char/<major>:<minor> need not exist

_MANAGER = "org.freedesktop.systemd1.Manager"
_OBJECT = "/org/freedesktop/systemd1"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
_NO_SUCH_PROPERTY = "org.freedesktop.DBus.Error.UnknownProperty"
_INTERFACES = {"scope": "org.freedesktop.systemd1.Scope", "service": "org.freedesktop.systemd1.Service"}

RELOAD = "the next `systemctl daemon-reload` may take the devices away"


class UnitAccess:
    """The result. `listed`: systemd's list has the devices. `pins`: files of programs that systemd applies too."""

    __slots__ = ("listed", "pins", "text")

    def __init__(self, listed: bool, text: str, pins: tuple[str, ...] = ()) -> None:
        self.listed = listed
        self.text = text
        self.pins = pins


class Unit:
    """The properties of a loaded unit that concern devices. `allow` maps paths to accesses."""

    __slots__ = ("allow", "path", "pins", "policy", "version")

    def __init__(self, path: str, policy: str, allow: dict[str, str], pins: tuple[str, ...], version: int) -> None:
        self.path = path
        self.policy = policy
        self.allow = allow
        self.pins = pins
        self.version = version

    @property
    def restricts(self) -> bool:
        """As in systemd: `auto` permits everything, unless there is a list."""
        return self.policy != "auto" or bool(self.allow)


def allow(
    unit: str, devices: tuple[tuple[int, int], ...], access: str, nodes: dict[tuple[int, int], str],
    run: str = "/run", timeout: float = TIMEOUT,
) -> UnitAccess:  # fmt: skip
    """Make `unit` permit character `devices`; `nodes` are their files on the host. VgpuError when it has to and cannot.

    When systemd does not answer, its files about the unit decide. A unit that restricts is an error, because the
    container would lose its devices while it works. Otherwise the result has a remark.
    """
    try:
        bus = _connect(run, time.monotonic() + timeout)
        try:
            return _allow(bus, unit, devices, access, nodes)
        finally:
            bus.close()
    except ErrorReply as error:
        raise _failed(unit, str(error)) from error
    except BusError as error:
        if _restricts_by_files(unit, run):
            raise _failed(unit, str(error)) from error
        return UnitAccess(False, f"systemd could not be asked about {unit} ({error}): {RELOAD}")


def _failed(unit: str, found: str) -> VgpuError:
    return VgpuError(
        f"systemd unit {unit}", expected="systemd's consent to the devices (SetUnitProperties)", found=found,
        do=f"without it {RELOAD}; see `systemctl status {unit}`, then start the container again",
    )  # fmt: skip


def _connect(run: str, deadline: float) -> Bus:
    """A connection to systemd, by the socket that systemctl uses as root, or over the bus where there is none.

    A peer that accepts and then stays silent is systemd. The bus is no help then: it would only forward the call.
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


def _allow(
    bus: Bus, name: str, devices: tuple[tuple[int, int], ...], access: str, nodes: dict[tuple[int, int], str]
) -> UnitAccess:
    try:
        unit = _read(bus, name)
    except ErrorReply as error:
        if error.name != _NO_SUCH_UNIT:
            raise
        return UnitAccess(False, f"systemd knows no unit {name}: kernel level only")
    if not unit.restricts:
        return UnitAccess(False, "", unit.pins)
    wanted = {_path_for(device, nodes, unit.version): access for device in devices}
    if _has(unit.allow, wanted):
        return UnitAccess(True, f"{name} has the devices already", unit.pins)
    if not name.endswith(".scope"):
        _refuse(name, unit, wanted)
    pairs = ("a(ss)", list(wanted.items()))
    bus.call(_OBJECT, _MANAGER, "SetUnitProperties", "sba(sv)", (name, True, [("DeviceAllow", pairs)]), "")
    # The answer comes before systemd applies the list, but systemd handles a second call only after that.
    after = _read(bus, name)
    if not _has(after.allow, wanted):
        raise _failed(name, "a DeviceAllow= without them: " + ", ".join(after.allow))
    return UnitAccess(True, f"{name}: DeviceAllow= has {', '.join(wanted)} ({access})", unit.pins)


def _refuse(name: str, unit: Unit, wanted: dict[str, str]) -> None:
    lines = " ".join(f"DeviceAllow={path} {access}" for path, access in wanted.items())
    raise VgpuError(
        f"systemd unit {name}", expected=f"DevicePolicy=auto, or {lines}", found=f"DevicePolicy={unit.policy} without",
        do=f"the unit is not the container's own; change it yourself with `systemctl edit {name}`",
    )  # fmt: skip


def _has(allow: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(set(access) <= set(allow.get(path, "")) for path, access in wanted.items())


def _path_for(device: tuple[int, int], nodes: dict[tuple[int, int], str], version: int) -> str:
    """The name of `device` in DeviceAllow=. An older systemd looks at the file, so it gets the node's path if known."""
    number = f"/dev/char/{device[0]}:{device[1]}"
    return nodes.get(device, number) if version < NUMBERS_SINCE else number


def _read(bus: Bus, name: str) -> Unit:
    """The unit's properties; ErrorReply when systemd does not know it."""
    path = str(bus.call(_OBJECT, _MANAGER, "GetUnit", "s", (name,), "o")[0])
    interface = _INTERFACES[name.rpartition(".")[2]]
    queries = ((path, interface, "DevicePolicy"), (path, interface, "DeviceAllow"), (path, interface, "BPFProgram"),
             (_OBJECT, _MANAGER, "Version"))  # fmt: skip
    serials = [bus.send(where, _PROPERTIES, "Get", "ss", (of, member)) for where, of, member in queries]
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
    """247 of `247.3-7+deb11u5`, `v259-1.fc44`; 0, which selects the older way, for an unknown form."""
    digits = ""
    for letter in text.lstrip("v"):
        if not letter.isdecimal():
            break
        digits += letter
    return int(digits[:6] or "0")


def _restricts_by_files(unit: str, run: str) -> bool:
    """Whether systemd's files about a transient unit restrict devices; False when they are unreadable."""
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
