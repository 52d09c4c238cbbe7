"""Opening device cgroups in the kernel: real runc on v1 and v2, and v2 cgroups with other tools' programs."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import bundles
import pytest
from checkout import CHECKOUT, DATA
from container_site import BOTH, SLEEP, Site, pairs

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import cgroup_v1, cgroup_v2, rules
from vgpu.hook.devices.allow import AllowDevices

pytestmark = pytest.mark.root

PROBE = DATA / "probes/device_cgroup_probe.py"
V1_DEVICES = Path("/sys/fs/cgroup/devices")
NEEDS_V1 = pytest.mark.skipif(not (V1_DEVICES / "devices.list").exists(), reason="no cgroup v1 devices controller")
ENXIO, EPERM = 6, 1
MULTI, OVERRIDE = 2, 1

#: open(O_RDWR) of nodes that the container makes itself
SCRIPT = """
for node in $*; do
    set -- $(echo $node | tr : ' ')
    mknod /tmp/$1$2.$3 $1 $2 $3 || echo "$node mknod failed"
    if text=$( (exec 3<>/tmp/$1$2.$3) 2>&1 ); then echo "$node ok"; else echo "$node ${text##*: }"; fi
    rm -f /tmp/$1$2.$3
done
"""
REFUSED, NO_DRIVER = "Operation not permitted", "No such device or address"
GRANTED = ["c:195:0", "c:195:255", "c:10:229"]
OTHERS = ["c:195:1", "c:1:1", "c:1:11", "c:10:232", "b:7:0", "b:195:0"]
DEFAULTS = ["c:1:3", "c:1:5", "c:1:7", "c:1:8", "c:1:9"]


def allow(pid: int, *devices: tuple[int, int]) -> None:
    """Open devices, or one, for the process's cgroup."""
    AllowDevices(pid, devices or ((195, 0),), "rw", rules.from_config({}), None).execute()


def created(site: Site, *rules: dict[str, object], **linux: object) -> tuple[str, bundles.Bundle]:
    """A container that is created but not started. In this state hooks run."""
    bundle = site.plain_bundle(None, *SLEEP)
    bundle.config["linux"]["resources"]["devices"] += rules
    bundle.config["linux"].update(linux)
    return site.create(bundle), bundle


def opened(site: Site, container: str, *nodes: str) -> dict[str, str]:
    """The result of open(O_RDWR) of each `type:major:minor` inside, after mknod."""
    return pairs(site.execute(container, "/bin/sh", "-c", SCRIPT, "sh", *nodes))


def probed(site: Site, container: str, bundle: bundles.Bundle, **request: object) -> dict[str, object]:
    return probe(site.prefix, {"pid": site.pid(container), "config": bundle.config, **request})


def probe(prefix: Sequence[str], request: dict[str, object]) -> dict[str, object]:
    command = [*prefix, "/usr/bin/python3", "-I", "-S", str(PROBE), str(CHECKOUT), json.dumps(request)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def on_scratch(programs: int = 0, **request: object) -> dict[str, object]:
    """The answer of the probe in a new cgroup. `programs`: how many more the kernel is to have after it."""
    return probe(bundles.V2, {"scratch": f"vgpu-test-{secrets.token_hex(6)}", "programs": programs, **request})


@BOTH
def test_a_container_opens_what_it_was_given_and_nothing_else(site: Site) -> None:
    container, bundle = created(site)
    site.runtime.call("start", container, check=True)
    before = opened(site, container, *GRANTED, *OTHERS, *DEFAULTS)
    assert {before[node] for node in GRANTED + OTHERS} == {REFUSED}
    assert {before[node] for node in DEFAULTS} == {"ok"}
    tun = opened(site, container, "c:10:200")

    answer = probed(site, container, bundle)
    assert answer["changed"] is True, answer
    assert (answer["new_fds"], answer["new_programs"]) == (0, 0)
    assert answer["allowed"] is True
    after = opened(site, container, *GRANTED, *OTHERS, *DEFAULTS)
    assert [after[node] for node in GRANTED] == [NO_DRIVER, NO_DRIVER, "ok"]
    assert {after[node] for node in OTHERS} == {REFUSED}
    assert {after[node] for node in DEFAULTS} == {"ok"}
    assert opened(site, container, "c:10:200") == tun != {"c:10:200": REFUSED}

    again = probed(site, container, bundle)
    assert again["changed"] is False
    assert again["after"] == answer["after"]
    if site.prefix:
        assert "(runc's)" in str(answer["text"])
        assert [name for _, name in answer["after"]] == ["vgpu_devices"]  # type: ignore[attr-defined]
        assert answer["before"] != answer["after"]


@BOTH
def test_rules_of_the_container_stay(site: Site) -> None:
    """With a default node redefined, accesses added up, and wildcards too, the program is exactly runc's."""
    rules = (
        {"allow": True, "type": "c", "major": 10, "minor": 232, "access": "r"},
        {"allow": True, "type": "c", "major": 10, "minor": 232, "access": "w"},
        {"allow": True, "type": "b", "major": 7, "access": "rwm"},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"},
        {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "m"},
    )
    null = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3}
    container, bundle = created(site, *rules, devices=[null])
    site.runtime.call("start", container, check=True)
    nodes = ("c:10:232", "b:7:0", "b:8:0", "c:1:3", "c:1:11")
    before = opened(site, container, *nodes)
    assert before["c:10:232"] != REFUSED != before["b:7:0"]
    answer = probed(site, container, bundle)
    assert answer["changed"] is True
    assert not site.prefix or "(runc's)" in str(answer["text"])
    assert opened(site, container, *nodes) == before
    assert opened(site, container, *GRANTED)["c:10:229"] == "ok"


@NEEDS_V1
def test_a_single_denial_in_v1_is_taken_back(site: Site) -> None:
    denial = {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    container, bundle = created(site, {"allow": True, "access": "rwm"}, denial)
    site.runtime.call("start", container, check=True)
    assert opened(site, container, "c:195:0") == {"c:195:0": REFUSED}
    probed(site, container, bundle, devices=[[195, 0]])
    assert opened(site, container, "c:195:0") == {"c:195:0": NO_DRIVER}


@NEEDS_V1
def test_v1_cannot_give_what_the_parent_denies() -> None:
    parent = V1_DEVICES / f"vgpu-test-{secrets.token_hex(6)}"
    child = parent / "child"
    parent.mkdir()
    (parent / "devices.deny").write_text("a")  # refused by the kernel once there is a child
    child.mkdir()
    sleep = subprocess.Popen(["sleep", "60"])
    try:
        (child / "cgroup.procs").write_text(str(sleep.pid))
        with pytest.raises(VgpuError) as caught:
            allow(sleep.pid)
        assert caught.value.line() == (
            f"{child}/devices.allow: cannot add c 195:0 rw: expected a parent cgroup that has this rule itself, "
            f"found Operation not permitted; see {parent}/devices.list; a child cannot have more"
        )
        assert (child / "devices.list").read_text() == ""
    finally:
        sleep.kill()
        sleep.wait()
        child.rmdir()
        parent.rmdir()


@pytest.fixture
def v1_place() -> Iterator[tuple[Path, int]]:
    """A cgroup v1 that denies everything, and the process in it."""
    place = V1_DEVICES / f"vgpu-test-{secrets.token_hex(6)}"
    place.mkdir()
    (place / "devices.deny").write_text("a")
    sleep = subprocess.Popen(["sleep", "60"])
    (place / "cgroup.procs").write_text(str(sleep.pid))
    yield place, sleep.pid
    sleep.kill()
    sleep.wait()
    if place.exists():
        place.rmdir()


@NEEDS_V1
def test_a_v1_cgroup_that_vanishes_in_the_middle(monkeypatch: pytest.MonkeyPatch, v1_place: tuple[Path, int]) -> None:
    """Its process has moved to another cgroup when the list is written."""
    place, pid = v1_place
    real = cgroup_v1.read

    def read(fd: int) -> rules.Filter:
        found = real(fd)
        (V1_DEVICES / "cgroup.procs").write_text(str(pid))
        place.rmdir()
        return found

    monkeypatch.setattr(cgroup_v1, "read", read)
    with pytest.raises(VgpuError, match="another program removed this cgroup meanwhile; start the container again"):
        allow(pid)
    assert not place.exists()


@NEEDS_V1
def test_a_device_that_another_writer_denies_again_is_named(
    monkeypatch: pytest.MonkeyPatch, v1_place: tuple[Path, int]
) -> None:
    place, pid = v1_place
    real = cgroup_v1._write_allow

    def write_allow(fd: int, directory: str, rule: rules.Rule) -> None:
        real(fd, directory, rule)
        if rule.minor == 255:
            (place / "devices.deny").write_text(str(rule))

    monkeypatch.setattr(cgroup_v1, "_write_allow", write_allow)
    with pytest.raises(VgpuError, match=r"expected c 195:255 rw after it was written .* another writer"):
        allow(pid, (195, 0), (195, 255))


# v2, other tools' programs


def test_without_a_program_everything_is_open_already() -> None:
    answer = on_scratch(**{"try": ["c:195:0:rw", "c:195:1:rw"]})
    assert answer["changed"] is False
    assert "no device program is attached" in str(answer["text"])
    assert answer["after"] == []
    assert answer["allowed"] is True
    assert answer["tried"] == {"c:195:0:rw": ENXIO, "c:195:1:rw": ENXIO}


@pytest.mark.parametrize("flags", [MULTI, OVERRIDE, 0], ids=["multi", "override", "exclusive"])
def test_a_program_of_an_unknown_runtime_is_replaced_by_the_configs_rules(flags: int) -> None:
    expected = {
        "c:195:0:rw": ENXIO, "c:195:0:r": ENXIO, "c:195:0:m": 0, "c:195:1:rw": EPERM, "b:195:0:r": EPERM,
        "b:195:0:m": 0, "c:10:229:rw": 0, "c:1:3:rw": 0, "c:1:11:r": EPERM, "c:10:200:rw": EPERM,
    }  # fmt: skip
    answer = on_scratch(attach=[["other", [4, 64], flags]], **{"try": list(expected)})
    assert answer["changed"] is True, answer
    assert "unknown runtime" in str(answer["text"])
    assert [name for _, name in answer["after"]] == ["vgpu_devices"]  # type: ignore[attr-defined]
    assert answer["tried"] == expected
    assert (answer["new_fds"], answer["new_programs"]) == (0, 0)


def test_before_linux_5_6_the_old_program_goes_after_the_new_one_has_come() -> None:
    answer = on_scratch(attach=[["other", [4, 64], MULTI]], old_kernel=True, **{"try": ["c:195:0:rw", "c:195:1:rw"]})
    assert [name for _, name in answer["after"]] == ["vgpu_devices"]  # type: ignore[attr-defined]
    assert answer["tried"] == {"c:195:0:rw": ENXIO, "c:195:1:rw": EPERM}
    assert (answer["new_fds"], answer["new_programs"]) == (0, 0)


def test_several_programs_are_an_error_that_names_them() -> None:
    answer = on_scratch(attach=[["one", [4, 64], MULTI], ["two", [4, 65], MULTI]])
    assert "device programs: expected one, the runtime's, found" in str(answer["error"])
    assert " one, " in str(answer["error"]) and " two;" in str(answer["error"])
    assert answer["before"] == answer["after"]
    assert "expected one that matches config.json" in str(answer["allowed"])


def test_the_program_of_a_systemd_unit_is_not_ours_to_replace() -> None:
    answer = on_scratch(attach=[["sd_devices", [4, 64], MULTI]])
    assert "found systemd's own for the unit" in str(answer["error"])
    assert answer["before"] == answer["after"]


def test_a_cgroup_that_the_runtime_shares_is_left_alone() -> None:
    answer = on_scratch(attach=[["other", [4, 64], MULTI]], share=True)
    assert "the container shares it with the runtime" in str(answer["error"])
    assert answer["before"] == answer["after"]


def test_programs_of_ancestors_are_reported() -> None:
    answer = on_scratch(attach=[["above", [195, 0], MULTI]], parent=True, devices=[[195, 0]], nodes=True)
    assert answer["changed"] is False
    assert "the kernel also runs: " in str(answer["text"])
    assert f" above on {os.path.dirname(str(answer['directory']))}" in str(answer["text"])
    assert (answer["new_fds"], answer["new_programs"]) == (0, 0)


def test_ancestors_that_refuse_are_an_error_that_names_cgroup_and_rule() -> None:
    answer = on_scratch(attach=[["above", [195, 0], MULTI]], parent=True, nodes=True)
    directory = str(answer["directory"])
    assert str(answer["error"]).startswith(
        f"{directory}: device rules: expected c 195:255 rw, c 10:229 rw, here and by all cgroups above, "
        "found refused by the kernel; the kernel also runs: "
    )
    assert str(answer["error"]).endswith(f" above on {os.path.dirname(directory)}")
    assert answer["before"] == answer["after"]
    assert (answer["new_fds"], answer["new_programs"]) == (0, 0)


@pytest.mark.parametrize(("kill", "found"), [(True, "it has ended"), (False, "another program removed this cgroup")])
def test_a_cgroup_that_vanishes_in_the_middle(kill: bool, found: str) -> None:
    """Its process is killed or moved away at the moment when the new program is ready."""
    answer = on_scratch(-1, attach=[["other", [4, 64], MULTI]], vanish="kill" if kill else "move")
    assert found in str(answer["error"])
    assert "\n" not in str(answer["error"])
    assert (answer["new_fds"], answer["new_programs"]) == (0, -1)


@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_decides_as_the_rules_say(seed: int) -> None:
    """The majors have no driver (60 to 63 are for local use), so the result depends on the program only."""
    chance = random.Random(seed)
    items = [
        {
            "allow": chance.random() < 0.7, "type": chance.choice("bc"), "major": chance.choice((60, 61, -1)),
            "minor": chance.choice((0, 255, -1)), "access": chance.choice(("r", "w", "m", "rw", "rwm")),
        }
        for _ in range(8)
    ]  # fmt: skip
    config: dict[str, object] = {"linux": {"resources": {"devices": [{"allow": seed == 3, "access": "rwm"}, *items]}}}
    container_rules = rules.from_config(config)
    base = next(item for item in cgroup_v2.known_programs(container_rules) if item.name.endswith("without tun"))
    opened = base.rules.opened(rules.opening([(61, 0)], "rw"))
    grid = [f"{k}:{j}:{n}:{a}" for k in "bc" for j in (60, 61, 62) for n in (0, 1, 255) for a in ("r", "w", "rw", "m")]
    answer = on_scratch(attach=[["other", [4, 64], MULTI]], config=config, devices=[[61, 0]], **{"try": grid})
    assert answer["changed"] is True
    for request, error in answer["tried"].items():  # type: ignore[attr-defined]
        kind, major, minor, access = request.split(":")
        expected = opened.permits(kind, int(major), int(minor), access)
        assert (error != EPERM) is expected, (request, error)


def test_too_many_rules_change_nothing() -> None:
    rules = [{"allow": True, "type": "c", "major": n, "minor": n, "access": "rw"} for n in range(1000)]
    answer = on_scratch(attach=[["other", [4, 64], MULTI]], config={"linux": {"resources": {"devices": rules}}})
    assert "expected rules for at most 4096 BPF instructions" in str(answer["error"])
    assert answer["before"] == answer["after"]
    assert answer["new_fds"] == 0
