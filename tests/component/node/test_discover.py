"""vgpu.node.driver.discover and its parts (files, device_nodes, nvml) on driver roots of small ELF files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from driver_roots import VERSION, DriverRoot

from vgpu.config import inventory
from vgpu.config.errors import VgpuError
from vgpu.hook.formats import ldcache
from vgpu.hook.formats.ldcache import Addition
from vgpu.node.driver import discover, files, nvml


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


def test_the_directory_of_nodes(driver_root: DriverRoot) -> None:
    assert discover.dev_dir(driver_root.settings(**{"driver.dev_root": "/x"})) == "/x"
    assert discover.dev_dir(driver_root.settings(**{"driver.dev_root": ""})) == "/dev"
    (driver_root.dev / "nvidiactl").touch()
    assert discover.dev_dir(driver_root.settings(**{"driver.dev_root": ""})) == str(driver_root.dev)


def test_auto_takes_the_hosts_driver_else_that_of_a_container(
    driver_root: DriverRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = DriverRoot(tmp_path / "host", driver_root.parts)
    host.add(f"libcuda.so.{VERSION}", "libcuda.so.1")
    monkeypatch.setattr(discover, "AUTO_ROOTS", (str(host.path), str(driver_root.path)))
    found = driver_root.settings(**{"driver.root": "auto", "driver.dev_root": ""})
    (driver_root.dev / "nvidiactl").touch()
    assert discover.driver_root(found) == str(driver_root.path), "the host has libcuda without NVML"
    assert discover.dev_dir(found) == str(driver_root.dev)
    host.add("libnvidia-ml.so.535.1.2", "libnvidia-ml.so.1")
    host.add("libcuda.so.535.1.2", "libcuda.so.1")
    assert discover.driver_root(found) == str(driver_root.path), "an earlier driver has left its libraries"
    (driver_root.proc / "driver/nvidia/version").unlink()
    assert discover.driver_root(found) == str(host.path), "no module is loaded, so any version will do"
    driver_root.write("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  x\n")
    host.add_nvml()
    assert discover.driver_root(found) == str(host.path)
    before = discover.root_identities(found)
    driver_root.path.rename(tmp_path / "away")
    assert discover.root_identities(found) == (before[0], (0, 0)), "vgpud sees it"
    (host.libraries / f"libcuda.so.{VERSION}").unlink()
    assert discover.driver_root(found) == str(host.path), "without any driver the messages name the host"
    assert discover.driver_root(driver_root.settings()) == str(driver_root.path)


# -- cards


def take_cards(root: DriverRoot, kind: str) -> tuple[list[inventory.Card], list[str]]:
    notes: list[str] = []
    path = root.add_nvml(kind=kind)
    return nvml.take(str(path), str(root.dev), str(root.proc), str(root.path / "sys"), notes.append), notes


def test_cards_as_nvml_of_the_driver_root_reports_them(driver_root: DriverRoot) -> None:
    driver_root.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n")
    found, notes = take_cards(driver_root, "nvml")
    assert [(card.index, card.minor, card.bus_id, card.name, card.memory, card.numa) for card in found] == [
        (0, 7, "0000:3a:00.0", "Direct", 40 << 30, -1),
        (1, 6, "0000:3b:00.0", "Direct", 40 << 30, 1),
    ]
    assert found[0].uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert (found[0].architecture, found[0].cuda_version) == ("", "")  # this NVML lacks both functions
    assert (found[0].device.path, found[0].device.major, found[0].device.minor) == (
        f"{driver_root.dev}/nvidia7",
        195,
        7,
    )
    assert found[0].links == {found[1].uuid: "NV4"}
    assert found[1].links == {found[0].uuid: "NV4"}
    assert "offers nothing: it is in MIG mode, and has no instance that can be used" in notes[-2]
    assert notes[-1] == "card 3 is left out: NVML reports GPU is lost"


@pytest.mark.parametrize(("kind", "link"), [("switched", "NV18"), ("plain", "PXB"), ("nvml", "NV4")])
def test_links_and_several_driver_roots_in_one_process(driver_root: DriverRoot, kind: str, link: str) -> None:
    found, _ = take_cards(driver_root, kind)
    assert found[0].name == {"nvml": "Direct"}.get(kind, kind.capitalize())
    assert list(found[0].links.values()) == [link]


def test_an_nvml_that_cannot_be_used(driver_root: DriverRoot) -> None:
    path = driver_root.libraries / f"libcuda.so.{VERSION}"
    with pytest.raises(VgpuError, match=r"expected NVML to start, found .*; look at the output of nvidia-smi"):
        nvml.take(str(path), "/dev", "/proc", "/sys", print)


#: The minors of /dev/null, zero, full, random and urandom: nodes that a test without root has.
MINORS = {"gi1": 3, "gi1/ci0": 5, "gi2": 7, "gi2/ci0": 8, "gi2/ci1": 9}
NODES = {3: "null", 5: "zero", 7: "full", 8: "random", 9: "urandom"}


def with_instances(root: DriverRoot) -> None:
    """The driver's files of the instances of card 2, whose minor is 5."""
    root.write("proc/devices", "Character devices:\n1 nvidia-caps\n195 nvidia\n")
    table = "".join(f"gpu5/{name}/access {minor}\n" for name, minor in MINORS.items())
    root.write("proc/driver/nvidia-caps/mig-minors", f"config 1\nmonitor 2\n{table}")
    (root.dev / "nvidia-caps").mkdir()
    for name, minor in MINORS.items():
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        root.write(f"proc/driver/nvidia/capabilities/gpu5/mig/{name}/access", text)
        (root.dev / f"nvidia-caps/nvidia-cap{minor}").symlink_to(f"/dev/{NODES[minor]}")


def test_mig_instances_are_cards(driver_root: DriverRoot) -> None:
    with_instances(driver_root)
    driver_root.write("sys/bus/pci/devices/0000:3c:00.0/numa_node", "1\n")
    found, notes = take_cards(driver_root, "nvml")
    instances = [card for card in found if card.parent]
    assert [(card.index, card.uuid[-3:], card.memory >> 30, list(card.capabilities)) for card in instances] == [
        (4 + 2 * 16 + 1, "101", 40, ["gpu5/mig/gi1/access", "gpu5/mig/gi1/ci0/access"]),
        (4 + 2 * 16 + 3, "103", 20, ["gpu5/mig/gi2/access", "gpu5/mig/gi2/ci0/access"]),
        (4 + 2 * 16 + 5, "105", 20, ["gpu5/mig/gi2/access", "gpu5/mig/gi2/ci1/access"]),
    ]
    for card in instances:
        assert (card.parent[-3:], card.bus_id, card.numa, card.minor) == ("002", "0000:3c:00.0", 1, 5)
        assert (card.name, card.profile) == ("Direct MIG 1g.5gb", "1g.5gb")
    last = instances[-1]
    assert [(node.name, node.major, node.minor) for node in last.nodes] == [
        ("nvidia5", 195, 5), ("nvidia-caps/nvidia-cap7", 1, 7), ("nvidia-caps/nvidia-cap9", 1, 9),
    ]  # fmt: skip
    assert last.names == [last.uuid, f"MIG-{last.parent}/2/1"]
    assert re.search("card 1 .*: MIG is to be on after the next reset of the card", notes[0])
    assert "MIG instance 7 of card 2" in notes[1], "destroyed since NVML was asked for it"
    assert re.search("MIG instance 9 of card 2 .* is left out: card UUID: .*, found MIG-GPU-0000", notes[2])
    assert "2 compute instances share the memory of gpu5/mig/gi2/access: 20480 MiB" in notes[3]
    record = inventory.Inventory("1", "", 1.0, [], [], [], found).record()
    again = inventory.from_record(record, "inventory").cards
    assert [inventory._card_fields(card) for card in again] == record["cards"]


BAD = {
    "no major": ("proc/devices", "Character devices:\n195 nvidia\n", 0, "expected nvidia-caps in .*, found no such"),
    "another minor": ("proc/driver/nvidia/capabilities/gpu5/mig/gi1/ci0/access", "DeviceFileMinor: 4\n", 2,
                      "expected minor 5 by .*/mig-minors, found 4"),
    "no minor": ("proc/driver/nvidia/capabilities/gpu5/mig/gi2/access", "", 1, "expected minor 7 by .*, found -1"),
    "not in the table": ("proc/driver/nvidia-caps/mig-minors", "odd\ngpu5/gi1/access 3\n", 0, "expected minor none by"),
    "another node": ("dev/nvidia-caps/nvidia-cap9", "/dev/null", 2, "nvidia-cap9: expected character device 1:9"),
    "no compute instance": ("proc/driver/nvidia/capabilities/gpu5/mig/gi3/access", "DeviceFileMinor: 11\n", 3,
                            "gpu5/mig/gi3 of card 2 .* has no compute instance"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_what_is_wrong_with_an_instance_is_one_line(driver_root: DriverRoot, case: tuple[str, str, int, str]) -> None:
    name, text, left, line = case
    with_instances(driver_root)
    path = driver_root.path / name
    if path.is_symlink():
        path.unlink()
        path.symlink_to(text)
    else:
        driver_root.write(name, text)
    found, notes = take_cards(driver_root, "nvml")
    assert sum(bool(card.parent) for card in found) == left
    assert any(re.search(line, note) for note in notes), notes
