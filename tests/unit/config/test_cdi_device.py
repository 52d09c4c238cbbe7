"""The CDI device's name and its annotation, in the form that runtimes accept."""

from __future__ import annotations

import re

from vgpu.config import cdi_device


def test_the_device_is_a_qualified_name() -> None:
    """vendor/class=name. A class without a dot and a name that begins with a letter are valid in all versions."""
    assert re.fullmatch(
        r"[a-z][a-z0-9.-]*[a-z0-9]/[a-z][a-z0-9_-]*[a-z0-9]=[a-z][a-z0-9_.:-]*[a-z0-9]", cdi_device.DEVICE
    )
    assert f"{cdi_device.KIND}={cdi_device.NAME}" == cdi_device.DEVICE


def test_the_annotation_is_one_that_runtimes_look_for() -> None:
    prefix, _, name = cdi_device.ANNOTATION.partition("/")
    assert prefix == "cdi.k8s.io"
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,61}[A-Za-z0-9]", name)
