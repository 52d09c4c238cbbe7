"""The hook's process without a container: arguments, decisions, exit codes, the line on stderr, and what it leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cards import GIB, card, inventory, write_inventory
from host import Host

from vgpu.config import claims, grants, pods, records, settings, standalone
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.inventory import Binary, Device, Library
from vgpu.config.pods import Pod
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook import main as hook_main
from vgpu.hook.devices.allow import AllowDevices
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.main import parse
from vgpu.hook.request import authorization, pod_record
from vgpu.hook.request.authorization import Grants, Nothing
from vgpu.hook.request.oci_state import CommandLine, Container
from vgpu.hook.request.outside_kubernetes import Key, Plain
from vgpu.hook.request.resolve_grants import WantedGrants
from vgpu.hook.start import Hook

POD = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"
STRANGER = "aaaaaaaa-0b0e-4c53-9d3a-6f0f8f0f1a11"
KUBEPODS = f"/kubepods/burstable/pod{POD}/{'ab' * 32}"
VERSION = "550.54.15"
UUID = "GPU-00000000-0000-0000-0000-000000000000"
PID = 4711
STANDALONE = {"vgpu.io/cores": "40", "vgpu.io/memory": "2Gi"}
CRI = {"io.kubernetes.cri.sandbox-uid": POD, "io.kubernetes.cri.container-name": "main"}
A, B = "a" * 32, "b" * 32


# Arguments


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        (["prestart"], (settings.COMPILED_PATH, False, "prestart", {}, "")),
        (["createRuntime"], (settings.COMPILED_PATH, False, "createRuntime", {}, "")),
        (["poststop"], (settings.COMPILED_PATH, False, "poststop", {}, "")),
        (["--config", "/c", "prestart"], ("/c", False, "prestart", {}, "")),
        (["--config=/c", "--dry-run", "prestart"], ("/c", True, "prestart", {}, "")),
        (["--dry-run", "--config", "/c", "poststop"], ("/c", True, "poststop", {}, "")),
        (["--config", "--dry-run", "prestart"], ("--dry-run", False, "prestart", {}, "")),
        (["--standalone", "any", "prestart"], (settings.COMPILED_PATH, False, "prestart", {}, "any")),
        (["--standalone=key", "prestart"], (settings.COMPILED_PATH, False, "prestart", {}, "key")),
        (
            ["--annotation", "vgpu.io/cores=30", "--annotation=vgpu.io/use-gputype=a=b", "prestart"],
            (settings.COMPILED_PATH, False, "prestart", {"vgpu.io/cores": "30", "vgpu.io/use-gputype": "a=b"}, ""),
        ),
        (["--standalone", "all", "prestart"], None),
        (["--standalone", "prestart"], None),
        (["--standalone="], None),
        (["--annotation", "cores=30", "prestart"], None),
        (["--annotation", "vgpu.io/cores", "prestart"], None),
        (["--dry-run=1", "prestart"], None),
        ([], None),
        (["start"], None),
        (["poststart"], None),
        (["prestart", "poststop"], None),
        (["prestart", "--dry-run"], None),
        (["--config"], None),
        (["--config", "/c"], None),
        (["--verbose", "prestart"], None),
        (["--configuration=/c", "prestart"], None),
        (["-c", "/c", "prestart"], None),
        ([""], None),
    ],
)
def test_parse(arguments: list[str], parsed: tuple[object, ...] | None) -> None:
    before = list(arguments)
    found = parse(arguments)
    words = found and (
        found.config, found.dry_run, found.stage, found.command_line.annotations, found.command_line.standalone,
    )  # fmt: skip
    assert words == parsed
    assert arguments == before


# Decisions


def container(annotations: dict[str, str] | None = None, env: dict[str, str] | None = None) -> Container:
    return Container("c1", PID, "/bundle", annotations or {}, env or {}, "/bundle/rootfs", {})


OPEN = Settings({"standalone.requests": "annotations"})


def decide(subject: Container, cgroups: list[str]) -> Request | WantedGrants | None:
    """What a container gets that brings no key, on a node where annotations count."""
    source = authorization.source_of(subject, cgroups, CommandLine())
    return None if isinstance(source, Nothing) else source.request(OPEN)[0]


@pytest.mark.parametrize(
    ("paths", "annotations", "env", "asks", "wanted"),
    [
        # standalone
        ([], {}, {}, False, None),
        ([], STANDALONE, {}, True, Request),
        ([], {"vgpu.io/gpus": "1"}, {}, True, Request),
        ([], {"vgpu.io/policy": "spread", "vgpu.io/core-limit": "90"}, {}, False, None),
        ([], {}, {"VGPU_GRANT_CORES": A, "NVIDIA_VISIBLE_DEVICES": "all"}, True, None),
        # in a pod, amounts in annotations are nothing at all
        ([KUBEPODS], STANDALONE, {}, True, None),
        ([], {**STANDALONE, **CRI}, {}, True, None),
        ([KUBEPODS], {**STANDALONE, "vgpu.io/grant-cores": A}, {}, True, {"cores": A}),
        ([KUBEPODS], {"vgpu.io/grant-cores": A, "vgpu.io/grant-memory": B}, {}, True, {"cores": A, "memory": B}),
        ([KUBEPODS], {}, {"VGPU_GRANT_CORES": A, "VGPU_GRANT_MEMORY": B}, True, {"cores": A, "memory": B}),
        # which of the two counts is the annotation
        ([KUBEPODS], {"vgpu.io/grant-gpu": A}, {"VGPU_GRANT_GPU": B}, True, {"gpu": A}),
        ([KUBEPODS], {"vgpu.io/grant-cores": A}, {"VGPU_GRANT_MEMORY": B}, True, {"cores": A, "memory": B}),
        ([KUBEPODS], {}, {"VGPU_GRANT_CORES": "", "VGPU_GRANT_X": A}, False, None),
        ([KUBEPODS], {"vgpu.io/grant-tpu": A}, {}, True, None),
        ([KUBEPODS], {f"vgpu.io/request-{A}": "cores=30"}, {}, True, None),
        # sandboxes hold nothing, whatever amounts their pod's annotations ask for
        ([KUBEPODS], {**CRI, **STANDALONE, "io.kubernetes.cri.container-type": "sandbox"}, {}, True, None),
    ],
)
def test_what_a_container_gets(
    paths: list[str], annotations: dict[str, str], env: dict[str, str], asks: bool, wanted: Any
) -> None:
    subject = container(annotations, env)
    assert authorization.asks_for_cards(subject, CommandLine()) is asks
    found = decide(subject, paths)
    if isinstance(wanted, dict):
        assert isinstance(found, WantedGrants)
        assert found.ids == wanted
    elif wanted is None:
        assert found is None
    else:
        assert isinstance(found, wanted)
    if not asks:
        assert found is None


PODS = {"io.kubernetes.pod.uid": POD}
KEYED = {f"vgpu.io/request-{A}": "cores=30"}


@pytest.mark.parametrize(
    ("cgroups", "annotations", "line", "source"),
    [
        ([], {**KEYED, **PODS}, {}, Key),
        ([], {**KEYED, "vgpu.io/grant-cores": A}, STANDALONE, Key),
        ([KUBEPODS], KEYED, STANDALONE, Nothing),
        ([KUBEPODS], {**KEYED, "vgpu.io/grant-cores": A}, {}, Grants),
        ([], {**PODS, "vgpu.io/grant-cores": A}, STANDALONE, Grants),
        ([], PODS, STANDALONE, Plain),
        ([], {**PODS, **STANDALONE}, {}, Nothing),
        ([], {}, STANDALONE, Plain),
        ([], STANDALONE, {}, Plain),
    ],
)
def test_where_a_request_comes_from(
    cgroups: list[str], annotations: dict[str, str], line: dict[str, str], source: type
) -> None:
    """A grant counts in a pod, a key outside Kubernetes, and the command line where a cgroup says no pod."""
    found = authorization.source_of(container(annotations), cgroups, CommandLine(line))
    assert type(found) is source
    assert found.identity.kubernetes is (source in (Grants, Nothing))


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"vgpu.io/core": "30"}, r"annotation vgpu\.io/core: .* did you mean vgpu\.io/cores\?$"),
        ({**STANDALONE, "vgpu.io/core-limt": "50"}, r"core-limt: .* did you mean vgpu\.io/core-limit\?$"),
        ({**STANDALONE, "nvidia.com/vcuda-core-limt": "50"}, r"did you mean nvidia\.com/vcuda-core-limit\?$"),
        ({**STANDALONE, "vpgu.io/priority": "0"}, r"did you mean vgpu\.io/priority\?$"),
        ({"vgpu.io/zzzzzzzz": ""}, r"the names are vgpu\.io/cores, vgpu\.io/memory, "),
        ({"vgpu.io/\n": ""}, r"annotation vgpu\.io/\\x0a: "),
    ],
)
def test_a_misspelled_annotation_is_refused_outside_kubernetes(annotations: dict[str, str], words: str) -> None:
    subject = container(annotations)
    assert authorization.asks_for_cards(subject, CommandLine())
    with pytest.raises(VgpuError, match=words):
        decide(subject, [])


# A whole run, up to the container's namespace


class Place(Host):
    """A node and a container of pid PID in a made-up /proc, whose root is `tree`."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        super().__init__(path)
        self.capfd = capfd
        self.stdin = path / "stdin"
        self.values: dict[str, object] = {
            "paths.state": str(path / "state"),
            "paths.run": str(path / "run"),
            "paths.libvcuda": "/vcuda",
            "driver.proc_root": str(self.proc),
            "standalone.requests": "annotations",
            "standalone.key": str(path / "standalone.key"),
        }
        for directory in ("run", "bundle", "tree/bundle/rootfs/usr/lib64", "proc/self", f"proc/{PID}"):
            (path / directory).mkdir(parents=True)
        self.write("proc/self/uid_map", "         0          0 4294967295\n")
        self.write("proc/self/cgroup", "5:devices:/system.slice\n1:name=systemd:/system.slice\n")
        self.write("proc/sys/kernel/random/boot_id", "boot1\n")
        self.write(f"proc/{PID}/mountinfo", "")
        for name in ("uid_map", "gid_map"):
            self.write(f"proc/{PID}/{name}", "0 0 4294967295\n")
        (self.proc / str(PID) / "root").symlink_to(path / "tree")
        self.live(PID, 77)
        self.cgroup("/user.slice")
        self.set_config(annotations=STANDALONE)
        self.set_settings()
        self.set_inventory()

    def cgroup(self, path: str) -> None:
        self.write(f"proc/{PID}/cgroup", f"5:devices:{path}\n1:name=systemd:{path}\n")

    def set_config(self, **fields: object) -> None:
        config = {"root": {"path": "/bundle/rootfs"}, "process": {"env": []}, **fields}
        self.write("bundle/config.json", json.dumps(config))

    def set_settings(self, **values: object) -> None:
        records.write(str(self.config), Settings({**self.values, **values}).record())

    def set_inventory(self, boot_id: str = "boot1", uuid: str = UUID) -> None:
        libraries = [
            Library(f"/host/{stem}.so.{VERSION}", f"{stem}.so.{VERSION}", f"{stem}.so.1", capability)
            for stem, capability in (("libcuda", "compute"), ("libnvidia-ml", "utility"))
        ]
        devices = [Device("/dev/nvidiactl", "nvidiactl", 195, 255)]
        binaries = [Binary("/host/nvidia-smi", "nvidia-smi", "utility")]
        parts: dict[str, Any] = {"libraries": libraries, "binaries": binaries, "devices": devices}
        write_inventory(str(self.path / "run"), inventory([card(uuid=uuid)], VERSION, boot_id, **parts))

    def pod(self, annotations: dict[str, str], uid: str = POD) -> None:
        self.cgroup(f"/kubepods/pod{uid}/x")
        self.set_config(annotations={"io.kubernetes.cri.container-name": "main", **annotations})

    def grants(self) -> dict[str, str]:
        made = {"cores": Grant(A, "cores", 40, 1.0), "memory": Grant(B, "memory", GIB, 1.0)}
        for grant in made.values():
            grants.write(str(self.path / "state"), grant)
        return {grants.ANNOTATIONS[name]: grant.id for name, grant in made.items()}

    def state(self, **fields: object) -> bytes:
        state = {"ociVersion": "1.0.2", "id": "c1", "pid": PID, "bundle": str(self.path / "bundle"), **fields}
        return json.dumps(state).encode()

    def run(self, *arguments: str, state: bytes | None = None) -> tuple[int, str, str]:
        """(status, stdout, stderr) of the hook."""
        self.stdin.write_bytes(self.state() if state is None else state)
        fd = os.open(self.stdin, os.O_RDONLY)
        self.capfd.readouterr()
        try:
            status = hook_main.main(["--config", str(self.config), *arguments], fd, str(self.proc))
        finally:
            os.close(fd)
        out, err = self.capfd.readouterr()
        return status, out, err

    def refused(self, *arguments: str, state: bytes | None = None) -> str:
        """The one line on stderr of a hook that fails."""
        status, out, err = self.run(*(arguments or ("prestart",)), state=state)
        assert status == 1
        assert out == ""
        assert err.startswith("vgpu-hook: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return err[:-1]

    def hook_log(self) -> list[dict[str, Any]]:
        path = self.path / "run/hook.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def claims(self) -> list[str]:
        return sorted(path.parent.name for path in (self.path / "run").glob("containers/*/claim.json"))


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Place:
    if os.geteuid() != 0:
        pytest.skip("needs root: the hook refuses to run without it")
    return Place(tmp_path, capfd)


@pytest.fixture
def equipped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the containers that reached the step that gives them their cards. Nothing is mounted."""
    found: list[str] = []

    def equip(self: Hook, subject: Container, *_: object) -> list[str]:
        found.append(subject.id)
        return ["note"], AllowDevices(PID, ((195, 0),), "rw", None, {(195, 0): "/dev/nvidia0"})  # type: ignore[arg-type]

    monkeypatch.setattr(Hook, "_equip", equip)
    return found


def test_a_share_from_start_to_stop(place: Place, equipped: list[str]) -> None:
    assert place.run("prestart") == (0, "", "")
    assert equipped == ["c1"]
    claim = claims.read(str(place.path / "run"), "c1")
    assert (claim.pid, claim.start_time, claim.ready) == (PID, 77, True)
    assert claim.devices == {"195:0": "/dev/nvidia0"}
    (entry,) = place.hook_log()
    assert (entry["stage"], entry["container"], entry["pid"], entry["error"]) == ("prestart", "c1", PID, "")
    assert entry["name"] == ""
    assert entry["notes"] == [f"share of card 0 ({UUID}, T4)", "note"]
    assert place.run("createRuntime") == (0, "", "")  # listed twice
    assert equipped == ["c1"]
    (place.proc / str(PID) / "stat").unlink()
    assert place.run("poststop", state=place.state(pid=0)) == (0, "", "")
    assert place.claims() == []
    assert place.hook_log()[-1]["notes"] == ["released"]


# Requests outside Kubernetes: the key, the command line, or the setting


def keyed(value: str = "cores=40,memory=2Gi", key: str = A) -> dict[str, str]:
    return {f"vgpu.io/request-{key}": value}


@pytest.fixture
def locked(place: Place) -> Place:
    """A node as a new installation has it."""
    place.set_settings(**{"standalone.requests": "key"})
    standalone.write_key(str(place.path / "standalone.key"), A)
    return place


FORGED = [
    {},
    {"vgpu.io/cores": "100", "vgpu.io/core-limit": "100", "nvidia.com/priority": "0"},
    {"io.kubernetes.pod.uid": POD, "io.kubernetes.container.name": "x"},
    {"io.kubernetes.pod.uid": POD, "io.kubernetes.cri.sandbox-uid": STRANGER},
    {"io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": "ab"},
    {"io.kubernetes.cri-o.ContainerType": "sandbox", "io.container.manager": "cri-o"},
    {"vgpu.io/grant-cores": B},
    {"vgpu.io/request-": "gpus=1", "vgpu.io/request-" + "A" * 32: "gpus=1", f"vgpu.io/request-{B}": "gpus=1"},
]


@pytest.mark.parametrize("forged", FORGED)
def test_a_request_with_the_key_counts_whatever_an_image_brings(
    locked: Place, equipped: list[str], forged: dict[str, str]
) -> None:
    locked.set_config(annotations={**forged, **keyed()}, process={"env": [f"VGPU_GRANT_CORES={B}"]})
    assert locked.run("prestart") == (0, "", "")
    (card,) = claims.read(str(locked.path / "run"), "c1").cards
    assert (card.memory, card.cores, card.core_limit) == (2 * GIB, 40, 40)
    assert A not in (locked.path / "run/hook.log").read_text()


@pytest.mark.parametrize("forged", FORGED[1:])
def test_an_image_gets_nothing_without_the_key(
    locked: Place, equipped: list[str], capfd: pytest.CaptureFixture[str], forged: dict[str, str]
) -> None:
    locked.set_config(annotations=forged, process={"env": [f"VGPU_GRANT_CORES={B}", "VGPU_REQUEST=1"]})
    locked.run("prestart")
    assert equipped == locked.claims() == []


def test_plain_annotations_are_refused_with_the_way_to_ask(locked: Place, equipped: list[str]) -> None:
    line = locked.refused()
    assert line.startswith("vgpu-hook: identity: annotation vgpu.io/cores: expected vgpu.io/request-<key> with this ")
    assert "run: vgpuctl request --cores N --memory SIZE" in line
    assert equipped == []


@pytest.mark.parametrize("wrong", [B, A[:-1], A + "a", A.upper() + "", "", "x" * 300])
@pytest.mark.parametrize("requests", ["key", "annotations"])
def test_a_wrong_key_is_refused_and_no_key_is_shown(
    locked: Place, equipped: list[str], requests: str, wrong: str
) -> None:
    locked.set_settings(**{"standalone.requests": requests})
    locked.set_config(annotations={**STANDALONE, **keyed(key="0123456789abcdef"), **keyed(key=wrong)})
    line = locked.refused()
    assert line.startswith("vgpu-hook: identity: annotation vgpu.io/request-<key>: expected this node's key")
    log = (locked.path / "run/hook.log").read_text()
    for secret in (A, A[:12], "0123456789ab"):
        assert secret not in line + log
    assert equipped == []


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda path: path.unlink(), "found No such file or directory; run: vgpuctl request --make-key"),
        (lambda path: path.chmod(0o640), "a file of root with mode 0600, found uid 0, -rw-r-----"),
        (lambda path: os.chown(path, 12, 12), "found uid 12, -rw-------"),
        (lambda path: path.write_text(A[:31]), "32 hexadecimal digits, found 31 other characters"),
        (lambda path: path.write_bytes(b"\xff" * 32), "32 hexadecimal digits, found 32 other characters"),
        (lambda path: path.write_bytes(b"a" * 999), "at most 256 bytes"),
    ],
)
def test_a_bad_key_file_is_one_line_without_the_key(
    locked: Place, equipped: list[str], break_it: Callable[[Path], object], words: str
) -> None:
    locked.set_config(annotations=keyed())
    break_it(locked.path / "standalone.key")
    line = locked.refused()
    assert words in line
    assert A[:12] not in line
    assert equipped == []


def test_a_rootless_runtime_learns_nothing_of_the_key(locked: Place, equipped: list[str]) -> None:
    locked.set_config(annotations=keyed(key=B))
    locked.write("proc/self/uid_map", "0 1000 1\n")
    assert "rootless runtime: expected the host's root" in locked.refused()


def test_a_pods_request_by_key_is_nothing(locked: Place, equipped: list[str]) -> None:
    """Kubernetes counts its own amounts. The key's file is not even read there."""
    (locked.path / "standalone.key").unlink()
    locked.pod(keyed())
    assert locked.run("prestart") == (0, "", "")
    assert equipped == []
    assert locked.hook_log()[-1]["notes"] == [
        "annotation vgpu.io/request-<key> is ignored: a pod's amounts come from the limits in its spec"
    ]


@pytest.mark.parametrize("requests", ["key", "annotations"])
def test_the_command_line_says_whether_annotations_count(locked: Place, equipped: list[str], requests: str) -> None:
    locked.set_settings(**{"standalone.requests": requests})
    status, _, err = locked.run("--standalone", "key", "prestart")
    assert (status, "vgpu.io/request-<key>" in err) == (1, True)
    assert equipped == []
    assert locked.run("--standalone=any", "prestart") == (0, "", "")
    assert equipped == ["c1"]


RUNTIMES = ("--annotation", "vgpu.io/cores=20", "--annotation=vgpu.io/memory=1Gi")


@pytest.mark.parametrize(
    ("requests", "annotations", "cores"),
    [
        ("key", {}, 20),
        ("key", {"vgpu.io/cores": "99", "vgpu.io/zzzz": ""}, 20),
        ("key", {"io.kubernetes.pod.uid": POD}, 20),
        ("key", keyed(), 40),
        ("annotations", {"vgpu.io/cores": "99"}, 99),
    ],
)
def test_the_command_lines_request_is_that_of_containers_without_one(
    locked: Place, equipped: list[str], requests: str, annotations: dict[str, str], cores: int
) -> None:
    locked.set_settings(**{"standalone.requests": requests})
    locked.set_config(annotations=annotations)
    assert locked.run(*RUNTIMES, "prestart") == (0, "", "")
    (card,) = claims.read(str(locked.path / "run"), "c1").cards
    assert card.cores == cores


def test_the_command_lines_request_is_not_for_pods(locked: Place, equipped: list[str]) -> None:
    locked.pod({})
    assert locked.run(*RUNTIMES, "prestart") == (0, "", "")
    locked.pod({"vgpu.io/grant-cores": "c" * 32})
    assert locked.run(*RUNTIMES, "prestart")[0] == 1
    assert equipped == []


def test_the_log_names_the_pod_of_a_start_and_of_a_refused_start(place: Place, equipped: list[str]) -> None:
    names = {"io.kubernetes.cri.sandbox-namespace": "lab", "io.kubernetes.cri.sandbox-name": "train-0"}
    place.pod({**place.grants(), **names})
    assert place.run("prestart") == (0, "", "")
    (place.path / "run/inventory.json").unlink()
    assert "inventory" in place.refused()
    assert [entry["name"] for entry in place.hook_log()] == ["lab/train-0/main"] * 2


def test_what_a_pods_annotations_ask_for_in_vain_is_logged(place: Place, equipped: list[str]) -> None:
    wishes = {"vgpu.io/core-limit": "20", "vgpu.io/cores": "90", "vgpu.io/numa-bind": "yes"}
    unknown = {"vgpu.io/core-limt": "60", "vgpu.io/zzzzzzzz": "x"}
    place.pod({**place.grants(), **wishes, **unknown})
    assert place.run("prestart") == (0, "", "")
    assert sorted(place.hook_log()[-1]["notes"][2:]) == [
        "annotation vgpu.io/core-limt is unknown and ignored: did you mean vgpu.io/core-limit?",
        "annotation vgpu.io/cores is ignored: a pod's amounts come from the limits in its spec",
        "annotation vgpu.io/numa-bind is ignored: expected true or false, found yes",
        "annotation vgpu.io/zzzzzzzz is unknown and ignored",
        "the core limit 20 is ignored: it is below the 40 cores of the share, which are its limit",
    ]


def test_a_pod_whose_annotations_nobody_knows_is_logged(place: Place, equipped: list[str]) -> None:
    place.pod(place.grants())
    assert place.run("prestart") == (0, "", "")
    assert place.hook_log()[-1]["notes"][2:] == [pod_record.NOT_KNOWN]
    pods.write(str(place.path / "run"), record({}))
    (place.proc / str(PID) / "stat").unlink()
    assert place.run("poststop", state=place.state(pid=0)) == (0, "", "")
    place.live(PID, 77)
    assert place.run("prestart") == (0, "", "")
    assert len(place.hook_log()[-1]["notes"]) == 2, "with a record they are known"


def test_a_pod_that_asks_by_annotations_alone_gets_nothing_and_a_line_in_the_log(place: Place) -> None:
    place.pod(STANDALONE)
    assert place.run("prestart") == (0, "", "")
    assert place.claims() == []
    (entry,) = place.hook_log()
    assert [note.split(" is ignored")[0] for note in entry["notes"]] == [
        "annotation vgpu.io/cores", "annotation vgpu.io/memory"
    ]  # fmt: skip
    place.config.unlink()
    assert place.run("prestart") == (0, "", ""), "broken settings stop no container without a card"


def test_a_standalone_whole_card_has_no_core_limit(place: Place, equipped: list[str]) -> None:
    place.set_config(annotations={"vgpu.io/cores": "100", "vgpu.io/core-limit": "50"})
    assert place.run("prestart") == (0, "", "")
    assert place.hook_log()[-1]["notes"][2:] == ["the core limit 50 is ignored: whole cards have no core limit"]


def record(annotations: dict[str, str], node: str = "", **limits: int) -> Pod:
    return Pod(POD, "default", "p", node, ["setup"], ["side", "main"], annotations, {"main": dict(limits)})


def test_a_pods_record_completes_the_runtimes_annotations(place: Place, equipped: list[str]) -> None:
    """HAMi's amounts are on the card that it chose, with a wish that the runtime did not pass on."""
    grants.write(str(place.path / "state"), Grant(A, "gpu", 1, 1.0, 50, 8 * GIB))
    place.pod({"vgpu.io/grant-gpu": A})
    annotations = {"hami.io/vgpu-devices-allocated": f";;{UUID},NVIDIA,3000,30:;", "nvidia.com/vcuda-core-limit": "60"}
    pods.write(str(place.path / "run"), record(annotations, **{"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}))
    assert place.run("prestart") == (0, "", "")
    (card,) = claims.read(str(place.path / "run"), "c1").cards
    assert card.key() == (UUID, 3000 << 20, 30, 60, False)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"hami.io/vgpu-devices-allocated": f";;{UUID},NVIDIA,9000,30:;"}, "MiB: expected at most 8192"),
        ({"hami.io/vgpu-devices-allocated": "garbage"}, "annotation hami.io/vgpu-devices-allocated: expected"),
        (
            {"vgpu.io/placement": f"main={UUID}", "vgpu.io/placement-node": "other"},
            "vgpu.io/placement-node: expected this",
        ),
        ({"tencent.com/predicate-gpu-idx-1": "5"}, "predicate-gpu-idx-1: expected a card of this node, found index 5"),
        ({"nvidia.com/vcuda-core-limit": "many"}, "nvidia.com/vcuda-core-limit"),
    ],
)
def test_a_placement_that_cannot_be_honoured_stops_the_start(
    place: Place, equipped: list[str], annotations: dict[str, str], words: str
) -> None:
    grants.write(str(place.path / "state"), Grant(A, "gpu", 1, 1.0, 50, 8 * GIB))
    place.pod({"vgpu.io/grant-gpu": A})
    pods.write(str(place.path / "run"), record(annotations))
    line = place.refused()
    assert line.startswith("vgpu-hook: allocation: ")
    assert words in line
    assert equipped == place.claims() == []


def test_a_pods_record_gives_nothing_without_grants(place: Place, equipped: list[str]) -> None:
    place.pod({"vgpu.io/grant-cores": "c" * 32})
    pods.write(str(place.path / "run"), record({"vgpu.io/placement": f"main={UUID}:100:16384", **STANDALONE}))
    assert "a grant of this node" in place.refused()


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize(
    ("cgroup", "config"),
    [
        ("/user.slice", {"annotations": {"vgpu.io/policy": "spread"}}),
        ("/user.slice", {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}),
        ("/user.slice", {"process": {"env": [f"VGPU_GRANT_CORES={A}"]}}),
        (KUBEPODS, {"annotations": STANDALONE}),
        (KUBEPODS, {"annotations": {"vgpu.io/policy": "spread", "io.kubernetes.pod.uid": STRANGER}}),
        (KUBEPODS, {"annotations": {**STANDALONE, "io.kubernetes.cri.container-type": "sandbox"}}),
    ],
)
def test_a_container_without_an_allocation_is_not_touched(
    place: Place, equipped: list[str], stage: str, cgroup: str, config: dict[str, object]
) -> None:
    """A broken node does not stop it either, as neither settings nor inventory are read."""
    place.cgroup(cgroup)
    place.set_config(**config)
    place.config.unlink()
    (place.path / "run/inventory.json").unlink()
    assert place.run(stage) == (0, "", "")
    assert equipped == []
    assert list((place.path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("cgroup", "annotations", "step", "words"),
    [
        ("/user.slice", {"vgpu.io/cores": "150"}, "identity", "150"),
        ("/user.slice", {"vgpu.io/grant-cores": A}, "identity", "a container of Kubernetes"),
        (KUBEPODS, {"vgpu.io/grant-cores": A, "io.kubernetes.pod.uid": STRANGER}, "identity", STRANGER),
        ("/kubepods", {**STANDALONE}, "identity", "pod uid"),
        (KUBEPODS, {"vgpu.io/grant-cores": "x"}, "allocation", "32 hexadecimal digits"),
        (KUBEPODS, {"vgpu.io/grant-cores": "c" * 32}, "allocation", "a grant of this node"),
        (KUBEPODS, {"vgpu.io/grant-cores": A}, "allocation", "memory beside"),
        (KUBEPODS, {"vgpu.io/grant-cores": A, "vgpu.io/core-limit": "x"}, "identity", "vgpu.io/core-limit"),
        ("/user.slice", {"vgpu.io/cores": "40", "vgpu.io/memory": "17Gi"}, "allocation", UUID),
        ("/user.slice", {"vgpu.io/gpus": "2"}, "allocation", "2 cards"),
        (KUBEPODS, {"vgpu.io/grant-cores": A, "io.kubernetes.cri.container-type": "sandbox"}, "identity", "no sandbox"),
        (
            KUBEPODS,
            {"vgpu.io/grant-cores": A, "io.kubernetes.cri-o.ContainerType": "sandbox"},
            "identity",
            "no sandbox",
        ),
    ],
)
def test_refusals(
    place: Place, equipped: list[str], cgroup: str, annotations: dict[str, str], step: str, words: str
) -> None:
    place.grants()
    place.cgroup(cgroup)
    place.set_config(annotations=annotations)
    line = place.refused()
    assert line.startswith(f"vgpu-hook: {step}: ")
    assert words in line
    assert equipped == []
    assert place.claims() == []
    assert grants.read(str(place.path / "state"), A).holder is None


def test_standalone_may_be_forbidden(place: Place, equipped: list[str]) -> None:
    place.set_settings(**{"standalone.enabled": False})
    assert "standalone.enabled: true" in place.refused()
    place.pod(place.grants())
    assert place.run("prestart")[0] == 0


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda place: place.config.unlink(), ["config.json", "no file", "vgpuctl config apply"]),
        (lambda place: place.config.write_bytes(b"garbage"), ["config.json", "vgpuctl config apply"]),
        (lambda place: place.config.write_bytes(b'{"version": 9}'), ["config.json", "version", "9"]),
        (lambda place: place.config.write_bytes(b"{" * (2 << 20)), ["config.json", "at most"]),
        (lambda place: (place.path / "run/inventory.json").unlink(), ["inventory.json", "vgpuctl inventory refresh"]),
        (lambda place: place.write("run/inventory.json", "{}"), ["inventory.json", "vgpuctl inventory refresh"]),
        (lambda place: place.write("run/inventory.json", "["), ["inventory.json", "vgpuctl inventory refresh"]),
        (lambda place: place.set_inventory(boot_id="earlier"), ["of this boot", "vgpuctl inventory refresh"]),
        (
            lambda place: place.write("proc/driver/nvidia/version", "NVRM version: NVIDIA  560.1  x\n"),
            ["560.1", VERSION, "vgpuctl inventory refresh"],
        ),
        (lambda place: place.set_inventory(uuid="GPU-x"), ["UUID", "GPU-x"]),
        (lambda place: place.write("proc/self/uid_map", "0 1000 1\n"), ["rootless", "the host's root"]),
        (lambda place: place.write("proc/self/uid_map", ""), ["rootless"]),
        (lambda place: (place.proc / "self/uid_map").unlink(), ["uid_map"]),
        (lambda place: (place.proc / f"{PID}/cgroup").unlink(), [f"{PID}/cgroup"]),
        (lambda place: (place.proc / f"{PID}/stat").unlink(), ["living container"]),
        (lambda place: place.write(f"proc/{PID}/stat", "garbage"), ["living container"]),
        (lambda place: place.write("bundle/config.json", "{"), ["bundle/config.json"]),
        (lambda place: place.write("run/containers", "no directory"), ["run/containers"]),
    ],
)
def test_a_broken_node_is_one_line(
    place: Place, equipped: list[str], break_it: Callable[[Place], object], words: list[str]
) -> None:
    break_it(place)
    line = place.refused()
    for word in words:
        assert word in line
    assert equipped == []
    assert place.claims() == []


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "poststop"])
@pytest.mark.parametrize("state", [b"", b"garbage", b"[]", b'{"id": 7}', b"{}", b"x" * (2 << 20), b"[" * 99999])
def test_a_bad_state_is_one_line(place: Place, stage: str, state: bytes) -> None:
    assert "state JSON on stdin" in place.refused(stage, state=state)


def test_a_pid_that_no_process_has(place: Place, equipped: list[str]) -> None:
    assert "living container" in place.refused(state=place.state(pid=0))
    assert place.claims() == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (VgpuError("mount x on y", found="No such file"), "step: mount x on y: found No such file"),
        (
            OSError(2, "No such file or directory", "/x\ny"),
            "step: /x\\x0ay: expected no error, found nothing there (ENOENT)",
        ),
        (RuntimeError("two\nlines"), "found RuntimeError: two\\x0alines in fail, line "),
        (MemoryError(), "expected memory, found no memory left; free memory"),
        (KeyboardInterrupt(), "expected to finish, found the signal SIGINT; start the container again"),
    ],
)
def test_a_failure_after_the_claim_withdraws_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    def fail(self: Hook, *_: object) -> list[str]:
        self.run.step = "step"
        raise error

    monkeypatch.setattr(Hook, "_equip", fail)
    place.pod(place.grants())
    line = place.refused()
    assert words in line
    assert place.claims() == []
    assert grants.read(str(place.path / "state"), A).holder is None
    assert place.hook_log()[-1]["error"] == line.partition(": ")[2]


class Executed:
    """The execution of a plan that is done, until it is kept or undone."""

    def __init__(self, place: Place, left: str = "") -> None:
        self.place = place
        self.left = left
        self.calls: list[str] = []

    def keep(self) -> None:
        self.calls.append("keep")

    def undo(self) -> str:
        assert self.place.claims() != [], "the cards are free only when nothing of the container uses them"
        self.calls.append("undo")
        return self.left


@pytest.mark.parametrize("left", ["", "rmdir new: Directory not empty"])
def test_a_failure_after_the_mounts_undoes_them_before_the_claim(
    place: Place, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    executed = Executed(place, left)

    def equip(self: Hook, *_: object) -> object:
        self.execution = executed  # type: ignore[assignment]
        return [], AllowDevices(PID, (), "rw", None)  # type: ignore[arg-type]

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Hook, "_equip", equip)
    monkeypatch.setattr(Ledger, "confirm", fail)
    line = place.refused()
    assert "record: " in line
    assert "no space on its file system (ENOSPC)" in line
    assert ("not undone: " + left in line) is bool(left)
    assert executed.calls == ["undo"]
    assert place.claims() == []


def test_the_claim_goes_also_when_the_mounts_cannot_be_undone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    executed = Executed(place)

    def equip(self: Hook, *_: object) -> object:
        self.execution = executed  # type: ignore[assignment]
        raise OSError(5, "Input/output error")

    def undo() -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(executed, "undo", undo)
    monkeypatch.setattr(Hook, "_equip", equip)
    assert "(EMFILE)" in place.refused()
    assert place.claims() == []


@pytest.mark.parametrize("error", [OSError(24, "Too many files"), OSError(12, "No memory"), MemoryError()], ids=repr)
@pytest.mark.parametrize("file", ["inventory.json", "driver/nvidia/version"])
def test_a_hook_without_descriptors_or_memory_says_that(
    place: Place, monkeypatch: pytest.MonkeyPatch, file: str, error: Exception
) -> None:
    """It does not ask for another inventory, nor goes on with one that may be of another driver."""
    read_bounded = records.read_bounded

    def fail(path: str, *limit: int) -> bytes:
        if path.endswith(file):
            raise error
        return read_bounded(path, *limit)

    monkeypatch.setattr(records, "read_bounded", fail)
    line = place.refused()
    assert line.startswith("vgpu-hook: inventory: ")
    assert "open files (RLIMIT_NOFILE)" in line or "no memory left" in line
    assert "refresh" not in line
    assert place.claims() == []


@pytest.mark.parametrize("name", ["run/ledger.lock", "run/hook.log", "standalone.key"])
def test_a_link_among_the_hooks_own_files_is_one_line_and_is_followed_nowhere(
    place: Place, equipped: list[str], name: str
) -> None:
    (place.path / name).symlink_to(place.path / "elsewhere")
    place.set_config(annotations={f"vgpu.io/request-{A}": "cores=30,memory=1Gi"} if "key" in name else STANDALONE)
    if name == "run/hook.log":
        assert place.run("prestart") == (0, "", "")
    else:
        line = place.refused()
        assert str(place.path / name) in line
        assert "symbolic link" in line
        assert "remove it" in line or "vgpuctl request --make-key" in line
    assert not (place.path / "elsewhere").exists()


def test_a_report_that_fails_does_not_change_the_outcome(
    place: Place, equipped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(hook_main.hooklog, "write", fail)
    status, out, err = place.run("prestart")
    assert (status, out) == (0, "")
    assert err.startswith("vgpu-hook: report: vgpu-hook: expected the step report to end, found ValueError: two")
    assert err.count("\n") == 1


@pytest.mark.parametrize("container_id", ["../../x", "", None, "a/b", "x" * 300])
def test_poststop_of_a_strange_id(place: Place, container_id: object) -> None:
    assert "id" in place.refused("poststop", state=place.state(id=container_id))


def test_poststop_of_an_unknown_container_is_silent(place: Place) -> None:
    assert place.run("poststop", state=place.state(id="other")) == (0, "", "")
    assert place.hook_log() == []


def test_the_log_takes_what_a_state_may_hold(place: Place) -> None:
    place.refused("poststop", state=place.state(id=["x"], pid={"a": [1] * 1000}))
    (entry,) = place.hook_log()
    assert (entry["container"], entry["pid"]) == ("", 0)


def test_wrong_arguments(place: Place) -> None:
    status, out, err = place.run("start")
    assert (status, out) == (2, "")
    assert err.startswith("usage: vgpu-hook")
    assert err.count("\n") == 1


# Dry run


def test_a_dry_run_prints_the_plan_and_leaves_nothing(place: Place) -> None:
    copy = "usr/local/lib/libcuda.so.1\nforged"
    place.write(f"tree/bundle/rootfs/{copy}", "image")
    before = sorted(path for path in place.path.rglob("*") if path.name != "stdin")
    status, out, err = place.run("--dry-run", "prestart")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"card 0 {UUID} T4"
    assert f"mount /vcuda/libcuda.so.1 on /usr/local/nvidia/lib64/libcuda.so.{VERSION} ro,nosuid,nodev" in lines
    assert "device /dev/nvidia0 195:0 from /dev/nvidia0 nosuid,noexec" in lines
    assert f"allow character devices 195:255, 195:0 (rw) in the device cgroup of process {PID}" in lines
    assert "forged" not in [line.split()[0] for line in lines]
    assert any("\\x0aforged" in line for line in lines)
    after = sorted(path for path in place.path.rglob("*") if path.name != "stdin")
    assert [path for path in after if path not in before] == [place.path / "run/ledger.lock"]
    assert place.hook_log() == []


def test_a_dry_run_says_why_not(place: Place) -> None:
    place.set_config(annotations={"vgpu.io/cores": "40", "vgpu.io/memory": "17Gi"})
    assert UUID in place.refused("--dry-run", "prestart")
    assert place.hook_log() == []


def test_a_dry_run_of_a_container_without_an_allocation_prints_nothing(place: Place) -> None:
    place.set_config(annotations={})
    assert place.run("--dry-run", "prestart") == (0, "", "")
