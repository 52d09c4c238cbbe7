/*
 * See compute/change_cost.h. Both figures are medians that follow their samples by small steps: a sample that is far off,
 * because the thread or the card was held up, moves them no more than any other.
 */
#include "compute/change_cost.h"

#include "compute/slice_parameters.h"

enum { SAMPLES = 12 }; /* reach any cost, whatever it began with */
enum { FEW = 4 }; /* so many are not told to the host: another process of the container may know better */
#define LATENCY (5 * NS_PER_US) /* of work on an idle card, until it is known */

/* The first samples move it by a half, so that a card that differs much from the usual ones is known after a dozen. */
static void follow(struct change_median *median, uint64_t beginning, uint64_t sample)
{
	uint64_t known = LOAD(median->ns) ? LOAD(median->ns) : beginning;
	uint64_t step = (known >> bounds_min(1 + median->samples++ / 4, 4)) + 100;

	STORE(median->ns, sample > known ? known + bounds_min(step, sample - known)
					 : known - bounds_min(step, known - bounds_max(sample, 1)));
}

static uint64_t cost(const struct token_bucket *bucket, uint64_t after)
{
	uint64_t without = LOAD(bucket->late_without_change.ns);

	if (!after)
		return SLICE_CHANGE;
	without = without ? without : LATENCY;
	return bounds_clamp(after > without ? after - without : 0, SLICE_CHANGE_LEAST, SLICE_CHANGE_MOST);
}

void change_cost_measured(struct token_bucket *bucket, bool changes, bool was_held, uint64_t late)
{
	if (changes)
		follow(&bucket->late_after_change, LATENCY + SLICE_CHANGE, late);
	else
		follow(&bucket->late_without_change, LATENCY, late);
	if (bucket->is_local || was_held)
		return;
	if (changes)
		follow(&bucket->late_on_card, LATENCY + SLICE_CHANGE, late);
	uint64_t on_card = LOAD(bucket->late_on_card.ns);
	if (bucket->late_on_card.samples > FEW)
		usage_change_measured(bucket->shared.time, cost(bucket, on_card));
}

/* A mean of the latest. It is worth a quarter of their deviation less: so many say too little of it. */
void change_cost_guessed(struct token_bucket *bucket, int64_t late)
{
	struct change_guess *guess = &bucket->guessed_change;
	int64_t weight = (int64_t)bounds_min(++guess->samples, 32), off = late - guess->mean;

	guess->mean += off / weight;
	guess->deviation += ((off < 0 ? -off : off) - guess->deviation) / weight;
	int64_t least = guess->samples < SAMPLES ? 0 : guess->mean - guess->deviation / 4;
	STORE(guess->ns, least < 0 ? 0 : bounds_min((uint64_t)least, SLICE_CHANGE_MOST));
}

/* What is guessed counts as long as little was measured. */
static uint64_t cost_by(const struct token_bucket *bucket, const struct change_median *after)
{
	uint64_t guessed = after->samples < SAMPLES ? LOAD(bucket->guessed_change.ns) : 0;

	return bounds_max(cost(bucket, LOAD(after->ns)), guessed);
}

uint64_t change_cost_of_card(const struct token_bucket *bucket)
{
	return cost_by(bucket, &bucket->late_on_card);
}

uint64_t change_cost(const struct token_bucket *bucket)
{
	return cost_by(bucket, &bucket->late_after_change);
}
