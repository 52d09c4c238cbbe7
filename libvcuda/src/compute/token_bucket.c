/* See compute/token_bucket.h. */
#include "compute/token_bucket.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "compute/presence.h"
#include "compute/slice_parameters.h"
#include "shared/device_limits.h"
#include "shared/limits.h"

struct token_bucket *token_buckets[TOKEN_BUCKETS];
unsigned int token_bucket_listed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Without a usage region each process is held to the share by itself. That is better than no limit. */
static void limit_alone(struct token_bucket *bucket)
{
	struct vgpu_usage_time *time = calloc(1, sizeof(*time) + sizeof(struct vgpu_usage_flight));
	static struct vgpu_usage_slice slice;

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
	bucket->mean_pause = SLICE_LONGEST_PAUSE(SLICE_CHANGE); /* until it is known */
	bucket->presence = presence_card(card->uuid); /* looks for the file before the first launch waits */
	if (!usage_time(card->uuid, &bucket->shared))
		limit_alone(bucket);
	if (bucket->shared.time)
		return bucket;
	free(bucket);
	return NULL;
}

static struct token_bucket *find_bucket(CUdevice device)
{
	for (unsigned int i = token_bucket_count(); i; i--)
		if (token_buckets[i - 1]->device == device)
			return token_buckets[i - 1];
	return NULL;
}

static void add_bucket(struct token_bucket *bucket)
{
	if (!bucket)
		return;
	token_buckets[token_bucket_listed] = bucket;
	__atomic_store_n(&token_bucket_listed, token_bucket_listed + 1, __ATOMIC_RELEASE);
}

struct token_bucket *token_bucket_of_device(CUdevice device)
{
	struct device_limits card;

	if (device < 0 || device >= TOKEN_BUCKETS || limits_state() != LIMITS_PRESENT)
		return NULL;
	if (find_bucket(device) || !device_limits_of(device, &card))
		return find_bucket(device);
	pthread_mutex_lock(&lock);
	if (!find_bucket(device))
		add_bucket(make_bucket(device, &card));
	pthread_mutex_unlock(&lock);
	return find_bucket(device);
}

void token_bucket_reset_all(void)
{
	pthread_mutex_init(&lock, NULL);
	token_bucket_listed = 0; /* the child has copies of the parent's: a few hundred bytes are lost */
}
