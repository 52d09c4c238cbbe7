"""Ten faults that the self-test must find, each as the row that it belongs to.

Belongs here: the faults, and what a node needs to have one of them. Eight are libvcuda with one line changed: the file
is compiled and linked as the build did it, so that nothing else differs. One is a driver whose NVML lags, one a runtime
that opens all devices. The self-test sees no difference but what it measures.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from checkout import BUILD, CHECKOUT

SOURCES = CHECKOUT / "libvcuda"
MADE = BUILD / "libvcuda"  #: where CMake keeps how it compiles and links
LIBRARIES = {"vcuda": "libcuda.so.1", "vcuda_nvml": "libnvidia-ml.so.1"}

#: A runtime that opens all devices to the container of each bundle, and otherwise is the one that it is named after.
OPEN_RUNTIME = """#!/usr/bin/python3
import json, os, sys
for word, value in zip(sys.argv, sys.argv[1:]):
    if word in ("--bundle", "-b"):
        path = value + "/config.json"
        with open(path) as file:
            spec = json.load(file)
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
        with open(path, "w") as file:
            json.dump(spec, file)
os.execv("%s", sys.argv)
"""


@dataclass(frozen=True)
class Fault:
    """`row` is the row of the report that has to fail."""

    name: str
    row: str
    file: str = ""  #: of libvcuda/src, with `old` in it once
    old: str = ""
    new: str = ""
    memory: dict[str, int] = field(default_factory=dict)  #: of the simulated driver's profile
    opens_devices: bool = False

    def libraries(self, directory: Path) -> Path:
        """A directory with libvcuda's files as the build has them, but for the fault."""
        made = directory / self.name
        shutil.copytree(BUILD / "lib/vcuda", made)
        for target in LIBRARIES if self.file else ():
            _link(self, target, made)
        return made

    def programs(self, directory: Path) -> Path | None:
        """A directory to put before PATH, in which the runtimes have the fault; None: none is needed."""
        if not self.opens_devices:
            return None
        made = directory / f"{self.name}-programs"
        made.mkdir()
        for name in ("runc", "crun"):
            if found := shutil.which(name):
                (made / name).write_text(OPEN_RUNTIME % found)
                (made / name).chmod(0o755)
        return made


FAULTS = (
    Fault(
        "pools-unlimited", "memory.pool", "memory/pools.c",
        "if (!usage_reserve(pool->card, growth, limit)) {",
        "if (!usage_reserve(pool->card, growth, (struct usage_limit){VGPU_UNLIMITED, 0})) {",
    ),
    Fault(
        "limit-a-mebibyte-high", "memory.device", "memory/charge.c",
        "	entry->card = place;\n",
        "	entry->card = place;\n	card = &(struct device_limits){.memory = card->memory + (1 << 20), "
        ".overhead = card->overhead};\n",
    ),
    Fault(
        "killed-keeps-its-charge", "memory.killed", "shared/usage_slots.c",
        "	zero_charges(usage, index);\n	give_back_time(usage, index);",
        "	give_back_time(usage, index);",
    ),
    Fault(
        "share-five-points-high", "share.30-70", "compute/schedule.c",
        "	return published ? bounds_min(published, share) : share;",
        "	return (published ? bounds_min(published, share) : share) + 5 * PERCENT;",
    ),
    Fault(
        "second-process-free", "share.processes", "compute/launch.c",
        "	return !schedule_is_unlimited(launch->bucket) && ",
        "	return !launch->bucket->shared.slot && !schedule_is_unlimited(launch->bucket) && ",
    ),
    Fault(
        "slice-doubled", "slice.process", "compute/process_slice.c",
        "#define QUANTUM (10 * NS_PER_MS)",
        "#define QUANTUM (20 * NS_PER_MS)",
    ),
    Fault("nvml-lags", "nvml.lag", memory={"nvml_lag_ms": 5000}),
    Fault(
        "whole-card-shown", "totals.cuda", "hooks/info.c",
        "		narrow_info(available, total);",
        "		(void)narrow_info;",
    ),
    Fault(
        "set-without-effect", "set.live", "shared/limits.c",
        "	seen = sequence_now();\n	for (int look",
        "	if (seen && (seen = sequence_now()))\n		return true;\n	seen = sequence_now();\n	for (int look",
    ),
    Fault("second-card-open", "device.second-card", opens_devices=True),
)  # fmt: skip


def _link(fault: Fault, target: str, made: Path) -> None:
    """Compiles the faulty source in the place of the build's object, and links the library again."""
    folder = MADE / f"CMakeFiles/{target}.dir"
    link = (folder / "link.txt").read_text()
    object_file = f"CMakeFiles/{target}.dir/src/{fault.file}.o"
    if object_file not in link:
        return
    faulty = made / f"{target}.c"
    text = (SOURCES / "src" / fault.file).read_text()
    assert text.count(fault.old) == 1, f"{fault.name}: {fault.file} has changed"
    faulty.write_text(text.replace(fault.old, fault.new))
    flags = re.findall(r"^C_(?:DEFINES|INCLUDES|FLAGS) = (.*)$", (folder / "flags.make").read_text(), re.MULTILINE)
    linker = shlex.split(link)
    compiler = [linker[0], *shlex.split(" ".join(flags)), "-Wno-error", "-c", str(faulty), "-o", f"{faulty}.o"]
    subprocess.run(compiler, check=True)
    output = str(made / LIBRARIES[target])
    replaced = {object_file: f"{faulty}.o", f"../lib/vcuda/{LIBRARIES[target]}": output}
    Path(output).unlink()
    subprocess.run([replaced.get(word, word) for word in linker], cwd=MADE, check=True)
    faulty.unlink()
    Path(f"{faulty}.o").unlink()
