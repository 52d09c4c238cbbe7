/* See compute/schedule.h. */
#include "compute/schedule.h"

#include "shared/limits.h"

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
