"""What the doctor reads in the files of runtimes, whoever wrote them."""

from __future__ import annotations

import pytest

from vgpu.node.runtimes import reading
from vgpu.node.runtimes.reading import Handler

OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


@pytest.mark.parametrize("section", ['"io.containerd.grpc.v1.cri"', "'io.containerd.cri.v1.runtime'", "cri"])
def test_handlers_of_containerd(section: str) -> None:
    text = (
        f'[plugins.{section}.containerd]\ndefault_runtime_name = "nvidia" # why\n'
        f'[plugins.{section}.containerd.runtimes.a]\nbase_runtime_spec = "/b.json"\n'
        f'[plugins.{section}.containerd.runtimes.nvidia.options]\nBinaryName = "nvidia-container-runtime"\n'
    )
    default, handlers = reading.containerd_handlers(text, "f")
    assert default == "nvidia"
    assert handlers == [Handler("a", base_spec="/b.json"), Handler("nvidia", "nvidia-container-runtime")]


def test_a_file_without_handlers_has_none() -> None:
    assert reading.containerd_handlers("version = 3\n", "f") == ("", [])
    assert reading.containerd_handlers("", "f") == ("", [])


def test_a_template_is_read_line_by_line() -> None:
    text = '{{ template "base" . }}\n[x.runtimes.vgpu.options]\n BinaryName = "/usr/bin/vgpu-runtime"\n'
    assert reading.containerd_handlers(text, "f") == ("", [Handler("", "/usr/bin/vgpu-runtime")])


def test_runtimes_of_crio_and_directories_of_podman() -> None:
    text = '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'
    assert reading.crio_handlers(text, "f") == ("crun", [Handler("crun", "/usr/bin/crun")])
    assert reading.crio_handlers("{{", "f") == reading.crio_handlers("", "f") == ("", [])
    assert list(reading.hooks_dirs('[engine]\nhooks_dir = ["/a",\n "/b"] # two\n', "f")) == ["/a", "/b"]
    assert list(reading.hooks_dirs("{{", "f")) == list(reading.hooks_dirs("", "f")) == []
