"""Functions of the node's driver that libvcuda does not know, and that may bypass the limits.

Belongs here: comparing two lists of symbols. The build of libvcuda writes its list, which is installed beside the
library. The driver's list is its library's dynamic symbol table. Does not belong here: reading that table, which
vgpu.node.driver.elf_symbols does. Part of taking an inventory; never runs in the hook's process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from vgpu.config.errors import VgpuError

#: Library -> the file beside libvcuda's libraries that lists its functions.
FILES = {"libcuda": "vcuda.json", "libnvidia-ml": "vcuda_nvml.json"}

_GIVES_MEMORY = re.compile(
    r"^cu(Mem\w*Alloc|Mem(Create|Map|Import|PoolCreate|PoolImport)|\w*Array\w*Create|Graph\w*(Alloc|Instantiate)|"
    r"Import|Ipc\w*Open|ExternalMemory|Multicast(Create|Bind)|\w*CtxCreate|DevicePrimaryCtxRetain|(Module|Library)Load)"
)
_LAUNCHES = re.compile(r"^cu\w*Launch")


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
    """The sorted allocation and launch functions among the driver's symbols that are not in `known`."""
    strange = set(driver) - set(known)
    return sorted(name for name in strange if _GIVES_MEMORY.match(name) or _LAUNCHES.match(name))
