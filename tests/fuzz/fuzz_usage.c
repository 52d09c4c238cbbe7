/*
 * Fuzz target (libFuzzer) for the usage region: any bytes in it, as a tenant may write them. libvcuda must neither hang
 * nor let the process exceed its limit. The limits file has a target of its own, fuzz_limits.c.
 */
#include <stdlib.h>
#include <time.h>

#include "vgpu_usage.h"

#undef VGPU_USAGE_PATH
#define VGPU_USAGE_PATH "fuzz-usage"
#define nanosleep(pause, rest) ((void)(pause), 0)
#include "shared/usage_region.c"
#include "shared/usage_slots.c"
#include "shared/usage.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t uuid[16] = "fuzzed-card-0000";

static void put(struct vgpu_usage *usage)
{
	int fd = open(VGPU_USAGE_PATH, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || pwrite(fd, usage, sizeof(*usage), 0) != (ssize_t)sizeof(*usage))
		abort();
	close(fd);
}

/*
 * The first two bytes select where the rest is written, in units of 16 bytes: an input can change any word of the
 * region.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vgpu_usage content;
	struct usage_process list[8];
	const struct usage_limit limit = {.memory = 1 << 20, .overhead = size > 2 ? data[2] : 0};
	uint64_t held;

	if (size < 2)
		return 0;
	size_t at = ((size_t)data[0] << 8 | data[1]) * 16 % sizeof(content);
	memset(&content, 0, sizeof(content));
	content.identity = VGPU_USAGE_IDENTITY;
	for (size_t i = 2; i < size && at + i - 2 < sizeof(content); i++)
		((uint8_t *)&content)[at + i - 2] = data[i];
	put(&content);
	if (atomic_load(&usage_region))
		munmap(atomic_load(&usage_region), sizeof(struct vgpu_usage));
	atomic_store(&usage_region, NULL);
	atomic_store(&own->slot, 0);
	int card = usage_card(uuid);
	if (card != USAGE_NO_CARD && usage_reserve(card, 4096, limit)) {
		if (!usage_held(uuid, 0, limit.overhead, &held) || held < 4096)
			abort();
		usage_release(card, 4096);
	}
	if (card != USAGE_NO_CARD && usage_reserve(card, limit.memory + 1, limit))
		abort();
	if (card != USAGE_NO_CARD) {
		usage_set_unaccounted(card, true);
		(void)usage_reserve(card, 4096, limit);
		(void)usage_has_room(card, limit);
		usage_set_unaccounted(card, false);
	}
	(void)usage_held(uuid, UINT64_MAX, limit.overhead, &held);
	(void)usage_processes(uuid, list, 8);
	return 0;
}
