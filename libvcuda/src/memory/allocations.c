/*
 * Implements memory/allocations.h as a hash table in shards. Each shard has a lock of its own and chained buckets,
 * whose number doubles when they fill.
 */
#include "memory/allocations.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
	SHARD_BITS = 6,
	SHARDS = 1 << SHARD_BITS,
	FIRST_BUCKETS = 4, /* a power of two */
};

struct shard {
	pthread_mutex_t lock;
	struct allocation **buckets;
	size_t bucket_count;
	size_t entries;
	struct allocation *first_buckets[FIRST_BUCKETS]; /* without memory for more buckets, chains grow longer */
};

/* All zero, so that an unused shard takes no page. */
static struct shard shards[SHARDS]
	__attribute__((aligned(64))) = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t next_serial = 1;

/* Another thread of the parent may have been changing the table at the fork, so the child drops its copy unread. */
static void empty_table(void)
{
	for (int i = 0; i < SHARDS; i++) {
		shards[i] = (struct shard){.buckets = NULL};
		pthread_mutex_init(&shards[i].lock, NULL);
	}
}

static void allocations_watch_forks(void)
{
	pthread_atfork(NULL, NULL, empty_table);
}

static uint64_t hash(enum allocation_kind kind, uint64_t key)
{
	return (key + (uint64_t)kind * 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u;
}

/* allocations_take_context reads the pointer without the lock, to see whether the shard was ever used. */
static void set_buckets(struct shard *shard, struct allocation **buckets)
{
	__atomic_store_n(&shard->buckets, buckets, __ATOMIC_RELAXED);
}

static struct shard *lock_shard(enum allocation_kind kind, uint64_t key)
{
	pthread_once(&once, allocations_watch_forks);
	struct shard *shard = &shards[hash(kind, key) >> (64 - SHARD_BITS)];
	pthread_mutex_lock(&shard->lock);
	if (!shard->buckets) {
		set_buckets(shard, shard->first_buckets);
		shard->bucket_count = FIRST_BUCKETS;
	}
	return shard;
}

static struct allocation **bucket(struct shard *shard, enum allocation_kind kind, uint64_t key)
{
	return &shard->buckets[(hash(kind, key) >> 26) & (shard->bucket_count - 1)];
}

/* The link that points to the entry. Without an entry, the link holds NULL. */
static struct allocation **find(struct shard *shard, enum allocation_kind kind, uint64_t key)
{
	struct allocation **at = bucket(shard, kind, key);

	while (*at && ((*at)->key != key || (*at)->kind != kind))
		at = &(*at)->next;
	return at;
}

static struct allocation *unlink_entry(struct shard *shard, struct allocation **at)
{
	struct allocation *entry = *at;

	if (!entry)
		return NULL;
	*at = entry->next;
	entry->next = NULL;
	shard->entries--;
	return entry;
}

static void link_entry(struct shard *shard, struct allocation *entry)
{
	struct allocation **at = bucket(shard, entry->kind, entry->key);

	entry->next = *at;
	*at = entry;
}

static void grow(struct shard *shard)
{
	struct allocation **old = shard->buckets;
	size_t old_count = shard->bucket_count;
	struct allocation **larger = calloc(old_count * 2, sizeof(*larger));

	if (!larger)
		return;
	set_buckets(shard, larger);
	shard->bucket_count = old_count * 2;
	for (size_t i = 0; i < old_count; i++) {
		for (struct allocation *entry = old[i], *next; entry; entry = next) {
			next = entry->next;
			link_entry(shard, entry);
		}
	}
	if (old != shard->first_buckets)
		free(old);
}

struct allocation *allocations_put(struct allocation *entry)
{
	struct shard *shard = lock_shard(entry->kind, entry->key);
	struct allocation *displaced = unlink_entry(shard, find(shard, entry->kind, entry->key));

	if (!entry->serial) /* else the entry was in the table before: what refers to it still does */
		entry->serial = atomic_fetch_add(&next_serial, 1);
	if (shard->entries >= shard->bucket_count * 2)
		grow(shard);
	link_entry(shard, entry);
	shard->entries++;
	pthread_mutex_unlock(&shard->lock);
	return displaced;
}

struct allocation *allocations_take(enum allocation_kind kind, uint64_t key)
{
	struct shard *shard = lock_shard(kind, key);
	struct allocation *entry = unlink_entry(shard, find(shard, kind, key));

	pthread_mutex_unlock(&shard->lock);
	return entry;
}

bool allocations_find(enum allocation_kind kind, uint64_t key, struct allocation *copy)
{
	struct shard *shard = lock_shard(kind, key);
	const struct allocation *entry = *find(shard, kind, key);

	if (entry)
		*copy = *entry;
	pthread_mutex_unlock(&shard->lock);
	return entry;
}

bool allocations_change(enum allocation_kind kind, uint64_t key,
			bool (*change)(struct allocation *entry, void *argument), void *argument)
{
	struct shard *shard = lock_shard(kind, key);
	struct allocation *entry = *find(shard, kind, key);
	bool is_changed = entry && change(entry, argument);

	pthread_mutex_unlock(&shard->lock);
	return is_changed;
}

uint64_t allocations_reference(enum allocation_kind kind, uint64_t key)
{
	struct shard *shard = lock_shard(kind, key);
	struct allocation *entry = *find(shard, kind, key);
	uint64_t serial = entry ? entry->serial : 0;

	if (entry)
		entry->references++;
	pthread_mutex_unlock(&shard->lock);
	return serial;
}

struct allocation *allocations_dereference(enum allocation_kind kind, uint64_t key, uint64_t serial, bool *known)
{
	struct shard *shard = lock_shard(kind, key);
	struct allocation **at = find(shard, kind, key);
	struct allocation *last = NULL;

	*known = *at && (serial == ANY_SERIAL || (*at)->serial == serial);
	if (*known && !(*at)->references)
		last = unlink_entry(shard, at);
	else if (*known)
		(*at)->references--;
	pthread_mutex_unlock(&shard->lock);
	return last;
}

uint64_t allocations_serial(void)
{
	return atomic_load(&next_serial);
}

struct context_entries {
	CUcontext context;
	uint64_t before;
	struct allocation *taken;
};

static void take_from_chain(struct shard *shard, struct allocation **at, struct context_entries *wanted)
{
	while (*at) {
		struct allocation *entry = *at;
		if (entry->context != wanted->context || entry->serial >= wanted->before) {
			at = &entry->next;
			continue;
		}
		*at = entry->next;
		entry->next = wanted->taken;
		wanted->taken = entry;
		shard->entries--;
	}
}

struct allocation *allocations_take_context(CUcontext context, uint64_t before)
{
	struct context_entries wanted = {.context = context, .before = before};

	pthread_once(&once, allocations_watch_forks);
	for (int i = 0; i < SHARDS; i++) {
		struct shard *shard = &shards[i];
		if (!__atomic_load_n(&shard->buckets, __ATOMIC_RELAXED)) /* the shard was never used */
			continue;
		pthread_mutex_lock(&shard->lock);
		for (size_t at = 0; at < shard->bucket_count; at++)
			take_from_chain(shard, &shard->buckets[at], &wanted);
		pthread_mutex_unlock(&shard->lock);
	}
	return wanted.taken;
}
