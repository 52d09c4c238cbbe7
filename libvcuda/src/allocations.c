/* See allocations.h: shards with a lock each, chained buckets that double when they fill. */
#include "allocations.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
	SHARD_BITS = 6,
	SHARDS = 1 << SHARD_BITS,
	FIRST_BUCKETS = 16, /* a power of two */
};

struct shard {
	pthread_mutex_t lock;
	struct allocation **buckets;
	size_t bucket_count;
	size_t entries;
	struct allocation *spare[FIRST_BUCKETS]; /* the first buckets: without memory for more, chains grow longer */
};

static struct shard shards[SHARDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t next_serial;

static void empty_table(void)
{
	for (int i = 0; i < SHARDS; i++) {
		shards[i] = (struct shard){.bucket_count = FIRST_BUCKETS};
		shards[i].buckets = shards[i].spare;
		pthread_mutex_init(&shards[i].lock, NULL);
	}
}

/* A child's copy may be torn where another thread of the parent was at work: it is dropped, not walked. */
static void set_up(void)
{
	empty_table();
	pthread_atfork(NULL, NULL, empty_table);
}

static uint64_t hash(uint64_t pointer)
{
	return (pointer >> 4) * 0x9e3779b97f4a7c15u;
}

static struct shard *lock_shard(uint64_t pointer)
{
	pthread_once(&once, set_up);
	struct shard *shard = &shards[hash(pointer) >> (64 - SHARD_BITS)];
	pthread_mutex_lock(&shard->lock);
	return shard;
}

static struct allocation **bucket(struct shard *shard, uint64_t pointer)
{
	return &shard->buckets[(hash(pointer) >> 20) & (shard->bucket_count - 1)];
}

static struct allocation *unlink_pointer(struct shard *shard, uint64_t pointer)
{
	for (struct allocation **at = bucket(shard, pointer); *at; at = &(*at)->next) {
		struct allocation *entry = *at;
		if (entry->pointer == pointer) {
			*at = entry->next;
			entry->next = NULL;
			shard->entries--;
			return entry;
		}
	}
	return NULL;
}

static void link_entry(struct shard *shard, struct allocation *entry)
{
	struct allocation **at = bucket(shard, entry->pointer);

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
	shard->buckets = larger;
	shard->bucket_count = old_count * 2;
	for (size_t i = 0; i < old_count; i++) {
		for (struct allocation *entry = old[i], *next; entry; entry = next) {
			next = entry->next;
			link_entry(shard, entry);
		}
	}
	if (old != shard->spare)
		free(old);
}

struct allocation *allocations_put(struct allocation *entry)
{
	struct shard *shard = lock_shard(entry->pointer);
	struct allocation *displaced = unlink_pointer(shard, entry->pointer);

	entry->serial = atomic_fetch_add(&next_serial, 1);
	if (shard->entries >= shard->bucket_count * 2)
		grow(shard);
	link_entry(shard, entry);
	shard->entries++;
	pthread_mutex_unlock(&shard->lock);
	return displaced;
}

struct allocation *allocations_take(uint64_t pointer)
{
	struct shard *shard = lock_shard(pointer);
	struct allocation *entry = unlink_pointer(shard, pointer);

	pthread_mutex_unlock(&shard->lock);
	return entry;
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

	pthread_once(&once, set_up);
	for (int i = 0; i < SHARDS; i++) {
		struct shard *shard = &shards[i];
		pthread_mutex_lock(&shard->lock);
		for (size_t at = 0; at < shard->bucket_count; at++)
			take_from_chain(shard, &shard->buckets[at], &wanted);
		pthread_mutex_unlock(&shard->lock);
	}
	return wanted.taken;
}
