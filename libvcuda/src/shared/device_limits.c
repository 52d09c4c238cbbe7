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

struct device_uuids {
	atomic_bool known;
	CUuuid exact;     /* for a MIG instance, its own */
	CUuuid physical;  /* the card's, also for a MIG instance */
};

static struct device_uuids devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void device_limits_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void device_limits_watch_forks(void)
{
	pthread_atfork(NULL, NULL, device_limits_after_fork);
}

static bool ask_for_uuids(CUdevice device, CUuuid *exact, CUuuid *physical)
{
	if (REAL(cuDeviceGetUuid, physical, device) != CUDA_SUCCESS)
		return false;
	if (REAL(cuDeviceGetUuid_v2, exact, device) != CUDA_SUCCESS)
		*exact = *physical;
	return true;
}

static const struct device_uuids *uuids_of(CUdevice device)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct device_uuids *uuids = &devices[device];
	CUuuid exact, physical;

	if (atomic_load_explicit(&uuids->known, memory_order_acquire))
		return uuids;
	if (!ask_for_uuids(device, &exact, &physical)) /* without the lock: the driver may call our wrappers */
		return NULL;
	pthread_once(&once, device_limits_watch_forks);
	pthread_mutex_lock(&lock);
	if (!atomic_load(&uuids->known)) {
		uuids->exact = exact;
		uuids->physical = physical;
		atomic_store_explicit(&uuids->known, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return uuids;
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
	const struct device_uuids *uuids = uuids_of(device);
	if (!uuids)
		return false;
	if (find_listed(&uuids->exact, card) || find_listed(&uuids->physical, card))
		return true;
	log_once(LOG_WARNING, "device %d is not in the limits file, so it has no limit", device);
	return false;
}

bool device_limits_current_device(CUdevice *device)
{
	return REAL(cuCtxGetDevice, device) == CUDA_SUCCESS;
}
