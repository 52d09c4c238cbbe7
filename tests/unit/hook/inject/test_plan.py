"""The plan, a pure function: the mounts for each layout, the files that a share does not get, and the order."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from cards import GIB, card, instance

from vgpu.config import core_schedule, usage
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Binary, Device, Inventory, Library
from vgpu.config.limits import UNLIMITED, CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.formats import ldcache
from vgpu.hook.inject import plan
from vgpu.hook.inject.inspect import DEBIAN, MUSL, REDHAT, Inspection
from vgpu.hook.inject.operations import (
    Bind,
    BindDevice,
    BindDirectory,
    CheckCapability,
    Operation,
    OverlayFile,
    ReplaceFile,
    Symlink,
    Tmpfs,
)
from vgpu.hook.inject.plan import Plan, PlannedContainer
from vgpu.hook.placement.allocation import Allocation

VERSION = "550.54.15"
LIMITS_FILE = "/run/vgpu/containers/c1/limits"
CARDS_FILE = "/run/vgpu/containers/c1/cards"
PRESENCE_FILE = "/run/vgpu/presence-"
PRESENCE = f"/usr/local/vgpu/presence/{core_schedule.presence_name(card(0).uuid)}"
VIDEO = {"driver.share_capabilities": ["compute", "utility", "video"]}
ALL = ["compute", "utility", "video", "graphics", "display", "compat32"]
LAYOUTS = {
    DEBIAN: ("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"),
    REDHAT: ("/usr/lib64", "/usr/lib"),
    MUSL: ("/usr/lib", "/usr/lib32"),
}


def library(stem: str, soname: str, capability: str = "compute", bits: int = 64, version: str = VERSION) -> Library:
    name = f"{stem}.so.{version}"
    return Library(f"/host/lib{bits}/{name}", name, soname, capability, bits)


def node() -> Inventory:
    libraries = [
        library("libcuda", "libcuda.so.1"),
        library("libnvidia-ml", "libnvidia-ml.so.1", "utility"),
        library("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"),
        library("libnvidia-opencl", "libnvidia-opencl.so.1"),
        library("libnvidia-encode", "libnvidia-encode.so.1", "video"),
        library("libvdpau_nvidia", "libvdpau_nvidia.so.1", "video"),
        library("libGLX_nvidia", "libGLX_nvidia.so.0", "graphics"),
        library("libnvidia-nosoname", "", "compute"),
        library("libcuda", "libcuda.so.1", "compute", 32),
        library("libnvidia-ml", "libnvidia-ml.so.1", "compat32", 32),
    ]
    binaries = [
        Binary("/host/bin/nvidia-smi", "nvidia-smi", "utility"),
        Binary("/host/bin/nvidia-cuda-mps-control", "nvidia-cuda-mps-control", "compute"),
        Binary("/host/bin/nvidia-cuda-mps-server", "nvidia-cuda-mps-server", "compute"),
    ]
    devices = [
        Device("/dev/nvidiactl", "nvidiactl", 195, 255),
        Device("/dev/nvidia-uvm", "nvidia-uvm", 510, 0, "compute"),
        Device("/dev/nvidia-modeset", "nvidia-modeset", 195, 254, "graphics"),
    ]
    return Inventory(VERSION, "boot", 1.0, libraries, binaries, devices, [card(0), card(1)])


def share(*indexes: int) -> Allocation:
    cards = [card(index) for index in indexes or (0,)]
    return Allocation(cards, [CardLimit(item.uuid, 2 * GIB, 30, 30) for item in cards], False)


def whole(*indexes: int) -> Allocation:
    cards = [card(index) for index in indexes or (0,)]
    return Allocation(cards, [CardLimit(item.uuid, UNLIMITED, 100, 100) for item in cards], True)


def facts(layout: str = DEBIAN, **fields: object) -> Inspection:
    found = Inspection(layout, *LAYOUTS[layout])
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def made(
    allocation: Allocation | None = None,
    inspection: Inspection | None = None,
    wish: str = "",
    parameters: dict[str, bytes] | None = None,
    inventory: Inventory | None = None,
    **settings: object,
) -> Plan:
    node_settings = Settings({"paths.libvcuda": "/vcuda", **settings})
    allocation = allocation or share()
    if not allocation.exclusive:
        allocation.presence = {one.uuid: PRESENCE_FILE for one in allocation.cards}
    chosen = plan.capabilities(wish, node_settings, allocation.exclusive)
    inventory = inventory or node()
    devices = plan.devices(inventory, allocation, chosen)
    container = PlannedContainer(allocation, chosen, devices, inspection or facts(), LIMITS_FILE, CARDS_FILE)
    return plan.make(container, inventory, node_settings, parameters or {})


def binds(planned: Plan) -> dict[str, str]:
    """Target -> source of files."""
    found = {}
    for item in planned.operations:
        if isinstance(item, Bind) and not isinstance(item, (BindDevice, BindDirectory)):
            assert item.path not in found, f"{item.path} is mounted twice"
            found[item.path] = item.source
    return found


def links(planned: Plan) -> dict[str, str]:
    return {item.path: item.target for item in planned.operations if isinstance(item, Symlink)}


def tmpfs(planned: Plan, path: str) -> Tmpfs:
    (found,) = [item for item in planned.operations if isinstance(item, Tmpfs) and item.path == path]
    return found


MOUNTED = "/usr/local/nvidia/lib64"  #: where the 64-bit libraries are mounted, in each layout


def step(planned: Plan, kind: type[Operation], path: str) -> int:
    (found,) = [at for at, item in enumerate(planned.operations) if type(item) is kind and item.path == path]
    return found


# Files


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_share_gets_libvcuda_under_the_drivers_names(layout: str) -> None:
    planned = made(inspection=facts(layout))
    directory = LAYOUTS[layout][0]
    assert binds(planned) == {
        "/usr/local/vgpu/driver/libcuda.so.1": f"/host/lib64/libcuda.so.{VERSION}",
        "/usr/local/vgpu/driver/libnvidia-ml.so.1": f"/host/lib64/libnvidia-ml.so.{VERSION}",
        "/usr/local/vgpu/limits": LIMITS_FILE,
        "/usr/local/vgpu/cards": CARDS_FILE,
        PRESENCE: PRESENCE_FILE,
        f"{MOUNTED}/libcuda.so.{VERSION}": "/vcuda/libcuda.so.1",
        f"{MOUNTED}/libnvidia-ml.so.{VERSION}": "/vcuda/libnvidia-ml.so.1",
        f"{MOUNTED}/libnvidia-ptxjitcompiler.so.{VERSION}": f"/host/lib64/libnvidia-ptxjitcompiler.so.{VERSION}",
        f"{MOUNTED}/libnvidia-nosoname.so.{VERSION}": f"/host/lib64/libnvidia-nosoname.so.{VERSION}",
        "/usr/bin/nvidia-smi": "/host/bin/nvidia-smi",
    }
    assert links(planned) == {
        f"{directory}/libcuda.so.1": f"{MOUNTED}/libcuda.so.{VERSION}",
        f"{directory}/libcuda.so": "libcuda.so.1",
        f"{directory}/libnvidia-ml.so.1": f"{MOUNTED}/libnvidia-ml.so.{VERSION}",
        f"{directory}/libnvidia-ml.so": "libnvidia-ml.so.1",
        f"{directory}/libnvidia-ptxjitcompiler.so.1": f"{MOUNTED}/libnvidia-ptxjitcompiler.so.{VERSION}",
        f"{directory}/libnvidia-nosoname.so.{VERSION}": f"{MOUNTED}/libnvidia-nosoname.so.{VERSION}",
    }


def test_a_share_gets_a_copy_of_libvcuda_for_this_driver() -> None:
    """Under each name, also over the image's own copies; of the other library there is no copy."""
    copy_path = f"/state/vcuda/{VERSION}-ab/libcuda.so.1"
    inspection = facts(copies=("/usr/local/lib/libcuda.so.1",))
    container = PlannedContainer(
        share(), frozenset(("compute", "utility")), (), inspection, LIMITS_FILE, CARDS_FILE,
        {"libcuda.so.1": copy_path},
    )  # fmt: skip
    found = binds(plan.make(container, node(), Settings({"paths.libvcuda": "/vcuda"}), {}))
    assert found[f"{MOUNTED}/libcuda.so.{VERSION}"] == found["/usr/local/lib/libcuda.so.1"] == copy_path
    assert found[f"{MOUNTED}/libnvidia-ml.so.{VERSION}"] == "/vcuda/libnvidia-ml.so.1"
    assert found["/usr/local/vgpu/driver/libcuda.so.1"] == f"/host/lib64/libcuda.so.{VERSION}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_card_gets_the_driver_itself(layout: str) -> None:
    planned = made(whole(), facts(layout))
    found = binds(planned)
    assert found[f"{MOUNTED}/libcuda.so.{VERSION}"] == f"/host/lib64/libcuda.so.{VERSION}"
    assert found[f"{MOUNTED}/libnvidia-opencl.so.{VERSION}"] == f"/host/lib64/libnvidia-opencl.so.{VERSION}"
    assert "/usr/bin/nvidia-cuda-mps-control" in found
    lines = [item.describe() for item in planned.operations]
    assert not any("vcuda" in line or "/usr/local/vgpu" in line or LIMITS_FILE in line for line in lines)


def test_the_private_directory() -> None:
    planned = made()
    private = tmpfs(planned, "/usr/local/vgpu")
    assert [(entry.name, entry.content) for entry in private.entries] == [
        ("driver", None),
        ("usage", None),
        ("presence", None),
        ("limits", b""),
        ("cards", b""),
        (PRESENCE.removeprefix("/usr/local/vgpu/"), b""),
        ("driver/libcuda.so.1", b""),
        ("driver/libnvidia-ml.so.1", b""),
    ]
    assert "ro,nosuid,nodev" in private.describe()
    region, *shares = tmpfs(planned, "/usr/local/vgpu/usage").entries
    assert (region.name, region.content, region.mode, region.size) == ("usage", usage.BEGINNING, 0o666, usage.SIZE)
    assert {(entry.content, entry.mode) for entry in shares} == {(b"", 0o666)}
    assert " nosuid,nodev,noexec " in tmpfs(planned, "/usr/local/vgpu/usage").describe()
    for name, file in (("limits", LIMITS_FILE), ("cards", CARDS_FILE)):
        layered = planned.operations[step(planned, OverlayFile, f"/usr/local/vgpu/{name}")]
        assert layered.describe() == f"mount {file} on /usr/local/vgpu/{name} ro,nosuid,nodev,noexec"
    bind = planned.operations[step(planned, Bind, PRESENCE)]  # locks belong to the superblock
    assert bind.describe() == f"mount {PRESENCE_FILE} on {PRESENCE} ro,nosuid,nodev,noexec"


def test_images_that_look_in_usr_local_nvidia() -> None:
    planned = made()
    entries = {entry.name: entry.link for entry in tmpfs(planned, "/usr/local/nvidia").entries}
    assert entries["bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert entries["lib64/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert entries["lib64/libcuda.so"] == "libcuda.so.1"
    mounted = [path.removeprefix("/usr/local/nvidia/") for path in binds(planned) if path.startswith(MOUNTED)]
    assert [entries[name] for name in mounted] == [None] * 4, "files to mount on"
    assert entries["lib"] == "lib64"
    assert not any("opencl" in name or "mps" in name for name in entries)


def test_two_libraries_of_one_soname_are_no_trouble() -> None:
    inventory = node()
    inventory.libraries.append(library("libnvidia-nosoname-2", "libcuda.so.1"))
    names = [entry.name for entry in tmpfs(made(inventory=inventory), "/usr/local/nvidia").entries]
    assert len(names) == len(set(names))


# Capabilities


@pytest.mark.parametrize(
    ("wish", "settings", "exclusive", "chosen"),
    [
        ("", {}, False, {"compute", "utility"}),
        ("", {"driver.capabilities": ALL}, True, {"compute", "utility"}),
        ("all", {}, True, {"compute", "utility"}),
        ("all", {"driver.capabilities": ALL}, True, set(ALL)),
        ("all", {"driver.capabilities": ALL}, False, {"compute", "utility"}),
        ("all", {"driver.capabilities": ALL, "driver.share_excludes": False}, False, {*ALL} - {"compat32"}),
        ("all", {"driver.capabilities": ALL, **VIDEO}, False, {"compute", "utility", "video"}),
        ("video", {"driver.capabilities": ALL, **VIDEO}, False, {"compute", "video"}),
        ("", {"driver.capabilities": ALL, **VIDEO}, False, {"compute", "utility"}),
        ("all", {"driver.capabilities": ALL, **VIDEO}, True, set(ALL)),
        ("all", {**VIDEO}, False, {"compute", "utility"}),
        ("utility", {}, False, {"utility"}),
        (" utility , compute ", {}, False, {"utility", "compute"}),
        ("graphics", {}, True, {"compute", "utility"}),  # not on this node: the default
        ("graphics", {"driver.capabilities": ALL}, True, {"graphics"}),
        ("display", {"driver.capabilities": ALL}, True, {"display", "graphics"}),
        ("video", {"driver.capabilities": ALL}, True, {"video", "compute"}),
        ("video", {"driver.capabilities": ["video"]}, True, {"video"}),
        ("video,nonsense", {"driver.capabilities": ALL}, False, {"compute", "utility"}),
        ("\n,,", {}, False, {"compute", "utility"}),
        ("compute", {"driver.capabilities": ["utility"]}, False, {"utility"}),
    ],
)
def test_capabilities(wish: str, settings: dict[str, object], exclusive: bool, chosen: set[str]) -> None:
    assert plan.capabilities(wish, Settings(settings), exclusive) == chosen


def test_utility_alone_has_no_cuda() -> None:
    planned = made(wish="utility")
    assert not any("libcuda" in item.describe() for item in planned.operations)
    assert "/usr/local/vgpu/driver/libnvidia-ml.so.1" in binds(planned)
    assert [device.name for device in planned.devices] == ["nvidiactl", "nvidia0"]


@pytest.mark.parametrize("missing", ["libcuda", "libnvidia-ml"])
def test_a_driver_without_libcuda_is_refused(missing: str) -> None:
    inventory = node()
    inventory.libraries = [item for item in inventory.libraries if not item.name.startswith(missing + ".")]
    with pytest.raises(VgpuError, match=rf"inventory: expected {missing}\.so\.{VERSION}.*inventory refresh"):
        made(inventory=inventory)


WAYS_PAST = ("libnvidia-opencl", "mps-control", "mps-server", "libnvidia-encode", "libGLX", "host/lib32", "vdpau")


@pytest.mark.parametrize(
    ("allocation", "settings", "seen"),
    [
        (share(), {}, set()),
        (share(), {"driver.capabilities": ALL}, set()),
        (whole(), {}, {"libnvidia-opencl", "mps-control", "mps-server"}),
        (whole(), {"driver.capabilities": ALL}, set(WAYS_PAST)),
        (share(), {"driver.capabilities": ALL, "driver.share_excludes": False}, {*WAYS_PAST} - {"host/lib32"}),
        (share(), {"driver.capabilities": ALL, **VIDEO}, {"libnvidia-encode"}),
    ],
    ids=["share", "share of all", "whole", "whole of all", "admin's choice", "share with video"],
)
def test_files_that_bypass_the_limits(allocation: Allocation, settings: dict[str, object], seen: set[str]) -> None:
    planned = made(allocation, wish="all", **settings)
    text = "\n".join(item.describe() for item in planned.operations)
    assert {name for name in WAYS_PAST if name in text} == seen


@pytest.mark.parametrize("layout", LAYOUTS)
def test_thirty_two_bits(layout: str) -> None:
    planned = made(whole(), facts(layout), "all", **{"driver.capabilities": ALL})
    directory = LAYOUTS[layout][1]
    assert binds(planned)[f"{directory}/libcuda.so.{VERSION}"] == f"/host/lib32/libcuda.so.{VERSION}"
    assert links(planned)[f"{directory}/libnvidia-ml.so.1"] == f"libnvidia-ml.so.{VERSION}"
    assert not any("/host/lib32" in source for source in binds(made(whole(), facts(layout))).values())


def test_links_of_other_kinds() -> None:
    planned = made(whole(), wish="all", **{"driver.capabilities": ALL})
    directory = LAYOUTS[DEBIAN][0]
    found = links(planned)
    assert found[f"{directory}/libGLX_indirect.so.0"] == "libGLX_nvidia.so.0"
    assert found[f"{directory}/vdpau/libvdpau_nvidia.so.1"] == f"{MOUNTED}/libvdpau_nvidia.so.{VERSION}"
    assert f"{MOUNTED}/libvdpau_nvidia.so.{VERSION}" in binds(planned)


# Files in the image

DIRECTORY = LAYOUTS[DEBIAN][0]


@pytest.mark.parametrize(
    ("allocation", "inspection", "covered"),
    [
        # the very names that are there anyway: links give way to mounts
        (share(), {"files": {f"libcuda.so.{VERSION}"}}, {f"{DIRECTORY}/libcuda.so.{VERSION}": "/vcuda/libcuda.so.1"}),
        (share(), {"files": {"libcuda.so.1"}}, {f"{DIRECTORY}/libcuda.so.1": "/vcuda/libcuda.so.1"}),
        (share(), {"files": {"libcuda.so"}}, {f"{DIRECTORY}/libcuda.so": "/vcuda/libcuda.so.1"}),
        (whole(), {"files": {"libcuda.so.1"}}, {f"{DIRECTORY}/libcuda.so.1": f"/host/lib64/libcuda.so.{VERSION}"}),
        # other versions and other places
        (share(), {"files": {"libcuda.so.535.1"}}, {f"{DIRECTORY}/libcuda.so.535.1": "/vcuda/libcuda.so.1"}),
        (share(), {"copies": ("/usr/lib64/libcuda.so.1",)}, {"/usr/lib64/libcuda.so.1": "/vcuda/libcuda.so.1"}),
        (
            share(),
            {"copies": ("/usr/local/lib/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ptxjitcompiler.so.1")},
            {"/usr/local/lib/libnvidia-ml.so.1": "/vcuda/libnvidia-ml.so.1"},
        ),
        (whole(), {"files": {"libcuda.so.535.1"}, "copies": ("/usr/lib64/libcuda.so.1",)}, {}),
        # forward compatibility: with its helpers, of which none is ever a source
        (
            share(),
            {"compat": ("/cc/libcuda.so.560.1", "/cc/libnvidia-ptxjitcompiler.so.560.1", "/cc/libnvidia-new.so.560.1")},
            {
                "/cc/libcuda.so.560.1": "/vcuda/libcuda.so.1",
                "/cc/libnvidia-ptxjitcompiler.so.560.1": f"/host/lib64/libnvidia-ptxjitcompiler.so.{VERSION}",
            },
        ),
        (whole(), {"compat": ("/cc/libcuda.so.560.1",)}, {}),
    ],
)
def test_copies_in_the_image(allocation: Allocation, inspection: dict[str, object], covered: dict[str, str]) -> None:
    fields = {name: frozenset(value) if name == "files" else value for name, value in inspection.items()}  # type: ignore[call-overload]
    planned, plain = made(allocation, facts(**fields)), made(allocation)
    extra = {target: source for target, source in binds(planned).items() if target not in binds(plain)}
    assert extra == covered
    assert not set(extra) & set(links(planned))
    assert all(source.startswith(("/vcuda/", "/host/", "/run/")) for source in binds(planned).values())
    noted = {note.partition(":")[0] for note in planned.notes}
    ours = ("libcuda.so.1", "libcuda.so", f"libcuda.so.{VERSION}")
    assert noted == {path for path in covered if path.rpartition("/")[2] not in ours} | (
        set(covered) if "copies" in inspection else set()
    )


def test_compat_libraries_may_be_refused() -> None:
    inspection = facts(compat=("/cc/libcuda.so.560.1",))
    with pytest.raises(VgpuError, match=r"/cc/libcuda\.so\.560\.1.*compat_libraries: mask"):
        made(inspection=inspection, **{"driver.compat_libraries": "refuse"})
    assert made(whole(), inspection, **{"driver.compat_libraries": "refuse"}).notes == ()
    assert made(**{"driver.compat_libraries": "refuse"}).notes == ()


@pytest.mark.parametrize(("count", "refused"), [(plan.MAX_COPIES, False), (plan.MAX_COPIES + 1, True)])
def test_an_image_full_of_copies_is_refused(count: int, refused: bool) -> None:
    inspection = facts(copies=tuple(f"/usr/lib64/libcuda.so.{at}" for at in range(count)))
    if refused:
        with pytest.raises(VgpuError, match=rf"at most {plan.MAX_COPIES} copies.*found {count}"):
            made(inspection=inspection)
    else:
        assert len(made(inspection=inspection).notes) == count


# Devices


def test_device_nodes() -> None:
    planned = made(share(1))
    nodes = [item for item in planned.operations if isinstance(item, BindDevice)]
    assert [item.describe() for item in nodes] == [
        "device /dev/nvidiactl 195:255 from /dev/nvidiactl nosuid,noexec",
        "device /dev/nvidia-uvm 510:0 from /dev/nvidia-uvm nosuid,noexec",
        "device /dev/nvidia1 195:1 from /dev/nvidia1 nosuid,noexec",
    ]
    assert [device.name for device in planned.devices] == ["nvidiactl", "nvidia-uvm", "nvidia1"]


@pytest.mark.parametrize(
    ("there", "made_nodes"),
    [
        ({"nvidiactl": (195, 255)}, ["nvidia-uvm", "nvidia0"]),
        ({"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia0": (195, 0)}, []),
        ({"nvidia0": (195, 1)}, ["nvidiactl", "nvidia-uvm", "nvidia0"]),  # another card under that name
        ({"nvidia-uvm": (509, 0)}, ["nvidiactl", "nvidia-uvm", "nvidia0"]),
    ],
)
def test_nodes_that_are_there_already(there: dict[str, tuple[int, int]], made_nodes: list[str]) -> None:
    planned = made(inspection=facts(devices=there))
    assert [item.path[5:] for item in planned.operations if isinstance(item, BindDevice)] == made_nodes
    assert len(planned.devices) == 3  # the cgroup is opened for all


def test_hosts_own_dev_is_never_written() -> None:
    complete = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia0": (195, 0)}
    assert not any(
        isinstance(item, BindDevice) for item in made(inspection=facts(devices=complete, host_dev=True)).operations
    )
    del complete["nvidia-uvm"]
    with pytest.raises(VgpuError, match=r"/dev/nvidia-uvm.*nvidia-modprobe"):
        made(inspection=facts(devices=complete, host_dev=True))


# /proc/driver/nvidia

PARAMS = b"ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"


def test_proc_shows_the_assigned_cards_only() -> None:
    parameters = {"version": b"NVRM 550\n", "params": PARAMS}
    planned = made(share(1), facts(proc_driver=True), parameters=parameters, **{"driver.proc_root": "/hostproc"})
    found = tmpfs(planned, "/proc/driver/nvidia")
    assert [(entry.name, entry.content, entry.mode) for entry in found.entries] == [
        ("params", PARAMS.replace(b"Files: 1", b"Files: 0"), 0o444),
        ("version", b"NVRM 550\n", 0o444),
        ("gpus", None, 0o755),
        ("gpus/0000:01:00.0", None, 0o755),
    ]
    directories = [item for item in planned.operations if isinstance(item, BindDirectory)]
    assert [(item.source, item.path) for item in directories] == [
        ("/hostproc/driver/nvidia/gpus/0000:01:00.0", "/proc/driver/nvidia/gpus/0000:01:00.0")
    ]
    assert "ro,nosuid,nodev,noexec" in found.describe()


def test_the_numbers_of_a_mig_instance_are_compared_and_a_parents_node_is_there_once() -> None:
    one, two = instance(8, card(1), gi=1), instance(9, card(1), gi=2, ci=3)
    allocation = Allocation([one], [CardLimit(one.uuid, 2 * GIB, 30, 30)], False)
    place = {"driver.proc_root": "/hostproc"}
    planned = made(allocation, facts(proc_driver=True), inventory=node(), **place)
    source, files = "/hostproc/driver/nvidia/capabilities/", ["gpu1/mig/gi1/access", "gpu1/mig/gi1/ci0/access"]
    checks = [item for item in planned.operations if isinstance(item, CheckCapability)]
    assert [(item.path, item.minor) for item in checks] == [(source + files[0], 9), (source + files[1], 10)]
    both = Allocation([one, two], [], True)
    names = [item.name for item in made(both).devices]
    assert len(names) == len(set(names)) == 2 + 1 + 4, "two of one parent have its node once"


def test_the_numbers_of_an_instance_are_looked_at_again(tmp_path: Path) -> None:
    file = tmp_path / "access"
    check = CheckCapability(str(file), 12)
    for text in (None, "DeviceFileMinor: 13\n", "DeviceFileMinor: 121\n", ""):
        if text is not None:
            file.write_text(text)
        with pytest.raises(OSError, match="MIG instances were made or destroyed; run: vgpuctl inventory refresh"):
            check.open(None)  # type: ignore[arg-type]
    file.write_text("DeviceFileMinor: 12\nDeviceFileMode: 292\n")
    check.open(None)  # type: ignore[arg-type]


def test_without_the_kernels_directory_proc_is_left_alone() -> None:
    planned = made(parameters={"params": PARAMS})
    assert not any(item.path.startswith("/proc") for item in planned.operations)


# The loader


def cache_of(planned: Plan) -> ReplaceFile:
    return planned.operations[step(planned, ReplaceFile, "/etc/ld.so.cache")]  # type: ignore[return-value]


@pytest.mark.parametrize("layout", [DEBIAN, REDHAT])
def test_the_loader_cache_names_the_driver(layout: str) -> None:
    old = ldcache.merge(None, [ldcache.Addition("libcuda.so.1", "/opt/shadow/libcuda.so.1")])
    planned = made(inspection=facts(layout, cache=old))
    replaced = cache_of(planned)
    assert replaced.old == old
    found = {entry.name.decode(): entry.path.decode() for entry in ldcache.parse(replaced.data).entries}
    directory = LAYOUTS[layout][0]
    drivers = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so.1")
    assert found == {name: f"{directory}/{name}" for name in (*drivers, f"libnvidia-nosoname.so.{VERSION}")}


def test_a_cache_with_these_entries_is_not_written() -> None:
    data = cache_of(made()).data
    assert not any(isinstance(item, ReplaceFile) for item in made(inspection=facts(cache=data)).operations)


def test_a_file_that_is_no_cache_is_left_alone_and_reported() -> None:
    planned = made(inspection=facts(cache=b"garbage"))
    assert not any(isinstance(item, ReplaceFile) for item in planned.operations)
    assert [note for note in planned.notes if note.startswith("left unchanged: /etc/ld.so.cache")]


@pytest.mark.parametrize(
    ("machine", "bits", "flags"),
    [("x86_64", 64, 0x0303), ("x86_64", 32, 0x0003), ("aarch64", 64, 0x0A03), ("aarch64", 32, 0x0903)],
)
def test_the_cache_knows_the_machine(machine: str, bits: int, flags: int) -> None:
    settings: dict[str, object] = {"driver.capabilities": ALL}
    planned = made(whole(), facts(machine=machine), "all", **settings)
    entries = ldcache.parse(cache_of(planned).data).entries
    directory = LAYOUTS[DEBIAN][0 if bits == 64 else 1].encode()
    assert {entry.flags for entry in entries if entry.path == directory + b"/libcuda.so.1"} == {flags}


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(VgpuError, match="riscv64"):
        made(inspection=facts(machine="riscv64"))


def test_a_cache_that_has_to_stay_is_named_unless_it_is_complete() -> None:
    planned = made(inspection=facts(kept="it is on the volume that is mounted at /etc"))
    assert not any(isinstance(item, ReplaceFile) for item in planned.operations)
    assert planned.notes == ("/etc/ld.so.cache: left unchanged: it is on the volume that is mounted at /etc",)
    (written,) = (item for item in made().operations if isinstance(item, ReplaceFile))
    assert made(inspection=facts(cache=written.data, kept="it is on a volume")).notes == ()


def test_a_search_path_that_has_to_stay_and_lacks_the_directory_stops_the_start() -> None:
    path, kept = "/etc/ld-musl-x86_64.path", "it is on the volume that is mounted at /etc"
    with pytest.raises(VgpuError, match=r"a line /usr/lib, found none, and it is on the volume"):
        made(inspection=facts(MUSL, musl_path=(path, b"/opt/lib\n"), kept=kept))
    assert made(inspection=facts(MUSL, musl_path=(path, b"/usr/lib\n"), kept=kept)).notes == ()


@pytest.mark.parametrize(
    ("musl_path", "written"),
    [
        (None, None),
        (b"/lib:/usr/local/lib", b"/usr/lib\n/lib:/usr/local/lib"),
        (b"/lib\n/usr/lib\n", None),
        (b"/lib:/usr/lib", None),
        (b"", b"/usr/lib\n"),
        (b"/usr/lib64", b"/usr/lib\n/usr/lib64"),
    ],
)
def test_musl_searches_by_a_path(musl_path: bytes | None, written: bytes | None) -> None:
    path = "/etc/ld-musl-x86_64.path"
    planned = made(inspection=facts(MUSL, musl_path=None if musl_path is None else (path, musl_path)))
    replaced = [item for item in planned.operations if isinstance(item, ReplaceFile)]
    assert [(item.path, item.data, item.old) for item in replaced] == (
        [] if written is None else [(path, written, musl_path)]
    )


# Order and form


def test_the_order_of_a_share() -> None:
    inspection = facts(copies=("/usr/lib64/libcuda.so.1",), proc_driver=True)
    planned = made(inspection=inspection, parameters={"params": PARAMS})
    order = [
        step(planned, Tmpfs, "/usr/local/vgpu"),
        step(planned, OverlayFile, "/usr/local/vgpu/driver/libcuda.so.1"),
        step(planned, OverlayFile, "/usr/local/vgpu/limits"),
        step(planned, Tmpfs, "/usr/local/vgpu/usage"),
        step(planned, Tmpfs, "/usr/local/nvidia"),
        step(planned, OverlayFile, f"{MOUNTED}/libcuda.so.{VERSION}"),
        step(planned, OverlayFile, "/usr/bin/nvidia-smi"),
        step(planned, Symlink, f"{DIRECTORY}/libcuda.so.1"),
        step(planned, OverlayFile, "/usr/lib64/libcuda.so.1"),
        step(planned, BindDevice, "/dev/nvidiactl"),
        step(planned, BindDevice, "/dev/nvidia0"),
        step(planned, Tmpfs, "/proc/driver/nvidia"),
        step(planned, BindDirectory, "/proc/driver/nvidia/gpus/0000:00:00.0"),
        step(planned, ReplaceFile, "/etc/ld.so.cache"),
    ]
    assert order == sorted(order)
    assert order[-1] == len(planned.operations) - 1


def test_every_step_describes_itself_in_one_line() -> None:
    inspection = facts(files=frozenset({"libcuda.so.1"}), proc_driver=True, compat=("/cc/libcuda.so.1",))
    planned = made(share(0, 1), inspection, parameters={"params": PARAMS})
    lines = [item.describe() for item in planned.operations]
    assert len(lines) == len(set(lines))
    assert all("\n" not in line and item.path in line for line, item in zip(lines, planned.operations))
    assert f"link {DIRECTORY}/libcuda.so -> libcuda.so.1" in lines
    assert f"mount /vcuda/libcuda.so.1 on {MOUNTED}/libcuda.so.{VERSION} ro,nosuid,nodev" in lines
    assert any(line.startswith("write /etc/ld.so.cache, ") and line.endswith(" bytes, new") for line in lines)
    assert "tmpfs /usr/local/vgpu ro,nosuid,nodev size=64k, 9 entries" in lines


def test_planning_is_pure() -> None:
    inventory, inspection, allocation = node(), facts(files=frozenset({"libcuda.so.1", "libcuda.so.1.1"})), share(0, 1)
    parameters = {"params": PARAMS}
    before = copy.deepcopy(
        (inventory.record(), [getattr(inspection, name) for name in inspection.__slots__], parameters)
    )
    first = made(allocation, inspection, parameters=parameters, inventory=inventory)
    second = made(allocation, inspection, parameters=parameters, inventory=inventory)
    assert [item.describe() for item in first.operations] == [item.describe() for item in second.operations]
    assert before == (inventory.record(), [getattr(inspection, name) for name in inspection.__slots__], parameters)
