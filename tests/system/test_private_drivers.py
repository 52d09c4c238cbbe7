"""Images that bring a copy of libcuda by accident, and ordinary ones: which have their limit, and which are named.

An image is made of the small root file system of the tests, with a few files in the places where images of NVIDIA,
PyTorch, TensorFlow, conda and others have them. The copies are whole driver libraries. A program that opens
libcuda.so.1 as programs do says whether the limit holds. In `make test` every image is planned, and a sample runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import bundles
import pytest
import trees
from checkout import BUILD, DATA
from container_site import GIB, OLD_KERNELS, Site, of_a_user_namespace
from daemons import wait_for
from root_trees import STEMS, plant

from vgpu.config import incidents, rounds
from vgpu.hook.formats import ldcache
from vgpu.hook.formats.ldcache import Addition
from vgpu.hook.inject.inspect import Inspection, inspect
from vgpu.hook.inject.library_search import process_of
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.node.doctor.image import STAYS, STUB, examine

LIB = f"usr/lib/{trees.MULTIARCH}"
SITE = "opt/venv/lib/python3.11/site-packages"
CUDA_ENV = "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
CUDA_PATH = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
LIMITED, NAMED = "limited", "named"
VOLUME = "mnt/models"
PATH = "PATH=/usr/bin:/usr/sbin"
MANY = "LD_LIBRARY_PATH=" + "".join(f"/none{number}:" for number in range(64))


class Image(NamedTuple):
    """`files`: a copy of the driver's library (`a/libcuda.so.1`), a link (`a -> b`), a folder (`a/`), an empty file
    (`a?`), or a file with a line (`a = text`). `covers` are the files that the plan covers. `runpath` is that of the
    program /opt/conda/bin/cudaprobe, and `mount` a bind mount's options of VOLUME."""

    files: tuple[str, ...]
    covers: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    command: tuple[str, ...] = ("cudaprobe", "info")
    result: str = LIMITED
    kind: str = "debian"
    cwd: str = "/"
    runpath: str = ""
    mount: tuple[str, ...] = ()
    ldconfig: bool = False


ACCIDENTS = {
    "LD_LIBRARY_PATH": Image(("opt/x/libcuda.so.1",), ("/opt/x/libcuda.so.1",), ("LD_LIBRARY_PATH=/opt/x",)),
    "several folders": Image(
        ("opt/a/", "opt/b/libcuda.so.550.1", "opt/b/libcuda.so.1 -> libcuda.so.550.1", "opt/b/libnvidia-ml.so.1"),
        ("/opt/b/libcuda.so.550.1", "/opt/b/libnvidia-ml.so.1"), ("LD_LIBRARY_PATH=/none:/opt/a;/opt/b:",),
    ),
    "empty entry": Image(("srv/app/libcuda.so.1",), ("/srv/app/libcuda.so.1",), ("LD_LIBRARY_PATH=/none:",),
                         cwd="/srv/app"),
    "relative folder": Image(("srv/app/lib/libcuda.so.1",), ("/srv/app/lib/libcuda.so.1",), ("LD_LIBRARY_PATH=./lib",),
                             cwd="/srv/app"),
    "link to a file of another name": Image(
        ("opt/x/driver-550.bin", "opt/x/libcuda.so.1 -> driver-550.bin"), ("/opt/x/driver-550.bin",),
        ("LD_LIBRARY_PATH=/opt/x",),
    ),
    "chain of links": Image(
        ("opt/x/libcuda.so.1 -> libcuda.so", "opt/x/libcuda.so -> ../y/current/cuda", "opt/y/current -> /opt/y/550",
         "opt/y/550/cuda"),
        ("/opt/y/550/cuda",), ("LD_LIBRARY_PATH=/opt/x",),
    ),
    "link to the system's folder": Image(
        ("opt/x/driver", "usr/lib64/libcuda.so.1 -> /opt/x/driver"), ("/opt/x/driver",),
        ("LD_LIBRARY_PATH=/usr/lib64",),
    ),
    "LD_PRELOAD": Image(("opt/x/driver-550.bin",), ("/opt/x/driver-550.bin",), ("LD_PRELOAD=/opt/x/driver-550.bin",)),
    "LD_PRELOAD by name": Image(("opt/x/libdriver.so",), ("/opt/x/libdriver.so",),
                                ("LD_PRELOAD=libnone.so libdriver.so", "LD_LIBRARY_PATH=/opt/x")),
    "ld.so.preload": Image(("opt/x/libcuda.so.1", "etc/ld.so.preload = /opt/x/libcuda.so.1"), ("/opt/x/libcuda.so.1",)),
    "glibc-hwcaps": Image(("opt/x/glibc-hwcaps/x86-64-v2/libcuda.so.1",),
                          ("/opt/x/glibc-hwcaps/x86-64-v2/libcuda.so.1",), ("LD_LIBRARY_PATH=/opt/x",)),
    "tokens": Image((f"opt/x/lib/{trees.MULTIARCH}/libcuda.so.1",), (f"/opt/x/lib/{trees.MULTIARCH}/libcuda.so.1",),
                    ("LD_LIBRARY_PATH=/opt/x/$LIB",)),
    "conda": Image(
        ("opt/conda/cuda-compat/libcuda.so.550.1", "opt/conda/lib/libcuda.so.1 -> ../cuda-compat/libcuda.so.550.1"),
        ("/opt/conda/cuda-compat/libcuda.so.550.1",), ("PATH=/opt/conda/bin:/usr/bin",), runpath="$ORIGIN/../lib",
    ),
    "RUNPATH": Image(("opt/app/drv/libcuda.so.1",), ("/opt/app/drv/libcuda.so.1",), (),
                     ("/opt/conda/bin/cudaprobe", "info"), runpath="/none:$ORIGIN/../../app/drv"),
    "script": Image(
        ("opt/app/drv/libcuda.so.1", "srv/start = #!/usr/bin/env -S cudaprobe info"), ("/opt/app/drv/libcuda.so.1",),
        ("PATH=/opt/conda/bin:/usr/bin",), ("/opt/conda/bin/cudaprobe", "info"), runpath="$ORIGIN/../../app/drv",
    ),
    "pip": Image((f"{SITE}/nvidia/cuda_runtime/lib/libcuda.so.1",), (f"/{SITE}/nvidia/cuda_runtime/lib/libcuda.so.1",),
                 (f"LD_LIBRARY_PATH=/{SITE}/nvidia/cudnn/lib:/{SITE}/nvidia/cuda_runtime/lib",)),
    "ld.so.conf.d": Image(("opt/x/libcuda.so.1", "etc/ld.so.conf.d/x.conf = /opt/x"), ("/opt/x/libcuda.so.1",), (),
                          ("sh", "-c", "ldconfig; cudaprobe info"), ldconfig=True),
    "a version only, and ldconfig at the start": Image(
        ("opt/x/libcuda.so.550.54.15", "etc/ld.so.conf.d/x.conf = /opt/x"), ("/opt/x/libcuda.so.550.54.15",), (),
        ("sh", "-c", "ldconfig; cudaprobe info")),
    "beside the program": Image(("opt/conda/bin/_internal/libcuda.so.1",), ("/opt/conda/bin/_internal/libcuda.so.1",),
                                command=("/opt/conda/bin/cudaprobe", "info"), runpath="$ORIGIN/_internal"),
    "conda environment": Image(("opt/miniconda/envs/a/lib/libcuda.so",), ("/opt/miniconda/envs/a/lib/libcuda.so",),
                               ("PATH=/opt/miniconda/condabin:/usr/bin",)),
    "/usr/local/nvidia of an old image": Image(
        ("usr/local/nvidia/lib64/libcuda.so.1", "usr/local/nvidia/lib/libcuda.so.1"), (), (CUDA_ENV,)),
    "forward compatibility": Image(
        ("usr/local/cuda -> cuda-12.4", "usr/local/cuda-12.4/compat/libcuda.so.550.1",
         "usr/local/cuda-12.4/compat/libcuda.so.1 -> libcuda.so.550.1"),
        ("/usr/local/cuda/compat/libcuda.so.550.1",), ("LD_LIBRARY_PATH=/usr/local/cuda-12.4/compat",),
    ),
    "other layout's folder": Image(("usr/lib64/libcuda.so.1",), ("/usr/lib64/libcuda.so.1",),
                                   ("LD_LIBRARY_PATH=/usr/lib64:/lib64",)),
    "Red Hat": Image(("usr/lib64/tls/libcuda.so.1", "opt/x/libcuda.so.1"),
                     ("/usr/lib64/tls/libcuda.so.1", "/opt/x/libcuda.so.1"), ("LD_LIBRARY_PATH=/opt/x",),
                     kind="redhat"),
    "musl": Image(("opt/x/libcuda.so.1", "usr/local/lib/libcuda.so.1"),
                  ("/opt/x/libcuda.so.1", "/usr/local/lib/libcuda.so.1"), ("LD_LIBRARY_PATH=/opt/x",),
                  ("cat", "/proc/self/mountinfo"), kind="musl"),
    "volume": Image((f"{VOLUME}/libcuda.so.1",), (f"/{VOLUME}/libcuda.so.1",), (f"LD_LIBRARY_PATH=/{VOLUME}",),
                    mount=("ro",)),
    "link to a volume": Image((f"{VOLUME}/driver.bin", f"opt/x/libcuda.so.1 -> /{VOLUME}/driver.bin"),
                              (f"/{VOLUME}/driver.bin",), ("LD_LIBRARY_PATH=/opt/x",), mount=("ro",)),
    "shared volume": Image((f"{VOLUME}/libcuda.so.1",), (), (f"LD_LIBRARY_PATH=/{VOLUME}",), result=NAMED,
                           mount=("rw", "rshared")),
    "more folders than are searched": Image(
        ("opt/x/libcuda.so.1",), (), (MANY + "/opt/x",), result=NAMED),
    "set by the entrypoint": Image(
        ("opt/x/libcuda.so.1",), (), (), ("sh", "-c", "export LD_LIBRARY_PATH=/opt/x; exec cudaprobe info"), NAMED),
}  # fmt: skip

PYTHON_PATH = "PATH=/opt/venv/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
CONDA_PATH = "PATH=/opt/conda/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin"
CUDART = ("usr/local/cuda -> cuda-12.4", "usr/local/cuda-12.4/targets/x86_64-linux/lib/libcudart.so.12?",
          "usr/local/cuda-12.4/lib64 -> targets/x86_64-linux/lib",
          "etc/ld.so.conf.d/988_cuda-12.conf = /usr/local/cuda-12/targets/x86_64-linux/lib",
          "etc/ld.so.conf.d/nvidia.conf = /usr/local/nvidia/lib64")  # fmt: skip
STUBS = (*CUDART, "usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs/libcuda.so?",
         "usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs/libnvidia-ml.so?")  # fmt: skip
WHEELS = tuple(f"{SITE}/nvidia/{name}/lib/lib{name}.so.12?" for name in ("cublas", "cudnn", "cuda_runtime", "nccl"))
TORCH = (*WHEELS, f"{SITE}/torch/lib/libtorch_cuda.so?", f"{SITE}/torch/lib/libc10_cuda.so?", "opt/venv/bin/python?")
CONDA = ("opt/conda/bin/python?", "opt/conda/lib/libcudart.so.12?", "opt/conda/lib/stubs/libcuda.so?",
         "opt/conda/lib/libpython3.11.so.1.0?", "opt/conda/lib/python3.11/site-packages/torch/lib/libtorch.so?",
         "opt/conda/targets/x86_64-linux/lib/stubs/libcuda.so?")  # fmt: skip

#: As the images on the registries have it: environment, CUDA's and Python's folders, and links between them.
ORDINARY = {
    "busybox": Image(()),
    "debian, no environment": Image((), env=("PATH=/usr/bin:/bin",)),
    "nvidia/cuda base": Image(CUDART, env=(CUDA_PATH, CUDA_ENV)),
    "nvidia/cuda devel": Image(STUBS, env=(CUDA_PATH, CUDA_ENV, "LIBRARY_PATH=/usr/local/cuda/lib64/stubs")),
    "nvidia/cuda devel, ldconfig": Image(STUBS, env=(CUDA_PATH, CUDA_ENV), ldconfig=True),
    "nvidia/cuda ubi": Image(STUBS, env=(CUDA_PATH, CUDA_ENV), kind="redhat"),
    "stubs in LD_LIBRARY_PATH": Image(STUBS, env=(CUDA_PATH, "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs")),
    "TensorFlow devel, its link to the stub": Image(
        (*STUBS, "usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs/libcuda.so.1 -> libcuda.so",
         "etc/ld.so.conf.d/z-cuda-stubs.conf = /usr/local/cuda/lib64/stubs"),
        env=(CUDA_PATH, "LD_LIBRARY_PATH=/usr/local/cuda/extras/CUPTI/lib64:/usr/local/cuda/lib64"), ldconfig=True),
    "TensorFlow": Image(CUDART, env=(CUDA_PATH, "LD_LIBRARY_PATH=/usr/local/cuda-12.4/lib64:" + CUDA_ENV[16:])),
    "TensorFlow, old": Image(CUDART, env=(
        "LD_LIBRARY_PATH=/usr/local/cuda/extras/CUPTI/lib64:/usr/local/cuda/lib64:/usr/local/nvidia/lib64",)),
    "PyTorch, conda": Image(CONDA, env=(CONDA_PATH, CUDA_ENV, "NVIDIA_VISIBLE_DEVICES=all")),
    "PyTorch, its program": Image(CONDA, env=(CONDA_PATH, CUDA_ENV), command=("/opt/conda/bin/cudaprobe", "info"),
                                  runpath="$ORIGIN/../lib"),
    "PyTorch, pip": Image(TORCH, env=(PYTHON_PATH, "VIRTUAL_ENV=/opt/venv")),
    "PyTorch, pip, LD_LIBRARY_PATH": Image(TORCH, env=(PYTHON_PATH, "LD_LIBRARY_PATH=" + ":".join(
        f"/{SITE}/nvidia/{name}/lib" for name in ("cublas", "cudnn", "nccl")))),
    "NGC PyTorch": Image(
        (*STUBS, f"{LIB}/libcudnn.so.9?", "usr/local/cuda/compat/lib -> /none", "opt/hpcx/ucx/lib/libucp.so.0?"),
        env=(CUDA_PATH, "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64:"
             "/usr/local/lib/python3.10/dist-packages/torch/lib:/opt/hpcx/ucx/lib")),
    "Triton": Image(("opt/tritonserver/bin/tritonserver?", "opt/tritonserver/lib/libtritonserver.so?", *CUDART), env=(
        "PATH=/opt/tritonserver/bin:" + CUDA_PATH[5:], "LD_PRELOAD=", "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:"
        "/usr/local/nvidia/lib:/usr/local/nvidia/lib64:/opt/tritonserver/backends/onnxruntime")),
    "vLLM": Image(("usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2?", *STUBS),
                  env=(CUDA_PATH, "LD_LIBRARY_PATH=/usr/local/cuda/lib64")),
    "JAX": Image(("usr/local/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9?",), env=(PYTHON_PATH,)),
    "python:slim": Image(("usr/local/lib/libpython3.11.so.1.0?", "usr/local/lib/python3.11/os.py?"),
                         env=("PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8")),
    "jemalloc": Image((), env=(f"LD_PRELOAD=/{LIB}/libm.so.6",)),
    "tcmalloc by name": Image((), env=("LD_PRELOAD=libm.so.6 libnone.so.4", "LD_LIBRARY_PATH=/opt/lib")),
    "micromamba environments": Image(("opt/conda/envs/a/lib/libcudart.so.12?", "opt/conda/envs/b/bin/python?"),
                                     env=("CONDA_PREFIX=/opt/conda/envs/a", "PATH=/opt/conda/envs/a/bin:/usr/bin")),
    "R, own folders": Image(("usr/lib/R/lib/libR.so?",), env=("LD_LIBRARY_PATH=/usr/lib/R/lib:/usr/lib/jvm/lib",)),
    "Intel oneAPI": Image(("opt/intel/lib/libmkl.so?",), env=("LD_LIBRARY_PATH=/opt/intel/lib:/opt/intel/lib/x64",)),
    "trailing colon": Image(CUDART, env=(CUDA_PATH, CUDA_ENV + ":"), cwd="/root"),
    "the system's folders": Image((), env=(f"LD_LIBRARY_PATH=/{LIB}:/usr/lib:/lib64:/lib",)),
    "a link to what the node brings": Image(
        ("opt/x/libcuda.so.1 -> /" + LIB + "/libcuda.so.1", "usr/lib64/libcuda.so -> libcuda.so.1"),
        env=("LD_LIBRARY_PATH=/opt/x",)),
    "a link to gpu-manager's": Image(("opt/x/libcuda.so.1 -> /usr/local/nvidia/lib64/libcuda.so.1",),
                                     env=("LD_LIBRARY_PATH=/opt/x",)),
    "Alpine": Image((), env=("PATH=/usr/bin:/bin",), command=("cat", "/proc/self/mountinfo"), kind="musl"),
    "Alpine, gcompat": Image(("usr/glibc-compat/lib/libc.so.6?",), env=("LD_LIBRARY_PATH=/usr/glibc-compat/lib",),
                             command=("cat", "/proc/self/mountinfo"), kind="musl"),
    "CUDA on Red Hat, its hwcaps": Image(("usr/lib64/glibc-hwcaps/x86-64-v3/libz.so.1?", *STUBS),
                                         env=(CUDA_PATH, CUDA_ENV), kind="redhat"),
}  # fmt: skip
IMAGES = {**ACCIDENTS, **ORDINARY}
ENTRYPOINT = "set by the entrypoint"
SAMPLE = ("several folders", "chain of links", "LD_PRELOAD by name", "RUNPATH", "forward compatibility",
          "shared volume", "nvidia/cuda devel")  # fmt: skip


def add(image: Image, tree: Path, outside: Path, programs: dict[str, Path]) -> Path:
    """Add the image's files to the root file system `tree`; what is on VOLUME lies in `outside`."""
    if image.mount:
        (tree / VOLUME).mkdir(parents=True)
    for item in image.files:
        path, _, target = item.partition(" -> ")
        path, _, text = path.partition(" = ")
        place = outside / path[len(VOLUME) + 1 :] if path.startswith(VOLUME) else tree / path.rstrip("/?")
        place.parent.mkdir(parents=True, exist_ok=True)
        if target:
            place.symlink_to(target)
        elif path.endswith("/"):
            place.mkdir(exist_ok=True)
        elif text or path.endswith("?"):
            place.write_text(text and text + "\n")
        else:
            stem = "libnvidia-ml" if "nvidia-ml" in path else "libcuda"
            shutil.copy(next((BUILD / "lib/sim").glob(f"{stem}.so.*.*")), place)
    if any("conf.d" in item for item in image.files):
        with (tree / "etc/ld.so.conf").open("a") as stream:
            stream.write("include /etc/ld.so.conf.d/*.conf\n")
    if image.runpath:
        (tree / "opt/conda/bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(programs[image.runpath], tree / "opt/conda/bin/cudaprobe")
    return tree


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """cudaprobe with each DT_RUNPATH of the catalogue."""
    directory = tmp_path_factory.mktemp("runpath")
    found = {}
    for image in IMAGES.values():
        if image.runpath and image.runpath not in found:
            program = found[image.runpath] = directory / str(len(found))
            flags = ["-std=gnu11", DATA / "cuda/cudaprobe.c", "-ldl", f"-Wl,--enable-new-dtags,-rpath,{image.runpath}"]
            subprocess.run(["cc", "-o", program, *flags], check=True)
    return found


# What the hook would cover, without a container


@pytest.fixture
def plain(tmp_path: Path, programs: dict[str, Path]) -> Callable[[Image], Path]:
    """Makes a bundle whose root has no more than the image's files and what tells the layouts apart."""

    def made(image: Image) -> Path:
        tree = tmp_path / "rootfs"
        marks = {"debian": f"{LIB}/", "redhat": "usr/lib64/", "musl": f"lib/ld-musl-{os.uname().machine}.so.1"}
        plant(tree, "etc/", "usr/bin/cudaprobe", marks[image.kind])
        add(image, tree, tmp_path / "outside", programs)
        if image.ldconfig:
            folders = [item.partition(" = ")[2] for item in image.files if "conf.d" in item]
            has = [folder for folder in folders if (tree / folder.strip("/") / "libcuda.so.1").is_file()]
            additions = [Addition("libcuda.so.1", f"{folder}/libcuda.so.1") for folder in has]
            (tree / "etc/ld.so.cache").write_bytes(ldcache.merge(None, additions))
        process = {"env": [PATH, *image.env], "cwd": image.cwd, "args": list(image.command)}
        config = {"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": process}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return made


def inspected(bundle: Path, with_process: bool = True) -> Inspection:
    config = json.loads((bundle / "config.json").read_text())
    env = dict(item.split("=", 1) for item in config["process"]["env"])
    root = Rootfs(os.open(bundle / "rootfs", os.O_PATH | os.O_DIRECTORY))
    try:
        return inspect(root, STEMS, [], "", process_of(config, env) if with_process else None)
    finally:
        root.close()


@pytest.mark.parametrize("name", [name for name, image in ACCIDENTS.items() if not image.mount])
def test_what_accidents_need_is_covered_or_named(plain: Callable[[Image], Path], name: str) -> None:
    image = ACCIDENTS[name]
    bundle = plain(image)
    facts = inspected(bundle)
    assert {*facts.copies, *facts.compat, *(path for path, _ in facts.private)} == set(image.covers)
    assert bool(facts.uncovered) is (image.result == NAMED and name != ENTRYPOINT)
    listed = examine(str(bundle), (), "")
    assert any(copy.status == STAYS for copy in listed) is (image.result == NAMED)
    assert listed


@pytest.mark.parametrize("name", ORDINARY)
def test_nothing_more_is_covered_in_ordinary_images(plain: Callable[[Image], Path], name: str) -> None:
    bundle = plain(ORDINARY[name])
    facts, before = inspected(bundle), inspected(bundle, with_process=False)
    assert (facts.private, facts.uncovered) == ((), ())
    assert all(getattr(facts, part) == getattr(before, part) for part in Inspection.__slots__)
    assert [copy for copy in examine(str(bundle), (), "") if copy.status != STUB] == []


def test_a_tree_of_folders_ends_the_search_with_a_line(tmp_path: Path) -> None:
    """glibc's folders for processors nest, and a tenant may nest them as deep as the file system lets it."""
    names = ("tls", "haswell", "xeon_phi", "avx512_1", "x86_64")
    folders = ["opt/x", *(f"opt/x/{'/'.join(some)}" for depth in (1, 2, 3, 4) for some in product(names, repeat=depth))]
    plant(tmp_path / "rootfs", *(f"{folder}/" for folder in folders), "opt/y/libcuda.so.1")
    process = {"env": [PATH, "LD_LIBRARY_PATH=/opt/x:/opt/y"], "args": ["\ud800", "a\0b", 1], "cwd": ["/"]}
    (tmp_path / "config.json").write_text(json.dumps({"process": process}))
    facts = inspected(tmp_path)
    assert facts.private == ()
    (line,) = facts.uncovered
    assert "not searched for copies of libcuda: 512 folders were" in line


# In containers


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without --long a sample of the images runs."""
    if "ran" in metafunc.fixturenames:
        metafunc.parametrize("ran", IMAGES if metafunc.config.getoption("--long") else SAMPLE)


@pytest.fixture
def share(site: Site, programs: dict[str, Path]) -> Iterator[Callable[[Image], bundles.Bundle]]:
    """Makes a share of an image. Its volume is a mount with shared propagation, as those of a host with systemd are."""
    outside = site.directory / "outside"
    outside.mkdir()
    subprocess.run(["mount", "--bind", outside, outside], check=True)
    subprocess.run(["mount", "--make-shared", outside], check=True)

    def made(image: Image) -> bundles.Bundle:
        tree = add(image, site.tree(image.kind), outside, programs)
        if image.ldconfig:
            subprocess.run(["chroot", tree, "/sbin/ldconfig"], check=True)
        bundle = site.share(tree=tree).command(*image.command)
        bundle.config["process"].update(env=[PATH, *image.env], cwd=image.cwd)
        if image.mount:
            bundle.bind(outside, f"/{VOLUME}", *image.mount)
        if "rshared" in image.mount:
            bundle.config["linux"]["rootfsPropagation"] = "shared"
        return bundle

    yield made
    subprocess.run(["umount", "--recursive", outside], check=True)


@pytest.mark.root
def test_an_image_has_its_limit_or_is_named(site: Site, share: Callable[[Image], bundles.Bundle], ran: str) -> None:
    image = IMAGES[ran]
    out = site.output(share(image))
    notes = [str(note) for line in site.node.log() for note in line.get("notes", ())]
    replaced = [note.partition(": replaced by")[0] for note in notes if ": replaced by" in note]
    assert sorted(replaced) == sorted(image.covers)
    if image.kind == "musl":
        assert all(f" {path} " in out for path in image.covers)
    else:
        assert (f"card0.total {2 * GIB}\n" in out) is (image.result == LIMITED), out
    rest = [note for note in notes if ": replaced by" not in note and "libcuda" in note]
    named = [note for note in rest if note.startswith((f"/{VOLUME}/libcuda.so.1: ", "/opt/x: "))]
    assert len(named) == (image.result == NAMED and ran != ENTRYPOINT)


@pytest.mark.root
@pytest.mark.parametrize("missing", OLD_KERNELS.values(), ids=list(OLD_KERNELS))
def test_of_a_user_namespace_and_on_old_kernels(
    site: Site, share: Callable[[Image], bundles.Bundle], missing: tuple[int, ...]
) -> None:
    bundle = of_a_user_namespace(share(ACCIDENTS["link to a volume"]))
    assert site.seen(bundle)["card0.total"] == str(2 * GIB)
    assert site.seen(bundle.hooks(site.node, without=missing))["card0.total"] == str(2 * GIB)


@pytest.mark.root
def test_vgpud_names_what_the_entrypoint_has_set_and_no_other(
    site: Site, share: Callable[[Image], bundles.Bundle]
) -> None:
    """Beside it one container with libvcuda, one whose image has a copy that is covered, and one with a whole card."""
    hold = ("cudaprobe", "hold", "100", "/end")
    past = ACCIDENTS[ENTRYPOINT]
    guilty = site.start(share(past), "sh", "-c", "export LD_LIBRARY_PATH=/opt/x; cudaprobe hold 100 /end; true")
    for image in (ORDINARY["nvidia/cuda base"], ACCIDENTS["chain of links"]):
        site.start(share(image), *hold)
    site.start(site.bundle(cores="100"), *hold)
    holders = lambda: [one for card in site.node.read_cards() for one in card["processes"]]  # noqa: E731
    wait_for(lambda: len(holders()) == 4)
    site.start_daemon()
    daemon = site.daemon
    (found,) = wait_for(lambda: daemon.health()["unlimited"], 120, daemon.text)
    assert (found["container"], found["library"]) == (guilty, "/opt/x/libcuda.so.1")
    warnings = [line for line in daemon.health()["warnings"] if "without libvcuda" in line]
    assert [guilty in line for line in warnings] == [True]
    daemon.rounds(1)
    kinds = {(one.kind, one.container) for one in incidents.of_record(rounds.read(site.node.settings.run_dir))}
    assert kinds == {(incidents.UNLIMITED_PROCESS, guilty)}
