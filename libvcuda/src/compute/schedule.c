/* See compute/schedule.h. */
#include "compute/schedule.h"

#include "compute/change_cost.h"

#define PERCENT (WHOLE / 100)
#define LOOK_FOR_SCHEDULE_EACH (200 * NS_PER_MS) /* for a schedule that was not there */
#define DEFAULT_PERIOD (20 * NS_PER_MS)          /* where the schedule has none */
#define CHANGES_PART 64 /* a period is so many times the changes of all containers, as in vgpu.config.core_schedule */
#define LONGEST_FOR_CHANGES (400 * NS_PER_MS)

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

static void look_for_schedule(struct token_bucket *bucket, uint64_t now)
{
	STORE(bucket->schedule_looked_at, now);
	__atomic_store_n(&bucket->published, schedule_file_find(bucket->uuid, now), __ATOMIC_RELEASE);
	STORE(bucket->schedule.seen, UINT64_MAX);
}

static void take_over_schedule(struct token_bucket *bucket, const struct vgpu_card_page *published)
{
	struct card_schedule schedule;

	if (!schedule_file_read(published, &schedule))
		return;
	STORE(bucket->schedule.period, schedule.period);
	STORE(bucket->schedule.lent_until, schedule.lent_until);
	STORE(bucket->schedule.lent_rate, schedule.lent_rate);
	STORE(bucket->schedule.tenants, schedule.tenants);
	STORE(bucket->schedule.share, schedule.share);
	STORE(bucket->schedule.may_borrow, schedule.may_borrow);
	STORE(bucket->schedule.seen, schedule.seen);
}

void schedule_follow(struct token_bucket *bucket, uint64_t now)
{
	const struct vgpu_card_page *published = __atomic_load_n(&bucket->published, __ATOMIC_ACQUIRE);

	if (!published && now - LOAD(bucket->schedule_looked_at) >= LOOK_FOR_SCHEDULE_EACH)
		look_for_schedule(bucket, now);
	published = __atomic_load_n(&bucket->published, __ATOMIC_ACQUIRE);
	if (published && schedule_file_has_changed(published, LOAD(bucket->schedule.seen)))
		take_over_schedule(bucket, published);
}

static bool is_lent(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t until = LOAD(bucket->schedule.lent_until);

	return until && schedule_host_time(now) < until;
}

uint64_t schedule_own_rate(const struct token_bucket *bucket)
{
	uint64_t share = LOAD(bucket->share) * PERCENT, published = LOAD(bucket->schedule.share);

	return published ? bounds_min(published, share) : share;
}

uint64_t schedule_rate(const struct token_bucket *bucket, uint64_t now)
{
	if (is_lent(bucket, now))
		return bounds_max(LOAD(bucket->share),
				  bounds_min(LOAD(bucket->schedule.lent_rate), LOAD(bucket->ceiling))) *
		       PERCENT;
	return schedule_own_rate(bucket);
}

uint64_t schedule_idle_rate(const struct token_bucket *bucket)
{
	uint64_t share = LOAD(bucket->share), ceiling = LOAD(bucket->ceiling);

	return LOAD(bucket->schedule.may_borrow) == 1 && ceiling > share ? ceiling * PERCENT : 0;
}

uint64_t schedule_period(const struct token_bucket *bucket)
{
	uint64_t published = LOAD(bucket->schedule.period), tenants = LOAD(bucket->schedule.tenants);
	uint64_t for_changes = bounds_min(CHANGES_PART * change_cost(bucket) * tenants, LONGEST_FOR_CHANGES);

	return published ? bounds_max(published, for_changes) : DEFAULT_PERIOD;
}

uint64_t schedule_quota(const struct token_bucket *bucket, uint64_t now)
{
	return schedule_rate(bucket, now) * schedule_period(bucket) / WHOLE;
}

uint64_t schedule_refill_threshold(const struct token_bucket *bucket, uint64_t now)
{
	return bounds_clamp(schedule_quota(bucket, now) / 8, NS_PER_MS / 4, 2 * NS_PER_MS);
}
