"""Small driver roots like that of an installed driver, of real ELF files, with an NVML that pynvml can load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from click.testing import CliRunner, Result

from vgpu.config import records
from vgpu.config.settings import Settings
from vgpu.node.ctl.inventory import inventory

VERSION = "550.54.15"
UVM_MAJOR = 511
LIBRARY_DIR = "usr/lib/x86_64-linux-gnu"

#: Four cards: 0 and 1 with LINKS NVLinks between them (SWITCHED: to an NVSwitch), 2 in MIG mode, 3 lost. Card 2 has the
#: MIG instances gi1/ci0, gi2/ci0 and gi2/ci1, with gaps between their indexes, one that is destroyed meanwhile, and one
#: with a name of before R470. Card 1 is to be in MIG mode after a reset.
NVML = r"""
#include <stdio.h>
#include <string.h>
#ifndef LINKS
#define LINKS 4
#endif
#ifndef SWITCHED
#define SWITCHED 0
#endif
enum { UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, LOST = 15, INSTANCE = 100 };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
static int started;
static int number(void *device) { return (int)(long)device - 1; }
static int bus(struct pci *pci, int card)
{
	memset(pci, 0, sizeof *pci);
	snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3a + card);
	return 0;
}
int nvmlInitWithFlags(unsigned flags) { started = 1; return flags ? INVALID : 0; }
int nvmlShutdown(void) { started = 0; return 0; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return started ? 0 : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	*device = (void *)(long)(index + 1);
	return index == 3 ? LOST : 0;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { *minor = 7 - number(device); return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) { return bus(pci, number(device)); }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
	const char *kind = number(device) < INSTANCE ? "GPU" : number(device) == INSTANCE + 9 ? "MIG-GPU" : "MIG";
	snprintf(uuid, size, "%s-00000000-0000-0000-0000-%012d", kind, number(device));
	return number(device) == INSTANCE + 7 ? INVALID : 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
	snprintf(name, size, number(device) < INSTANCE ? NAME : NAME " MIG 1g.5gb");
	return !device;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { *count = 10; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig)
{
	*mig = (void *)(long)(INSTANCE + index + 1);
	return index % 2 ? 0 : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *mig, unsigned *id) { *id = number(mig) == INSTANCE + 1 ? 1 : 2; return 0; }
int nvmlDeviceGetComputeInstanceId(void *mig, unsigned *id) { *id = number(mig) == INSTANCE + 5; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	memset(memory, 0, sizeof *memory);
	memory->total = 40ull << 30;
	return !device;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *then)
{
	*now = number(device) == 2;
	*then = number(device) >= 1;
	return number(device) ? 0 : UNSUPPORTED;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
	*active = link != 1;
	return number(device) < 2 && LINKS && link <= LINKS ? 0 : INVALID;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *pci)
{
	return bus(pci, SWITCHED ? 99 : 1 - number(device));
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type) { *type = 2; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) { *level = LEVEL; return 0; }
"""


def compile_library(path: Path, source: str, *flags: str, soname: str = "") -> None:
    """Make a shared object at `path`. Without libc it needs no headers of the other word size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named = [f"-Wl,-soname,{soname}"] if soname else []
    command = ["cc", "-x", "c", "-w", "-shared", "-fPIC", *named, *flags, "-o", str(path), "-"]
    subprocess.run(command, input=source, check=True, text=True)


def compile_parts(directory: Path) -> None:
    """Compile a library of each word size, and NVMLs with direct links, behind a switch, and without links."""
    compile_library(directory / "lib64.so", "int x;", "-nostdlib", soname="S" * 64)
    compile_library(directory / "lib32.so", "int x;", "-nostdlib", "-m32", soname="S" * 64)
    for name, flags in {
        "nvml": ('-DNAME="Direct"', "-DLEVEL=50"),
        "switched": ('-DNAME="Switched"', "-DLEVEL=50", "-DSWITCHED=1", "-DLINKS=18"),
        "plain": ('-DNAME="Plain"', "-DLEVEL=20", "-DLINKS=0"),
    }.items():
        compile_library(directory / f"{name}.so", NVML, *flags, soname="libnvidia-ml.so.1")


class DriverRoot:
    """A driver root that tests fill. `settings()` has the paths of the root and of its /proc and /dev."""

    def __init__(self, path: Path, parts: Path) -> None:
        self.path = path
        self.parts = parts
        self.proc = path / "proc"
        self.dev = path / "dev"
        self.libraries = path / LIBRARY_DIR
        for directory in (self.proc / "driver/nvidia/gpus", self.proc / "sys/kernel/random", self.dev, self.libraries):
            directory.mkdir(parents=True, exist_ok=True)
        version = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Tue Mar  5 22:23:56 UTC 2024\n"
        self.write("proc/driver/nvidia/version", version)
        self.write("proc/sys/kernel/random/boot_id", "4c2b6d0e-0000-4000-8000-000000000001\n")
        self.write("proc/devices", f"Character devices:\n195 nvidia\n{UVM_MAJOR} nvidia-uvm\n\nBlock devices:\n")

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def add(self, name: str, soname: str = "", directory: str = LIBRARY_DIR, bits: int = 64) -> Path:
        """Add a library `name`: a copy of a compiled one whose SONAME is overwritten with `soname`."""
        path = self.path / directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = (self.parts / f"lib{bits}.so").read_bytes()
        path.write_bytes(data.replace(b"S" * 64 + b"\0", soname.encode().ljust(65, b"\0")))
        return path

    def add_nvml(self, kind: str = "nvml") -> Path:
        """Add libnvidia-ml.so.<version> of a `kind` that `compile_parts` made."""
        path = self.libraries / f"libnvidia-ml.so.{VERSION}"
        shutil.copy(self.parts / f"{kind}.so", path)
        return path

    def settings(self, **others: object) -> Settings:
        values: dict[str, object] = {
            "driver.root": str(self.path), "driver.proc_root": str(self.proc), "driver.dev_root": str(self.dev),
            "paths.run": str(self.path / "run"),
        }  # fmt: skip
        return Settings(values | others)

    def call(self, *arguments: str) -> Result:
        """`vgpuctl inventory` with these arguments."""
        compiled = str(self.path / "config.json")
        records.write(compiled, self.settings().record())
        return CliRunner().invoke(inventory, arguments, obj=compiled)
