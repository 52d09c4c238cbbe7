"""The compiled settings as the hook reads them."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from checkout import CHECKOUT

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


def test_the_release_is_that_of_the_package() -> None:
    (found,) = re.findall(r'^version = "(.*)"$', (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found == settings.RELEASE


VALUES = [None, True, 7, -1.5, "", "text", "a\nb", [], ["x", 1], {"a": {}}, 1 << 70]


@pytest.mark.parametrize("seed", range(30))
def test_what_only_a_newer_version_knows_is_ignored_with_one_note(seed: int) -> None:
    rng = random.Random(seed)
    names = {f"{rng.choice(('scaling', 'quota'))}.new_{rng.randrange(1000)}" for _ in range(rng.randrange(1, 9))}
    unknown = {name: rng.choice(VALUES) for name in names}
    version = rng.choice(["0.1.1", "0.2", "0.10.0~rc1", "1.0.0+x", "2"])
    record = {
        "version": 1, "node": "n", "compiled_by": version, "future": rng.choice(VALUES),
        "settings": {**unknown, "scaling.cores": 2.5},
    }  # fmt: skip
    made = settings.from_record(record, "f")
    assert (made["scaling.cores"], made["placement.policy"]) == (2.5, "binpack")
    (note,) = made.notes
    begin = f"f: settings of vgpu {version}, which this version ignores: "
    assert note.startswith(begin) and set(note.removeprefix(begin).split(", ")) == names
    for compiler in ("0.1.0", "0.0.9", "", None, 5, "x", "0.1.0~rc1"):
        with pytest.raises(VgpuError, match="expected a setting that this version knows"):
            settings.from_record({**record, "compiled_by": compiler}, "f")
    with pytest.raises(VgpuError, match=r"paths\.run: expected text on one line, found 5; run: vgpuctl config apply"):
        settings.from_record({**record, "settings": {**unknown, "paths.run": 5}}, "f")


def test_what_a_newer_version_means_by_a_known_setting_and_this_one_cannot_use_is_the_default() -> None:
    values = {"scaling.cores": "x", "placement.policy": "newest", "driver.capabilities": ["video"]}
    record = {"version": 2, "node": "n", "compiled_by": "0.2", "settings": values}
    made = settings.from_record(record, "f")
    assert (made["scaling.cores"], made["placement.policy"], made["driver.capabilities"]) == (1.0, "binpack", ["video"])
    assert made.notes == ["f: settings of vgpu 0.2, which this version ignores: scaling.cores, placement.policy"]


def test_accessors() -> None:
    made = Settings()
    assert made.text("driver.root") == "auto"
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
