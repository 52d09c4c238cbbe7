"""The compiled settings as the hook reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu.config import records, settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS, Settings


def test_round_trip(tmp_path: Path) -> None:
    path = str(tmp_path / "config.json")
    records.write(
        path, Settings({"scaling.cores": 2.5, "driver.root": "/d"}, "gpu-7", "/etc/vgpu/config.yaml").record()
    )
    read = settings.read(path)
    assert {name: read[name] for name in DEFAULTS} == {**DEFAULTS, "scaling.cores": 2.5, "driver.root": "/d"}
    assert (read.node, read.source) == ("gpu-7", path)


def test_settings_of_an_older_compiler_get_the_defaults_of_what_they_lack() -> None:
    record = {"version": 1, "node": "", "settings": {"scaling.cores": 2}}
    assert settings.from_record(record, "f")["placement.policy"] == "binpack"


def test_accessors() -> None:
    made = Settings()
    assert made.text("driver.root") == "/"
    assert made.flag("standalone.enabled") is True
    assert made.number("scaling.cores") == 1.0
    assert made.texts("driver.capabilities") == ["compute", "utility"]
    assert (made.state_dir, made.run_dir) == ("/var/lib/vgpu", "/run/vgpu")


def test_defaults_cannot_be_changed_through_settings() -> None:
    made = Settings()
    made.texts("driver.capabilities").append("video")
    assert Settings().texts("driver.capabilities") == ["compute", "utility"]


SETTING = "f: setting "
BAD = [
    ({}, "f: version: expected 1, found nothing"),
    ({"version": 2, "node": "", "settings": {}}, "f: version: expected 1, found 2"),
    ({"version": True, "node": "", "settings": {}}, "f: version: expected 1, found True"),
    ({"version": 1, "node": ""}, "f: settings: expected an object, found nothing"),
    ({"version": 1, "node": "", "settings": []}, "f: settings: expected an object"),
    ({"version": 1, "node": 5, "settings": {}}, "f: node: expected one line of text, found 5"),
    ({"zzz": 1}, SETTING + "zzz: expected a setting that this version knows, found 1"),
    ({"a\nb" * 100: 1}, SETTING + "a\\x0ab"),
    ({"driver.root": None}, SETTING + "driver.root: expected text on one line, found nothing"),
    ({"driver.root": "a\0b"}, SETTING + "driver.root: expected text on one line, found a\\x00b"),
    ({"driver.library_dirs": "x"}, SETTING + "driver.library_dirs: expected a list of texts, found x"),
    ({"driver.library_dirs": [1]}, SETTING + "driver.library_dirs: expected a list of texts, found [1]"),
    ({"driver.library_dirs": ["\n"]}, SETTING + "driver.library_dirs: expected a list of texts"),
    ({"standalone.enabled": 1}, SETTING + "standalone.enabled: expected true or false, found 1"),
    ({"scaling.cores": "1"}, SETTING + "scaling.cores: expected a number, found 1"),
    ({"scaling.cores": True}, SETTING + "scaling.cores: expected a number, found True"),
    ({"resources.core_unit": 1.5}, SETTING + "resources.core_unit: expected a whole number, found 1.5"),
    ({"resources.core_unit": False}, SETTING + "resources.core_unit: expected a whole number, found False"),
]


@pytest.mark.parametrize(("record", "line"), BAD)
def test_refuses(record: dict[str, object], line: str) -> None:
    if record and "version" not in record:
        record = {"version": 1, "node": "", "settings": record}
    with pytest.raises(VgpuError) as caught:
        settings.from_record(record, "f")
    assert str(caught.value).startswith(line)
    assert str(caught.value).endswith("; run: vgpuctl config apply")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"null", b"\xff", b"{}"])
def test_the_error_of_a_damaged_file_names_the_remedy(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(VgpuError) as caught:
        settings.read(str(path))
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith("; run: vgpuctl config apply")
