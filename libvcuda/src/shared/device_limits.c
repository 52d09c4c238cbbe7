/*
 * Implements shared/device_limits.h. A device's UUID does not change while the process lives, so libvcuda reads it from
 * the driver once per device and keeps it.
 */
#include "shared/device_limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "shared/limits.h"

enum { DEVICES = 64 };

struct device_uuid {
	atomic_bool known;
	CUuuid uuid; /* of a MIG instance its own, never its card's */
};

static struct device_uuid devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void device_limits_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void device_limits_watch_forks(void)
{
	pthread_atfork(NULL, NULL, device_limits_after_fork);
}

/* The first version gives the card's UUID for an instance. Drivers that have no other version have no instances. */
static bool ask_for_uuid(CUdevice device, CUuuid *uuid)
{
	CUresult result = REAL_HAS(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2, uuid, device)
						       : REAL(cuDeviceGetUuid, uuid, device);

	return result == CUDA_SUCCESS;
}

static const CUuuid *uuid_of(CUdevice device)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct device_uuid *found = &devices[device];
	CUuuid uuid;

	if (atomic_load_explicit(&found->known, memory_order_acquire))
		return &found->uuid;
	if (!ask_for_uuid(device, &uuid)) /* without the lock: the driver may call our wrappers */
		return NULL;
	pthread_once(&once, device_limits_watch_forks);
	pthread_mutex_lock(&lock);
	if (!atomic_load(&found->known)) {
		found->uuid = uuid;
		atomic_store_explicit(&found->known, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return &found->uuid;
}

static bool find_listed(const CUuuid *uuid, struct device_limits *card)
{
	struct card_limits limits;

	memcpy(card->uuid, uuid->bytes, sizeof(card->uuid));
	if (!limits_of(card->uuid, &limits))
		return false;
	card->memory = limits.memory;
	card->overhead = limits.overhead;
	card->oversubscribe = limits.oversubscribe;
	card->cores = limits.cores;
	card->core_limit = limits.core_limit;
	return true;
}

bool device_limits_of(CUdevice device, struct device_limits *card)
{
	if (device < 0 || device >= DEVICES)
		return false;
	const CUuuid *uuid = uuid_of(device);
	if (!uuid)
		return false;
	if (find_listed(uuid, card))
		return true;
	log_once(LOG_WARNING, "device %d is not in the limits file, so it has no limit", device);
	return false;
}

bool device_limits_is_foreign(CUdevice device)
{
	struct card_limits listed;
	CUuuid card;

	if (limits_state() != LIMITS_PRESENT || device < 0 || device >= DEVICES)
		return false;
	const CUuuid *uuid = uuid_of(device);
	if (!uuid || limits_of((const uint8_t *)uuid->bytes, &listed) ||
	    REAL(cuDeviceGetUuid, &card, device) != CUDA_SUCCESS || !memcmp(uuid, &card, sizeof(card)))
		return false;
	log_once(
		LOG_ERROR,
		"device %d is a MIG instance that is not in the limits file: it has the numbers of the container's own, "
		"which was destroyed, or CAP_SYS_ADMIN shows it; so nothing is made on it",
		device);
	return true;
}

bool device_limits_current_device(CUdevice *device)
{
	return REAL(cuCtxGetDevice, device) == CUDA_SUCCESS;
}
