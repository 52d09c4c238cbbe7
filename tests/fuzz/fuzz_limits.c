/*
 * Fuzz target (libFuzzer) for the limits file: any bytes as its content. libvcuda must refuse the file or read it, and
 * nothing else may happen. The usage region has a target of its own, fuzz_usage.c.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "vgpu_limits.h"

#undef VGPU_LIMITS_PATH
#define VGPU_LIMITS_PATH "fuzz-limits" /* in the working directory, one per job */
/* libvcuda waits for an update that does not end; here the wait takes no time */
#define nanosleep(pause, rest) ((void)(pause), 0)
#include "shared/limits.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(const uint8_t *data, size_t size)
{
	int fd = open(VGPU_LIMITS_PATH, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	close(fd);
}

/* The input is the whole file, or its beginning if it is shorter. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t content[sizeof(struct vgpu_limits)];
	const struct vgpu_limits *limits = (const struct vgpu_limits *)content;
	struct card_limits found;

	memset(content, 0, sizeof(content));
	memcpy(content, data, size < sizeof(content) ? size : sizeof(content));
	if (size && data[size - 1] == 0x5a)
		put(data, size);
	else
		put(content, sizeof(content));
	if (mapped)
		munmap((void *)(uintptr_t)mapped, sizeof(*mapped));
	mapped = NULL;
	once = PTHREAD_ONCE_INIT;
	if (limits_state() == LIMITS_ABSENT)
		abort();
	if (limits_state() == LIMITS_PRESENT && limits_of(limits->cards[0].uuid, &found) != (limits->card_count > 0))
		abort();
	return 0;
}
