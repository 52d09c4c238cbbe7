"""The recipe of the container images: what is in the table, what stays of unpacked packages, and the bill of materials.

No image is built here: tests/system/test_images.py does that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from checkout import CHECKOUT

IMAGE = CHECKOUT / "packaging/image"
TABLE = tomlkit.parse((IMAGE / "images.toml").read_text()).unwrap()
NAMES = ("plugin", "node", "exporter", "extender")
EPOCH = "1700000000"
#: The names of the Debian packages of requirements in pyproject.toml that do not follow python3-<name>.
DEBIAN = {"prometheus_client": "python3-prometheus-client", "pyyaml": "python3-yaml"}
EXTRAS = {
    "plugin": ("kubernetes",),
    "node": ("kubernetes", "metrics"),
    "exporter": ("metrics",),
    "extender": ("scheduler",),
}


def run(program: str, *arguments: str | Path) -> str:
    command = [sys.executable, IMAGE / program, *arguments]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The table and the Containerfile


def test_the_table_has_what_pyproject_requires() -> None:
    """A requirement is a Debian package or a wheel that is pinned by its hash."""
    project = tomlkit.parse((CHECKOUT / "pyproject.toml").read_text()).unwrap()["project"]
    for name, extras in EXTRAS.items():
        wanted = {one for extra in extras for one in project["optional-dependencies"][extra]}
        if name in ("plugin", "node"):  # they have vgpuctl, too; the plugin's without vgpuctl top, which draws by rich
            wanted |= {one for one in project["dependencies"] if name == "node" or not one.startswith("rich")}
        found = {
            *TABLE[name]["debian"],
            *(wheel for path in TABLE[name]["wheels"] for wheel in pinned(CHECKOUT / path)),
        }
        for requirement in wanted:
            (plain,) = re.findall(r"^[\w-]+", requirement)
            assert {plain, DEBIAN.get(plain, f"python3-{plain}")} & found, f"{name}: {requirement}"


def pinned(path: Path) -> list[str]:
    """The wheels of a list; each has a version and at least one hash."""
    lines = re.sub(r"\\\n", " ", path.read_text()).splitlines()
    found = [line for line in lines if line and not line.startswith("#")]
    for line in found:
        assert re.match(r"[\w-]+==[\d.]+\s+--hash=sha256:[0-9a-f]{64}", line), line
    return [line.partition("==")[0] for line in found]


def test_the_containerfile_has_a_target_for_each_image() -> None:
    text = (IMAGE / "Containerfile").read_text()
    targets = re.findall(
        r"^FROM (\S+) AS (\w+)\nADD (\S+) /\n.*\nUSER (\S+)\n(?:EXPOSE \d+\n)?CMD \[\"(.*)\"\]$", text, re.M
    )
    assert [(base, name, added) for base, name, added, _, _ in targets] == [
        ("scratch", name, f"{name}.tar") for name in NAMES
    ]
    assert len(re.findall(r"^FROM", text, re.M)) == len(NAMES)
    users = {name: user for _, name, _, user, _ in targets}
    assert users == {"plugin": "0:0", "node": "0:0", "exporter": "65532:65532", "extender": "65532:65532"}
    for _, name, _, _, command in targets:
        assert name == "node" or command == TABLE[name]["name"]
        for program in TABLE[name]["programs"]:
            assert os.access(CHECKOUT / "packaging/bin" / program, os.X_OK)
        assert command in TABLE[name]["programs"]


def test_contents_prints_a_value() -> None:
    assert run("contents.py", "images").split() == list(NAMES)
    assert run("contents.py", "extender", "name") == "vgpu-scheduler-extender\n"
    assert run("contents.py", "exporter", "debian").split() == [*TABLE["exporter"]["debian"], *TABLE["every"]["debian"]]


# What stays of the packages


def make_package(root: Path, name: str, files: dict[str, str]) -> None:
    """Unpack a package into `root`, and leave its archive where apt does."""
    tree = root.parent / name
    for path, text in {**files, f"usr/share/doc/{name}/copyright": "free", "DEBIAN/control": control(name)}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    archives = root / "var/cache/apt/archives"
    archives.mkdir(parents=True, exist_ok=True)
    command = ["dpkg-deb", "--root-owner-group", "-b", tree, archives / f"{name}_1-1_all.deb"]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["dpkg-deb", "-x", command[-1], root], check=True)


def control(name: str) -> str:
    return f"Package: {name}\nVersion: 1-1\nArchitecture: all\nMaintainer: x <x@y>\nDescription: a package\n"


def test_what_an_image_does_not_need_goes(tmp_path: Path) -> None:
    """Whole packages, documents but licences, caches and empty directories; a file of two packages stays."""
    root = tmp_path / "root"
    makes = {"usr/bin/wanted": "", "usr/share/man/man1/wanted.1": "", "usr/share/doc/wanted/changelog": "", "etc/x": ""}
    make_package(root, "wanted", makes)
    make_package(root, "tar", {"usr/lib/tar/rmt": "", "usr/bin/tar": "", "etc/x": ""})
    assert "tar" in TABLE["every"]["left_out"]
    run("slim.py", root)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    accounts = {"etc/passwd", "etc/group", "etc/nsswitch.conf"}
    assert found == accounts | {
        "usr/bin/wanted", "usr/share/doc/wanted/copyright", "etc/x", "var/lib/dpkg/status.d/wanted",
    }  # fmt: skip
    assert not (root / "usr/lib").exists()
    status = (root / "var/lib/dpkg/status.d/wanted").read_text()
    assert "Package: wanted\n" in status and status.endswith("Status: install ok installed\n")
    assert ":65532:65532:" in (root / "etc/passwd").read_text()


# The list of a release's files


@pytest.fixture
def node_root(tmp_path: Path) -> Path:
    """A root that has each file of a release, empty, and a module with the libraries liba and libb."""
    root = tmp_path / "root"
    for pattern in sorted([*TABLE["node"]["release"], *TABLE["node"]["release_without"]], reverse=True):
        path = root / pattern.replace("*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    libraries, modules = root / "usr/lib/y-linux-gnu", root / "usr/lib/python3.11/lib-dynload"
    libraries.mkdir()
    link(libraries / "libb.so.1.2", "libb.so.1")
    (libraries / "libb.so.1").symlink_to("libb.so.1.2")
    link(libraries / "liba.so.1", "liba.so.1", libraries / "libb.so.1")
    link(modules / "_module.so", "_module.so", libraries / "liba.so.1", f"-Wl,-rpath-link,{libraries}")
    return root


def link(path: Path, soname: str, *options: str | Path) -> None:
    command = ["cc", "-shared", "-nostdlib", "-Wl,--no-as-needed", f"-Wl,-soname,{soname}", "-o", path]
    subprocess.run([*command, "-x", "c", "/dev/null", "-x", "none", *options], check=True)


def test_a_release_has_what_its_files_are_linked_with(node_root: Path) -> None:
    (node_root / "usr/lib/y-linux-gnu/libother.so").touch()
    for name in ("turtle", "json"):
        (node_root / f"usr/lib/python3.11/{name}.py").touch()
        (node_root / "usr/lib/python3.11/__pycache__").mkdir(exist_ok=True)
        (node_root / f"usr/lib/python3.11/__pycache__/{name}.cpython-311.pyc").touch()
    run("release.py", node_root, "0.1.0")
    record = json.loads((node_root / "usr/share/vgpu/release.json").read_text())
    files = {one["path"]: one for one in record["files"]}
    assert (record["version"], record["release"], len(files)) == (1, "0.1.0", len(record["files"]))
    assert {path for path in files if "/y-linux-gnu/" in path} == {
        "usr/lib/y-linux-gnu/liba.so.1", "usr/lib/y-linux-gnu/libb.so.1", "usr/lib/y-linux-gnu/libb.so.1.2"
    }  # fmt: skip
    assert files["usr/lib/y-linux-gnu/libb.so.1"] == {"path": "usr/lib/y-linux-gnu/libb.so.1", "target": "libb.so.1.2"}
    gate = {"path": "usr/bin/vgpu-gate", "mode": 0o644, "sha256": hashlib.sha256(b"").hexdigest()}
    assert files["usr/bin/vgpu-gate"] == gate
    assert "usr/lib/python3.11/__pycache__/json.cpython-311.pyc" in files
    assert not [path for path in files if "turtle" in path or "sqlite3" in path]


@pytest.mark.parametrize(
    ("path", "target", "found"),
    [
        ("usr/lib/y-linux-gnu/liba.so.1", "", "liba.so.1: expected it in "),
        ("usr/bin/vgpud", "", "usr/bin/vgpud: expected a file of the image, found none"),
        ("usr/lib/python3.11/out", "/etc/passwd", "usr/lib/python3.11/out: expected a link within the release"),
    ],
)
def test_a_release_that_is_not_complete_is_not_built(node_root: Path, path: str, target: str, found: str) -> None:
    (node_root / path).unlink(missing_ok=True)
    if target:
        (node_root / path).symlink_to(target)
    with pytest.raises(AssertionError, match=f"release.py: {found}"):
        run("release.py", node_root, "0.1.0")


# The bill of materials

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2020 Somebody
License: MIT

Files: debian/*
Copyright: 2021 Another
License: GPL-2+
 The text.
"""
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The records of three Debian packages and three wheels."""
    status = "Package: {}\nVersion: {}\nArchitecture: amd64\n{}Description: x\n"
    texts = {
        "usr/lib/os-release": OS_RELEASE,
        "var/lib/dpkg/status.d/libfree1": status.format("libfree1", "1:2.0-1+b1", "Source: free (1:2.0-1)\n"),
        "usr/share/doc/libfree1/copyright": COPYRIGHT,
        "var/lib/dpkg/status.d/prose": status.format("prose", "1-1", "Source: poetry\n"),
        "usr/share/doc/prose/copyright": "You may do anything with this.\n",
        "var/lib/dpkg/status.d/silent": status.format("silent", "3", ""),
        **wheel("vgpu", "0.1.0", "License: MIT"),
        **wheel("New_Form", "1.2", "License-Expression: MIT OR Apache-2.0"),
        **wheel("classified", "4", "Classifier: License :: OSI Approved :: BSD License"),
    }
    for path, text in texts.items():
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).write_text(text)
    return tmp_path / "root"


def wheel(name: str, version: str, line: str) -> dict[str, str]:
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{line}\n"
    return {f"usr/lib/vgpu/python/{name}-{version}.dist-info/METADATA": text}


def licenses(component: dict[str, Any]) -> list[str]:
    found = []
    for one in component.get("licenses", []):
        license = one.get("license", {})
        found.append(one.get("expression") or license.get("id") or license["name"])
    return sorted(found)


def test_the_bill_has_every_part_with_its_version(root: Path, tmp_path: Path) -> None:
    run("bill.py", "exporter", root, "0.1.0", tmp_path / "bill.json")
    bill = json.loads((tmp_path / "bill.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    image = bill["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "vgpu-exporter", "0.1.0")
    assert {(one["name"], one["version"]): licenses(one) for one in bill["components"]} == {
        ("libfree1", "1:2.0-1+b1"): ["GPL-2+", "MIT"],
        ("prose", "1-1"): [],
        ("silent", "3"): [],
        ("vgpu", "0.1.0"): ["MIT"],
        ("New_Form", "1.2"): ["MIT OR Apache-2.0"],
        ("classified", "4"): ["BSD License"],
    }
    purls = {one["purl"] for one in bill["components"]}
    assert {
        "pkg:deb/debian/libfree1@1:2.0-1%2Bb1?arch=amd64&distro=debian-12&upstream=free%401:2.0-1",
        "pkg:pypi/new-form@1.2", "pkg:generic/vgpu@0.1.0",
    } <= purls  # fmt: skip
    depends = next(one for one in bill["dependencies"] if one["ref"] == image["bom-ref"])
    assert len(depends["dependsOn"]) == len(bill["components"])


def test_the_bill_lies_in_the_image_and_depends_on_nothing_else(root: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        run("bill.py", "extender", root, "0.1.0", tmp_path / name)
    inside = root / "usr/share/vgpu/sbom.cdx.json"
    assert inside.read_bytes() == (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    shutil.rmtree(root / "usr/lib/vgpu/python/classified-4.dist-info")
    run("bill.py", "extender", root, "0.1.0", tmp_path / "third")
    one, other = (json.loads((tmp_path / name).read_text())["serialNumber"] for name in ("first", "third"))
    assert one != other
