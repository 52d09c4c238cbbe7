"""bill.py IMAGE ROOT VERSION OUTPUT: writes an image's bill of materials, CycloneDX 1.6 in JSON.

Belongs here: which parts a root file system has, read from its own records: Debian's packages, the Python packages in
/usr/lib/vgpu/python, and vgpu itself. Versions are exact. A licence is named where the part's own file names it in a
form that a program can read: Debian's copyright format 1.0, a wheel's License-Expression, License or classifier.
Needs SOURCE_DATE_EPOCH: one root file system gives one bill, to the byte.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import contents
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License
from cyclonedx.output.json import JsonV1Dot6
from debian.copyright import Copyright, NotMachineReadableError
from debian.deb822 import Deb822
from packageurl import PackageURL

PYTHON = "usr/lib/vgpu/python"
STATUS = "var/lib/dpkg/status.d"
PLACE = "usr/share/vgpu/sbom.cdx.json"
OWN = "vgpu"
_CLASSIFIER = "License :: OSI Approved :: "


def bill(root: Path, name: str, version: str, taken: int) -> str:
    """The bill of the image `name` with the root file system `root`. `taken`: seconds since 1970."""
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=f"{name}@{version}")
    bom = Bom(components=[*debian_parts(root), *python_parts(root)])
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(taken, timezone.utc)
    bom.register_dependency(image, bom.components)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(sorted(str(one.purl) for one in bom.components)) + name)
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def debian_parts(root: Path) -> Iterator[Component]:
    """Debian's packages, by the records that the image has of them."""
    system = dict(line.split("=", 1) for line in (root / "usr/lib/os-release").read_text().splitlines() if "=" in line)
    release = f"{system['ID']}-{system['VERSION_ID'].strip(chr(34))}"
    for path in sorted((root / STATUS).iterdir()):
        fields = Deb822(path.read_text(encoding="utf-8"))
        name, version = fields["Package"], fields["Version"]
        source, _, built_from = fields.get("Source", name).partition(" ")
        qualifiers = {
            "arch": fields["Architecture"], "distro": release,
            "upstream": f"{source}@{built_from.strip('()')}" if built_from else source,
        }  # fmt: skip
        purl = PackageURL("deb", "debian", name, version, qualifiers)
        yield part(name, version, purl, debian_licenses(root / "usr/share/doc" / name / "copyright"))


def debian_licenses(path: Path) -> set[str]:
    """The licences' names of a copyright file in Debian's format 1.0. Another form, or none, names no licence."""
    try:
        with path.open(encoding="utf-8") as file:
            found = Copyright(file, strict=False)
    except (FileNotFoundError, NotMachineReadableError, ValueError):
        return set()
    named = [found.header.license, *(one.license for one in found.all_files_paragraphs())]
    return {" ".join(one.synopsis.split()) for one in named if one and one.synopsis.strip()}


def python_parts(root: Path) -> Iterator[Component]:
    """The wheels, vgpu's own among them."""
    found = metadata.distributions(path=[str(root / PYTHON)])
    for one in sorted(found, key=lambda one: str(one.metadata["Name"])):
        name, version = str(one.metadata["Name"]), one.version
        kind = "generic" if name == OWN else "pypi"
        yield part(name, version, PackageURL(kind, None, name.lower(), version), wheel_licenses(one))


def wheel_licenses(wheel: metadata.Distribution) -> set[str]:
    fields = wheel.metadata
    for name in ("License-Expression", "License"):
        value = " ".join((fields.get(name) or "").split())
        if value and len(value) < 80:  # some wheels have the whole text there
            return {value}
    classifiers = fields.get_all("Classifier") or []
    return {one[len(_CLASSIFIER) :] for one in classifiers if one.startswith(_CLASSIFIER)}


def part(name: str, version: str, purl: PackageURL, licenses: set[str]) -> Component:
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string(),
        licenses=list(as_licenses(licenses)),
    )  # fmt: skip


def as_licenses(names: set[str]) -> Iterator[License]:
    """A name that SPDX has becomes its id. The format allows an expression only where it is the one licence."""
    factory = LicenseFactory()
    for name in sorted(names):
        made = factory.make_from_string(name)
        if isinstance(made, DisjunctiveLicense) or len(names) == 1:
            yield made
        else:
            yield factory.make_with_name(name)


if __name__ == "__main__":
    image, root, version, output = sys.argv[1:]
    (name,) = contents.value(image, "name")
    text = bill(Path(root), name, version, int(os.environ["SOURCE_DATE_EPOCH"]))
    for path in (Path(root, PLACE), Path(output)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
