/* See compute/schedule.h. This file also finds the bucket of each device (compute/token_bucket.h). */
#include "compute/schedule.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "compute/container_slice.h"
#include "compute/presence.h"
#include "shared/device_limits.h"
#include "shared/limits_file.h"


enum { DEVICES = 64 };

static struct token_bucket *buckets[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Without a usage region each process is held to the share by itself. That is better than no limit. */
static void account_alone(struct token_bucket *bucket)
{
	struct vgpu_usage_time *time = calloc(1, sizeof(*time) + sizeof(struct vgpu_usage_flight));
	static struct vgpu_usage_visit slice;

	log_once(LOG_ERROR, "the usage region cannot be used; each process is held to the core share by itself");
	bucket->is_local = 1;
	bucket->shared = (struct usage_time){time, &slice, time ? (struct vgpu_usage_flight *)(time + 1) : NULL, 0};
}

static struct token_bucket *make_bucket(CUdevice device, const struct device_limits *card)
{
	struct token_bucket *bucket = calloc(1, sizeof(*bucket));

	if (!bucket)
		return NULL;
	bucket->device = device;
	memcpy(bucket->uuid, card->uuid, sizeof(bucket->uuid));
	bucket->limits_seen = UINT64_MAX;
	bucket->has_presence = presence_is_available();
	if (!usage_time(card->uuid, &bucket->shared))
		account_alone(bucket);
	if (bucket->shared.time)
		return bucket;
	free(bucket);
	return NULL;
}

static struct token_bucket *find_bucket(CUdevice device)
{
	return __atomic_load_n(&buckets[device], __ATOMIC_ACQUIRE);
}

struct token_bucket *token_bucket_of_device(CUdevice device)
{
	struct device_limits card;

	if (device < 0 || device >= DEVICES || limits_state() != LIMITS_PRESENT)
		return NULL;
	if (find_bucket(device) || !device_limits_of(device, &card))
		return find_bucket(device);
	pthread_mutex_lock(&lock);
	if (!find_bucket(device))
		__atomic_store_n(&buckets[device], make_bucket(device, &card), __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return find_bucket(device);
}

void token_bucket_reset_all(void)
{
	pthread_mutex_init(&lock, NULL);
	container_slice_reset();
	memset(buckets, 0, sizeof(buckets)); /* the child has copies of the parent's: a few hundred bytes are lost */
}

void schedule_take_over_limits(struct token_bucket *bucket)
{
	struct card_limits limits;
	uint64_t seen = limits_sequence();

	if (limits_of(bucket->uuid, &limits)) {
		STORE(bucket->ceiling, bounds_clamp(limits.core_limit, 1, 100));
		STORE(bucket->share, bounds_clamp(limits.cores, 1, 100)); /* no container starves for good */
	}
	STORE(bucket->limits_seen, seen);
}

void schedule_look_for(struct token_bucket *bucket, uint64_t now)
{
	STORE(bucket->schedule_looked_at, now);
	__atomic_store_n(&bucket->published, schedule_file_find(bucket->uuid, now), __ATOMIC_RELEASE);
	STORE(bucket->schedule.seen, UINT64_MAX);
}

void schedule_take_over(struct token_bucket *bucket, const struct vgpu_card_page *published)
{
	struct card_schedule schedule;

	if (!schedule_file_read(published, &schedule))
		return;
	STORE(bucket->schedule.period, schedule.period);
	STORE(bucket->schedule.lent_until, schedule.lent_until);
	STORE(bucket->schedule.lent_rate, schedule.lent_rate);
	STORE(bucket->schedule.tenants, schedule.tenants);
	STORE(bucket->schedule.share, schedule.share);
	STORE(bucket->schedule.seen, schedule.seen);
}

uint64_t token_bucket_tidy_all(uint64_t now)
{
	struct token_bucket *list[DEVICES];
	unsigned int count = 0;

	for (int i = 0; i < DEVICES; i++)
		if ((list[count] = find_bucket(i)))
			count++;
	return container_slice_tidy(list, count, now);
}
