/*
 * What is known of the program's contexts: in each, the streams that launches go to, the batches that are under way,
 * and the events they lie between.
 *
 * Belongs here: what these records hold, which context has which, and the lock. Not what happens to them: events and
 * the card's clock (compute/card_clock.h), launches (compute/batch.c), ends (compute/batch_complete.c). Other modules see compute/batch.h alone.
 */
#ifndef VCUDA_CORE_CONTEXT_H
#define VCUDA_CORE_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "compute/batch.h"

enum { LANES = 64, BATCHES = 128, EVENTS_AT_ONCE = 32, MOST_CONTEXTS = 64, SPINS = 200, GAPS = 512 };

enum batch_state { FREE, OPEN, CLOSED };

struct batch {
	enum batch_state state;
	bool started;
	bool is_unsure;       /* another tenant's work may have been in between */
	bool is_mixed;        /* it has kernels of several kinds */
	bool is_interrupted;  /* the stream, the only one, was at something else in between */
	bool is_behind_wait;  /* the stream waited for the program before */
	uint32_t lane;
	uint32_t launches;
	struct estimate *kind;
	CUevent start, end;
	uint64_t order;
	uint64_t opened_at, launched_at, closed_at;
	uint64_t started_at, ended_at; /* the card's time, on this process's clock */
	uint64_t expected;    /* end */
	uint64_t estimate;    /* ns of all its launches: what is reserved */
	uint64_t booked;      /* of the bucket */
	uint64_t spare;       /* ns reserved beside that, for launches */
	uint64_t spare_until; /* this time */
	uint64_t counted;     /* ns found used so far, */
	uint64_t counted_to;  /* the last of them */
	uint64_t allowance;   /* of the interval that may not be its own, at most */
	uint64_t gaps;        /* of what was counted, ns in which nothing was under way, */
	uint64_t doubtful;    /* those in which nothing should have been, */
	uint64_t dry_times;   /* and how often */
};

struct lane {
	uint64_t key;
	int32_t open;         /* batch */
	bool has_work;        /* that nobody has waited for yet */
	bool waits;           /* for the program, before what is launched next */
	CUstream stream;      /* of the last launch, by the thread: */
	const void *thread;
	uint64_t expected;    /* when all that was launched into it will be done */
	uint64_t sampled_at;
};

struct gap {
	uint64_t from, to;
	bool is_seen;         /* somebody had waited for everything; else it should only have been done */
};

struct core_context {
	CUcontext handle;
	CUdevice device;
	struct bucket *bucket;
	atomic_flag lock;
	uint64_t orders;
	uint32_t under_way;   /* batches that are not FREE */
	struct lane lanes[LANES];
	struct batch batches[BATCHES];
	CUevent events[2 * BATCHES + EVENTS_AT_ONCE];
	uint32_t event_count; /* not in use */
	uint32_t event_total;
	uint32_t working;     /* lanes that have work */
	uint64_t interrupted; /* the lane whose batches are, 0: none */
	uint64_t dry_since;   /* when the last of it had been waited for; 0: there is some, or was none yet */
	uint64_t expected;    /* when all of it should be done */
	uint64_t moved_at;    /* when something last ended, or was last found to be stuck */
	struct gap gaps[GAPS]; /* of late, in order */
	uint64_t gap_count;
	CUevent base;         /* an event whose time is known */
	uint64_t base_at;
	uint64_t base_seen;
};

/* In order, without gaps; the handle of one that went is NULL. */
extern struct core_context *_Atomic core_contexts[MOST_CONTEXTS];
extern _Atomic uint32_t core_generation; /* changes when a context goes */

struct core_context *core_context_find(CUcontext handle);

/* In a forked child: nothing of them is left. */
void core_contexts_reset(void);

/* ---- locks: held for microseconds; who finds one taken for longer sleeps, as the clock may be virtual ---- */

static inline bool try_lock(atomic_flag *flag)
{
	return !atomic_flag_test_and_set_explicit(flag, memory_order_acquire);
}

static inline void enter(atomic_flag *flag)
{
	for (int spin = 0; !try_lock(flag); spin++)
		if (spin % SPINS == SPINS - 1)
			clock_sleep_until(clock_now() + 5 * NS_PER_US);
}

static inline void leave(atomic_flag *flag)
{
	atomic_flag_clear_explicit(flag, memory_order_release);
}

#endif
