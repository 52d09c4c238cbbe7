/*
 * Implements memory/pools.h. A process has few pools, so they are a list under one lock. The lock is never held while
 * the driver works for a stream.
 */
#include "memory/pools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "driver/clock.h"
#include "driver/cuda_table.h"
#include "memory/calls.h"
#include "memory/charge.h"
#include "memory/context_overhead.h"
#include "memory/unlisted.h"
#include "shared/device_limits.h"
#include "shared/limits.h"
#include "shared/usage.h"

enum {
	PATIENCE = NS_PER_S, /* longest wait for graphs that run */
	CHUNK = 32 << 20,    /* as an H100 has them (docs/reality.md): the most that pools are expected to grow by */
};

struct pool {
	struct pool *next;
	CUmemoryPool handle; /* NULL: the device's graph memory */
	CUdevice device;     /* NO_DEVICE: the memory is the host's or managed */
	bool hosts;          /* the memory is the host's */
	bool managed;
	CUdevice preferred;  /* of managed memory; NO_DEVICE: there is none */
	struct device_limits limited;
	int card;            /* USAGE_NO_CARD: the device has no limit */
	uint64_t booked;
	uint64_t under_way;  /* the part of `booked` that calls under way have added */
	uint64_t promised;   /* bytes that calls under way may take, of what is booked or of the unused reserve */
	bool doomed;         /* the program has destroyed the pool, but memory of it is in use */
	struct graph_launch *graph_launches; /* graph memory only: launches that may still take memory */
	uint64_t ceiling;    /* graph memory only: an upper bound of what is used, those launches included */
	uint64_t pending;    /* the part of `booked` that the driver has not taken yet, or has given back already */
};

struct pool_figures {
	cuuint64_t reserved;
	cuuint64_t used;
	uint64_t launched; /* graph memory only: what launched graphs may still take */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static _Atomic uint64_t chunk = CHUNK; /* bytes; what the driver's pools grow by divides it, as far as is known */
static atomic_bool any;
static atomic_bool dirty;
static _Atomic(CUstream) freeing; /* the stream that may still have memory to free into a pool; NULL: none has */
static _Thread_local bool has_lock;

/* A forked child has no pools of its own yet and cannot use its parent's. */
static void pools_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	pools = NULL;
	atomic_store(&any, false);
	atomic_store(&dirty, false);
	atomic_store(&freeing, NULL);
}

static bool refresh_pending(void);

static void set_up(void)
{
	pthread_atfork(NULL, NULL, pools_after_fork);
	context_overhead_set_refresh(refresh_pending);
}

static void lock_pools(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, set_up);
	pthread_mutex_lock(&lock);
	has_lock = true;
}

static void unlock_pools(void)
{
	has_lock = false;
	pthread_mutex_unlock(&lock);
}

/*
 * For a call of a pool, which counts as under way. It does not count while it waits: the thread that has the lock may look
 * at NVML's figure and wait for calls under way. What the pool has taken meanwhile, refresh_pending finds.
 */
static void lock_pools_in_call(void)
{
	while (pthread_mutex_trylock(&lock)) {
		unsigned int depth = calls_step_out();

		lock_pools();
		unlock_pools();
		calls_step_in(depth);
	}
	has_lock = true;
}

/*
 * The launches come first: a graph that ends between the two counts twice then. The other way round, what it leaves
 * allocated would not count at all.
 */
static bool read_figures(struct pool *pool, struct pool_figures *now)
{
	now->launched = pool->handle ? 0 : graph_launches_bytes(&pool->graph_launches);
	if (pool->handle)
		return REAL(cuMemPoolGetAttribute, pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
			    &now->reserved) == CUDA_SUCCESS &&
		       REAL(cuMemPoolGetAttribute, pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now->used) ==
			       CUDA_SUCCESS;
	return REAL(cuDeviceGetGraphMemAttribute, pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
		    &now->reserved) == CUDA_SUCCESS &&
	       REAL(cuDeviceGetGraphMemAttribute, pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &now->used) ==
		       CUDA_SUCCESS;
}

static struct pool *find_pool(CUmemoryPool handle, CUdevice device)
{
	struct pool *pool = pools;

	while (pool && (pool->handle != handle || (!handle && pool->device != device)))
		pool = pool->next;
	return pool;
}

static struct pool *add_pool(CUmemoryPool handle, CUdevice device)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->handle = handle;
	pool->device = device;
	pool->card = USAGE_NO_CARD;
	pool->preferred = NO_DEVICE;
	if (device != NO_DEVICE && device_limits_of(device, &pool->limited))
		pool->card = usage_card(pool->limited.uuid);
	pool->next = pools;
	pools = pool;
	atomic_store(&any, true);
	return pool;
}

static struct pool *find_or_add_pool(CUmemoryPool handle, CUdevice device)
{
	struct pool_figures now;

	if (device == NO_DEVICE)
		return NULL;
	lock_pools();
	struct pool *pool = find_pool(handle, device);
	if (!pool)
		pool = add_pool(handle, device);
	bool is_known = pool && pool->card != USAGE_NO_CARD && read_figures(pool, &now);
	unlock_pools();
	return is_known ? pool : NULL;
}

struct pool *pools_of_handle(CUmemoryPool handle, CUdevice device)
{
	return handle ? find_or_add_pool(handle, device) : NULL;
}

struct pool *pools_of_graphs(CUdevice device)
{
	return find_or_add_pool(NULL, device);
}

CUdevice pools_device_of(const struct pool *pool)
{
	return pool->device;
}

CUdevice pools_device(CUmemoryPool handle)
{
	CUmemoryPool standard;
	int count = 0;

	lock_pools();
	const struct pool *pool = find_pool(handle, NO_DEVICE);
	CUdevice device = pool ? pool->device : NO_DEVICE;
	unlock_pools();
	if (pool || REAL(cuDeviceGetCount, &count) != CUDA_SUCCESS)
		return device;
	for (device = 0; device < count; device++)
		if (REAL(cuDeviceGetDefaultMemPool, &standard, device) == CUDA_SUCCESS && standard == handle)
			return device;
	return NO_DEVICE;
}

void pools_made(CUmemoryPool handle, const CUmemLocation *location, int type)
{
	bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
	bool has_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE, on_card = !managed && has_device;

	lock_pools();
	struct pool *pool = find_pool(handle, NO_DEVICE);
	if (!pool)
		pool = add_pool(handle, on_card ? location->id : NO_DEVICE);
	if (pool) {
		pool->hosts = !managed && !on_card;
		pool->managed = managed;
		pool->preferred = managed && has_device ? location->id : NO_DEVICE;
	}
	unlock_pools();
}

bool pools_is_hosts(CUmemoryPool handle)
{
	lock_pools();
	const struct pool *pool = find_pool(handle, NO_DEVICE);
	bool hosts = pool && pool->hosts;

	unlock_pools();
	return hosts;
}

bool pools_is_managed(CUmemoryPool handle)
{
	lock_pools();
	const struct pool *pool = find_pool(handle, NO_DEVICE);
	bool managed = pool && pool->managed;

	unlock_pools();
	return managed;
}

CUdevice pools_preferred(CUmemoryPool handle)
{
	lock_pools();
	const struct pool *pool = find_pool(handle, NO_DEVICE);
	CUdevice device = pool ? pool->preferred : NO_DEVICE;

	unlock_pools();
	return device;
}

/* Called with the lock held, as is every static function from here to pools_begin. */
static void give_back_booking(struct pool *pool, uint64_t excess)
{
	usage_release(pool->card, excess);
	pool->booked -= excess;
}

static uint64_t rounded(uint64_t bytes, uint64_t unit)
{
	uint64_t rest = bytes % unit;

	return rest && bytes < UINT64_MAX - unit ? bytes + unit - rest : bytes;
}

/* What a pool has reserved is a multiple of what it grows by. */
static void learn_chunk(uint64_t reserved)
{
	uint64_t unit = reserved & -reserved;

	if (unit && unit < chunk)
		chunk = usage_pool_chunk_found(unit);
}

/* Counts what launched graphs may take as if they had it: no call reports when a stream reaches an allocation node. */
static uint64_t graph_target(struct pool *pool, const struct pool_figures *now, uint64_t unit)
{
	uint64_t most = now->used + now->launched;

	if (pool->ceiling > most)
		pool->ceiling = most;
	most = pool->ceiling + pool->promised;
	return now->reserved >= most ? now->reserved : rounded(most, unit);
}

/* What calls under way may take of the pool's unused reserve stays booked, though the pool may have given it back. */
static uint64_t target_of(struct pool *pool, const struct pool_figures *now)
{
	if (!pool->handle)
		return graph_target(pool, now, chunk);
	uint64_t target = now->reserved + pool->under_way;
	uint64_t promised = pool->promised ? rounded(now->used + pool->promised, chunk) : now->used;
	uint64_t kept = promised < pool->booked ? promised : pool->booked;
	return target > kept ? target : kept;
}

/*
 * NVML does not list it. What the driver has taken since, a look may have found as overhead: who finds no room looks again
 * then. A byte says so; all that was taken would hide from the sum what blocks give back.
 */
static void set_pending(struct pool *pool, uint64_t reserved)
{
	uint64_t pending = pool->booked > reserved ? pool->booked - reserved : 0;

	if (pending > pool->pending) {
		unlisted_add(pool->card, pending - pool->pending);
	} else if (pending < pool->pending) {
		unlisted_take(pool->card, pool->pending - pending);
		(void)context_overhead_padded(pool->card, 1);
	}
	pool->pending = pending;
}

/*
 * Sets the booking to what the driver reports. False: the limit has no room for that; with `force` it is booked
 * anyway.
 */
static bool reconcile(struct pool *pool, bool force)
{
	struct pool_figures now = {0, 0, 0};
	bool fits = true;

	if (pool->card == USAGE_NO_CARD)
		return true;
	if (!read_figures(pool, &now)) /* the pool was destroyed with its context or device */
		now = (struct pool_figures){0, 0, 0};
	learn_chunk(now.reserved);
	uint64_t target = target_of(pool, &now);
	if (pool->booked > target) {
		give_back_booking(pool, pool->booked - target);
	} else if (pool->booked < target) {
		(void)device_limits_of(pool->device, &pool->limited);
		fits = usage_reserve(pool->card, target - pool->booked, device_limits_memory(&pool->limited));
		if (!fits && force)
			usage_force(pool->card, target - pool->booked);
		if (fits || force)
			pool->booked = target;
	}
	set_pending(pool, now.reserved);
	if (now.reserved > now.used)
		atomic_store(&dirty, true);
	return fits;
}

/*
 * For a look at NVML's figure: leaves out of the charges what the driver has not, as launched graphs take it, and streams,
 * synchronizations and other threads' calls give it back, at any time. Nothing is booked. False: another thread changes
 * the bookings. It may wait for the look, so the look does not wait for it.
 */
static bool refresh_pending(void)
{
	const bool had_lock = has_lock;

	if (!atomic_load_explicit(&any, memory_order_relaxed))
		return true;
	if (!had_lock && pthread_mutex_trylock(&lock))
		return false;
	for (struct pool *pool = pools; pool; pool = pool->next) {
		struct pool_figures now = {0, 0, 0};
		if (pool->booked && !read_figures(pool, &now))
			now.reserved = 0;
		set_pending(pool, now.reserved);
	}
	if (!had_lock)
		pthread_mutex_unlock(&lock);
	return true;
}

static void trim(struct pool *pool)
{
	if (pool->handle)
		(void)REAL(cuMemPoolTrimTo, pool->handle, 0);
	else
		(void)REAL(cuDeviceGraphMemTrim, pool->device);
}

/* Trims all pools of the card: a pool that gives nothing back by itself must not block other allocations. */
static bool trim_card(int card)
{
	bool found = false;

	for (struct pool *pool = pools; pool; pool = pool->next) {
		if (pool->card != card)
			continue;
		trim(pool);
		reconcile(pool, true);
		found = true;
	}
	return found;
}

static bool has_unused_reserve(struct pool *pool, uint64_t size)
{
	struct pool_figures now;

	return read_figures(pool, &now) && now.reserved >= now.used && now.reserved - now.used >= pool->promised + size;
}

static void log_refusal(const struct pool *pool, uint64_t size, struct usage_limit limit)
{
	log_line(
		LOG_INFO,
		"an allocation of %llu bytes from a pool on device %d was refused: the container's limit is %llu bytes",
		(unsigned long long)size, pool->device, (unsigned long long)limit.memory);
}

/* `is_shared`: the call tries on another card already. */
static bool begin_try(struct pool_charge *charge, struct pool *pool, bool is_shared)
{
	struct pool_figures now = {0, 0, 0};

	charge->tries = is_shared || usage_pool_chunk_try();
	if (!charge->tries)
		return false;
	(void)read_figures(pool, &now);
	charge->chunk = chunk;
	charge->reserved = now.reserved;
	return true;
}

/* A call that made the pool no larger has shown nothing. */
static void end_try(struct pool_charge *charge)
{
	struct pool_figures now;

	if (charge->tries)
		usage_pool_chunk_tried(chunk < charge->chunk || !read_figures(charge->pool, &now) ||
				       now.reserved <= charge->reserved);
	charge->tries = false;
}

/*
 * Returns what was booked. 0: there is no room. Where only less than a whole chunk fits, one call of the container finds
 * out whether the driver takes less: if not, none tries that again.
 */
static uint64_t book_growth(struct pool_charge *charge, struct pool *pool, uint64_t size, struct usage_limit limit)
{
	uint64_t growth = rounded(size, chunk);

	if (!usage_reserve(pool->card, growth, limit)) {
		if (growth == size || !usage_reserve(pool->card, size, limit))
			return 0;
		if (!begin_try(charge, pool, false)) {
			usage_release(pool->card, size);
			return 0;
		}
		growth = size;
	}
	pool->booked += growth;
	pool->under_way += growth;
	return growth;
}

static void begin_charge(struct pool_charge *charge, struct pool *pool, uint64_t size)
{
	*charge = (struct pool_charge){.pool = pool, .size = size};
	calls_begin();
	lock_pools_in_call();
	(void)device_limits_of(pool->device, &pool->limited);
	chunk = usage_pool_chunk(CHUNK);
}

bool pools_begin(struct pool_charge *charge, struct pool *pool, uint64_t size)
{
	begin_charge(charge, pool, size);
	const struct usage_limit limit = device_limits_memory(&pool->limited);
	charge->booked = book_growth(charge, pool, size, limit);
	if (!charge->booked && trim_card(pool->card))
		charge->booked = book_growth(charge, pool, size, limit);
	bool granted = charge->booked || has_unused_reserve(pool, size);
	if (granted)
		pool->promised += size;
	else
		log_refusal(pool, size, limit);
	unlock_pools();
	if (!granted)
		calls_end();
	return granted;
}

/* Books `size` bytes of graph memory beside what is used and what earlier launches may take. */
static bool promise_chunks(struct pool *pool, uint64_t size, uint64_t unit)
{
	struct pool_figures now;

	pool->promised += size;
	if (!read_figures(pool, &now))
		now = (struct pool_figures){0, 0, 0};
	uint64_t target = graph_target(pool, &now, unit);
	uint64_t growth = target > pool->booked ? target - pool->booked : 0;
	/* What the pool has needs no room, though a try may have brought it beyond the limit. */
	if (!growth || usage_reserve(pool->card, growth, device_limits_memory(&pool->limited))) {
		pool->booked += growth;
		return true;
	}
	pool->promised -= size;
	return false;
}

static bool promise(struct pool_charge *charge, struct pool *pool, bool tries)
{
	if (!charge->size) /* an earlier launch of the graph has booked it, be there room for whole chunks or not */
		return true;
	if (promise_chunks(pool, charge->size, chunk))
		return true;
	if (!begin_try(charge, pool, tries))
		return false;
	if (promise_chunks(pool, charge->size, 1))
		return true;
	end_try(charge);
	return false;
}

bool pools_begin_graph(struct pool_charge *charge, struct pool *pool, const struct graph_memory *graph)
{
	begin_charge(charge, pool, graph->size);
	if (graph->exec)
		charge->size = graph_launches_begin(&pool->graph_launches, graph, &charge->graph_launch);
	bool granted =
		promise(charge, pool, graph->tries) || (trim_card(pool->card) && promise(charge, pool, graph->tries));
	if (!granted) {
		if (charge->graph_launch)
			graph_launches_end(charge->graph_launch, (struct graph_launch_mark){NULL, NULL});
		log_refusal(pool, graph->size, device_limits_memory(&pool->limited));
	}
	unlock_pools();
	if (!granted)
		calls_end();
	return granted;
}

void pools_end_graph(struct pool_charge *charge, struct graph_launch_mark mark)
{
	struct pool *pool = charge->pool;

	lock_pools_in_call();
	pool->promised -= charge->size;
	if (mark.context)
		pool->ceiling += charge->size;
	if (charge->graph_launch)
		graph_launches_end(charge->graph_launch, mark);
	reconcile(pool, true);
	end_try(charge);
	unlock_pools();
	calls_end();
}

void pools_graph_gone(CUgraphExec exec)
{
	lock_pools();
	for (struct pool *pool = pools; pool; pool = pool->next)
		graph_launches_gone(pool->graph_launches, exec);
	unlock_pools();
}

void pools_drop_context(CUcontext context)
{
	lock_pools();
	for (struct pool *pool = pools; pool; pool = pool->next)
		graph_launches_drop_context(pool->graph_launches, context);
	unlock_pools();
}

static bool graphs_run(int card)
{
	uint64_t bytes = 0;

	lock_pools();
	for (struct pool *pool = pools; pool; pool = pool->next)
		if (pool->card == card)
			bytes += graph_launches_bytes(&pool->graph_launches);
	unlock_pools();
	return bytes > 0;
}

void pools_wait_for_graphs(int card)
{
	uint64_t now = clock_now(), until = now + PATIENCE;

	while (now < until && graphs_run(card)) { /* the clock limits the wait: a busy machine makes sleeps longer */
		clock_sleep_until(now + NS_PER_MS);
		now = clock_now();
	}
}

int pools_card_of(const struct pool *pool)
{
	return pool->card;
}

bool pools_end(struct pool_charge *charge, struct pool *used)
{
	bool fits = true;

	lock_pools_in_call();
	charge->pool->under_way -= charge->booked;
	charge->pool->promised -= charge->size;
	if (used)
		fits = reconcile(used, false);
	if (used != charge->pool)
		reconcile(charge->pool, true);
	end_try(charge);
	unlock_pools();
	calls_end();
	return fits;
}

bool pools_reclaim(int card)
{
	if (!atomic_load_explicit(&any, memory_order_relaxed))
		return false;
	pools_wait_for_graphs(card);
	calls_begin();
	lock_pools_in_call();
	bool found = trim_card(card);
	unlock_pools();
	calls_end();
	return found;
}

/* Forgets a pool that is out of the list. */
static void drop(struct pool *pool)
{
	if (pool->card != USAGE_NO_CARD) {
		set_pending(pool, pool->booked);
		give_back_booking(pool, pool->booked);
	}
	free(pool);
}

void pools_gone(CUmemoryPool handle)
{
	lock_pools();
	for (struct pool **at = &pools; *at; at = &(*at)->next) {
		struct pool *pool = *at;
		if (pool->handle != handle)
			continue;
		*at = pool->next;
		drop(pool);
		break;
	}
	unlock_pools();
}

static void leave_device(const struct pool *pool)
{
	CUmemoryPool current = NULL, standard = NULL;

	if (REAL(cuDeviceGetMemPool, &current, pool->device) == CUDA_SUCCESS && current == pool->handle &&
	    REAL(cuDeviceGetDefaultMemPool, &standard, pool->device) == CUDA_SUCCESS)
		(void)REAL(cuDeviceSetMemPool, pool->device, standard);
}

bool pools_doom(CUmemoryPool handle)
{
	cuuint64_t nothing = 0;
	struct pool_figures now;

	lock_pools_in_call();
	struct pool *pool = handle ? find_pool(handle, NO_DEVICE) : NULL;
	bool in_use = pool && pool->card != USAGE_NO_CARD && !pool->doomed && read_figures(pool, &now) && now.used;
	if (in_use) {
		pool->doomed = true;
		leave_device(pool);
		(void)REAL(cuMemPoolSetAttribute, handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
	}
	unlock_pools();
	return in_use;
}

static bool is_over(struct pool *pool)
{
	struct pool_figures now;

	return pool->doomed && !pool->promised && (!read_figures(pool, &now) || !now.used);
}

static void bury_doomed(void)
{
	for (struct pool **at = &pools; *at;) {
		struct pool *pool = *at;
		if (is_over(pool)) {
			(void)REAL(cuMemPoolDestroy, pool->handle);
			*at = pool->next;
			drop(pool);
		} else {
			at = &pool->next;
		}
	}
}

void pools_reconcile(void)
{
	if (!atomic_load_explicit(&any, memory_order_relaxed))
		return;
	lock_pools();
	for (struct pool *pool = pools; pool; pool = pool->next)
		reconcile(pool, true);
	bury_doomed();
	unlock_pools();
}

bool pools_synchronizing(CUstream stream)
{
	CUstream frees = atomic_load_explicit(&freeing, memory_order_relaxed);

	if (!frees && !atomic_load_explicit(&dirty, memory_order_relaxed))
		return false;
	if (frees && (stream == EVERY_STREAM || stream == frees)) /* what is freed from now on may come after the end */
		(void)atomic_compare_exchange_strong(&freeing, &frees, NULL);
	atomic_store(&dirty, false);
	return true;
}

/* Each thread has a stream of its own by the name CU_STREAM_PER_THREAD. */
void pools_freed(CUstream stream)
{
	CUstream frees = NULL, in = stream == CU_STREAM_PER_THREAD ? EVERY_STREAM : stream ? stream : CU_STREAM_LEGACY;

	if (atomic_load_explicit(&any, memory_order_relaxed) && !atomic_compare_exchange_strong(&freeing, &frees, in) &&
	    frees != in)
		atomic_store(&freeing, EVERY_STREAM);
}
