/*
 * vgpu-selftest: does on a card what one is told by lines, and says what came of it. `vgpuctl selftest` starts it, with
 * libvcuda and without, and judges: docs/selftest.md. README.md has the commands and their answers.
 *
 *   vgpu-selftest [--library PATH]      another library than libcuda.so.1
 *
 * Belongs here: the list of commands. Each line of stdin is a command, each gets one JSON object on stdout. A driver's
 * refusal is an answer: {"code": 2} is CUDA_ERROR_OUT_OF_MEMORY. Times are ns of the clock that `clock` shows.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "card.h"
#include "driver.h"
#include "loads.h"
#include "memory.h"
#include "overhead.h"
#include "protocol.h"
#include "stamps.h"

static bool time_stands_still;

static void clock_now(void)
{
	protocol_begin();
	protocol_add("now", driver_now());
	protocol_add_bool("virtual", driver_clock_is_virtual());
	protocol_end();
	time_stands_still = driver_clock_is_virtual();
}

static void sleep_until(void)
{
	driver_sleep_until(protocol_number("until"));
	protocol_begin();
	protocol_add("now", driver_now());
	protocol_end();
}

/*
 * Whether a device's node opens: the errno, 0 if it did. The node is made where this program may write. mknod of a new
 * glibc is a new symbol.
 */
static void open_node(void)
{
	const char *path = access("/dev", W_OK) ? "./vgpu-selftest-node" : "/dev/vgpu-selftest-node";
	dev_t device = makedev((unsigned)protocol_number("MAJOR"), (unsigned)protocol_number("MINOR"));
	int fd = syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0600, device) ? -1 : open(path, O_RDWR | O_CLOEXEC);
	int error = fd < 0 ? errno : 0;

	if (fd >= 0)
		close(fd);
	unlink(path);
	protocol_begin();
	protocol_add("errno", (uint64_t)error);
	protocol_end();
}

static const struct command {
	const char *name, *kind, *takes; /* kind: the second word, where that chooses the command, too */
	void (*run)(void);
} commands[] = {
	{"hello", NULL, "", card_hello},
	{"use", NULL, "CARD", card_use},
	{"contexts", NULL, "N#", overhead_contexts},
	{"make", "streams", "KIND N#", overhead_streams},
	{"make", "graph", "KIND N#", overhead_graph},
	{"make", "stack", "KIND N#", overhead_stack},
	{"make", "launch", "KIND", overhead_launch},
	{"memory", NULL, "", card_memory},
	{"processes", NULL, "", card_processes},
	{"alloc", NULL, "KIND BYTES#", memory_alloc},
	{"fill", NULL, "KIND STEP# [least=1048576]", memory_fill},
	{"free", NULL, "ID", memory_free},
	{"node", NULL, "MAJOR# MINOR#", open_node},
	{"clock", NULL, "", clock_now},
	{"sleep", NULL, "until=#", sleep_until},
	{"run", "flood", "LOAD kernel=# begin=# end=# [ahead=4]", loads_flood},
	{"run", "service", "LOAD work=# period=# begin=# end=#", loads_service},
	{"run", "pauses", "LOAD work=# gap=# begin=# end=# [wait=stream]", loads_pauses},
	{"run", "graphs", "LOAD kernel=# nodes=# begin=# end=#", loads_graphs},
	{"run", "copies", "LOAD kernel=# bytes=# begin=# end=#", loads_copies},
	{"stamps", NULL, "kernel=# begin=# end=#", stamps_take},
	{"cost", NULL, "WHAT count=#", stamps_cost},
};

static void obey(const char *name)
{
	const char *kind = protocol_word(1);

	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
		if (strcmp(commands[i].name, name) != 0 || (commands[i].kind && strcmp(commands[i].kind, kind) != 0))
			continue;
		if (protocol_takes(commands[i].takes))
			commands[i].run();
		return;
	}
	protocol_error("there is no command %s %s", name, kind);
}

/*
 * After `clock` a simulated clock stands still until the next command is there and has been read, so that the caller
 * can start several programs at one time: this one is due again and again one ns later. Else it lets others run while
 * it waits, but not before a command that is there already: on a busy machine they would run for long.
 */
static const char *next_command(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	bool waits;
	const char *command;

	while (time_stands_still && poll(&input, 1, 1) == 0)
		driver_sleep_until(driver_now() + 1);
	time_stands_still = false;
	waits = poll(&input, 1, 0) == 0;
	if (waits)
		driver_waits(true);
	command = protocol_read();
	if (waits)
		driver_waits(false);
	return command;
}

int main(int count, char **arguments)
{
	bool is_named = count == 3 && strcmp(arguments[1], "--library") == 0;
	const char *missing, *command;

	if (count != 1 && !is_named) {
		fprintf(stderr, "vgpu-selftest: expected no argument, or --library PATH\n");
		return 2;
	}
	setvbuf(stdin, NULL, _IONBF, 0); /* poll sees what stdio has not read */
	missing = driver_open(is_named ? arguments[2] : "libcuda.so.1");
	for (;;) {
		command = next_command();
		if (!command)
			return 0;
		if (missing) {
			protocol_begin();
			protocol_add_text("missing", missing);
			protocol_end();
		} else
			obey(command);
	}
}
