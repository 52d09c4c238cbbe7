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

static struct bucket *buckets[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Without a usage region each process is held to the share by itself. That is better than no limit. */
static void account_alone(struct bucket *bucket)
{
	struct vgpu_usage_time *time = calloc(1, sizeof(*time) + sizeof(struct vgpu_usage_flight));
	static struct vgpu_usage_visit visit;

	log_once(LOG_ERROR, "the usage region cannot be used; each process is held to the core share by itself");
	bucket->is_local = 1;
	bucket->shared = (struct usage_time){time, &visit, time ? (struct vgpu_usage_flight *)(time + 1) : NULL, 0};
}

static struct bucket *make(CUdevice device, const struct limited_card *card)
{
	struct bucket *bucket = calloc(1, sizeof(*bucket));

	if (!bucket)
		return NULL;
	bucket->device = device;
	memcpy(bucket->uuid, card->uuid, sizeof(bucket->uuid));
	bucket->limits_seen = UINT64_MAX;
	bucket->has_presence = presence_is_told();
	if (!usage_time(card->uuid, &bucket->shared))
		account_alone(bucket);
	if (bucket->shared.time)
		return bucket;
	free(bucket);
	return NULL;
}

static struct bucket *find(CUdevice device)
{
	return __atomic_load_n(&buckets[device], __ATOMIC_ACQUIRE);
}

struct bucket *bucket_of_device(CUdevice device)
{
	struct limited_card card;

	if (device < 0 || device >= DEVICES || limits_state() != LIMITS_PRESENT)
		return NULL;
	if (find(device) || !card_of_device(device, &card))
		return find(device);
	pthread_mutex_lock(&lock);
	if (!find(device))
		__atomic_store_n(&buckets[device], make(device, &card), __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return find(device);
}

void buckets_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	visit_reset();
	memset(buckets, 0, sizeof(buckets)); /* the child has copies of the parent's: a few hundred bytes are lost */
}

void bucket_take_over_limits(struct bucket *bucket)
{
	struct card_limits limits;
	uint64_t seen = limits_sequence();

	if (limits_of(bucket->uuid, &limits)) {
		STORE(bucket->ceiling, within(limits.core_limit, 1, 100));
		STORE(bucket->share, within(limits.cores, 1, 100)); /* no container starves for good */
	}
	STORE(bucket->limits_seen, seen);
}

void bucket_look_for_page(struct bucket *bucket, uint64_t now)
{
	STORE(bucket->page_looked_at, now);
	__atomic_store_n(&bucket->page, card_page_find(bucket->uuid, now), __ATOMIC_RELEASE);
	STORE(bucket->times.seen, UINT64_MAX);
}

void bucket_take_over_times(struct bucket *bucket, const struct vgpu_card_page *page)
{
	struct card_times times;

	if (!card_page_read(page, &times))
		return;
	STORE(bucket->times.period, times.period);
	STORE(bucket->times.lent_until, times.lent_until);
	STORE(bucket->times.lent_rate, times.lent_rate);
	STORE(bucket->times.tenants, times.tenants);
	STORE(bucket->times.share, times.share);
	STORE(bucket->times.seen, times.seen);
}

uint64_t buckets_tidy(uint64_t now)
{
	struct bucket *list[DEVICES];
	unsigned int count = 0;

	for (int i = 0; i < DEVICES; i++)
		if ((list[count] = find(i)))
			count++;
	return visit_tidy(list, count, now);
}
