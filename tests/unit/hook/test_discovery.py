"""vgpu.node.driver.discover and its parts (driverfiles, devicenodes, cards) on driver roots made of small real ELF files."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from driver_roots import VERSION, DriverRoot

from vgpu.config import inventory
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.formats import ldcache
from vgpu.hook.formats.ldcache import Addition
from vgpu.hook.linux import staleness
from vgpu.node.driver import device_nodes, discover, files, nvml


def search(root: DriverRoot, **others: list[str]) -> tuple[files.Search, list[str]]:
    notes: list[str] = []
    values: dict[str, list[str]] = {"library_dirs": [], "extra": [], "exclude": []} | others
    return files.Search(str(root.path), **values, note=notes.append), notes


def by_name(libraries: list[inventory.Library]) -> dict[str, tuple[str, str, int]]:
    return {item.name: (item.capability, item.soname, item.bits) for item in libraries if item.bits == 64}


# -- files


def test_libraries_by_capability_with_their_sonames(driver_root: DriverRoot) -> None:
    driver_root.add(f"libnvidia-glcore.so.{VERSION}")
    driver_root.add(f"libnvidia-encode.so.{VERSION}", "libnvidia-encode.so.1")
    driver_root.add(f"libnvidia-ngx.so.{VERSION}", "libnvidia-ngx.so.1")
    driver_root.add("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4")
    driver_root.add("libnvidia-egl-wayland.so.1.1.13", "libnvidia-egl-wayland.so.1")
    driver_root.add(f"libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1", "usr/lib/x86_64-linux-gnu/vdpau")
    driver_root.add(f"libnvidia-thing.so.{VERSION}")
    driver_root.add(f"libnvidia-vulkan-thing.so.{VERSION}")
    driver_root.add(f"libGLfuture_nvidia.so.{VERSION}")
    driver_root.add(f"libsomething.so.{VERSION}")
    driver_root.add("libcuda.so.535.1.2", "libcuda.so.1")
    driver_root.add("libcudart.so.12.4.99", "libcudart.so.12")
    found, notes = search(driver_root)
    assert by_name(found.libraries(VERSION)) == {
        f"libcuda.so.{VERSION}": ("compute", "libcuda.so.1", 64),
        f"libnvidia-ml.so.{VERSION}": ("utility", "libnvidia-ml.so.1", 64),
        f"libnvidia-glcore.so.{VERSION}": ("graphics", "", 64),
        f"libnvidia-encode.so.{VERSION}": ("video", "libnvidia-encode.so.1", 64),
        f"libnvidia-ngx.so.{VERSION}": ("ngx", "libnvidia-ngx.so.1", 64),
        "libnvidia-nvvm70.so.4": ("compute", "libnvidia-nvvm70.so.4", 64),
        "libnvidia-egl-wayland.so.1.1.13": ("graphics", "libnvidia-egl-wayland.so.1", 64),
        f"libvdpau_nvidia.so.{VERSION}": ("video", "libvdpau_nvidia.so.1", 64),
        f"libnvidia-thing.so.{VERSION}": ("compute", "", 64),
        f"libnvidia-vulkan-thing.so.{VERSION}": ("graphics", "", 64),
        f"libGLfuture_nvidia.so.{VERSION}": ("graphics", "", 64),
    }
    assert notes == []


def test_32_bit_libraries_are_kept_apart(driver_root: DriverRoot) -> None:
    path = driver_root.add(f"libcuda.so.{VERSION}", "libcuda.so.1", "usr/lib/i386-linux-gnu", bits=32)
    found = search(driver_root)[0].libraries(VERSION)
    (library,) = [item for item in found if item.bits == 32]
    assert (library.path, library.capability, library.soname) == (str(path), "compat32", "libcuda.so.1")
    assert f"libcuda.so.{VERSION}" in by_name(found)


def test_links_are_followed_inside_the_driver_root(driver_root: DriverRoot) -> None:
    """Debian's layout: /usr/lib/<multiarch>/libcuda.so.1 -> /etc/alternatives/... -> .../nvidia/current/..."""
    for name in ("libcuda.so.1", f"libcuda.so.{VERSION}"):
        (driver_root.libraries / name).unlink()
    path = driver_root.add(f"libcuda.so.{VERSION}", "libcuda.so.1", "opt/hidden")
    alternatives = driver_root.path / "etc/alternatives"
    alternatives.mkdir(parents=True)
    (alternatives / "cuda").symlink_to(f"/opt/hidden/libcuda.so.{VERSION}")
    (driver_root.libraries / "libcuda.so.1").symlink_to("/etc/alternatives/cuda")
    cache = ldcache.merge(None, [Addition("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1")])
    (driver_root.path / "etc/ld.so.cache").write_bytes(cache)
    library = next(item for item in search(driver_root)[0].libraries(VERSION) if item.name.startswith("libcuda"))
    assert library.path == str(path)


def test_links_that_leave_the_root_or_loop_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("../../../../etc/passwd")
    (tmp_path / "b").symlink_to("/b")
    (tmp_path / "c").symlink_to("/d/./../file")
    (tmp_path / "d").mkdir()
    (tmp_path / "file").touch()
    assert files.resolve(str(tmp_path), "a") == ""
    assert files.resolve(str(tmp_path), "b") == ""
    assert files.resolve(str(tmp_path), "/c") == f"{tmp_path}/file"
    assert files.resolve(str(tmp_path), "/") == str(tmp_path)
    assert files.resolve("/", "/") == "/"


def test_directories_of_the_admin_are_searched(driver_root: DriverRoot) -> None:
    driver_root.add(f"libnvidia-nvvm.so.{VERSION}", "libnvidia-nvvm.so.4", "opt/odd/lib")
    name = f"libnvidia-nvvm.so.{VERSION}"
    assert name not in by_name(search(driver_root)[0].libraries(VERSION))
    assert name in by_name(search(driver_root, library_dirs=["/opt/odd/lib"])[0].libraries(VERSION))


def test_extra_and_excluded_libraries(driver_root: DriverRoot) -> None:
    driver_root.add("libgdrapi.so.2.4", "libgdrapi.so.2")
    (driver_root.libraries / "libgdrapi.so.2").symlink_to("libgdrapi.so.2.4")
    driver_root.add(f"libnvidia-opencl.so.{VERSION}", "libnvidia-opencl.so.1")
    found = by_name(search(driver_root, extra=["libgdrapi.so.2"], exclude=["libnvidia-opencl*"])[0].libraries(VERSION))
    assert found["libgdrapi.so.2.4"] == ("compute", "libgdrapi.so.2", 64)
    assert f"libnvidia-opencl.so.{VERSION}" not in found


def test_a_damaged_library_and_cache_are_noted_and_left_out(driver_root: DriverRoot) -> None:
    driver_root.write(f"usr/lib/x86_64-linux-gnu/libnvidia-ngx.so.{VERSION}", "no ELF file")
    driver_root.write("etc/ld.so.cache", "no cache")
    found, notes = search(driver_root)
    assert set(by_name(found.libraries(VERSION))) == {f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"}
    assert "etc/ld.so.cache is not used" in notes[0]
    assert f"left out: {driver_root.libraries}/libnvidia-ngx" in notes[1]


def test_libraries_of_another_version_than_the_modules(driver_root: DriverRoot) -> None:
    with pytest.raises(VgpuError, match=r"libcuda\.so\.560\.1.*found libraries of driver 550\.54\.15; reboot"):
        search(driver_root)[0].libraries("560.1")


def test_no_libraries_at_all(driver_root: DriverRoot) -> None:
    for path in driver_root.libraries.iterdir():
        path.unlink()
    with pytest.raises(VgpuError, match="no driver library; install"):
        search(driver_root)[0].libraries(VERSION)


def test_binaries_by_capability(driver_root: DriverRoot) -> None:
    for name, mode in (("usr/lib/nvidia/current/nvidia-smi", 0o755), ("usr/bin/nvidia-debugdump", 0o644)):
        driver_root.write(name, "#!/bin/sh\n").chmod(mode)
    driver_root.write("usr/sbin/nvidia-cuda-mps-control", "#!/bin/sh\n").chmod(0o755)
    (driver_root.path / "usr/bin/nvidia-smi").symlink_to("/usr/lib/nvidia/current/nvidia-smi")
    found = [(item.name, item.capability, item.path) for item in files.binaries(str(driver_root.path))]
    assert found == [
        ("nvidia-smi", "utility", f"{driver_root.path}/usr/lib/nvidia/current/nvidia-smi"),
        ("nvidia-cuda-mps-control", "compute", f"{driver_root.path}/usr/sbin/nvidia-cuda-mps-control"),
    ]


def test_the_version_comes_from_proc_else_from_names(driver_root: DriverRoot) -> None:
    found, notes = search(driver_root)
    assert discover.driver_version(str(driver_root.proc), found, notes.append) == VERSION
    assert notes == []
    (driver_root.proc / "driver/nvidia/version").unlink()
    assert discover.driver_version(str(driver_root.proc), found, notes.append) == VERSION
    assert "taken from file names" in notes[0]
    for path in driver_root.libraries.iterdir():
        path.unlink()
    with pytest.raises(VgpuError, match="found neither"):
        discover.driver_version(str(driver_root.proc), found, notes.append)


# -- device nodes


def test_majors_are_those_of_character_devices(tmp_path: Path) -> None:
    characters = "Character devices:\n  1 mem\n  4 /dev/vc/0\n195 nvidia-frontend\n509 nvidia-uvm\n\n"
    (tmp_path / "devices").write_text(characters + "Block devices:\n  8 nvidia-caps\n")
    found = device_nodes.majors(str(tmp_path))
    assert found == {"mem": 1, "/dev/vc/0": 4, "nvidia-frontend": 195, "nvidia-uvm": 509}
    assert device_nodes.majors(str(tmp_path / "none")) == {}


def test_nodes_that_a_node_needs() -> None:
    found = device_nodes.shared_nodes("/d", {"nvidia": 195, "nvidia-uvm": 509, "nvidia-modeset": 195})
    assert [(item.path, item.major, item.minor, item.capability) for item in found] == [
        ("/d/nvidiactl", 195, 255, ""),
        ("/d/nvidia-uvm", 509, 0, "compute"),
        ("/d/nvidia-uvm-tools", 509, 1, "compute"),
        ("/d/nvidia-modeset", 195, 254, "display"),
    ]
    assert len(device_nodes.shared_nodes("/d", {"nvidia-frontend": 195, "nvidia-uvm": 509})) == 3


def test_missing_modules_are_named_with_what_to_do() -> None:
    with pytest.raises(VgpuError, match=r"NVIDIA kernel module.*modprobe nvidia"):
        device_nodes.shared_nodes("/dev", {"mem": 1})
    with pytest.raises(VgpuError, match=r"^/dev/nvidia-uvm: .*not loaded; run: nvidia-modprobe -u -c=0$"):
        device_nodes.shared_nodes("/dev", {"nvidia": 195})


def test_the_modules_parameters_for_nodes(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    path = tmp_path / "driver/nvidia/params"
    of_files = "ModifyDeviceFiles: 0\nDeviceFileUID: 5\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
    path.write_text("ResmanDebugLevel: 4294967295\n" + of_files)
    found = device_nodes.parameters(str(tmp_path))
    assert (found.mode, found.uid, found.gid, found.modify) == (0o660, 5, 44, False)
    path.unlink()
    found = device_nodes.parameters(str(tmp_path))
    assert (found.mode, found.uid, found.gid, found.modify) == (0o666, 0, 0, True)


def test_the_directory_of_nodes(driver_root: DriverRoot) -> None:
    assert discover.dev_dir(driver_root.settings(**{"driver.dev_root": "/x"})) == "/x"
    assert discover.dev_dir(driver_root.settings(**{"driver.dev_root": ""})) == "/dev"
    (driver_root.dev / "nvidiactl").touch()
    assert discover.dev_dir(driver_root.settings(**{"driver.dev_root": ""})) == str(driver_root.dev)


# -- cards


def take_cards(root: DriverRoot, kind: str) -> tuple[list[inventory.Card], list[str]]:
    notes: list[str] = []
    path = root.add_nvml(kind=kind)
    return nvml.take(str(path), "/dev", str(root.path / "sys"), notes.append), notes


def test_cards_as_nvml_of_the_driver_root_tells_them(driver_root: DriverRoot) -> None:
    driver_root.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n")
    found, notes = take_cards(driver_root, "nvml")
    assert [(card.index, card.minor, card.bus_id, card.name, card.memory, card.numa) for card in found] == [
        (0, 7, "0000:3a:00.0", "Direct", 40 << 30, -1),
        (1, 6, "0000:3b:00.0", "Direct", 40 << 30, 1),
    ]
    assert found[0].uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert (found[0].device.path, found[0].device.major, found[0].device.minor) == ("/dev/nvidia7", 195, 7)
    assert found[0].links == {found[1].uuid: "NV4"}
    assert found[1].links == {found[0].uuid: "NV4"}
    assert len(notes) == 2
    assert "MIG mode" in notes[0]
    assert notes[1] == "card 3 is left out: NVML says GPU is lost"


@pytest.mark.parametrize(("kind", "link"), [("switched", "NV18"), ("plain", "PXB"), ("nvml", "NV4")])
def test_links_and_several_driver_roots_in_one_process(driver_root: DriverRoot, kind: str, link: str) -> None:
    found, _ = take_cards(driver_root, kind)
    assert found[0].name == {"nvml": "Direct"}.get(kind, kind.capitalize())
    assert list(found[0].links.values()) == [link]


def test_an_nvml_that_is_none(driver_root: DriverRoot) -> None:
    path = driver_root.libraries / f"libcuda.so.{VERSION}"
    with pytest.raises(VgpuError, match=r"expected that it starts, found .*; see what nvidia-smi says"):
        nvml.take(str(path), "/dev", "/sys", print)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:41:00.0", "0000:41:00.0"), ("0000:3B:00.0", "0000:3b:00.0"), ("00010001:0a:00.0", "10001:0a:00.0")],
)
def test_bus_ids_are_those_of_proc(text: str, expected: str) -> None:
    assert nvml.bus_id_of(text) == expected


# -- the whole


@pytest.mark.root  # mknod
def test_an_inventory_is_taken_and_written(driver_root: DriverRoot) -> None:
    for bus, minor in (("0000:3a:00.0", 7), ("0000:3b:00.0", 6), ("0000:3d:00.0", 4)):
        driver_root.write(f"proc/driver/nvidia/gpus/{bus}/information", f"Model: \t\t X\nDevice Minor: \t {minor}\n")
    notes: list[str] = []
    found = discover.take(driver_root.settings(), notes.append, sys_root=str(driver_root.path), clock=lambda: 5.0)
    assert (found.driver_version, found.boot_id, found.taken) == (VERSION, "4c2b6d0e-0000-4000-8000-000000000001", 5.0)
    assert [card.index for card in found.cards] == [0, 1]
    assert [item.name for item in found.devices] == ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia7", "nvidia6", "nvidia4"):
        status = (driver_root.dev / name).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o666
    assert any(note.startswith("made ") for note in notes)
    assert "of 3 cards that the module drives, 1 cannot be used: 0000:3d:00.0" in notes
    assert notes[-1].startswith("not checked for functions that go past the limits: "), "no libvcuda is installed there"
    again = inventory.from_record(found.record(), "again")
    assert again.record() == found.record()


@pytest.mark.root  # mknod
def test_a_node_of_another_kind_stops_the_inventory(driver_root: DriverRoot) -> None:
    (driver_root.dev / "nvidia-uvm").touch()
    with pytest.raises(VgpuError, match=r"nvidia-uvm: expected character device 511:0, found -rw.*remove it and run: "):
        discover.take(driver_root.settings())


# -- the simulated driver, read by pynvml as it is


@pytest.fixture
def simulate(
    build: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[inventory.Inventory, list[str]]]:
    """Lays out a driver root and a state of a profile and takes its inventory."""
    if not (build / "lib/sim").is_dir():
        pytest.skip(f"{build}/lib/sim is missing: build it with make")

    def take(profile: str) -> tuple[inventory.Inventory, list[str]]:
        root, state = tmp_path / "root", tmp_path / "state"
        simctl = [sys.executable, str(repository / "libvcuda/sim/tools/simctl.py")]
        options = ["--profile", profile, "--device-nodes", "no"]
        subprocess.run([*simctl, "state", state, *options], check=True)
        subprocess.run([*simctl, "root", root, *options, "--build", build], check=True)
        monkeypatch.setenv("VGPU_SIM_DIR", str(state))
        values: dict[str, object] = {
            "driver.root": str(root),
            "driver.proc_root": f"{root}/proc",
            "driver.dev_root": f"{root}/dev",
            "paths.libvcuda": f"{build}/lib/vcuda",
        }
        notes: list[str] = []
        return discover.take(Settings(values), notes.append), notes

    return take


@pytest.mark.root  # mknod
def test_simulated_cards_with_direct_links(
    simulate: Callable[[str], tuple[inventory.Inventory, list[str]]],
) -> None:
    found, notes = simulate("a100x2")
    assert [card.index for card in found.cards] == [0, 1]
    assert len({card.uuid for card in found.cards}) == 2
    assert all(link.startswith("NV") for card in found.cards for link in card.links.values())
    assert {note.split(" ")[0] for note in notes} == {"made"}
    capabilities = {item.name.partition(".so")[0]: item.capability for item in found.libraries}
    assert capabilities["libcuda"] == "compute"
    assert capabilities["libnvidia-pkcs11-openssl3"] == "compute"
    assert capabilities["libnvidia-nscq"] == "utility"
    assert capabilities["libGLX_nvidia"] == "graphics"
    assert {item.name for item in found.binaries} >= {"nvidia-smi", "nvidia-cuda-mps-control"}
    staleness.check(found, f"{found.libraries[0].path.partition('/usr/')[0]}/proc")


@pytest.mark.root  # mknod
def test_simulated_cards_behind_switches(simulate: Callable[[str], tuple[inventory.Inventory, list[str]]]) -> None:
    found, _ = simulate("h100x8")
    assert len(found.cards) == 8
    assert {link for card in found.cards for link in card.links.values()} == {"NV18"}
    assert [card.numa for card in found.cards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {card.memory for card in found.cards} == {81559 << 20}
    assert found.cards[1].bus_id == "0000:2a:00.0"


@pytest.mark.root  # mknod
def test_simulated_cards_without_nvlink(simulate: Callable[[str], tuple[inventory.Inventory, list[str]]]) -> None:
    cards_found = simulate("mixed")[0].cards
    names = {card.uuid: card.index for card in cards_found}
    links = {(card.index, names[other]): link for card in cards_found for other, link in card.links.items()}
    assert (links[0, 1], links[2, 3], links[0, 2]) == ("PIX", "NODE", "SYS")
    assert all(links[one, other] == links[other, one] for one, other in links)


def test_the_compiler_made_what_the_tests_think(driver_root: DriverRoot) -> None:
    path = driver_root.add("libx.so", "libx.so.1")
    listed = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    assert "[libx.so.1]" in listed
