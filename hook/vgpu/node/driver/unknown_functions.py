"""Functions of the node's driver that libvcuda does not know: what a newer driver may give a program past the limits.

Belongs here: comparing two lists of symbols. libvcuda's is installed beside it, made by its build; the driver's comes
from its library's dynamic symbol table (vgpu.hook.formats.elf). Part of `vgpuctl inventory refresh`; runs outside the hook.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from vgpu.config.errors import VgpuError

#: Names beside libvcuda's libraries, by the library whose functions they list.
FILES = {"libcuda": "vcuda.json", "libnvidia-ml": "vcuda_nvml.json"}

_GIVES_MEMORY = re.compile(
    r"^cu(Mem\w*Alloc|Mem(Create|Map|Import|PoolCreate|PoolImport)|\w*Array\w*Create|Graph\w*(Alloc|Instantiate)|"
    r"Import|Ipc\w*Open|ExternalMemory|Multicast(Create|Bind)|\w*CtxCreate|DevicePrimaryCtxRetain|(Module|Library)Load)"
)
_LAUNCHES = re.compile(r"^cu\w*Launch")


def known_functions(libvcuda_dir: str, library: str = "libcuda") -> set[str]:
    """All functions that the installed libvcuda hooks or passes on by name; VgpuError without a readable list."""
    path = f"{libvcuda_dir}/{FILES[library]}"
    try:
        with open(path, encoding="ascii") as file:
            content = json.load(file)
        return {*content["hooked"], *content["known"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VgpuError(path, expected="libvcuda's list of functions", found=str(error), do="reinstall vgpu") from error


def unknown_functions(driver: Iterable[str], known: Iterable[str]) -> list[str]:
    """Allocation and launch functions among the driver's symbols that are not known, sorted."""
    strange = set(driver) - set(known)
    return sorted(name for name in strange if _GIVES_MEMORY.match(name) or _LAUNCHES.match(name))
