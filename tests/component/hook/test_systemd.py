"""The hook's calls to systemd about a container's unit, and the results when calls fail, with a fake on a socket."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_systemd import Behaviour, FakeSystemd, Unit

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import systemd
from vgpu.hook.devices.systemd import UnitAccess

SCOPE = "cri-containerd-abc.scope"
DEVICES = ((195, 0), (195, 255))
PATHS = [("/dev/char/195:0", "rw"), ("/dev/char/195:255", "rw")]
LIST = [("/dev/char/1:3", "rwm")]


def tell(
    run: Path, unit: str = SCOPE, timeout: float = 60.0, nodes: dict[tuple[int, int], str] | None = None
) -> UnitAccess:
    return systemd.allow(unit, DEVICES, "rw", nodes or {}, str(run), timeout)


def private(run: Path) -> Path:
    return run / "systemd/private"


def transient(run: Path, text: str, part: str = "") -> None:
    """Write systemd's files of a transient unit."""
    path = run / "systemd/transient" / (f"{SCOPE}.d/{part}" if part else SCOPE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_scope_that_restricts_gets_the_devices(tmp_path: Path) -> None:
    unit = Unit(allow=list(LIST))
    with FakeSystemd({SCOPE: unit}).listening(private(tmp_path)) as fake:
        notice = tell(tmp_path)
        assert notice.listed
        assert notice.text == f"{SCOPE}: DeviceAllow= has /dev/char/195:0, /dev/char/195:255 (rw)"
        assert unit.allow == LIST + PATHS
        asked = ["GetUnit", "Get DevicePolicy", "Get DeviceAllow", "Get BPFProgram", "Get Version"]
        assert fake.calls == [*asked, "SetUnitProperties", *asked]
        assert tell(tmp_path).text == f"{SCOPE} has the devices already"
        assert unit.allow == LIST + PATHS


@pytest.mark.parametrize("allow", [[("/dev/char/195:0", "r"), PATHS[1]], [PATHS[0]], [("/dev/char/195:*", "rwm")]])
def test_half_of_the_devices_are_not_enough(tmp_path: Path, allow: list[tuple[str, str]]) -> None:
    unit = Unit(allow=allow)
    with FakeSystemd({SCOPE: unit}).listening(private(tmp_path)):
        assert tell(tmp_path).listed
    assert unit.allow[-2:] == PATHS


def test_a_unit_that_does_not_restrict_is_left_alone(tmp_path: Path) -> None:
    """A first DeviceAllow= would make the unit restrict devices."""
    unit = Unit("auto", pins=[("device", "/sys/fs/bpf/crun/x"), ("sysctl", "/sys/fs/bpf/other")])
    with FakeSystemd({SCOPE: unit}).listening(private(tmp_path)):
        notice = tell(tmp_path)
    assert (notice.listed, notice.text, notice.pins) == (False, "", ("/sys/fs/bpf/crun/x",))
    assert unit.allow == []


def test_a_list_restricts_even_with_policy_auto(tmp_path: Path) -> None:
    unit = Unit("auto", allow=list(LIST))
    with FakeSystemd({SCOPE: unit}).listening(private(tmp_path)):
        assert tell(tmp_path).listed


def test_a_unit_that_systemd_does_not_have(tmp_path: Path) -> None:
    with FakeSystemd({}).listening(private(tmp_path)):
        notice = tell(tmp_path)
    assert (notice.listed, notice.text) == (False, f"systemd knows no unit {SCOPE}: kernel level only")


def test_a_service_is_the_administrators(tmp_path: Path) -> None:
    unit = Unit("closed")
    with FakeSystemd({"podman.service": unit}).listening(private(tmp_path)):
        with pytest.raises(VgpuError) as caught:
            tell(tmp_path, "podman.service")
        assert caught.value.line() == (
            "systemd unit podman.service: expected DevicePolicy=auto, or DeviceAllow=/dev/char/195:0 rw "
            "DeviceAllow=/dev/char/195:255 rw, found DevicePolicy=closed without; the unit is not the container's own; "
            "change it yourself with `systemctl edit podman.service`"
        )
        assert unit.allow == []
        unit.allow += PATHS
        assert tell(tmp_path, "podman.service").listed


def test_by_way_of_the_bus_where_there_is_no_socket_of_its_own(tmp_path: Path) -> None:
    with FakeSystemd({SCOPE: Unit()}).listening(tmp_path / "dbus/system_bus_socket") as fake:
        assert tell(tmp_path).listed
    assert fake.calls[0] == "Hello"


def test_by_way_of_the_bus_where_its_own_socket_refuses(tmp_path: Path) -> None:
    with (
        FakeSystemd({}, Behaviour(greeting=b"REJECTED\r\n")).listening(private(tmp_path)),
        FakeSystemd({SCOPE: Unit()}).listening(tmp_path / "dbus/system_bus_socket"),
    ):
        assert tell(tmp_path).listed


def test_before_240_the_node_itself_is_named(tmp_path: Path) -> None:
    unit = Unit()
    with FakeSystemd({SCOPE: unit}, Behaviour(version="239 (239-82.el8)")).listening(private(tmp_path)):
        tell(tmp_path, nodes={(195, 0): "/dev/nvidia0"})
    assert unit.allow == [("/dev/nvidia0", "rw"), ("/dev/char/195:255", "rw")]


def test_before_249_there_is_no_property_for_pins(tmp_path: Path) -> None:
    unknown = ("org.freedesktop.DBus.Error.UnknownProperty", "Unknown interface or property")
    fake = FakeSystemd({SCOPE: Unit()}, Behaviour(error_at={"Get BPFProgram": unknown}))
    with fake.listening(private(tmp_path)):
        assert tell(tmp_path).listed


# Calls that fail

DENIED = ("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")
BAD = {
    "nobody": None,
    "silent": Behaviour(silent_at="GetUnit"),
    "silent at the change": Behaviour(silent_at="SetUnitProperties"),
    "slow": Behaviour(pause=0.05),
    "refusing": Behaviour(greeting=b"REJECTED EXTERNAL\r\n"),
    "garbage": Behaviour(raw_at={"GetUnit": b"\0" * 100}),
    "gone in the middle": Behaviour(raw_at={"SetUnitProperties": b""}),
    "a list that is none": Behaviour(raw_at={"Get DeviceAllow": b"l\x02\0\x01" + bytes(40)}),
}


SOON = 0.25  #: seconds in which a systemd that is silent or slow does not answer


def told_by(fake: Behaviour | None, run: Path) -> UnitAccess:
    if fake is None:
        return tell(run, timeout=SOON)
    with FakeSystemd({SCOPE: Unit()}, fake).listening(private(run)):
        return tell(run, timeout=SOON)


@pytest.mark.parametrize("behaviour", BAD.values(), ids=BAD)
@pytest.mark.parametrize(
    "written",
    [
        ("", "[Scope]\nDevicePolicy=strict\n"),
        ("50-DeviceAllow.conf", "[Scope]\nDeviceAllow=\nDeviceAllow=/dev/char/1:3 rwm\n"),
        ("50-DevicePolicy.conf", "[Scope]\nDevicePolicy=closed\n"),
        ("", "[Scope]\nBPFProgram=device:/sys/fs/bpf/crun/x\n"),
    ],
)
def test_a_restricting_unit_that_cannot_be_changed_stops_the_start(
    tmp_path: Path, behaviour: Behaviour | None, written: tuple[str, str]
) -> None:
    transient(tmp_path, written[1], written[0])
    with pytest.raises(VgpuError) as caught:
        told_by(behaviour, tmp_path)
    line = caught.value.line()
    assert line.startswith(
        f"systemd unit {SCOPE}: expected systemd's consent to the devices (SetUnitProperties), found "
    )
    assert "the next `systemctl daemon-reload` may take the devices away" in line


@pytest.mark.parametrize(
    "behaviour", [BAD["nobody"], BAD["silent"], BAD["refusing"]], ids=["nobody", "silent", "refusing"]
)
@pytest.mark.parametrize("written", ["", "[Scope]\nDevicePolicy=auto\nDeviceAllow=\n", "\xff\x00garbage"])
def test_any_other_unit_that_cannot_be_changed_is_a_warning(
    tmp_path: Path, behaviour: Behaviour | None, written: str
) -> None:
    if written:
        transient(tmp_path, written)
    notice = told_by(behaviour, tmp_path)
    assert not notice.listed
    assert notice.text.startswith(f"systemd could not be asked about {SCOPE} (")
    assert notice.text.endswith("the next `systemctl daemon-reload` may take the devices away")


@pytest.mark.parametrize("member", ["GetUnit", "Get DevicePolicy", "SetUnitProperties"])
def test_an_error_reply_is_named(tmp_path: Path, member: str) -> None:
    fake = FakeSystemd({SCOPE: Unit()}, Behaviour(error_at={member: DENIED}))
    said = r"found org\.freedesktop\.DBus\.Error\.AccessDenied: Permission denied"
    with fake.listening(private(tmp_path)), pytest.raises(VgpuError, match=said):
        tell(tmp_path)


def test_a_change_that_was_not_taken(tmp_path: Path) -> None:
    fake = FakeSystemd({SCOPE: Unit(allow=list(LIST))}, Behaviour(forgets=True))
    said = "found a DeviceAllow= without them: /dev/char/1:3"
    with fake.listening(private(tmp_path)), pytest.raises(VgpuError, match=said):
        tell(tmp_path)
