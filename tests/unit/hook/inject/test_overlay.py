"""Which of the host's directories become layers of a container's overlay, and where its files lie in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu.hook.inject.overlay import Overlay, Source, Sources


class Host:
    """Files below a directory, and the layers for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made: list[Sources] = []

    def file(self, path: str) -> str:
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
        return str(file)

    def sources(self, *paths: str) -> Sources:
        self.made.append(Sources(paths, str(self.directory / "spare")))
        return self.made[-1]

    def layers(self, sources: Sources) -> list[str]:
        overlay = sources.overlay(sources.directories())
        return [os.path.relpath(path, self.directory) for path, _ in overlay.layers]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    for sources in made.made:
        sources.close()


def test_the_directory_with_the_fewest_files_is_the_uppermost_layer(host: Host) -> None:
    files = [host.file(f"lib/lib{number}.so") for number in range(3)]
    sources = host.sources(*files, host.file("run/limits"), host.file("run/cards"))
    assert host.layers(sources) == ["run", "lib"]


@pytest.mark.parametrize("copied", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_of_directories_with_as_many_files_none_hides_one_of_another(host: Host, copied: str) -> None:
    """The packaged libraries, one of which has a copy for this driver. One overlay then shows all files."""
    packaged = {name: host.file(f"vcuda/{name}") for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
    wanted = [host.file(f"copies/{copied}") if name == copied else path for name, path in packaged.items()]
    assert host.layers(host.sources(*wanted)) == ["copies", "vcuda"]


def test_a_directory_below_another_is_no_layer(host: Host) -> None:
    """The kernel refuses layers that overlap."""
    inner, outer = host.file("lib/vdpau/libvdpau.so"), host.file("lib/libcuda.so")
    sources = host.sources(inner, outer, host.file("lib64/libm.so"))
    assert sorted(host.layers(sources)) == ["lib", "lib64"]
    overlay = sources.overlay(sources.directories())
    found = sources.find(inner)
    assert found is not None
    assert overlay.relative(found) == "vdpau/libvdpau.so"


def test_a_lone_directory_gets_an_empty_one_beside_it(host: Host) -> None:
    sources = host.sources(host.file("lib/libcuda.so"))
    assert host.layers(sources) == ["lib", "spare"]
    assert os.listdir(host.directory / "spare") == []


def test_a_link_is_followed_once_and_its_target_is_the_source(host: Host) -> None:
    real = host.file("real/libcuda.so.550")
    (host.directory / "lib").mkdir()
    link = host.directory / "lib/libcuda.so.1"
    link.symlink_to("../real/libcuda.so.550")
    (host.directory / "alias").symlink_to("real")
    sources = host.sources(str(link), str(host.directory / "alias/libcuda.so.550"))
    for path in (str(link), str(host.directory / "alias/libcuda.so.550")):
        found = sources.find(path)
        assert found is not None
        assert found.path() == os.path.realpath(real)


def test_what_is_no_regular_file_is_left_to_the_bind_mount(host: Host) -> None:
    directory = host.directory / "lib/libcuda.so"
    directory.mkdir(parents=True)
    sources = host.sources(str(directory), str(host.directory / "none/file"))
    assert [sources.find(str(directory)), sources.find(str(host.directory / "none/file"))] == [None, None]
    assert sources.choices() == []


def test_layers_of_one_file_system_are_left_out_together(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = host.sources(host.file("run/limits"), host.file("lib/a"), host.file("lib/b"), host.file("bin/c"))
    numbers = {"run": 7, "lib": 8, "bin": 8}
    monkeypatch.setattr(Sources, "device", lambda _, place: numbers[os.path.basename(place)])
    names = [
        ([os.path.basename(place) for place in kept], [os.path.basename(place) for place in left])
        for kept, left in sources.choices()
    ]
    assert names == [(["run", "bin", "lib"], []), (["bin", "lib"], ["run"]), (["run"], ["bin", "lib"])]


def test_the_layer_of_a_file_goes_on_top(tmp_path: Path) -> None:
    overlay = Overlay([("/run/c1", 3), ("/usr/bin", 4), ("/usr/lib", 5)])
    source = Source("/usr/lib/vdpau", "x.so", os.stat(tmp_path))
    assert not overlay.has_on_top(source)
    above = overlay.with_on_top(source)
    assert above.layers == [("/usr/lib", 5), ("/run/c1", 3), ("/usr/bin", 4)]
    assert above.has_on_top(source)
    assert overlay.relative(Source("/usr/libexec", "x", os.stat(tmp_path))) == ""
