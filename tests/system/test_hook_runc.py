"""The main job with real runc: an allocation from the annotation to the CUDA program, on cgroup v1 and v2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
import trees
from container_site import BOTH, GIB, MIB, OLD_KERNELS, Site, listing, of_a_user_namespace, pairs
from daemons import wait_for

pytestmark = pytest.mark.root

# The container of a share


@BOTH
def test_share_sees_its_own_total_and_hits_its_limit(site: Site) -> None:
    share = site.share()
    out = site.seen(share, "sh", "-c", "cudaprobe info && cudaprobe alloc 256 20")
    assert out["cards"] == "1"
    assert {out["card0.total"], out["card0.info_total"], out["card0.nvml_total"]} == {str(2 * GIB)}
    assert int(out["held"]) * 256 * MIB <= 2 * GIB
    assert int(out["held"]) >= 6
    assert out["refused"] == "2"  # CUDA_ERROR_OUT_OF_MEMORY


@BOTH
def test_devices_granted_open_and_others_are_refused(site: Site) -> None:
    share = site.share(use_gpuuuid=site.node.read_cards()[0]["uuid"])
    script = (
        "mknod /tmp/other c 195 0; mknod /tmp/fuse c 10 229; mknod /tmp/mem c 1 1; ls /dev | grep nvidia;"
        "cudaprobe open /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm /tmp/other /tmp/fuse /tmp/mem /dev/null"
    )
    out = site.output(share, "sh", "-c", script)
    assert out.splitlines()[:4] == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia1", "nvidiactl"]
    results = pairs(out)
    for granted in ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"):
        assert results[granted] == "No such device or address", "permitted, but there is no driver here"
    for other in ("/tmp/other", "/tmp/fuse", "/tmp/mem"):
        assert results[other] == "Operation not permitted"
    assert results["/dev/null"] == "opened"


@BOTH
def test_a_granted_device_with_a_driver_really_opens(site: Site) -> None:
    """10:229 (fuse) replaces the uvm node, as it has a driver on this machine."""
    path = site.node.run_dir / "inventory.json"
    inventory = json.loads(path.read_text())
    uvm = next(device for device in inventory["devices"] if device["name"] == "nvidia-uvm")
    uvm.update(major=10, minor=229)
    Path(uvm["path"]).unlink()
    os.mknod(uvm["path"], 0o20666, os.makedev(10, 229))
    path.write_text(json.dumps(inventory))
    out = site.seen(site.share(), "cudaprobe", "open", "/dev/nvidia-uvm")
    assert out == {"/dev/nvidia-uvm": "opened"}


def test_mounts_flags_and_order(site: Site) -> None:
    share = site.share(use_gpuuuid=site.node.read_cards()[0]["uuid"])
    lines = [line.split() for line in site.output(share, "cat", "/proc/self/mountinfo").splitlines()]
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


def test_private_files_cannot_be_written(site: Site) -> None:
    script = (
        "cd /usr/local/vgpu; for f in limits cards presence new driver/libcuda.so.1"
        f" /usr/local/nvidia/lib64/new /usr/lib/{trees.MULTIARCH}/libcuda.so.1 /usr/local/vgpu/usage/new; do"
        " (echo x >> $f) 2>/dev/null && echo wrote $f; done; (: >> /usr/local/vgpu/usage/usage) && echo usage"
    )
    assert site.output(site.share(), "sh", "-c", script) == "usage\n"


def test_existing_images_find_nvidia_smi(site: Site) -> None:
    share = site.share()
    share.config["process"]["env"] = ["PATH=/bin"]
    out = site.output(share, "/usr/local/nvidia/bin/nvidia-smi")
    assert "2048MiB" in out
    assert out.count("A100") == 1


@BOTH
def test_whole_card_gets_the_driver_without_limits(site: Site) -> None:
    out = site.output(site.bundle(cores="100"), "sh", "-c", "cudaprobe info; ls /usr/local; cat /proc/self/mountinfo")
    assert pairs(out)["card0.total"] == str(site.node.read_cards()[0]["capacity"])
    assert "vgpu/driver" not in out


def test_two_whole_cards(site: Site) -> None:
    out = site.seen(site.bundle(cores="200"))
    assert out["cards"] == "2"
    every = {card["uuid"][4:].replace("-", "") for card in site.node.read_cards()}
    assert {out["card0.uuid"], out["card1.uuid"]} == every


def test_container_without_allocation_is_left_as_it_was(site: Site) -> None:
    """What it cannot open is in test_runtime_contract.py."""
    tree = site.tree()
    before = listing(tree)
    plain = site.bundle(tree)
    plain.config["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "VGPU_GRANT_CORES=x"]
    out = site.output(plain, "sh", "-c", "ls /dev; cat /proc/self/mountinfo")
    assert "nvidia" not in out.replace("/run/vgpu-sim", "")
    assert listing(tree) == before


# Root file systems


@pytest.mark.parametrize("kind", ["debian", "redhat"])
def test_loader_cache_and_ldconfig(site: Site, kind: str) -> None:
    share = site.share(tree=site.tree(kind))
    share.config["process"]["env"] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    look = "ldconfig -p | grep libcuda.so; cudaprobe info"
    script = f"{look}; ldconfig && echo rebuilt; {look}"
    out = site.output(share, "sh", "-c", script)
    directory = {"debian": f"/usr/lib/{trees.MULTIARCH}", "redhat": "/usr/lib64"}[kind]
    assert out.count(f"=> {directory}/libcuda.so.1") == 2
    assert "rebuilt" in out
    assert out.count(f"card0.total {2 * GIB}") == 2


def test_musl_layout(site: Site) -> None:
    """A glibc driver does not run on musl. Its files have to be where musl looks, and nothing else may break."""
    out = site.output(site.share(tree=site.tree("musl")), "ls", "/usr/lib", "/etc")
    assert "libcuda.so.1" in out
    assert "ld.so.cache" not in out


def test_musl_search_path_of_the_image_is_completed(site: Site) -> None:
    tree = site.tree("musl")
    path = f"etc/ld-musl-{os.uname().machine}.path"
    (tree / path).write_text("/opt/lib\n")
    assert site.output(site.share(tree=tree), "cat", "/" + path).split() == ["/usr/lib", "/opt/lib"]


@BOTH
def test_readonly_rootfs(site: Site) -> None:
    share = site.share()
    share.config["root"]["readonly"] = True
    out = site.output(share, "sh", "-c", "cudaprobe info; touch /x 2>/dev/null || echo readonly")
    assert pairs(out)["card0.total"] == str(2 * GIB)
    assert "readonly" in out


@BOTH
def test_user_namespace(site: Site) -> None:
    library = f"/usr/lib/{trees.MULTIARCH}"
    look = f"cudaprobe info; cudaprobe alloc 512 9; stat -c '%u %n' {library}/libcuda.so /etc/ld.so.cache"
    out = site.output(of_a_user_namespace(site.share()), "sh", "-c", look)
    results = pairs(out)
    assert results["card0.total"] == str(2 * GIB)
    assert results["refused"] == "2"
    assert f"0 {library}/libcuda.so\n0 /etc/ld.so.cache" in out


def test_image_that_carries_driver_files(site: Site) -> None:
    """The image has a driver's libraries, as links and as files. Programs find vgpu's, and the image's files stay."""
    tree = site.tree()
    library = tree / "usr/lib" / trees.MULTIARCH
    (library / "libcuda.so.535.1").write_bytes(b"image")
    (library / "libcuda.so.1").symlink_to("libcuda.so.535.1")
    (library / "libnvidia-ml.so.1").write_bytes(b"image")
    (tree / "usr/local/nvidia/lib64").mkdir(parents=True)
    (tree / "usr/local/nvidia/lib64/libcuda.so.1").write_bytes(b"image")
    assert site.seen(site.share(tree=tree))["card0.nvml_total"] == str(2 * GIB)
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


def test_compat_libraries_do_not_bypass_the_limit(site: Site) -> None:
    share = site.share(tree=with_compat(site.tree(), site.node))
    share.config["process"]["env"].append("LD_LIBRARY_PATH=/usr/local/cuda/compat")
    assert site.seen(share)["card0.total"] == str(2 * GIB)
    assert "/compat/libcuda.so.560.1: replaced by the node" in str(site.node.log())


def test_compat_libraries_can_be_refused(site: Site) -> None:
    site.node.change_settings(**{"driver.compat_libraries": "refuse"})
    line = site.refused(site.share(tree=with_compat(site.tree(), site.node)))
    assert "forward compatibility" in line
    assert "/compat/libcuda.so.560.1" in line


@pytest.mark.parametrize("missing", [(), *OLD_KERNELS.values()], ids=["now", *OLD_KERNELS])
@pytest.mark.parametrize(
    "component", ["usr", "usr/lib", "usr/lib/@", "usr/local", "usr/local/nvidia", "usr/local/vgpu", "usr/bin", "etc"]
)
def test_symlinks_in_every_component_stay_inside(
    site: Site, tmp_path: Path, component: str, missing: tuple[int, ...]
) -> None:
    """Each directory of the path becomes a link out of the rootfs, absolute and with `..`. The host does not change."""
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = site.tree()
    component = component.replace("@", trees.MULTIARCH)
    inside = tree / str(outside).lstrip("/")  # the same path below the root, where the container sees it
    inside.parent.mkdir(parents=True)
    if (tree / component).exists():
        (tree / component).rename(inside)
    (tree / component).parent.mkdir(parents=True, exist_ok=True)
    climbing = "../" * (component.count("/") + 12) + str(outside).lstrip("/")
    (tree / component).symlink_to(climbing if component.count("/") % 2 else outside)
    share = site.share(tree=tree).hooks(site.node, without=missing)
    assert site.seen(share)["card0.total"] == str(2 * GIB)
    assert list(outside.iterdir()) == []
    assert inside.is_dir(), "what was made lies where the link leads inside"


@BOTH
@pytest.mark.parametrize("missing", OLD_KERNELS.values(), ids=list(OLD_KERNELS))
def test_old_kernels(site: Site, missing: tuple[int, ...]) -> None:
    """Without openat2, open_tree and related calls the result is the same, flags included."""
    tree = site.tree()
    texts = []
    for without in ((), missing):
        share = site.share(tree=tree).hooks(site.node, without=without)
        out = site.output(share, "sh", "-c", "cudaprobe info; cat /proc/self/mountinfo")
        lines = [line.split() for line in out.splitlines() if "nvidia" in line or "vgpu" in line or "libcuda" in line]
        texts.append((pairs(out)["card0.total"], [(fields[4], fields[5]) for fields in lines if fields[0].isdigit()]))
    assert texts[0] == texts[1]


# Claims


def test_containers_share_a_card_until_it_is_full(site: Site) -> None:
    tree = site.tree()
    first = site.create(site.bundle(tree, cores="60", memory="20Gi"))
    second = site.create(site.bundle(tree, cores="60", memory="20Gi"))
    cards = [claim["cards"][0]["uuid"] for claim in site.node.claims().values()]
    assert len(set(cards)) == 2
    line = site.refused(site.bundle(tree, cores="50", memory="1Gi"))
    for card in site.node.read_cards():
        assert card["uuid"] in line
    assert "40" in line
    assert set(site.node.claims()) == {first, second}
    status = site.node.status()
    assert {row["container"] for row in status["containers"]} == {first, second}
    site.delete(first)
    assert set(site.node.claims()) == {second}
    site.delete(second)
    assert site.node.claims() == {}


def test_a_late_poststop_leaves_the_restarted_container_alone(site: Site) -> None:
    container = site.create(site.share())
    late = json.dumps({**site.runtime.state(container), "status": "stopped", "pid": 0})
    command = [site.node.hook, "--config", site.node.config, "poststop"]
    poststop = subprocess.run(command, input=late, capture_output=True, text=True, check=False)
    assert poststop.returncode == 0, poststop.stderr
    assert set(site.node.claims()) == {container}
    site.delete(container)
    assert site.node.claims() == {}


def test_hook_listed_twice_claims_once(site: Site) -> None:
    share = site.bundle(cores="60", memory="2Gi").hooks(site.node, "createRuntime")
    out = site.output(share, "sh", "-c", "grep -c /dev/nvidiactl /proc/self/mountinfo")
    assert out == "1\n"


POD = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"


@BOTH
def test_grants_are_claimed_again_by_the_same_container_only(site: Site, cgroup: str) -> None:
    tree = site.tree()
    grants = site.granted(40, 1024)
    first = site.seen(site.bundle(tree).pod(POD, "train", cgroup, **grants))
    assert first["card0.total"] == str(GIB)
    shutil.rmtree(site.node.settings.run_dir + "/containers")  # a reboot
    again = site.seen(site.bundle(tree).pod(POD, "train", cgroup, **grants))
    assert again["card0.uuid"] == first["card0.uuid"]
    assert POD in site.refused(site.bundle(tree).pod(POD, "other", cgroup, **grants))
    stranger = str(uuid.uuid4())
    assert stranger in site.refused(site.bundle(tree).pod(stranger, "train", cgroup, **grants))


def test_grants_by_environment(site: Site, cgroup: str) -> None:
    """Runtimes that drop annotations pass the ids on in the environment."""
    share = site.bundle().pod(POD, "train", cgroup)
    ids = site.granted(40, 1024).values()
    share.config["process"]["env"] += [f"VGPU_GRANT_{name}={id}" for name, id in zip(("CORES", "MEMORY"), ids)]
    assert site.seen(share)["card0.total"] == str(GIB)


def test_tenants_cannot_forge(site: Site, cgroup: str) -> None:
    """Amounts in a pod's annotations have no effect, and an invented grant stops the container."""
    wish = site.bundle(cores="100", memory="40Gi").pod(POD, "train", cgroup)
    assert "nvidia" not in site.output(wish, "ls", "/dev")
    forged = site.bundle().pod(POD, "train", cgroup, **{"vgpu.io__grant_cores": "f" * 32})
    assert "unknown" in site.refused(forged)
    half = site.bundle().pod(POD, "train", cgroup, **{"vgpu.io__grant_cores": site.node.grant("cores", 30)})
    assert "memory" in site.refused(half)
    assert site.node.claims() == {}


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
def test_bad_requests_are_refused_with_the_reason(site: Site, annotations: dict[str, str], says: str) -> None:
    tree = site.tree()
    before = listing(tree)
    assert says in site.refused(site.bundle(tree, **annotations))
    assert site.node.claims() == {}
    assert listing(tree) == before


# Failure


def test_failure_half_way_leaves_nothing(site: Site, cgroup: str) -> None:
    """A directory blocks the place of nvidia-smi. The libraries are mounted before, and the hook removes all mounts."""
    tree = site.tree()
    (tree / "usr/bin/nvidia-smi").mkdir()
    before = listing(tree)
    grants = site.granted(40, 1024)
    line = site.refused(site.bundle(tree).pod(POD, "train", cgroup, **grants))
    assert "nvidia-smi" in line
    assert "Is a directory" in line
    assert listing(tree) == before
    assert site.node.claims() == {}
    assert [grant.holder for grant in site.node.grants()] == [None, None]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"\xff\xfe", b"{" * 100000, b'{"version": 99}', b"x" * (20 << 20)]
)
@pytest.mark.parametrize("which", ["inventory", "settings", "grant", "claim"])
def test_damaged_files_stop_only_what_needs_them(site: Site, cgroup: str, which: str, damage: bytes) -> None:
    tree = site.tree()
    other = site.create(site.bundle(tree, cores="10", memory="1Gi"))
    grants = site.granted(40, 1024)
    paths = {
        "inventory": site.node.run_dir / "inventory.json",
        "settings": site.node.config,
        "grant": Path(site.node.settings.state_dir) / f"grants/{grants['vgpu.io__grant_cores']}.json",
        "claim": site.node.containers / other / "claim.json",
    }
    limits = paths["claim"].with_name("limits").read_bytes()
    paths[which].write_bytes(damage)
    share = site.bundle(tree).pod(POD, "train", cgroup, **grants)
    if which == "claim":  # another container's: reported, and still counted
        assert site.seen(share)["card0.total"] == str(GIB)
        assert "claim.json" in str(site.node.log())
        greedy = site.bundle(tree, cores="95", memory="1Gi", use_gpuuuid=site.node.read_cards()[0]["uuid"])
        assert "50 cores free" in site.refused(greedy)
    else:
        assert str(paths[which]) in site.refused(share)
    site.output(site.bundle(tree), "true")
    assert paths["claim"].with_name("limits").read_bytes() == limits


# The shim and the dry run


def test_shim_adds_the_hook(site: Site) -> None:
    site.runtime = site.other_runtime(str(site.node.shim), "--vgpu-config", str(site.node.config))
    assert site.seen(site.plain_bundle(cores="30", memory="2Gi"))["card0.total"] == str(2 * GIB)
    assert site.node.claims() == {}
    plain = site.plain_bundle()
    site.output(plain)
    assert "hooks" not in json.loads((plain.path / "config.json").read_text())


def test_dry_run_prints_the_plan_and_does_nothing(site: Site) -> None:
    tree = site.tree()
    container = site.create(site.plain_bundle(tree, cores="30", memory="2Gi"))
    before = listing(tree)
    state = site.runtime.call("state", container, check=True).stdout
    command = [site.node.hook, "--config", site.node.config, "--dry-run", "prestart"]
    plan = subprocess.run(command, input=state, capture_output=True, text=True, check=True).stdout
    assert "vcuda/libcuda.so.1" in plan
    assert "device /dev/nvidiactl 195:255" in plan
    assert "/usr/local/vgpu" in plan
    assert listing(tree) == before
    assert site.node.claims() == {}


# Containers side by side


def held_beside(site: Site, shared: Path, asked: int) -> dict[str, str]:
    """A container holds 12,000 MiB. Another, whose program is pid 1 too, allocates 512 MiB `asked` times."""
    tree = site.tree()
    shared.mkdir()
    first = site.bundle(tree, cores="30", memory="13Gi").bind(shared, "/tmp", "rw")
    site.start(first, "cudaprobe", "hold", "12000", "/tmp/go")
    output = first.path / "output"
    wait_for(lambda: "result 0" in output.read_text(), what=output.read_text)
    out = site.seen(site.bundle(tree, cores="30", memory="13Gi"), "cudaprobe", "alloc", "512", str(asked))
    (shared / "go").touch()
    return out


@pytest.mark.parametrize(("virtual", "least", "most"), [(False, 4, 5), (True, 24, 26)])
def test_an_oversubscribed_card_is_full_or_goes_on_in_virtual_memory(
    make_site: Callable[..., Site], tmp_path: Path, virtual: bool, least: int, most: int
) -> None:
    """Two shares of 13 GiB on a card of 15 GiB. If set so, memory that the second cannot get there is on the host."""
    site = make_site("t4x1", **{"scaling.memory": 2.0, "scaling.virtual_memory": virtual})
    out = held_beside(site, tmp_path / "shared", 40)
    assert least <= int(out["held"]) <= most
    assert out["refused"] == "2"


def test_a_container_is_not_charged_for_another_with_the_same_pids(site: Site, tmp_path: Path) -> None:
    """Both programs are pid 1 of their container, so NVML lists two processes with that pid on the card."""
    assert int(held_beside(site, tmp_path / "shared", 20)["held"]) == 20
