/* See compute/open_slice.h. */
#include "compute/open_slice.h"

#include "compute/change_cost.h"
#include "compute/slice_parameters.h"
#include "compute/token_bucket.h"

static uint64_t began, used_before; /* the present slice */
static uint64_t changing;           /* what the change took with which it began, and no program can use */
static uint64_t own_at;             /* when it last left a slice of its own */
static uint64_t ahead_until;        /* until then its program is to launch ahead, see compute/held.h */
static uint64_t lasted, used;         /* of its latest own slices: how long they were, and what it used in them */

/* `spent`: for how long it has had slices or waited for them since the last change. The program's pauses do not count. */
static struct {
	bool is_open, is_trial, was_open;
	uint64_t spent, lasts, used, rate, again;
} mode = {.lasts = SLICE_TRIAL};

static uint64_t used_on_card(void)
{
	return token_bucket_count() ? LOAD(token_buckets[0]->shared.time->used) : 0;
}

void open_slice_begun(uint64_t waited, uint64_t now)
{
	mode.spent += waited;
	began = now;
	used_before = used_on_card();
	changing = waited && token_bucket_count() ? change_cost(token_buckets[0]) : 0;
}

static void note_idle(uint64_t now)
{
	if (lasted > SLICE_OPEN_MEAN / 2 && used < lasted - lasted / SLICE_IDLE_PART)
		STORE(ahead_until, now + SLICE_AHEAD_FOR);
}

void open_slice_left(bool is_own, uint64_t now)
{
	uint64_t length = now - began;

	mode.spent += length;
	began = 0;
	if (!is_own)
		return;
	own_at = now;
	if (length < SLICE_OPEN_LEAST)
		return;
	if (lasted > SLICE_OPEN_MEAN) {
		lasted /= 2;
		used /= 2;
	}
	lasted += length;
	used += bounds_min(used_on_card() - used_before + changing, length);
	note_idle(now);
}

bool open_slice_needs_work_ahead(uint64_t now)
{
	return now < LOAD(ahead_until);
}

bool open_slice_is_measured(uint64_t now)
{
	return now - began >= SLICE_OPEN_AFTER;
}

bool open_slice_own_is_due(uint64_t now)
{
	return now - own_at > SLICE_OPEN_FOR;
}

/* Not where threads launch on several cards in turn, nor where kernels of a function take times that are hard to tell. */
bool open_slice_may_help(void)
{
	return token_bucket_count() == 1 && LOAD(token_buckets[0]->unsure) < SLICE_OPEN_UNSURE &&
	       clock_lateness() > SLICE_THREADS_LATE;
}

static uint64_t spent(uint64_t now)
{
	return mode.spent + (began ? now - began : 0);
}

static uint64_t rate(uint64_t now)
{
	return (used_on_card() - mode.used) * 1000 / (spent(now) / NS_PER_MS + 1);
}

static bool set_mode(bool is_open, uint64_t lasts, uint64_t now)
{
	mode.is_open = is_open;
	mode.lasts = lasts;
	mode.used = used_on_card();
	mode.spent -= spent(now);
	return is_open;
}

/* The other mode is tried for a while, and kept if it is better by an eighth. */
bool open_slice_is_wanted(uint64_t now)
{
	bool is_early = mode.is_trial && spent(now) >= SLICE_TRIAL / 5 && rate(now) < mode.rate / 2;

	if (!is_early && (spent(now) < mode.lasts || !(mode.is_open || mode.is_trial || open_slice_may_help())))
		return mode.is_open;
	mode.is_trial = !mode.is_trial;
	if (mode.is_trial) {
		mode.rate = rate(now);
		return set_mode(!mode.is_open, SLICE_TRIAL, now);
	}
	bool is_better = rate(now) > mode.rate + mode.rate / 8;
	bool is_open = mode.is_open == is_better && open_slice_may_help();
	mode.again = is_open == mode.was_open ? bounds_clamp(2 * mode.again, SLICE_TRIAL_LEAST, SLICE_TRIAL_MOST)
					      : SLICE_TRIAL_LEAST;
	mode.was_open = is_open;
	return set_mode(is_open, mode.again, now);
}

void open_slice_reset(void)
{
	began = own_at = lasted = used = ahead_until = 0;
	mode.is_trial = false;
	(void)set_mode(false, SLICE_TRIAL, 0);
}
