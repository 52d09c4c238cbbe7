/*
 * The wrappers of libnvidia-ml.so.1 that return a card's memory. driver/nvml_table.h lists all wrappers.
 *
 * They return the limit as the total and what the container's own processes hold as used. If the limit is no less than
 * the card's memory, they return the driver's figures. Driver version, UUIDs and counts always are the driver's. Lists
 * of processes and utilization are in hooks/nvml_processes.c.
 */
#include "driver/nvml_table.h"
#include "hooks/nvml_device.h"
#include "hooks/nvml_processes.h"
#include "shared/usage.h"
#include "vgpu_limits.h"

struct share {
	unsigned long long total;
	unsigned long long used;
	unsigned long long free;
};

/* What the container sees of a card that has `total` bytes and `available` of them free. */
static enum sight container_share(nvmlDevice_t device, uint64_t total, uint64_t available, struct share *share)
{
	struct card_limits limits;
	uint8_t uuid[16];
	uint64_t held;

	enum sight sight = nvml_device_sight(device, uuid, &limits);
	if (sight != SHARE)
		return sight;
	if (limits.memory >= total && !limits.oversubscribe)
		return WHOLE_CARD;
	if (limits.memory == VGPU_UNLIMITED)
		return WHOLE_CARD;
	if (!usage_held(uuid, nvml_processes_unbooked(device, uuid), limits.overhead, &held))
		return UNKNOWN;
	share->total = limits.memory;
	share->used = held < limits.memory ? held : limits.memory;
	share->free = limits.memory - share->used;
	if (!limits.oversubscribe && share->free > available) /* else managed memory provides what the card lacks */
		share->free = available;
	return SHARE;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct share share;

	if (!nvml_device_guard_enter())
		return REAL(nvmlDeviceGetMemoryInfo, device, memory);
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo, device, memory);
	enum sight sight =
		result == NVML_SUCCESS ? container_share(device, memory->total, memory->free, &share) : WHOLE_CARD;
	nvml_device_guard_leave();
	if (sight == SHARE) {
		memory->total = share.total;
		memory->used = share.used;
		memory->free = share.free;
	}
	return sight == UNKNOWN ? nvml_device_error(device) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct share share;

	if (!nvml_device_guard_enter())
		return REAL(nvmlDeviceGetMemoryInfo_v2, device, memory);
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2, device, memory);
	enum sight sight =
		result == NVML_SUCCESS ? container_share(device, memory->total, memory->free, &share) : WHOLE_CARD;
	nvml_device_guard_leave();
	if (sight == SHARE) {
		memory->total = share.total;
		memory->used = share.used;
		memory->free = share.free;
		memory->reserved = 0; /* the driver's reserve is no part of a share */
	}
	return sight == UNKNOWN ? nvml_device_error(device) : result;
}
