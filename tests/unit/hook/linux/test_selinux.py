from __future__ import annotations

import pytest

from vgpu.hook.linux import selinux

LABEL = "system_u:object_r:container_file_t:s0:c1,c2"
READ_ONLY = "system_u:object_r:container_ro_file_t:s0:c1,c2"


@pytest.mark.parametrize(
    ("linux", "known", "expected"),
    [
        ({"mountLabel": LABEL}, {LABEL, READ_ONLY}, (LABEL, READ_ONLY)),
        ({"mountLabel": LABEL}, {LABEL}, (LABEL, LABEL)),
        ({"mountLabel": "user:role:type"}, {"user:role:type", "user:role:container_ro_file_t"},
         ("user:role:type", "user:role:container_ro_file_t")),
        ({"mountLabel": LABEL}, set(), ("", "")),
        ({"mountLabel": ""}, {""}, ("", "")),
        ({"mountLabel": 7}, set(), ("", "")),
        ({}, set(), ("", "")),
        (None, set(), ("", "")),
    ],
    ids=["both", "no type for reading", "no level", "no SELinux", "empty", "no text", "unlabelled", "no linux"],
)  # fmt: skip
def test_the_labels_of_mounts(linux: object, known: set[str], expected: tuple[str, str]) -> None:
    found = selinux.labels({"linux": linux}, known.__contains__)
    assert (found.writable, found.read_only) == expected
