/*
 * The wrappers of libnvidia-ml.so.1 that tell a card's memory (the list: nvml_hooks.h): the limit as the total, what
 * the container's own processes hold as used. Driver version, UUIDs and counts stay the driver's. A card whose limit
 * is no less than its memory is told as it is.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "limits_file.h"
#include "nvml_hooks.h"
#include "usage.h"

static __thread int inside;

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `GPU-8a56a4bc-...` or `MIG-...` as 16 bytes. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
	int digits = 0;

	text = strchr(text, '-');
	if (!text)
		return false;
	for (; *text; text++) {
		int value = hex_digit(*text);
		if (*text == '-')
			continue;
		if (value < 0 || digits == 32)
			return false;
		uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] << 4 | value : value);
		digits++;
	}
	return digits == 32;
}

struct share {
	unsigned long long total;
	unsigned long long used;
	unsigned long long free;
};

enum sight { WHOLE_CARD, SHARE, UNKNOWN };

/* What the container sees of a card that has `total` bytes and `available` of them free. */
static enum sight container_share(nvmlDevice_t device, uint64_t total, uint64_t available, struct share *share)
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	uint8_t uuid[16];
	uint64_t limit, held;

	if (limits_state() == LIMITS_ABSENT)
		return WHOLE_CARD;
	if (limits_state() == LIMITS_BROKEN || REAL(nvmlDeviceGetUUID, device, text, sizeof(text)) != NVML_SUCCESS ||
	    !parse_uuid(text, uuid))
		return UNKNOWN;
	if (!limits_memory(uuid, &limit) || limit >= total)
		return WHOLE_CARD;
	if (!usage_held(uuid, &held))
		return UNKNOWN;
	share->total = limit;
	share->used = held < limit ? held : limit;
	share->free = limit - share->used < available ? limit - share->used : available;
	return SHARE;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct share share;

	if (inside)
		return REAL(nvmlDeviceGetMemoryInfo, device, memory);
	inside++;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo, device, memory);
	enum sight sight = result == NVML_SUCCESS ? container_share(device, memory->total, memory->free, &share) : WHOLE_CARD;
	inside--;
	if (sight == SHARE) {
		memory->total = share.total;
		memory->used = share.used;
		memory->free = share.free;
	}
	return sight == UNKNOWN ? NVML_ERROR_UNKNOWN : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct share share;

	if (inside)
		return REAL(nvmlDeviceGetMemoryInfo_v2, device, memory);
	inside++;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2, device, memory);
	enum sight sight = result == NVML_SUCCESS ? container_share(device, memory->total, memory->free, &share) : WHOLE_CARD;
	inside--;
	if (sight == SHARE) {
		memory->total = share.total;
		memory->used = share.used;
		memory->free = share.free;
		memory->reserved = 0; /* the driver's reserve is no part of a share */
	}
	return sight == UNKNOWN ? NVML_ERROR_UNKNOWN : result;
}
