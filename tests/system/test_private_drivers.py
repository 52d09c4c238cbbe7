"""Images that bring a copy of libcuda by accident, and ordinary ones: which have their limit, and which are named.

An image is made of the small root file system of the tests, with a few files in the places where images of NVIDIA,
PyTorch, TensorFlow, conda and others have them. The copies are whole driver libraries. A program that opens
libcuda.so.1 as programs do says whether the limit holds. In `make test` every image is planned, and a sample runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trees
from checkout import DATA
from container_site import GIB, Site

from vgpu.config import inventory
from vgpu.hook.inject import plan
from vgpu.hook.inject.inspect import Inspection, Process, inspect, process_of
from vgpu.hook.linux.rootfs import Rootfs

pytestmark = pytest.mark.root

LIB = f"usr/lib/{trees.MULTIARCH}"
SITE = "opt/venv/lib/python3.11/site-packages"
CUDA_ENV = "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
CUDA_PATH = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
LIMITED, NAMED = "limited", "named"
VOLUME = "mnt/models"
PATH = "PATH=/usr/bin:/usr/sbin"


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
        ("opt/x/libcuda.so.1",), (), ("LD_LIBRARY_PATH=" + "/none:" * 64 + "/opt/x",), result=NAMED),
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


def make(image: Image, tree: Path, driver: Path, outside: Path) -> Path:
    """Add the image's files to the root file system `tree`; what is on VOLUME lies in `outside`."""
    library = {stem: next(driver.glob(f"usr/lib/*/{stem}.so.*.*")) for stem in ("libcuda", "libnvidia-ml")}
    if image.mount:
        (tree / VOLUME).mkdir(parents=True)
    for item in image.files:
        path, _, target = item.partition(" -> ")
        path, _, text = path.partition(" = ")
        place = outside / path[len(VOLUME) + 1 :] if path.startswith(VOLUME) else tree / path.rstrip("/?")
        place.parent.mkdir(parents=True, exist_ok=True)
        if target:
            place.symlink_to(target)
        elif text:
            place.write_text(text + "\n")
        elif path.endswith("/"):
            place.mkdir(exist_ok=True)
        elif path.endswith("?"):
            place.write_bytes(b"")
        else:
            shutil.copy(library["libnvidia-ml" if "nvidia-ml" in path else "libcuda"], place)
    if any("conf.d" in item for item in image.files):
        with (tree / "etc/ld.so.conf").open("a") as stream:
            stream.write("include /etc/ld.so.conf.d/*.conf\n")
    if image.ldconfig:
        subprocess.run(["chroot", tree, "/sbin/ldconfig"], check=True)
    return tree


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """cudaprobe with each DT_RUNPATH of the catalogue."""
    directory = tmp_path_factory.mktemp("runpath")
    found = {}
    for number, image in enumerate(i for i in (*ACCIDENTS.values(), *ORDINARY.values()) if i.runpath):
        found[image.runpath] = directory / str(number)
        flags = ["-ldl", "-Wl,--enable-new-dtags", f"-Wl,-rpath,{image.runpath}"]
        source = DATA / "cuda/cudaprobe.c"
        subprocess.run(["cc", "-std=gnu11", "-o", found[image.runpath], source, *flags], check=True)
    return found


class Images:
    """Images of the catalogue on a node."""

    def __init__(self, site: Site, programs: dict[str, Path]) -> None:
        self.site, self.programs = site, programs

    def tree(self, image: Image) -> Path:
        tree = make(image, self.site.tree(image.kind), self.site.node.driver, self.site.directory / "outside")
        if image.runpath:
            (tree / "opt/conda/bin").mkdir(parents=True, exist_ok=True)
            shutil.copy(self.programs[image.runpath], tree / "opt/conda/bin/cudaprobe")
        return tree

    def share(self, image: Image) -> Any:
        made = self.site.share(tree=self.tree(image)).command(*image.command)
        made.config["process"]["env"] = [PATH, *image.env]
        made.config["process"]["cwd"] = image.cwd
        if image.mount:
            made.bind(self.site.directory / "outside", f"/{VOLUME}", *image.mount)
        if "rshared" in image.mount:
            made.config["linux"]["rootfsPropagation"] = "shared"
        return made

    def inspected(self, image: Image, tree: Path, process: Process | None) -> Inspection:
        root = Rootfs(os.open(tree, os.O_PATH | os.O_DIRECTORY))
        try:
            return inspect(root, plan.library_stems(inventory.read(self.site.node.settings.run_dir)), [], "", process)
        finally:
            root.close()

    def found(self, image: Image) -> tuple[Inspection, Inspection]:
        """The inspection with the image's process, and without."""
        tree = self.tree(image)
        process = {"cwd": image.cwd, "args": list(image.command)}
        env = dict(item.split("=", 1) for item in (PATH, *image.env))
        return self.inspected(image, tree, process_of({"process": process}, env)), self.inspected(image, tree, None)


@pytest.fixture
def images(site: Site, programs: dict[str, Path]) -> Iterator[Images]:
    """The volume is a mount with shared propagation, as each mount of a host with systemd is."""
    outside = site.directory / "outside"
    outside.mkdir()
    subprocess.run(["mount", "--bind", outside, outside], check=True)
    subprocess.run(["mount", "--make-shared", outside], check=True)
    yield Images(site, programs)
    subprocess.run(["umount", "--recursive", outside], check=True)


ALWAYS = (
    "several folders", "chain of links", "LD_PRELOAD by name", "RUNPATH", "forward compatibility", "shared volume",
    "nvidia/cuda devel",
)  # fmt: skip


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> bool:
    """Whether the image of this case is run; without --long a sample is."""
    return request.config.getoption("--long") or request.node.callspec.params["name"] in ALWAYS


@pytest.mark.parametrize("name", ACCIDENTS)
def test_an_accident_is_limited_or_named(images: Images, name: str, runs: bool) -> None:
    image = ACCIDENTS[name]
    if not image.mount:
        facts, _ = images.found(image)
        covered = {*facts.copies, *facts.compat, *(path for path, _ in facts.private)}
        assert covered == set(image.covers)
        assert bool(facts.uncovered) is (image.result == NAMED and name != "set by the entrypoint")
    if not runs:
        return
    out = images.site.output(images.share(image))
    notes = [str(note) for line in images.site.node.log() for note in line.get("notes", ())]
    replaced = [note.partition(": replaced by")[0] for note in notes if ": replaced by" in note]
    assert sorted(replaced) == sorted(image.covers)
    if image.kind == "musl":
        assert all(f" {path} " in out for path in image.covers)
        return
    limit = f"card0.total {2 * GIB}\n"
    assert (limit in out) is (image.result == LIMITED), out
    if image.result == NAMED and name != "set by the entrypoint":
        assert any("libcuda" in note for note in notes if note.startswith((f"/{VOLUME}/", "/opt/x: ")))


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_image_starts_as_before(images: Images, name: str, runs: bool) -> None:
    image = ORDINARY[name]
    facts, before = images.found(image)
    assert (facts.private, facts.uncovered) == ((), ())
    assert all(getattr(facts, part) == getattr(before, part) for part in Inspection.__slots__)
    if runs:
        out = images.site.output(images.share(image))
        assert image.kind == "musl" or f"card0.total {2 * GIB}\n" in out
        assert not [note for line in images.site.node.log() for note in line.get("notes", ()) if "replaced" in note]
