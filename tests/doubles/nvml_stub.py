"""An NVML that a test's files control, for errors, silence and hanging calls, which the simulated driver lacks.

The library reads `<control>/<name>` at every call: `init`, `card<N>`, `wait` contain an error's number or `hang`;
`events` contains one for cards without events; `action<N>`, `ecc<N>` contain the card's answer; `event` is
"<card> <type> <data>", consumed once. Each call appends "<pid> <what>" to `<control>/log`.
"""

from __future__ import annotations

import os
from pathlib import Path

from cards import card, inventory, write_inventory
from driver_roots import compile_library

from vgpu.config.inventory import Card, Device, Library
from vgpu.config.settings import Settings

XID, DOUBLE_BIT_ECC = 8, 2

SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };
struct field { unsigned id, scope; long long time, latency; int type, result; union { unsigned u; double d; } value; };
struct event { void *device; unsigned long long type, data; unsigned gpu, compute; };
static int number(void *device) { return (int)(long)device - 1; }
static int read_control(const char *name, int card, char *text)
{
	char path[512];
	snprintf(path, sizeof path, card < 0 ? "%s/%s" : "%s/%s%d", CONTROL, name, card);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	long size = fd < 0 ? -1 : read(fd, text, 60);
	close(fd);
	text[size > 0 ? size : 0] = 0;
	return size > 0;
}
static int code(const char *name, int card)
{
	char text[64];
	if (!read_control(name, card, text))
		return 0;
	while (!strcmp(text, "hang"))
		pause();
	return atoi(text);
}
static void note(const char *what, int card)
{
	char line[64];
	int fd = open(CONTROL "/log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (write(fd, line, snprintf(line, sizeof line, "%d %s%d\n", getpid(), what, card)) < 0)
		abort();
	close(fd);
}
int nvmlInitWithFlags(unsigned flags) { note("init", 0); return code("init", -1); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { return result == 15 ? "GPU is lost" : "an error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device)
{
	unsigned bus;
	if (sscanf(text, "0000:%x:00.0", &bus) != 1)
		return NOT_FOUND;
	*device = (void *)(long)(bus + 1);
	note("open", bus);
	return code("card", bus);
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
	snprintf(uuid, size, "GPU-%d", number(device));
	return code("card", number(device));
}
int nvmlDeviceGetMemoryInfo(void *device, void *memory) { return code("card", number(device)); }
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, int *pending) { return UNSUPPORTED; }
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count)
{
	*count = code("ecc", number(device));
	return 0;
}
int nvmlDeviceGetFieldValues(void *device, int count, struct field *values)
{
	char text[64];
	values[0].result = read_control("action", number(device), text) && values[0].id == 230 ? 0 : UNSUPPORTED;
	values[0].value.u = atoi(text);
	return 0;
}
int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
	*types = 0x1f;
	return code("events", -1);
}
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return 0; }
int nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds)
{
	char text[64];
	note("wait", 0);
	for (unsigned waited = 0; waited < milliseconds; waited += 10) {
		int error = code("wait", -1), card;
		if (error)
			return error;
		memset(event, 0, sizeof *event);
		if (read_control("event", -1, text) && sscanf(text, "%d %llu %llu", &card, &event->type, &event->data) == 3) {
			event->device = (void *)(long)(card + 1);
			unlink(CONTROL "/event");
			return 0;
		}
		usleep(10000);
	}
	return TIMEOUT;
}
"""


class StubNode:
    """A node of `count` cards, GPU-0 and so on, whose NVML is the stub."""

    def __init__(self, path: Path, count: int = 2, **settings: object) -> None:
        self.path = path
        self.control = path / "control"
        self.proc = path / "proc"
        self.version = self.proc / "driver/nvidia/version"
        self.library = path / "libnvidia-ml.so.550.1"
        for directory in (self.control, self.version.parent, path / "run", path / "dev"):
            directory.mkdir(parents=True)
        compile_library(self.library, SOURCE, f'-DCONTROL="{self.control}"')
        self.load_driver("550.1")
        values = {"paths.run": str(path / "run"), "driver.proc_root": str(self.proc)}
        self.settings = Settings({**values, **settings})
        self.cards = [self._card(number) for number in range(count)]
        self.write_inventory()

    def _card(self, number: int) -> Card:
        node = self.path / f"dev/nvidia{number}"
        node.symlink_to("/dev/null")  # what counts is that a character device answers to the name
        device = Device(str(node), node.name, 195, number)
        return card(number, uuid=f"GPU-{number}", name="Stub", device=device)

    def write_inventory(self) -> None:
        library = Library(str(self.library), self.library.name, "libnvidia-ml.so.1", "utility")
        write_inventory(self.settings.run_dir, inventory(self.cards, "550.1", libraries=[library]))

    def load_driver(self, version: str) -> None:
        self.version.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  now\n")

    def set_control(self, name: str, text: object) -> None:
        """Write a control file. The rename makes the new text visible at once and as a whole."""
        (self.control / "new").write_text(str(text))
        os.rename(self.control / "new", self.control / name)

    def unsay(self, name: str) -> None:
        (self.control / name).unlink()

    def event(self, card: int, kind: int, data: int) -> None:
        self.set_control("event", f"{card} {kind} {data}")

    def calls(self, what: str) -> list[int]:
        """The pids of the processes that have called it so far."""
        lines = (self.control / "log").read_text().splitlines() if (self.control / "log").exists() else []
        return [int(pid) for pid, called in (line.split() for line in lines) if called == what]
