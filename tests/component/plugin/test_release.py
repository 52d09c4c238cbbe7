"""A release on a host: installed, killed at any system call, damaged, turned back, removed.

The releases are small trees of random files. vgpu-release's own process, a whole image and a runtime are in
system/test_release.py.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
from pathlib import Path

import fault_bed
import pytest
import yaml
from checkout import CHECKOUT
from fault_errnos import EXEMPT

from vgpu.config import paths, settings
from vgpu.config.claims import CardLimit, Claim
from vgpu.config.errors import VgpuError
from vgpu.plugin.release import cdi, install, manifest, remove

pytestmark = pytest.mark.root
SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
PROGRAM = "#!/bin/sh\necho vgpuctl\n"
DECIDE = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fault_bed.compile_library(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return fault_bed.numbers(tmp_path_factory.mktemp("numbers"))


def image(root: Path, version: str) -> Path:
    """The root of an image whose release is a few random files, of another content for each version."""
    mix = random.Random(f"{SEED}{version}")
    files: list[dict[str, object]] = []
    for path in ("usr/bin/vgpuctl", "usr/lib/a/b/data", *(f"usr/lib/{mix.randrange(100)}/x{i}" for i in range(3))):
        text = PROGRAM if path.endswith("vgpuctl") else mix.randbytes(mix.randrange(20_000)).hex()
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        mode = mix.choice((0o755, 0o744)) if path.endswith("vgpuctl") else mix.choice((0o644, 0o600))
        digest = hashlib.sha256(text.encode()).hexdigest()
        files.append({"path": f"/{path}", "mode": mode, "sha256": digest})
    files.append({"path": "usr/bin/vgpu-hook", "target": "vgpuctl"})
    (root / manifest.PATH).parent.mkdir(parents=True, exist_ok=True)
    (root / manifest.PATH).write_text(json.dumps({"version": 1, "release": version, "files": files}))
    return root


def put(source: Path, host: Path) -> str:
    """Install as vgpu-release does, without a runtime to ask."""
    fd = install.lock(str(host / "opt"))
    try:
        made = install.place(str(source), str(host / "opt"), install.run_once)
        install.turn(str(host / "opt"), made.name)
    finally:
        os.close(fd)
    cdi.write(str(host), "/etc/cdi", "/opt/current/usr/bin")
    return made.name


def in_force(host: Path) -> str:
    """The name of the release in force, which is whole."""
    name = install.current(str(host / "opt"))
    found = manifest.read(str(host / "opt" / name))
    assert found.name == name
    manifest.verify(str(host / "opt" / name), found)
    return name


def kill_at(call: int, source: Path, host: Path, library: Path, exempt: list[int]) -> bool:
    """Install in a child that is killed at its system call number `call`. Returns whether it got so far."""
    child = os.fork()
    if not child:
        left = [call]

        def decide(_: int) -> int:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return 0

        function = DECIDE(decide)
        calls = (ctypes.c_int * len(exempt))(*exempt)
        try:
            install.run_once = lambda _: None  # it starts a program, which changes nothing
            if not ctypes.PyDLL(str(library)).fault_begin(function, calls, len(exempt)):
                put(source, host)
                os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"seed {SEED}: call {call}: status {status}"
    return bool(status)


def test_a_kill_at_any_call_leaves_one_whole_release(
    tmp_path: Path, library: Path, numbers: dict[str, int], pytestconfig: pytest.Config
) -> None:
    """Of the calls a random part, unless --long asks for all."""
    mix, widest = random.Random(SEED), 1 if pytestconfig.getoption("--long") else 9
    first, second = image(tmp_path / "1", "1.0"), image(tmp_path / "2", "1.1")
    exempt = [numbers[name] for name in EXEMPT if name in numbers]
    before = tmp_path / "before"
    (before / "opt").mkdir(parents=True)
    names = {put(first, before)}
    call, found = 0, set()
    while True:
        call += mix.randint(1, widest)
        host = tmp_path / "host"
        shutil.copytree(before, host, symlinks=True)
        killed = kill_at(call, second, host, library, exempt)
        found.add(in_force(host))
        assert put(second, host) == in_force(host)
        entries = {*os.listdir(host / "opt")}
        assert entries == {*names, in_force(host), "current", ".lock"}, f"seed {SEED}: call {call}"
        assert os.listdir(host / "etc/cdi") == ["vgpu.json"]
        if not killed:
            break
        shutil.rmtree(host)
    assert call > 100
    assert found == names | {in_force(host)}


def test_upgrades_and_ways_back_keep_the_release_before(tmp_path: Path) -> None:
    images = [image(tmp_path / str(number), f"1.{number}") for number in range(3)]
    host = tmp_path / "host"
    (host / "opt/of-others").mkdir(parents=True)
    mix, before = random.Random(SEED), ""
    for source in [images[0], *mix.choices(images, k=12)]:
        kept = {name: (host / "opt" / name).stat().st_ino for name in install.releases(str(host / "opt"))}
        name = put(source, host)
        now = {name: (host / "opt" / name).stat().st_ino for name in install.releases(str(host / "opt"))}
        assert in_force(host) == name
        assert {name, before} - {""} <= set(now), f"seed {SEED}"
        assert len(now) <= 2
        assert (host / "opt/of-others").is_dir()
        assert all(kept.get(one, number) == number for one, number in now.items()), (
            "a release on the disk is not copied"
        )
        before = before if name == before and len(now) == 2 else name


def test_a_damaged_release_is_found_and_replaced(tmp_path: Path) -> None:
    source, host, mix = image(tmp_path / "1", "1.0"), tmp_path / "host", random.Random(SEED)
    (host / "opt").mkdir(parents=True)
    name = put(source, host)
    for how in ("content", "mode", "missing", "more", "owner", "link"):
        files = [path for path in (host / "opt" / name).rglob("*") if path.is_file() and not path.is_symlink()]
        path = mix.choice(files)
        if how == "content":
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        elif how == "mode":
            path.chmod(0o666)
        elif how == "more":
            path.with_name("sitecustomize.py").write_text("")
        elif how == "owner":
            os.chown(path, 1, 1)
        else:
            path.unlink()
        if how == "link":
            path.symlink_to("/etc/passwd")
        with pytest.raises(VgpuError):
            manifest.verify(str(host / "opt" / name), manifest.read(str(source)))
        assert put(source, host) == in_force(host) == name, f"seed {SEED}: {how}: {path}"
    damaged = image(tmp_path / "2", "2.0")
    (damaged / "usr/lib/a/b/data").write_text("of another build")
    with pytest.raises(VgpuError, match="another content"):
        put(damaged, host)
    assert in_force(host) == name


def test_a_directory_without_exec_is_refused(tmp_path: Path) -> None:
    source, host = image(tmp_path / "1", "1.0"), tmp_path / "host"
    (host / "opt").mkdir(parents=True)
    (source / "usr/bin/vgpuctl").write_text("not a program")
    digest = hashlib.sha256(b"not a program").hexdigest()
    record = json.loads((source / manifest.PATH).read_text())
    record["files"][0]["sha256"] = digest
    (source / manifest.PATH).write_text(json.dumps(record))
    with pytest.raises(VgpuError, match="noexec"):
        put(source, host)
    assert install.current(str(host / "opt")) == ""


def test_removal_waits_or_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    """Of what kubelet has made for the pod nothing stays either. /var/run is a link, as on every distribution."""
    host, node = tmp_path / "host", settings.Settings()
    for name in ("etc", "opt", "run", "var/lib"):
        (host / name).mkdir(parents=True)
    (host / "var/run").symlink_to("/run")
    before = sorted(host.rglob("*"))
    for path in made_by_kubelet():
        os.makedirs(str(host) + remove.resolved(str(host), path), exist_ok=True)
    put(image(tmp_path / "1", "1.0"), host)
    cdi.write(str(host), "/run/cdi", "/opt/current/usr/bin")
    run, state = str(host) + node.run_dir, str(host) + node.state_dir
    os.makedirs(paths.container(run, "c1"))
    os.makedirs(paths.grants(state))
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    card = CardLimit("GPU-1", 1 << 30, 10, 10, False)
    claim = Claim("c1", os.getpid(), start, [card], False, None, [], "", 0.0, name="default/p/c", boot_id=boot)
    Path(paths.claim(run, "c1")).write_text(json.dumps(claim.record()))
    told: list[list[str]] = []

    def wait(left: list[str]) -> bool:
        told.append(left)
        return False

    with pytest.raises(VgpuError, match="default/p/c"):
        remove.remove(str(host), "/opt", ["/etc/cdi"], node, wait)
    assert in_force(host)
    assert (host / "etc/cdi/vgpu.json").exists()
    shutil.rmtree(paths.container(run, "c1"))
    (host / "opt/vgpu").rmdir()  # the releases of this test lie beside it
    (host / "opt/of-others").mkdir()
    gone = remove.remove(str(host), "/opt", ["/etc/cdi", "/var/run/cdi"], node, wait)
    assert gone == ["/etc/cdi/vgpu.json", "/run/cdi/vgpu.json", "/opt", node.run_dir, node.state_dir]
    assert [path for path in sorted(host.rglob("*")) if path not in before] == [host / "opt/of-others"]
    assert [path for path in before if not os.path.lexists(path)] == []
    assert told == [["default/p/c"]]


def made_by_kubelet() -> list[str]:
    """The directories of the DaemonSet's volumes that kubelet makes where they are missing."""
    documents = yaml.safe_load_all((CHECKOUT / "packaging/kubernetes/node/objects.yaml").read_text())
    (node,) = (one["spec"]["template"]["spec"] for one in documents if one["kind"] == "DaemonSet")
    places = [volume.get("hostPath", {}) for volume in node["volumes"]]
    return [one["path"] for one in places if one.get("type") == "DirectoryOrCreate"]


@pytest.mark.parametrize(
    ("wished", "read", "chosen"),
    [
        ("", ("/etc/cdi", "/var/run/cdi"), "/etc/cdi"),
        ("", ("/var/run/cdi", "/etc/cdi"), "/etc/cdi"),
        ("", ("/var/lib/x/cdi",), "/var/lib/x/cdi"),
        ("/var/run/cdi", ("/etc/cdi", "/var/run/cdi"), "/var/run/cdi"),
        ("/opt/cdi", ("/etc/cdi",), ""),
        ("", (), ""),
    ],
)
def test_the_specification_goes_where_the_runtime_looks(wished: str, read: tuple[str, ...], chosen: str) -> None:
    if chosen:
        assert cdi.choose(wished, read) == chosen
    else:
        with pytest.raises(VgpuError, match="one that the runtime reads"):
            cdi.choose(wished, read)
