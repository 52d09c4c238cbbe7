"""Makes libraries in place of NVIDIA's for programs of the package index: make.py CLIENTS OUTPUT

CLIENTS has the programs (beds/make_clients.sh) and CUDA's headers, OUTPUT is a directory for LD_LIBRARY_PATH.
libcudart.so.12 calls the driver (cudart.c). The others (cuBLAS, cuDNN and so on) have the names that the programs look
for, and their functions do nothing and succeed: NVIDIA's have a runtime in them that needs a driver's private table.
What the programs look for is found in their files: a name that is linked or that dlsym gets is text between two NULs.
"""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("faiss", "faiss_gpu_cu12.libs", "jax_cuda12_plugin", "jax_plugins", "onnxruntime/capi", "torch/lib")
CFLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
#: By the beginning of their names: the library that has the functions.
LIBRARIES = {
    "cublasLt": "libcublasLt.so.12", "cublas": "libcublas.so.12", "cudnn": "libcudnn.so.9", "cufft": "libcufft.so.11",
    "curand": "libcurand.so.10", "cusparse": "libcusparse.so.12", "cusolver": "libcusolver.so.11",
    "nccl": "libnccl.so.2", "cupti": "libcupti.so.12", "cuda": "libcudart.so.12",
    "__cuda": "libcudart.so.12",
}  # fmt: skip
#: Libraries of which a program only asks that they are there.
EMPTY = [f"libcudnn_{part}.so.9" for part in (
    "adv", "cnn", "engines_precompiled", "engines_runtime_compiled", "graph", "heuristic", "ops"
)]  # fmt: skip
#: What functions do that cannot just return 0; `words` are their arguments.
ANSWERS = {
    "cudnnGetVersion": "return 90100;",
    "cudnnGetCudartVersion": "return 12040;",
    "cudnnGetProperty": "*(int *)words[1] = words[0] == 0 ? 9 : words[0] == 1;",
    "cublasGetProperty": "*(int *)words[1] = words[0] == 0 ? 12 : words[0] == 1 ? 4 : 0;",
    "cublasGetVersion_v2": "*(int *)words[1] = 120400;",
    "cublasLtGetVersion": "return 120400;",
    "cublasLtMatmulAlgoGetHeuristic": "*(int *)words[9] = 1;",
    "cublasGetMathMode": "*(int *)words[1] = 0;",
    "cublasGetPointerMode_v2": "*(int *)words[1] = 0;",
}
#: Functions that make an object write its address to their first argument.
MAKES = re.compile(r"(?!cublasLt\w+Create)\w*Create|cublasLtCreate$")
TEXT = re.compile(r"\w*Get\w*(ErrorString|ErrorName|StatusString|StatusName)")


def wanted(packages: Path) -> dict[str, set[str]]:
    """library -> the names of its functions that the programs' files have."""
    name = re.compile(rb"\0((?:%s)[A-Z]\w*)(?=\0)" % "|".join(LIBRARIES).encode())
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(path for folder in FOLDERS for path in (packages / folder).rglob("*.so*")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            for match in set(name.findall(content)):
                word = match.decode()
                found[next(LIBRARIES[begin] for begin in LIBRARIES if word.startswith(begin))].add(word)
    return found


def compile_library(output: Path, library: str, sources: list[Path], *options: str) -> None:
    """The names have the version that NVIDIA's have: that of the library's name."""
    version = output / f"{library}.map"
    version.write_text(f"{library} {{ global: *; }};\n")
    command = ["cc", *CFLAGS, *options, f"-Wl,-soname,{library}", f"-Wl,--version-script={version}"]
    subprocess.run([*command, "-o", str(output / library), *map(str, sources), "-ldl", "-lpthread"], check=True)


def function(name: str) -> str:
    if name in ANSWERS:
        return f"FUNCTION({name}, {ANSWERS[name]})"
    if TEXT.match(name):
        return f'FUNCTION({name}, return (long)"text of a stand-in";)'
    return f"FUNCTION({name}, {'*(void **)words[0] = object();' if MAKES.match(name) else ''})"


def main(clients: Path, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    names = wanted(next(clients.glob("programs/lib/python3*/site-packages")))
    headers = [f"-isystem{path}" for path in clients.glob("long/lib/python3*/site-packages/nvidia/*/include")]
    for library in {*LIBRARIES.values(), *EMPTY} - {"libcudart.so.12"}:
        source = output / f"{library}.c"
        lines = ['#include "idle.h"', *map(function, sorted(names[library]))]
        source.write_text("".join(f"{line}\n" for line in lines))
        compile_library(output, library, [source], f"-I{HERE}")
    nvrtc = next(clients.glob("long/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.*")).resolve()
    (output / "libnvrtc.so").unlink(missing_ok=True)
    (output / "libnvrtc.so").symlink_to(nvrtc)  # NVIDIA's own: hashcat knows it by this name
    parts = [HERE / name for name in ("cudart.c", "forwards.c", "kernels.c")]
    has = set(re.findall(r"^(?:EXPORT .*?|EARLY\(|CALL\()(\w+)[(,]", "\n".join(p.read_text() for p in parts), re.M))
    missing = output / "missing.c"
    lines = ['#include "cudart.h"', "int cudart_missing(const char *);"]
    for name in sorted(names["libcudart.so.12"] - has):
        lines.append(f'EXPORT int {name}(void) {{ return cudart_missing("{name}"); }}')
    missing.write_text("".join(f"{line}\n" for line in lines))
    compile_library(output, "libcudart.so.12", [*parts, missing], f"-I{HERE}", *headers, "-fno-builtin")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
