"""Generates the messages beside the .proto files: python -m vgpu.plugin.kubelet.proto.generate (needs grpcio-tools).

Belongs here: running protoc and one change of its output: the check for a protobuf at least as new as protoc is
removed. The rest of the generated code works with every protobuf from 3.20 on, and distributions ship old ones.
Services need no generated code: vgpu.plugin.kubelet.proto.services reads the descriptors.
"""

from __future__ import annotations

import os
import re
import sys

PACKAGE = "vgpu/plugin/kubelet/proto"
NAMES = ("deviceplugin", "podresources")

_DEMAND = re.compile(
    r"^from google\.protobuf import runtime_version .*\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\((.*\n)*?\)\n",
    re.MULTILINE,
)


def generate(out: str) -> None:
    """Write <out>/vgpu/plugin/kubelet/proto/<name>_pb2.py and .pyi for each protocol."""
    from grpc_tools import protoc  # noqa: PLC0415  # not installed where the plugin runs

    root = os.path.abspath(__file__).removesuffix(f"{PACKAGE}/generate.py")
    files = [f"{PACKAGE}/{name}.proto" for name in NAMES]
    if protoc.main(["protoc", f"-I{root}", f"--python_out={out}", f"--pyi_out={out}", *files]):
        raise SystemExit("protoc failed")
    for name in NAMES:
        path = f"{out}/{PACKAGE}/{name}_pb2.py"
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(_DEMAND.sub("", text))


if __name__ == "__main__":
    generate(sys.argv[1] if len(sys.argv) > 1 else os.path.abspath(__file__).removesuffix(f"/{PACKAGE}/generate.py"))
