/* See pools.h. Pools are few: a list under one lock, which is never held while the driver works for a stream. */
#include "pools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cards.h"
#include "charge.h"
#include "cuda_hooks.h"
#include "limits_file.h"
#include "log.h"
#include "usage.h"

struct pool {
	struct pool *next;
	CUmemoryPool handle; /* NULL: the device's graph memory */
	CUdevice device;     /* NO_DEVICE: not a device's memory */
	struct limited_card limited;
	int card;            /* USAGE_NO_CARD: without a limit */
	uint64_t booked;
	uint64_t under_way;  /* of it, by calls that have not ended */
	uint64_t promised;   /* of what is reserved and unused, to calls that have not ended */
};

struct figures {
	cuuint64_t reserved;
	cuuint64_t used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static atomic_bool any;
static atomic_bool dirty;

/* A child has no pools of its own yet and cannot use its parent's. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	pools = NULL;
	atomic_store(&any, false);
	atomic_store(&dirty, false);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static void take_lock(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
}

static bool ask(const struct pool *pool, struct figures *now)
{
	if (pool->handle)
		return REAL(cuMemPoolGetAttribute, pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &now->reserved) ==
			       CUDA_SUCCESS &&
		       REAL(cuMemPoolGetAttribute, pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now->used) == CUDA_SUCCESS;
	return REAL(cuDeviceGetGraphMemAttribute, pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now->reserved) ==
		       CUDA_SUCCESS &&
	       REAL(cuDeviceGetGraphMemAttribute, pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &now->used) ==
		       CUDA_SUCCESS;
}

static struct pool *known(CUmemoryPool handle, CUdevice device)
{
	struct pool *pool = pools;

	while (pool && (pool->handle != handle || (!handle && pool->device != device)))
		pool = pool->next;
	return pool;
}

static struct pool *add(CUmemoryPool handle, CUdevice device)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->handle = handle;
	pool->device = device;
	pool->card = USAGE_NO_CARD;
	if (device != NO_DEVICE && card_of_device(device, &pool->limited))
		pool->card = usage_card(pool->limited.uuid);
	pool->next = pools;
	pools = pool;
	atomic_store(&any, true);
	return pool;
}

static struct pool *find_or_add(CUmemoryPool handle, CUdevice device)
{
	struct figures now;

	if (device == NO_DEVICE)
		return NULL;
	take_lock();
	struct pool *pool = known(handle, device);
	if (!pool)
		pool = add(handle, device);
	pthread_mutex_unlock(&lock);
	return pool && pool->card != USAGE_NO_CARD && ask(pool, &now) ? pool : NULL;
}

struct pool *pools_of_handle(CUmemoryPool handle, CUdevice device)
{
	return handle ? find_or_add(handle, device) : NULL;
}

struct pool *pools_of_graphs(CUdevice device)
{
	return find_or_add(NULL, device);
}

CUdevice pools_device_of(const struct pool *pool)
{
	return pool->device;
}

CUdevice pools_device(CUmemoryPool handle)
{
	CUmemoryPool standard;
	int count = 0;

	take_lock();
	const struct pool *pool = known(handle, NO_DEVICE);
	CUdevice device = pool ? pool->device : NO_DEVICE;
	pthread_mutex_unlock(&lock);
	if (pool || REAL(cuDeviceGetCount, &count) != CUDA_SUCCESS)
		return device;
	for (device = 0; device < count; device++)
		if (REAL(cuDeviceGetDefaultMemPool, &standard, device) == CUDA_SUCCESS && standard == handle)
			return device;
	return NO_DEVICE;
}

void pools_made(CUmemoryPool handle, const CUmemPoolProps *properties)
{
	take_lock();
	add(handle, properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties->location.id : NO_DEVICE);
	pthread_mutex_unlock(&lock);
}

/* Called with the lock held, as are all that follow up to pools_begin. */
static void give_back(struct pool *pool, uint64_t excess)
{
	usage_release(pool->card, excess);
	pool->booked -= excess;
}

/* Follows the driver; false: it has reserved more than there is room for. `force` books that too. */
static bool settle(struct pool *pool, bool force)
{
	struct figures now = {0, 0};
	bool fits = true;

	if (pool->card == USAGE_NO_CARD)
		return true;
	if (!ask(pool, &now)) /* it went with its context or device */
		now = (struct figures){0, 0};
	uint64_t target = now.reserved + pool->under_way;
	if (pool->booked > target) {
		give_back(pool, pool->booked - target);
	} else if (pool->booked < target) {
		(void)card_of_device(pool->device, &pool->limited);
		fits = usage_reserve(pool->card, target - pool->booked, limit_of(&pool->limited));
		if (!fits && force)
			usage_force(pool->card, target - pool->booked);
		if (fits || force)
			pool->booked = target;
	}
	if (now.reserved > now.used)
		atomic_store(&dirty, true);
	return fits;
}

static void trim(struct pool *pool)
{
	if (pool->handle)
		(void)REAL(cuMemPoolTrimTo, pool->handle, 0);
	else
		(void)REAL(cuDeviceGraphMemTrim, pool->device);
}

/* A pool that gives nothing back by itself must not be what stands in the way. */
static bool trim_card(int card)
{
	bool found = false;

	for (struct pool *pool = pools; pool; pool = pool->next) {
		if (pool->card != card)
			continue;
		trim(pool);
		settle(pool, true);
		found = true;
	}
	return found;
}

static uint64_t growth(const struct pool *pool, uint64_t size, bool reusing)
{
	struct figures now;

	if (pool->handle || !ask(pool, &now))
		return size;
	uint64_t needed = reusing ? size : now.used + size;
	return needed > now.reserved ? needed - now.reserved : 0;
}

static bool has_spare(const struct pool *pool, uint64_t size)
{
	struct figures now;

	return pool->handle && ask(pool, &now) && now.reserved >= now.used &&
	       now.reserved - now.used >= pool->promised + size;
}

bool pools_begin(struct pool_charge *charge, struct pool *pool, uint64_t size, bool reusing)
{
	*charge = (struct pool_charge){.pool = pool, .size = size};
	take_lock();
	(void)card_of_device(pool->device, &pool->limited);
	const struct usage_limit limit = limit_of(&pool->limited);
	charge->booked = growth(pool, size, reusing);
	bool granted = usage_reserve(pool->card, charge->booked, limit);
	if (!granted) {
		trim_card(pool->card);
		charge->booked = growth(pool, size, reusing);
		granted = usage_reserve(pool->card, charge->booked, limit);
	}
	if (!granted && has_spare(pool, size)) {
		charge->booked = 0;
		granted = true;
	}
	if (granted) {
		pool->booked += charge->booked;
		pool->under_way += charge->booked;
		pool->promised += size;
	} else {
		log_line(LOG_INFO, "%llu bytes of a pool refused on device %d: the container's limit is %llu bytes",
			 (unsigned long long)size, pool->device, (unsigned long long)limit.memory);
	}
	pthread_mutex_unlock(&lock);
	return granted;
}

bool pools_end(struct pool_charge *charge, struct pool *used)
{
	bool fits = true;

	take_lock();
	charge->pool->under_way -= charge->booked;
	charge->pool->promised -= charge->size;
	if (used)
		fits = settle(used, false);
	if (used != charge->pool)
		settle(charge->pool, true);
	pthread_mutex_unlock(&lock);
	return fits;
}

bool pools_reclaim(int card)
{
	if (!atomic_load_explicit(&any, memory_order_relaxed))
		return false;
	take_lock();
	bool found = trim_card(card);
	pthread_mutex_unlock(&lock);
	return found;
}

void pools_gone(CUmemoryPool handle)
{
	take_lock();
	for (struct pool **at = &pools; *at; at = &(*at)->next) {
		struct pool *pool = *at;
		if (pool->handle != handle)
			continue;
		if (pool->card != USAGE_NO_CARD)
			give_back(pool, pool->booked);
		*at = pool->next;
		free(pool);
		break;
	}
	pthread_mutex_unlock(&lock);
}

void pools_settle(void)
{
	if (!atomic_load_explicit(&any, memory_order_relaxed))
		return;
	take_lock();
	atomic_store(&dirty, false);
	for (struct pool *pool = pools; pool; pool = pool->next)
		settle(pool, true);
	pthread_mutex_unlock(&lock);
}

void pools_settle_if_dirty(void)
{
	if (atomic_load_explicit(&dirty, memory_order_relaxed))
		pools_settle();
}

void pools_freed(void)
{
	if (atomic_load_explicit(&any, memory_order_relaxed))
		atomic_store(&dirty, true);
}
