"""The main job with real runc: an allocation from the annotation to the CUDA program, on cgroup v1 and v2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import bundles
import nodes
import pytest
import trees

pytestmark = pytest.mark.root

MIB = 1 << 20
GIB = 1 << 30
Rootfs = Callable[..., Path]
MakeBundle = Callable[..., bundles.Bundle]

SYS_openat2, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_mount_setattr = 437, 428, 429, 430, 442
OLD_KERNELS = {
    "5.4": (SYS_openat2, SYS_mount_setattr),
    "4.18": (SYS_openat2, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_mount_setattr),
}


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def run(runtime: bundles.Runtime, bundle: bundles.Bundle, *command: str) -> str:
    """The container's output. A failure fails the test with the runtime's error."""
    done = runtime.run(bundle.command(*command))
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def refused(runtime: bundles.Runtime, bundle: bundles.Bundle) -> str:
    """The hook's line in runc's error. A poststop hook that finds the same file damaged writes another line later."""
    done = runtime.run(bundle.command("true"))
    assert done.returncode != 0, "the container started"
    line, _, rest = done.stderr.partition("vgpu-hook: ")[2].partition("\\n")
    assert line, done.stderr
    assert rest.startswith('"'), f"more than one line: {rest}"
    return line


def listing(root: Path) -> dict[str, str]:
    """Every path below `root` with its kind, link target, and content if it is small."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = "link " + os.readlink(path)
        elif path.is_file():
            found[name] = f"file {path.stat().st_size} {path.stat().st_mode:o}"
        else:
            found[name] = "directory"
    return found


# The container of a share


def test_share_sees_its_own_total_and_hits_its_limit(runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi")
    out = pairs(run(runc, share, "sh", "-c", "cudaprobe info && cudaprobe alloc 256 20"))
    assert out["cards"] == "1"
    assert {out["card0.total"], out["card0.info_total"], out["card0.nvml_total"]} == {str(2 * GIB)}
    assert int(out["held"]) * 256 * MIB <= 2 * GIB
    assert int(out["held"]) >= 6
    assert out["refused"] == "2"  # CUDA_ERROR_OUT_OF_MEMORY


def test_devices_granted_open_and_others_are_refused(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi", use_gpuuuid=node.read_cards()[0]["uuid"])
    script = (
        "mknod /tmp/other c 195 0; mknod /tmp/fuse c 10 229; mknod /tmp/mem c 1 1; ls /dev | grep nvidia;"
        "cudaprobe open /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm /tmp/other /tmp/fuse /tmp/mem /dev/null"
    )
    out = run(runc, share, "sh", "-c", script)
    assert out.splitlines()[:4] == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia1", "nvidiactl"]
    results = pairs(out)
    for granted in ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"):
        assert results[granted] == "No such device or address", "permitted, but there is no driver here"
    for other in ("/tmp/other", "/tmp/fuse", "/tmp/mem"):
        assert results[other] == "Operation not permitted"
    assert results["/dev/null"] == "opened"


def test_a_granted_device_with_a_driver_really_opens(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    """10:229 (fuse) replaces the uvm node, as it has a driver on this machine."""
    path = Path(node.settings.run_dir) / "inventory.json"
    inventory = json.loads(path.read_text())
    uvm = next(device for device in inventory["devices"] if device["name"] == "nvidia-uvm")
    uvm.update(major=10, minor=229)
    Path(uvm["path"]).unlink()
    os.mknod(uvm["path"], 0o20666, os.makedev(10, 229))
    path.write_text(json.dumps(inventory))
    out = pairs(run(runc, bundle(rootfs(), cores="30", memory="2Gi"), "cudaprobe", "open", "/dev/nvidia-uvm"))
    assert out == {"/dev/nvidia-uvm": "opened"}


def test_mounts_flags_and_order(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi", use_gpuuuid=node.read_cards()[0]["uuid"])
    lines = [line.split() for line in run(runc1, share, "cat", "/proc/self/mountinfo").splitlines()]
    ours = [(fields[4], set(fields[5].split(",")), fields[6]) for fields in lines]
    ours = [item for item in ours if "nvidia" in item[0] or "cuda" in item[0] or "vgpu" in item[0]]
    ours = [item for item in ours if item[0] != "/run/vgpu-sim"]
    order = [path for path, _, _ in ours]
    flags = {path: options & {"ro", "rw", "nosuid", "nodev", "noexec"} for path, options, _ in ours}
    library = f"/usr/lib/{trees.MULTIARCH}/"
    assert order[:7] == [
        "/usr/local/vgpu", "/usr/local/vgpu/driver/libcuda.so.1", "/usr/local/vgpu/driver/libnvidia-ml.so.1",
        "/usr/local/vgpu/limits", "/usr/local/vgpu/cards", "/usr/local/vgpu/presence", "/usr/local/vgpu/usage",
    ]  # fmt: skip
    kinds = [0 if path.startswith(library) else 1 if path.startswith("/usr/bin/") else 2 for path in order[7:]]
    kinds = [3 if path.startswith("/dev/") else kind for path, kind in zip(order[7:], kinds)]
    assert kinds == sorted(kinds), "libraries, binaries, /usr/local/nvidia, device nodes"
    assert all(tag == "-" for _, _, tag in ours), "no mount propagates"
    for path, options in flags.items():
        if path.startswith("/dev/"):
            assert options == {"rw", "nosuid", "noexec"}, path
        elif path == "/usr/local/vgpu/usage":
            assert options == {"rw", "nosuid", "nodev", "noexec"}
        elif path in ("/usr/local/vgpu/limits", "/usr/local/vgpu/cards", "/usr/local/vgpu/presence"):
            assert options == {"ro", "nosuid", "nodev", "noexec"}
        else:
            assert options == {"ro", "nosuid", "nodev"}, path
    names = {path.rpartition("/")[2].partition(".so")[0] for path in order if path.startswith(library)}
    assert {"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} <= names
    assert not names & {"libnvidia-opencl", "libnvidia-encode", "libEGL_nvidia"}, "these go past the limits"


def test_private_files_cannot_be_written(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    script = (
        "cd /usr/local/vgpu; for f in limits cards presence new driver/libcuda.so.1"
        f" /usr/local/nvidia/lib64/new /usr/lib/{trees.MULTIARCH}/libcuda.so.1 /usr/local/vgpu/usage/new; do"
        " (echo x >> $f) 2>/dev/null && echo wrote $f; done; (: >> /usr/local/vgpu/usage/usage) && echo usage"
    )
    assert run(runc1, bundle(rootfs(), cores="30", memory="2Gi"), "sh", "-c", script) == "usage\n"


def test_existing_images_find_nvidia_smi(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi")
    share.config["process"]["env"] = ["PATH=/bin"]
    out = run(runc1, share, "/usr/local/nvidia/bin/nvidia-smi")
    assert "2048MiB" in out
    assert out.count("A100") == 1


def test_whole_card_gets_the_driver_without_limits(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    out = run(
        runc, bundle(rootfs(), cores="100"), "sh", "-c", "cudaprobe info; ls /usr/local; cat /proc/self/mountinfo"
    )
    assert pairs(out)["card0.total"] == str(node.read_cards()[0]["capacity"])
    assert "vgpu/driver" not in out


def test_two_whole_cards(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode) -> None:
    out = pairs(run(runc1, bundle(rootfs(), cores="200"), "cudaprobe", "info"))
    assert out["cards"] == "2"
    assert {out["card0.uuid"], out["card1.uuid"]} == {card["uuid"][4:].replace("-", "") for card in node.read_cards()}


@pytest.mark.parametrize(
    "env", [[], ["NVIDIA_VISIBLE_DEVICES=all"], ["NVIDIA_VISIBLE_DEVICES=all", "VGPU_GRANT_CORES=x"]]
)
def test_container_without_allocation_sees_no_gpu(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, env: list[str]
) -> None:
    tree = rootfs()
    before = listing(tree)
    plain = bundle(tree)
    plain.config["process"]["env"] += env
    out = run(
        runc,
        plain,
        "sh",
        "-c",
        "mknod /tmp/n c 195 255; cudaprobe open /tmp/n; ls /dev; cat /proc/self/mountinfo; rm /tmp/n",
    )
    assert "/tmp/n Operation not permitted" in out
    assert "nvidia" not in out.replace("/run/vgpu-sim", "")
    assert listing(tree) == before


# Root file systems


@pytest.mark.parametrize("kind", ["debian", "redhat"])
def test_loader_cache_and_ldconfig(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, kind: str) -> None:
    share = bundle(rootfs(kind), cores="30", memory="2Gi")
    share.config["process"]["env"] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    look = "ldconfig -p | grep libcuda.so; cudaprobe info"
    script = f"{look}; ldconfig && echo rebuilt; {look}"
    out = run(runc1, share, "sh", "-c", script)
    directory = {"debian": f"/usr/lib/{trees.MULTIARCH}", "redhat": "/usr/lib64"}[kind]
    assert out.count(f"=> {directory}/libcuda.so.1") == 2
    assert "rebuilt" in out
    assert out.count(f"card0.total {2 * GIB}") == 2


def test_musl_layout(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    """A glibc driver does not run on musl. Its files have to be where musl looks, and nothing else may break."""
    out = run(runc1, bundle(rootfs("musl"), cores="30", memory="2Gi"), "ls", "/usr/lib", "/etc")
    assert "libcuda.so.1" in out
    assert "ld.so.cache" not in out


def test_musl_search_path_of_the_image_is_completed(runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    tree = rootfs("musl")
    path = f"etc/ld-musl-{os.uname().machine}.path"
    (tree / path).write_text("/opt/lib\n")
    assert run(runc1, bundle(tree, cores="30", memory="2Gi"), "cat", "/" + path).split() == ["/usr/lib", "/opt/lib"]


def test_readonly_rootfs(runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi")
    share.config["root"]["readonly"] = True
    out = run(runc, share, "sh", "-c", "cudaprobe info; touch /x 2>/dev/null || echo readonly")
    assert pairs(out)["card0.total"] == str(2 * GIB)
    assert "readonly" in out


def test_user_namespace(runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode) -> None:
    tree = rootfs()
    for path in [tree, *tree.rglob("*")]:
        os.chown(path, 100000, 100000, follow_symlinks=False)
    share = bundle(tree, cores="30", memory="2Gi")
    share.config["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        share.config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    for directory in [share.path, *share.path.parents]:
        if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o005:
            directory.chmod(0o755)
    library = f"/usr/lib/{trees.MULTIARCH}"
    out = run(
        runc,
        share,
        "sh",
        "-c",
        f"cudaprobe info; cudaprobe alloc 512 9; stat -c '%u %n' {library}/libcuda.so /etc/ld.so.cache",
    )
    results = pairs(out)
    assert results["card0.total"] == str(2 * GIB)
    assert results["refused"] == "2"
    assert f"0 {library}/libcuda.so\n0 /etc/ld.so.cache" in out


def test_image_that_carries_driver_files(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    """The image has a driver's libraries, as links and as files. Programs find vgpu's, and the image's files stay."""
    tree = rootfs()
    library = tree / "usr/lib" / trees.MULTIARCH
    (library / "libcuda.so.535.1").write_bytes(b"image")
    (library / "libcuda.so.1").symlink_to("libcuda.so.535.1")
    (library / "libnvidia-ml.so.1").write_bytes(b"image")
    (tree / "usr/local/nvidia/lib64").mkdir(parents=True)
    (tree / "usr/local/nvidia/lib64/libcuda.so.1").write_bytes(b"image")
    out = run(runc1, bundle(tree, cores="30", memory="2Gi"), "cudaprobe", "info")
    assert pairs(out)["card0.nvml_total"] == str(2 * GIB)
    assert (library / "libcuda.so.535.1").read_bytes() == b"image"
    assert (library / "libnvidia-ml.so.1").read_bytes() == b"image"
    assert (tree / "usr/local/nvidia/lib64/libcuda.so.1").read_bytes() == b"image"


COMPAT = "usr/local/cuda-12.4/compat"


def with_compat(tree: Path, node: nodes.SimulatedNode) -> Path:
    """A tree with CUDA's forward compatibility package: a libcuda that LD_LIBRARY_PATH puts first."""
    (tree / COMPAT).mkdir(parents=True)
    (tree / "usr/local/cuda").symlink_to("cuda-12.4")
    real = next((node.driver / "usr/lib" / trees.MULTIARCH).glob("libcuda.so.*.*"))
    shutil.copy(real, tree / COMPAT / "libcuda.so.560.1")
    (tree / COMPAT / "libcuda.so.1").symlink_to("libcuda.so.560.1")
    return tree


def test_compat_libraries_do_not_bypass_the_limit(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    share = bundle(with_compat(rootfs(), node), cores="30", memory="2Gi")
    share.config["process"]["env"].append("LD_LIBRARY_PATH=/usr/local/cuda/compat")
    assert pairs(run(runc1, share, "cudaprobe", "info"))["card0.total"] == str(2 * GIB)
    log = (Path(node.settings.run_dir) / "hook.log").read_text()
    assert "/compat/libcuda.so.560.1: replaced by the node" in log


def test_compat_libraries_can_be_refused(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, tmp_path: Path, node: nodes.SimulatedNode
) -> None:
    strict = nodes.SimulatedNode(tmp_path / "node", "a100x2", **{"driver.compat_libraries": "refuse"})
    line = refused(runc1, bundle(with_compat(rootfs(), strict), cores="30", memory="2Gi"))
    assert "forward compatibility" in line
    assert "/compat/libcuda.so.560.1" in line


@pytest.mark.parametrize("missing", [(), *OLD_KERNELS.values()], ids=["now", *OLD_KERNELS])
@pytest.mark.parametrize(
    "component", ["usr", "usr/lib", "usr/lib/@", "usr/local", "usr/local/nvidia", "usr/local/vgpu", "usr/bin", "etc"]
)
def test_symlinks_in_every_component_stay_inside(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, tmp_path: Path,
    component: str,
    missing: tuple[int, ...],
) -> None:  # fmt: skip
    """Each directory of the path becomes a link out of the rootfs, absolute and with `..`. The host does not change."""
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = rootfs()
    component = component.replace("@", trees.MULTIARCH)
    inside = tree / str(outside).lstrip("/")  # the same path below the root, where the container sees it
    inside.parent.mkdir(parents=True)
    if (tree / component).exists():
        (tree / component).rename(inside)
    (tree / component).parent.mkdir(parents=True, exist_ok=True)
    climbing = "../" * (component.count("/") + 12) + str(outside).lstrip("/")
    (tree / component).symlink_to(climbing if component.count("/") % 2 else outside)
    share = bundle(tree, cores="30", memory="2Gi").hooks(node, without=missing)
    assert pairs(run(runc1, share, "cudaprobe", "info"))["card0.total"] == str(2 * GIB)
    assert list(outside.iterdir()) == []
    assert inside.is_dir(), "what was made lies where the link leads inside"


@pytest.mark.parametrize("missing", OLD_KERNELS.values(), ids=list(OLD_KERNELS))
def test_old_kernels(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, missing: tuple[int, ...]
) -> None:
    """Without openat2, open_tree and related calls the result is the same, flags included."""
    tree = rootfs()
    texts = []
    for without in ((), missing):
        share = bundle(tree, cores="30", memory="2Gi").hooks(node, without=without)
        out = run(runc, share, "sh", "-c", "cudaprobe info; cat /proc/self/mountinfo")
        lines = [line.split() for line in out.splitlines() if "nvidia" in line or "vgpu" in line or "libcuda" in line]
        texts.append((pairs(out)["card0.total"], [(fields[4], fields[5]) for fields in lines if fields[0].isdigit()]))
    assert texts[0] == texts[1]


# Claims


def claims(node: nodes.SimulatedNode) -> dict[str, dict[str, object]]:
    directory = Path(node.settings.run_dir) / "containers"
    return {path.parent.name: json.loads(path.read_text()) for path in directory.glob("*/claim.json")}


def test_containers_share_a_card_until_it_is_full(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    tree = rootfs()
    first, done = runc1.create(bundle(tree, cores="60", memory="20Gi").command("sleep", "60"))
    assert done.returncode == 0, done.stderr
    second, done = runc1.create(bundle(tree, cores="60", memory="20Gi").command("sleep", "60"))
    assert done.returncode == 0, done.stderr
    cards = [claim["cards"][0]["uuid"] for claim in claims(node).values()]  # type: ignore[index]
    assert len(set(cards)) == 2
    line = refused(runc1, bundle(tree, cores="50", memory="1Gi"))
    for card in node.read_cards():
        assert card["uuid"] in line
    assert "40" in line
    assert set(claims(node)) == {first, second}
    status = json.loads(node.vgpuctl("status", "--output", "json").stdout)
    assert {row["container"] for row in status["containers"]} == {first, second}
    runc1.delete(first)
    assert set(claims(node)) == {second}
    runc1.delete(second)
    assert claims(node) == {}


def test_a_late_poststop_leaves_the_restarted_container_alone(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    share = bundle(rootfs(), cores="30", memory="2Gi").command("sleep", "60")
    container, done = runc1.create(share)
    assert done.returncode == 0, done.stderr
    state = runc1.state(container)
    late = json.dumps({**state, "status": "stopped", "pid": 0})
    poststop = subprocess.run(
        [node.hook, "--config", node.config, "poststop"], input=late, capture_output=True, text=True, check=False
    )
    assert poststop.returncode == 0, poststop.stderr
    assert set(claims(node)) == {container}
    runc1.delete(container)
    assert claims(node) == {}


def test_hook_listed_twice_claims_once(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode
) -> None:
    share = bundle(rootfs(), cores="60", memory="2Gi").hooks(node, "createRuntime")
    out = run(runc1, share, "sh", "-c", "grep -c /dev/nvidiactl /proc/self/mountinfo")
    assert out == "1\n"


POD = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"


def granted(node: nodes.SimulatedNode, cores: int, mib: int) -> dict[str, str]:
    return {
        "vgpu.io__grant_cores": node.grant("cores", cores),
        "vgpu.io__grant_memory": node.grant("memory", mib * MIB),
    }


def test_grants_are_claimed_again_by_the_same_container_only(
    runc: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, cgroup: str
) -> None:
    tree = rootfs()
    grants = granted(node, 40, 1024)
    first = pairs(run(runc, bundle(tree).pod(POD, "train", cgroup, **grants), "cudaprobe", "info"))
    assert first["card0.total"] == str(GIB)
    shutil.rmtree(node.settings.run_dir + "/containers")  # a reboot
    again = pairs(run(runc, bundle(tree).pod(POD, "train", cgroup, **grants), "cudaprobe", "info"))
    assert again["card0.uuid"] == first["card0.uuid"]
    assert POD in refused(runc, bundle(tree).pod(POD, "other", cgroup, **grants))
    stranger = str(uuid.uuid4())
    assert stranger in refused(runc, bundle(tree).pod(stranger, "train", cgroup, **grants))


def test_grants_by_environment(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, cgroup: str
) -> None:
    """Runtimes that drop annotations pass the ids on in the environment."""
    share = bundle(rootfs()).pod(POD, "train", cgroup)
    ids = granted(node, 40, 1024).values()
    share.config["process"]["env"] += [f"VGPU_GRANT_{name}={id}" for name, id in zip(("CORES", "MEMORY"), ids)]
    assert pairs(run(runc1, share, "cudaprobe", "info"))["card0.total"] == str(GIB)


def test_tenants_cannot_forge(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, cgroup: str
) -> None:
    """Amounts in a pod's annotations have no effect, and an invented grant stops the container."""
    wish = bundle(rootfs(), cores="100", memory="40Gi").pod(POD, "train", cgroup)
    assert "nvidia" not in run(runc1, wish, "ls", "/dev")
    forged = bundle(rootfs()).pod(POD, "train", cgroup, **{"vgpu.io__grant_cores": "f" * 32})
    assert "unknown" in refused(runc1, forged)
    half = bundle(rootfs()).pod(POD, "train", cgroup, **{"vgpu.io__grant_cores": node.grant("cores", 30)})
    assert "memory" in refused(runc1, half)
    assert claims(node) == {}


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"cores": "150", "memory": "1Gi"}, "150"),
        ({"cores": "-5", "memory": "1Gi"}, "-5"),
        ({"cores": "1e9", "memory": "1Gi"}, "1e9"),
        ({"cores": "99999999999999999999", "memory": "1Gi"}, "99999999999999999999"),
        ({"cores": "30"}, "memory"),
        ({"memory": "1Gi"}, "cores"),
        ({"cores": "30", "memory": "41Gi"}, "GPU-"),
        ({"cores": "300"}, "2 cards"),
        ({"cores": "30", "memory": "1Gi", "core_limit": "20"}, "20"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(
    runc1: bundles.Runtime,
    rootfs: Rootfs,
    bundle: MakeBundle,
    node: nodes.SimulatedNode,
    annotations: dict[str, str],
    says: str,
) -> None:
    tree = rootfs()
    before = listing(tree)
    assert says in refused(runc1, bundle(tree, **annotations))
    assert claims(node) == {}
    assert listing(tree) == before


# Failure


def test_failure_half_way_leaves_nothing(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, cgroup: str
) -> None:
    """A directory blocks the place of nvidia-smi. The libraries are mounted before, and the hook removes all mounts."""
    tree = rootfs()
    (tree / "usr/bin/nvidia-smi").mkdir()
    before = listing(tree)
    grants = granted(node, 40, 1024)
    line = refused(runc1, bundle(tree).pod(POD, "train", cgroup, **grants))
    assert "nvidia-smi" in line
    assert "Is a directory" in line
    assert listing(tree) == before
    assert claims(node) == {}
    records = [json.loads(path.read_text()) for path in Path(node.settings.state_dir, "grants").iterdir()]
    assert [record["holder"] for record in records] == [None, None]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff\xfe", b"{" * 100000, b'{"version": 99}', b"x" * (20 << 20)]
)
@pytest.mark.parametrize("which", ["inventory", "settings", "grant", "claim"])
def test_damaged_files_stop_only_what_needs_them(
    runc1: bundles.Runtime,
    rootfs: Rootfs,
    bundle: MakeBundle,
    node: nodes.SimulatedNode,
    cgroup: str,
    which: str,
    damage: bytes,
) -> None:
    tree = rootfs()
    other, done = runc1.create(bundle(tree, cores="10", memory="1Gi").command("sleep", "60"), "other")
    assert done.returncode == 0, done.stderr
    grants = granted(node, 40, 1024)
    paths = {
        "inventory": Path(node.settings.run_dir) / "inventory.json",
        "settings": node.config,
        "grant": Path(node.settings.state_dir) / f"grants/{grants['vgpu.io__grant_cores']}.json",
        "claim": Path(node.settings.run_dir) / "containers" / other / "claim.json",
    }
    limits = paths["claim"].with_name("limits").read_bytes()
    paths[which].write_bytes(damage)
    share = bundle(tree).pod(POD, "train", cgroup, **grants)
    if which == "claim":  # another container's: reported, and still counted
        assert pairs(run(runc1, share, "cudaprobe", "info"))["card0.total"] == str(GIB)
        assert "claim.json" in (Path(node.settings.run_dir) / "hook.log").read_text()
        assert "50 cores free" in refused(
            runc1, bundle(tree, cores="95", memory="1Gi", use_gpuuuid=node.read_cards()[0]["uuid"])
        )
    else:
        assert str(paths[which]) in refused(runc1, share)
    run(runc1, bundle(tree), "true")
    assert paths["claim"].with_name("limits").read_bytes() == limits


# The shim and the dry run


def test_shim_adds_the_hook(tmp_path: Path, rootfs: Rootfs, node: nodes.SimulatedNode) -> None:
    shim = bundles.Runtime(tmp_path / "shim", str(node.shim), "--vgpu-config", str(node.config))
    try:
        share = bundles.Bundle(tmp_path / "b1", rootfs(), {"vgpu.io/cores": "30", "vgpu.io/memory": "2Gi"})
        out = pairs(run(shim, share.simulated(node), "cudaprobe", "info"))
        assert out["card0.total"] == str(2 * GIB)
        assert claims(node) == {}
        plain = bundles.Bundle(tmp_path / "b2", rootfs())
        run(shim, plain, "true")
        assert "hooks" not in json.loads((plain.path / "config.json").read_text())
    finally:
        shim.cleanup()


def test_dry_run_prints_the_plan_and_does_nothing(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, tmp_path: Path
) -> None:
    tree = rootfs()
    share = bundle(tree, cores="30", memory="2Gi")
    del share.config["hooks"]
    container, done = runc1.create(share.command("sleep", "60"))
    assert done.returncode == 0, done.stderr
    before = listing(tree)
    state = runc1.call("state", container, check=True).stdout
    command = [node.hook, "--config", node.config, "--dry-run", "prestart"]
    plan = subprocess.run(command, input=state, capture_output=True, text=True, check=True).stdout
    assert "libvcuda" in plan or "vcuda/libcuda.so.1" in plan
    assert "device /dev/nvidiactl 195:255" in plan
    assert "/usr/local/vgpu" in plan
    assert listing(tree) == before
    assert claims(node) == {}


# Containers side by side


def held_beside(
    runtime: bundles.Runtime, bundle: MakeBundle, tree: Path, shared: Path, mine: int, asked: int
) -> dict[str, str]:
    """A container holds `mine` MiB. Another, whose program is pid 1 too, allocates 512 MiB `asked` times."""
    shared.mkdir()
    first = bundle(tree, cores="30", memory="13Gi").bind(shared, "/tmp", "rw")
    container, done = runtime.create(first.command("cudaprobe", "hold", str(mine), "/tmp/go"))
    assert done.returncode == 0, done.stderr
    assert runtime.call("start", container).returncode == 0
    end = time.monotonic() + 60
    while "result 0" not in (first.path / "output").read_text():
        assert time.monotonic() < end, (first.path / "output").read_text()
        time.sleep(0.05)
    second = bundle(tree, cores="30", memory="13Gi")
    out = pairs(run(runtime, second, "cudaprobe", "alloc", "512", str(asked)))
    (shared / "go").touch()
    return out


@pytest.mark.parametrize(("virtual", "least", "most"), [(False, 4, 5), (True, 24, 26)])
def test_an_oversubscribed_card_is_full_or_goes_on_in_virtual_memory(
    runc1: bundles.Runtime, rootfs: Rootfs, tmp_path: Path, virtual: bool, least: int, most: int
) -> None:
    """Two shares of 13 GiB on a card of 15 GiB. If set so, memory that the second cannot get there is on the host."""
    settings = {"scaling.memory": 2.0, "scaling.virtual_memory": virtual}
    node = nodes.SimulatedNode(tmp_path / "t4", "t4x1", **settings)
    node.take_inventory()

    def bundle(tree: Path, **annotations: str) -> bundles.Bundle:
        keys = {"vgpu.io/" + key: value for key, value in annotations.items()}
        return bundles.Bundle(tmp_path / f"b{uuid.uuid4().hex[:6]}", tree, keys).hooks(node).simulated(node)

    out = held_beside(runc1, bundle, rootfs(), tmp_path / "shared", 12000, 40)
    assert least <= int(out["held"]) <= most
    assert out["refused"] == "2"


def test_a_container_is_not_charged_for_another_with_the_same_pids(
    runc1: bundles.Runtime, rootfs: Rootfs, bundle: MakeBundle, node: nodes.SimulatedNode, tmp_path: Path
) -> None:
    """Both programs are pid 1 of their container, so NVML lists two processes with that pid on the card."""
    out = held_beside(runc1, bundle, rootfs(), tmp_path / "shared", 12000, 20)
    assert int(out["held"]) == 20
