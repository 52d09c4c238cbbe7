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
#include "shared/limits_file.h"

enum { DEVICES = 64 };

struct device_uuids {
	atomic_bool known;
	CUuuid exact;     /* for a MIG instance, its own */
	CUuuid physical;  /* the card's, also for a MIG instance */
};

static struct device_uuids devices[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static bool ask(CUdevice device, CUuuid *exact, CUuuid *physical)
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
	if (!ask(device, &exact, &physical)) /* without the lock: the driver may call our wrappers */
		return NULL;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	if (!atomic_load(&uuids->known)) {
		uuids->exact = exact;
		uuids->physical = physical;
		atomic_store_explicit(&uuids->known, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return uuids;
}

static bool listed(const CUuuid *uuid, struct limited_card *card)
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

bool card_of_device(CUdevice device, struct limited_card *card)
{
	if (device < 0 || device >= DEVICES)
		return false;
	const struct device_uuids *uuids = uuids_of(device);
	if (!uuids)
		return false;
	if (listed(&uuids->exact, card) || listed(&uuids->physical, card))
		return true;
	log_once(LOG_WARNING, "device %d is not in the limits file, so it has no limit", device);
	return false;
}

bool current_device(CUdevice *device)
{
	return REAL(cuCtxGetDevice, device) == CUDA_SUCCESS;
}
