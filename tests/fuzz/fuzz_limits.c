/*
 * Fuzz target (libFuzzer) for the limits file: any bytes as its content. libvcuda must refuse the file or read it, and
 * nothing else may happen. The usage region has a target of its own, fuzz_usage.c.
 */
#include <sys/mman.h>
#include <time.h>

#include "fuzz_file.h"
#include "vgpu_limits.h"

#undef VGPU_LIMITS_PATH
#define VGPU_LIMITS_PATH "fuzz-limits" /* in the working directory, one per job */
/* libvcuda waits for an update that does not end; here the wait takes no time */
#define nanosleep(pause, rest) ((void)(pause), 0)
#include "shared/limits.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input is the whole file, or its beginning if it is shorter. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t content[sizeof(struct vgpu_limits)];
	const struct vgpu_limits *limits = (const struct vgpu_limits *)content;
	struct card_limits found;

	memset(content, 0, sizeof(content));
	memcpy(content, data, size < sizeof(content) ? size : sizeof(content));
	if (size && data[size - 1] == 0x5a)
		fuzz_file_put(VGPU_LIMITS_PATH, data, size);
	else
		fuzz_file_put(VGPU_LIMITS_PATH, content, sizeof(content));
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
