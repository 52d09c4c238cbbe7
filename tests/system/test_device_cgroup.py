"""Opening device cgroups in the kernel: real runc on v1 and v2, and v2 cgroups with other tools' programs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import CHECKOUT, DATA

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import cgroup_v1, cgroup_v2, rules
from vgpu.hook.devices.allow import AllowDevices

pytestmark = pytest.mark.root

PROBE = DATA / "probes/device_cgroup_probe.py"
V1_DEVICES = Path("/sys/fs/cgroup/devices")
ENXIO, EPERM = 6, 1
MULTI, OVERRIDE = 2, 1

#: A cgroup2 mount in a new mount namespace, so that runc and the hook find cgroup v2 only.
V2 = ["unshare", "-m", "sh", "-ec", 'umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"', "sh"]

#: open(O_RDWR) of nodes that the container makes itself, in the words of busybox
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


def allow(pid: int) -> None:
    """Open a device for the process's cgroup."""
    AllowDevices(pid, ((195, 0),), "rw", rules.from_config({}), None).execute()


class Container:
    """A container of real runc that is created but not started. In this state hooks run."""

    def __init__(self, version: int, bundle: Path, config: dict[str, object]) -> None:
        self.prefix = V2 if version == 2 else []
        self.name = f"vgpu-test-{secrets.token_hex(6)}"
        self.bundle = bundle
        config["linux"]["cgroupsPath"] = f"/{self.name}"  # type: ignore[index]
        self.config = config
        (bundle / "config.json").write_text(json.dumps(config))

    def runc(self, *arguments: str, check: bool = True) -> str:
        # The log of a container's processes is a file, as the container would keep a pipe open.
        with open(self.bundle / "log", "a+") as log:
            log.seek(0, os.SEEK_END)
            start = log.tell()
            command = [*self.prefix, "runc", *arguments]
            done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60)
            log.seek(start)
            text = log.read()
        assert done.returncode == 0 or not check, text
        return text

    @property
    def pid(self) -> int:
        return int(json.loads(self.runc("state", self.name))["pid"])

    def open(self, *nodes: str) -> dict[str, str]:
        """The result of open(O_RDWR) of each `type:major:minor` inside, after mknod."""
        text = self.runc("exec", self.name, "/bin/sh", "-c", SCRIPT, "sh", *nodes)
        return dict(line.split(" ", 1) for line in text.splitlines())

    def probe(self, **request: object) -> dict[str, object]:
        return probe(self.prefix, {"pid": self.pid, "config": self.config, **request})


def probe(prefix: list[str], request: dict[str, object]) -> dict[str, object]:
    command = [*prefix, "/usr/bin/python3", "-I", "-S", str(PROBE), str(CHECKOUT), json.dumps(request)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def on_scratch(programs: int = 0, **request: object) -> dict[str, object]:
    """The answer of the probe in a new cgroup. `programs`: how many more the kernel is to have after it."""
    return probe(V2, {"scratch": f"vgpu-test-{secrets.token_hex(6)}", "programs": programs, **request})


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    if request.param == 1 and not (V1_DEVICES / "devices.list").exists():
        pytest.skip("no cgroup v1 devices controller on this machine")
    return int(request.param)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for tool in ("runc", "busybox"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    for name in ("bin", "proc", "dev", "sys", "tmp"):
        (tmp_path / "rootfs" / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), tmp_path / "rootfs/bin/busybox")
    for applet in ("sh", "sleep", "mknod", "rm", "tr"):
        (tmp_path / "rootfs/bin" / applet).symlink_to("busybox")
    return tmp_path


@contextlib.contextmanager
def container(version: int, bundle: Path, *rules: dict[str, object], **linux: object) -> Iterator[Container]:
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["root"]["readonly"] = False
    config["process"].update(terminal=False, args=["/bin/sleep", "60"])
    config["process"]["capabilities"] = {name: ["CAP_MKNOD"] for name in config["process"]["capabilities"]}
    config["linux"]["resources"]["devices"] += rules
    config["linux"].update(linux)
    one = Container(version, bundle, config)
    one.runc("create", "-b", str(bundle), one.name)
    try:
        yield one
    finally:
        one.runc("delete", "-f", one.name, check=False)
        for left in (V1_DEVICES.parent / "unified" / one.name, V1_DEVICES / one.name):
            with contextlib.suppress(FileNotFoundError):
                left.rmdir()  # runc fails on a cgroup whose last process is still exiting


def test_a_container_opens_what_it_was_given_and_nothing_else(version: int, bundle: Path) -> None:
    with container(version, bundle) as one:
        one.runc("start", one.name)
        before = one.open(*GRANTED, *OTHERS, *DEFAULTS)
        assert {before[node] for node in GRANTED + OTHERS} == {REFUSED}
        assert {before[node] for node in DEFAULTS} == {"ok"}
        tun = one.open("c:10:200")

        answer = one.probe()
        assert answer["changed"] is True, answer
        assert (answer["new_fds"], answer["new_programs"]) == (0, 0)
        assert answer["allowed"] is True
        after = one.open(*GRANTED, *OTHERS, *DEFAULTS)
        assert [after[node] for node in GRANTED] == [NO_DRIVER, NO_DRIVER, "ok"]
        assert {after[node] for node in OTHERS} == {REFUSED}
        assert {after[node] for node in DEFAULTS} == {"ok"}
        assert one.open("c:10:200") == tun != {"c:10:200": REFUSED}

        again = one.probe()
        assert again["changed"] is False
        assert again["after"] == answer["after"]
        if version == 2:
            assert "(runc's)" in str(answer["text"])
            assert [name for _, name in answer["after"]] == ["vgpu_devices"]  # type: ignore[attr-defined]
            assert answer["before"] != answer["after"]


def test_before_the_start_as_hooks_do(version: int, bundle: Path) -> None:
    with container(version, bundle) as one:
        assert one.probe(devices=[[195, 7]])["changed"] is True
        one.runc("start", one.name)
        assert one.open("c:195:7", "c:195:0") == {"c:195:7": NO_DRIVER, "c:195:0": REFUSED}


def test_rules_of_the_container_stay(version: int, bundle: Path) -> None:
    """With a default node redefined, accesses added up, and wildcards too, the program is exactly runc's."""
    rules = (
        {"allow": True, "type": "c", "major": 10, "minor": 232, "access": "r"},
        {"allow": True, "type": "c", "major": 10, "minor": 232, "access": "w"},
        {"allow": True, "type": "b", "major": 7, "access": "rwm"},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"},
        {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "m"},
    )
    null = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3}
    with container(version, bundle, *rules, devices=[null]) as one:
        one.runc("start", one.name)
        nodes = ("c:10:232", "b:7:0", "b:8:0", "c:1:3", "c:1:11")
        before = one.open(*nodes)
        assert before["c:10:232"] != REFUSED != before["b:7:0"]
        answer = one.probe()
        assert answer["changed"] is True
        assert version == 1 or "(runc's)" in str(answer["text"])
        assert one.open(*nodes) == before
        assert one.open(*GRANTED)["c:10:229"] == "ok"


def test_a_container_that_may_open_everything(version: int, bundle: Path) -> None:
    with container(version, bundle, {"allow": True, "access": "rwm"}) as one:
        answer = one.probe()
        assert "error" not in answer
        assert answer["before"] == answer["after"]
        one.runc("start", one.name)
        assert set(one.open(*GRANTED, "c:195:9").values()) == {NO_DRIVER, "ok"}


def test_a_single_denial_in_v1_is_taken_back(bundle: Path) -> None:
    if not (V1_DEVICES / "devices.list").exists():
        pytest.skip("no cgroup v1 devices controller on this machine")
    denial = {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    with container(1, bundle, {"allow": True, "access": "rwm"}, denial) as one:
        one.runc("start", one.name)
        assert one.open("c:195:0") == {"c:195:0": REFUSED}
        one.probe(devices=[[195, 0]])
        assert one.open("c:195:0") == {"c:195:0": NO_DRIVER}


def test_v1_cannot_give_what_the_parent_denies() -> None:
    if not (V1_DEVICES / "devices.list").exists():
        pytest.skip("no cgroup v1 devices controller on this machine")
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


def test_a_v1_cgroup_that_vanishes_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has moved to another cgroup when the list is written."""
    if not (V1_DEVICES / "devices.list").exists():
        pytest.skip("no cgroup v1 devices controller on this machine")
    place = V1_DEVICES / f"vgpu-test-{secrets.token_hex(6)}"
    place.mkdir()
    sleep = subprocess.Popen(["sleep", "60"])
    real = cgroup_v1.read

    def read(fd: int) -> rules.Filter:
        found = real(fd)
        (V1_DEVICES / "cgroup.procs").write_text(str(sleep.pid))
        place.rmdir()
        return found

    monkeypatch.setattr(cgroup_v1, "read", read)
    try:
        (place / "cgroup.procs").write_text(str(sleep.pid))
        with pytest.raises(VgpuError, match="another program removed this cgroup meanwhile; start the container again"):
            allow(sleep.pid)
    finally:
        sleep.kill()
        sleep.wait()
    assert not place.exists()


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
