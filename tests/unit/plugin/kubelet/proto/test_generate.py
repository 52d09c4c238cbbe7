"""The committed messages match the .proto files, and load with a protobuf that is older than their generator."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from vgpu.plugin.kubelet.proto import deviceplugin_pb2, generate, podresources_pb2, services

HERE = Path(generate.__file__).parent
PROTOC = pytest.importorskip("grpc_tools.protoc")


def version_of(path: Path) -> str:
    return next(line for line in path.read_text().splitlines() if line.startswith("# Protobuf Python Version:"))


@pytest.mark.parametrize("name", generate.NAMES)
def test_committed_messages_are_the_protos(name: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"vgpu.plugin.kubelet.proto.{name}_pb2")
    descriptors = tmp_path / "descriptors"
    root = HERE.parents[3]
    file = f"{generate.PACKAGE}/{name}.proto"
    assert PROTOC.main(["protoc", f"-I{root}", f"--descriptor_set_out={descriptors}", file]) == 0
    [fresh] = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
    committed = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(committed)
    for one in (fresh, committed):  # protoc fills in what the runtime leaves out
        _clear_json_names(one.message_type)
    assert committed == fresh


def _clear_json_names(messages) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _clear_json_names(message.nested_type)


@pytest.mark.parametrize("name", generate.NAMES)
def test_generating_again_changes_nothing(name: str, tmp_path: Path) -> None:
    generate.generate(str(tmp_path))
    fresh = tmp_path / generate.PACKAGE
    if version_of(fresh / f"{name}_pb2.py") != version_of(HERE / f"{name}_pb2.py"):
        pytest.skip("another generator wrote the committed files; the descriptors are compared above")
    for suffix in ("py", "pyi"):
        assert (fresh / f"{name}_pb2.{suffix}").read_text() == (HERE / f"{name}_pb2.{suffix}").read_text()


@pytest.mark.parametrize("name", generate.NAMES)
def test_nothing_demands_the_generators_own_version(name: str) -> None:
    """Debian 11 and Ubuntu 22.04 have protobuf 3.12, without google.protobuf.internal.builder."""
    for path in (HERE / f"{name}_pb2.py", HERE / "messages.py"):
        tree = ast.parse(path.read_text())
        imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not [line for line in imports if "internal" in line or "runtime_version" in line]


def test_a_field_takes_messages_of_the_modules_own_classes() -> None:
    device = deviceplugin_pb2.Device(ID="a")
    answer = deviceplugin_pb2.ListAndWatchResponse(devices=[device])
    assert type(answer.devices[0]) is deviceplugin_pb2.Device


def test_services_are_the_published_ones() -> None:
    """Names on the wire: kubelet dials them."""
    names = {
        "v1beta1.Registration": ["Register"],
        "v1beta1.DevicePlugin": ["GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate",
                                 "PreStartContainer"],
        "v1.PodResourcesLister": ["List", "GetAllocatableResources", "Get"],
    }  # fmt: skip
    found = {}
    for module in (deviceplugin_pb2, podresources_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            methods = services._methods(module, service.name)
            found[service.full_name] = [method.name for method, _, _ in methods]
            streams = [method.name for method, _, _ in methods if method.server_streaming]
            assert streams == ["ListAndWatch"] * (service.name == "DevicePlugin")
    assert found == names


def test_numbers_on_the_wire() -> None:
    """Compared by hand with the published numbers. Otherwise only a real kubelet would reveal a wrong one."""
    device = deviceplugin_pb2.Device(
        ID="a", health="b", topology=deviceplugin_pb2.TopologyInfo(nodes=[deviceplugin_pb2.NUMANode(ID=5)])
    )
    assert device.SerializeToString() == b"\x0a\x01a\x12\x01b\x1a\x04\x0a\x02\x08\x05"
    options = deviceplugin_pb2.DevicePluginOptions(get_preferred_allocation_available=True)
    request = deviceplugin_pb2.RegisterRequest(version="v", endpoint="e", resource_name="r", options=options)
    assert request.SerializeToString() == b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x02\x10\x01"
    answer = deviceplugin_pb2.ContainerAllocateResponse(envs={"k": "v"}, annotations={"a": "b"})
    assert answer.SerializeToString() == b"\x0a\x06\x0a\x01k\x12\x01v\x22\x06\x0a\x01a\x12\x01b"
    wanted = deviceplugin_pb2.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a"], must_include_deviceIDs=["m"], allocation_size=3
    )
    assert wanted.SerializeToString() == b"\x0a\x01a\x12\x01m\x18\x03"
    devices = podresources_pb2.ContainerDevices(resource_name="r", device_ids=["d"])
    container = podresources_pb2.ContainerResources(name="c", devices=[devices])
    pod = podresources_pb2.PodResources(name="p", namespace="n", containers=[container])
    assert pod.SerializeToString() == b"\x0a\x01p\x12\x01n\x1a\x0b\x0a\x01c\x12\x06\x0a\x01r\x12\x01d"


def test_the_pool_knows_them_by_a_name_of_their_own() -> None:
    """Another package's api.proto in the same process does not clash."""
    pool = descriptor_pool.Default()
    assert pool.FindFileByName("vgpu/plugin/kubelet/proto/deviceplugin.proto").package == "v1beta1"
