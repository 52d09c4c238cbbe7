"""What the hook makes in a container, with real runc on cgroup v1 and v2: mounts, root file systems, old kernels.

What every runtime must do with a container is in test_runtime_contract.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import container_site
import pytest
import roots
import trees
from checkout import CHECKOUT
from container_site import BOTH, GIB, OLD_KERNELS, Site, kinds_of_host_files, listing, of_a_user_namespace, pairs
from daemons import wait_for

from vgpu.config import paths

pytestmark = pytest.mark.root

# The container of a share


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
    text = site.output(share, "cat", "/proc/self/mountinfo")
    (container,) = site.runtime.started
    assert f" - overlay {paths.mount_source(container)} " in text, "by it the reaper knows that a container lives"
    lines = [line.split() for line in text.splitlines()]
    ours = [(fields[4], set(fields[5].split(",")), fields[6]) for fields in lines]
    ours = [item for item in ours if "nvidia" in item[0] or "cuda" in item[0] or "vgpu" in item[0]]
    ours = [item for item in ours if item[0] != "/run/vgpu-sim"]
    order = [path for path, _, _ in ours]
    flags = {path: options & {"ro", "rw", "nosuid", "nodev", "noexec"} for path, options, _ in ours}
    nvidia = "/usr/local/nvidia"
    (presence,) = (path for path in order if path.startswith("/usr/local/vgpu/presence/"))
    assert order[:7] == [
        "/usr/local/vgpu", "/usr/local/vgpu/driver/libcuda.so.1", "/usr/local/vgpu/driver/libnvidia-ml.so.1",
        "/usr/local/vgpu/limits", "/usr/local/vgpu/cards", presence, "/usr/local/vgpu/usage",
    ]  # fmt: skip
    kinds = [path.startswith("/usr/bin/") + 2 * path.startswith("/dev/") for path in order[8:]]
    assert order[7] == nvidia
    assert kinds == sorted(kinds), "libraries, binaries, device nodes"
    assert all(tag == "-" for _, _, tag in ours), "no mount propagates"
    for path, options in flags.items():
        if path.startswith("/dev/"):
            assert options == {"rw", "nosuid", "noexec"}, path
        elif path == "/usr/local/vgpu/usage":
            assert options == {"rw", "nosuid", "nodev", "noexec"}
        elif path in ("/usr/local/vgpu/limits", "/usr/local/vgpu/cards", presence):
            assert options == {"ro", "nosuid", "nodev", "noexec"}
        else:
            assert options == {"ro", "nosuid", "nodev"}, path
    names = {path.rpartition("/")[2].partition(".so")[0] for path in order if path.startswith(f"{nvidia}/lib64/")}
    assert {"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"} <= names
    assert not names & {"libnvidia-opencl", "libnvidia-encode", "libEGL_nvidia"}, "these go past the limits"


@BOTH
def test_whole_card_gets_the_driver_without_limits(site: Site) -> None:
    out = site.output(site.bundle(cores="100"), "sh", "-c", "cudaprobe info; ls /usr/local; cat /proc/self/mountinfo")
    assert pairs(out)["card0.total"] == str(site.node.read_cards()[0]["capacity"])
    kinds = kinds_of_host_files(out)
    assert len(kinds) >= 5
    assert set(kinds.values()) == {"overlay"}
    assert "/usr/local/vgpu" not in out, "neither limits nor schedules nor the presence file"


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


def conda(tree: Path) -> str:
    """An environment with libraries of its own, which the loader's configuration and LD_LIBRARY_PATH name."""
    (tree / "opt/conda/lib").mkdir(parents=True)
    shutil.copy(tree / "usr/lib" / trees.MULTIARCH / "libm.so.6", tree / "opt/conda/lib")
    with (tree / "etc/ld.so.conf").open("a") as file:
        file.write("/opt/conda/lib\n")
    return "/opt/conda/lib"


def ubuntu(site: Site, suite: str) -> Path:
    """A whole system, whose ldconfig is a script around another program."""
    tree = container_site.copied(roots.made("fresh", suite), site.directory)
    shutil.copy2(site.trees["debian"] / "usr/bin/cudaprobe", tree / "usr/bin")
    return tree


@BOTH
@pytest.mark.parametrize(
    ("kind", "directory"),
    [
        ("debian", f"/usr/lib/{trees.MULTIARCH}"),
        ("redhat", "/usr/lib64"),
        ("conda", f"/usr/lib/{trees.MULTIARCH}"),
        pytest.param("noble", f"/usr/lib/{trees.MULTIARCH}", marks=pytest.mark.long),
    ],
)
def test_programs_find_the_driver_before_and_after_ldconfig(site: Site, kind: str, directory: str) -> None:
    """By name, by fixed path, and by LD_LIBRARY_PATH. Whoever installs packages in a container runs ldconfig."""
    tree = ubuntu(site, kind) if kind == "noble" else site.tree("debian" if kind == "conda" else kind)
    path = conda(tree) if kind == "conda" else "/usr/local/nvidia/lib64"
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    ways = [("", names), (path, names), ("/usr/local/nvidia/lib", names)]
    ways += [("", tuple(f"{place}/{name}" for name in names)) for place in (directory, "/usr/local/nvidia/lib64")]
    ways += [("", (f"{directory}/libcuda.so", f"{directory}/libnvidia-ml.so"))]
    look = "; ".join(
        f"LD_LIBRARY_PATH={found} PROBE_CUDA={cuda} PROBE_NVML={nvml} cudaprobe info" for found, (cuda, nvml) in ways
    )
    share = site.share(tree=tree)
    share.config["process"]["env"] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    out = site.output(share, "sh", "-c", f"{look}; ldconfig -p; ldconfig && echo rebuilt; {look}; ldconfig -p")
    before, after = out.split("rebuilt")
    for text in (before, after):
        assert text.count(f"card0.total {2 * GIB}") == text.count(f"card0.nvml_total {2 * GIB}") == len(ways)
        for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
            listed = text.replace("=> /lib/", "=> /usr/lib/")  # a link, by which Ubuntu's ldconfig goes
            assert f"=> {directory}/{name}\n" in listed, f"{name} as nobody's program but ldconfig finds it"


GLIBC_FOR_MUSL = "/lib/ld-linux-x86-64.so.2"


def musl(site: Site) -> Path:
    """A tree whose cudaprobe is musl's, with the functions that the driver and libvcuda have from glibc alone."""
    tree, sources = site.tree("musl"), CHECKOUT / "tests/data/cuda"
    subprocess.run(["musl-gcc", "-o", tree / "usr/bin/cudaprobe", sources / "cudaprobe.c"], check=True)
    shim = [tree / f"usr{GLIBC_FOR_MUSL}", sources / "languages/musl_shim.c"]
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", *shim], check=True)
    return tree


@BOTH
def test_programs_of_musl_find_the_driver(site: Site) -> None:
    """Alpine's ldconfig makes no cache: it links the libraries of the folders that it is given by their SONAMEs."""
    names, folder = ("libcuda.so.1", "libnvidia-ml.so.1"), "/usr/local/nvidia/lib64"
    ways = [("", names), (folder, names)]
    ways += [("", tuple(f"{place}/{name}" for name in names)) for place in ("/usr/lib", folder)]
    look = "; ".join(
        f"LD_PRELOAD={GLIBC_FOR_MUSL} LD_LIBRARY_PATH={found} PROBE_CUDA={cuda} PROBE_NVML={nvml} cudaprobe info"
        for found, (cuda, nvml) in ways
    )
    links = f"for file in {folder}/*.so.*; do busybox ln -sf ${{file##*/}} ${{file%.so.*}}.so.1; done 2>&1"
    script = f"{look}; {links}; echo linked; {look}; ls /etc"
    out = site.output(site.share(tree=musl(site)), "sh", "-c", script)
    for text in out.split("linked"):
        assert text.count(f"card0.total {2 * GIB}") == text.count(f"card0.nvml_total {2 * GIB}") == len(ways)
    assert "ld.so.cache" not in out


def test_musl_alone_cannot_load_the_driver(site: Site) -> None:
    """Without a share neither. What is missing is named, and nothing else breaks."""
    tree = musl(site)
    (tree / f"usr{GLIBC_FOR_MUSL}").unlink()
    lines = site.output(site.share(tree=tree), "sh", "-c", "cudaprobe info || echo still here").splitlines()
    assert lines[0].startswith("dlopen Error loading shared library ld-linux-x86-64.so.2: No such file or directory")
    assert lines[1:] == ["still here"]


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
    out = site.output(of_a_user_namespace(site.share()), "sh", "-c", f"{look}; cat /proc/self/mountinfo")
    results = pairs(out)
    assert results["card0.total"] == str(2 * GIB)
    assert results["refused"] == "2"
    assert set(kinds_of_host_files(out).values()) == {"overlay"}
    assert f"0 {library}/libcuda.so\n0 /etc/ld.so.cache" in out


@pytest.mark.sample(6)
@pytest.mark.parametrize("missing", [(), *OLD_KERNELS.values()], ids=["now", *OLD_KERNELS])
@pytest.mark.parametrize(
    "component", ["usr", "usr/lib", "usr/lib/@", "usr/local", "usr/local/nvidia", "usr/local/vgpu", "usr/bin", "etc"]
)
def test_symlinks_in_every_component_stay_inside(
    site: Site, request: pytest.FixtureRequest, component: str, missing: tuple[int, ...]
) -> None:
    """Each directory of the path becomes a link out of the rootfs, absolute and with `..`. The host does not change."""
    outside = Path(tempfile.mkdtemp(dir="/var/tmp"))  # no mount of a container covers this path
    request.addfinalizer(outside.rmdir)
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
    """Without openat2, open_tree and related calls the result is the same, flags and file systems included."""
    tree = site.tree()
    texts = []
    for without in ((), missing):
        share = site.share(tree=tree).hooks(site.node, without=without)
        out = site.output(share, "sh", "-c", "cudaprobe info; cat /proc/self/mountinfo")
        lines = [line.split() for line in out.splitlines() if "nvidia" in line or "vgpu" in line or "libcuda" in line]
        kinds = kinds_of_host_files(out)
        mounts = [(fields[4], fields[5], kinds.get(fields[4])) for fields in lines if fields[0].isdigit()]
        texts.append((pairs(out)["card0.total"], mounts))
    assert texts[0] == texts[1]


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
