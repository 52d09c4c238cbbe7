"""Functions of the node's driver that libvcuda does not know, and that no rule calls harmless.

Belongs here: comparing two lists of symbols, and the rules. The build of libvcuda writes its list, which is installed
beside the library. The driver's list is its library's dynamic symbol table. Does not belong here: reading that table,
which vgpu.node.driver.elf_symbols does. Part of taking an inventory; never runs in the hook's process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from vgpu.config.errors import VgpuError

#: Library -> the file beside libvcuda's libraries that lists its functions.
FILES = {"libcuda": "vcuda.json", "libnvidia-ml": "vcuda_nvml.json"}

#: The rules: what the whole name of a harmless function matches, and why it is harmless. A function of a new driver
#: that matches none may give memory or start work: its name does not say, and its documentation has to be read.
HARMLESS = (
    (r"cudbg\w*", "the debugger's interface: what cuda-gdb reads of a process and calls in it"),
    (
        r"cu(?!\w*(Mem|Pool|Array|Handle|Ipc|Import|Export|ProcAddress|Alloc|Create|Retain|Set|Launch))[A-Z]\w*"
        r"(Get|Query)(?!(Function|Kernel|Module)(_v\d+)?$)[A-Z]\w*",
        "asks, and the name has nothing of memory, handles, code, functions to be called, nor a second verb",
    ),
    (r"cu(Coredump|Logs|Profiler)[A-Z]\w*", "dumps, logs and profiles for the process itself"),
    (r"cuEGLApiInit", "loads EGL's functions; every driver since R470 has it, and EGL's frames are imports"),
    (r"cuMemGetAttribute(_v2)?", "asks for an attribute; every driver since R470 has it, beside cuPointerGetAttribute"),
    (
        r"nvml(?!\w*(Mem|Process|Pids|Util|Accounting|ExportTable))\w+",
        "NVML gives no memory and starts no work, and this name promises neither memory's sizes nor processes",
    ),
    (r"nvmlInternalGetExportTable", "nvidia-smi's private interface; every driver since R470 has it"),
)
#: Functions that libvcuda passes on by their names, and of which nothing published says what they do.
UNDOCUMENTED = frozenset({"cuSubgridCreate", "cuSubgridWorkerGridCreate", "cuSubgridWorksetCreate"})
_HARMLESS = re.compile("|".join(f"(?:{pattern})" for pattern, _ in HARMLESS))


def known_functions(libvcuda_dir: str, library: str = "libcuda") -> set[str]:
    """All functions that the installed libvcuda hooks or passes on; VgpuError if its list cannot be read."""
    path = f"{libvcuda_dir}/{FILES[library]}"
    try:
        with open(path, encoding="ascii") as file:
            content = json.load(file)
        return {*content["hooked"], *content["known"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VgpuError(path, expected="libvcuda's list of functions", found=str(error), do="reinstall vgpu") from error


def unknown_functions(driver: Iterable[str], known: Iterable[str]) -> list[str]:
    """The sorted functions among the driver's whose work is not known, and that no rule calls harmless."""
    strange = set(driver) - (set(known) - UNDOCUMENTED)
    return sorted(name for name in strange if not _HARMLESS.fullmatch(name))
