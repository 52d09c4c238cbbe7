/*
 * The records of the program's contexts: in each, the streams that launches go to, the batches that are under way, and
 * the events between which they lie.
 *
 * Belongs here: what these records hold, which context has which record, and the lock. Not what happens to them: events
 * and the card's clock (compute/card_clock.h), launches (compute/batch.h), completion (compute/batch_complete.h).
 */
#ifndef VCUDA_CONTEXTS_H
#define VCUDA_CONTEXTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "compute/token_bucket.h"
#include "shared/guard.h"

/* MOST_CONTEXTS: more than a card has memory for. The 141 GiB of an H200 hold 364 contexts of 396 MiB. */
enum { STREAM_SLOTS = 64, BATCHES = 1024, EVENTS_AT_ONCE = 32, MOST_CONTEXTS = 1024, SPINS = 200, GAPS = 512 };

struct estimate;

enum batch_state { FREE, OPEN, CLOSED };

struct batch {
	enum batch_state state;
	bool started;
	bool is_first;        /* of a time slice: the card may have changed contexts for it */
	bool is_after_others; /* it has, as others have worked before it */
	bool was_idle;        /* nothing else of its context was under way when it was opened */
	bool is_beside;       /* another tenant's work may lie within the interval, beyond a change of contexts */
	bool is_guessed;      /* some of its kernels were not measured without other work of late */
	bool is_mixed;        /* it has kernels of several kinds, or may have */
	bool is_interrupted;  /* its stream did something else in between */
	bool is_behind_wait;  /* its stream waited for the program before it */
	bool is_doubted;      /* it was held, and some of its kernels were not measured often */
	bool is_held; /* its stream waits for a semaphore before it, and nothing is reserved for it (compute/held.h) */
	bool took_long; /* the call of its first launch took long: its work began somewhere in it */
	uint32_t slot;
	uint32_t launches;
	struct estimate *kind;
	CUevent start, end;
	uint32_t semaphore; /* the value of its slot's semaphore that releases it; 0: it waited for none */
	uint64_t order; /* no other batch has this number in the life of the record */
	uint64_t opened_at, launched_at, closed_at;
	uint64_t joined_at; /* when its last launch began */
	uint64_t started_at, ended_at; /* the card's times, on this process's clock */
	uint64_t expected; /* when it should end */
	uint64_t estimate; /* ns of all its launches, which are reserved */
	uint64_t booked; /* ns that the bucket has booked for it */
	uint64_t local_slice; /* the local slice: ns reserved beside that, for launches to come */
	uint64_t local_slice_until; /* when the local slice expires */
	uint64_t counted; /* ns counted as used so far */
	uint64_t overlap; /* ns at its end in which the next one had begun */
	uint64_t counted_from; /* the begin of the first interval that was counted */
	uint64_t counted_to; /* the end of the last one */
	uint64_t gaps_noted; /* how many gaps of the context are in the next three */
	uint64_t gaps; /* counted ns in which the context was seen to be idle */
	uint64_t doubtful; /* counted ns in which the context should have been idle */
	uint64_t idle_times; /* how often the context was idle or should have been */
};

struct stream_slot {
	uint64_t key;
	int32_t open; /* index of its open batch; -1: none */
	bool has_work; /* it has work for which no thread has waited yet */
	bool waits; /* before its next launch, it waits for the program */
	CUstream stream; /* of the last launch */
	uint64_t thread; /* number of the one that made the last launch */
	uint64_t expected; /* when all work launched into it should be done */
	uint64_t copied; /* bytes that it copies over the bus before its next launch */
	uint64_t sampled_at;
	uint32_t acquired; /* the latest value of its semaphore that a stream of this slot waits for */
	uint32_t held, held_launches; /* batches that are held, and their launches */
};

struct gap {
	uint64_t from, to;
	bool is_seen; /* a thread had waited for all work; else all work should only have been done */
};

struct compute_context {
	CUcontext handle;
	CUdevice device;
	struct token_bucket *bucket;
	atomic_flag lock;
	uint64_t orders; /* given out; goes on when another context takes the record over */
	uint32_t under_way; /* batches that are not FREE */
	uint32_t top; /* behind the last one of these */
	struct stream_slot slots[STREAM_SLOTS];
	struct batch batches[BATCHES];
	struct batch *by_order[BATCHES], *by_start[BATCHES]; /* of complete_ended(): too much for a thread's stack */
	CUevent events[2 * BATCHES + EVENTS_AT_ONCE];
	uint32_t event_count; /* events not in use */
	uint32_t event_total;
	uint32_t working; /* stream slots that have work */
	uint32_t is_polled; /* alone on its card it was idle though no thread had waited: the program polls */
	uint64_t copied; /* bytes that its streams copied over the bus since one of them waited for another */
	uint64_t idle_since; /* when a thread had last waited for the last of its work; 0: never yet */
	uint64_t expected; /* when all of its work should be done */
	uint64_t moved_at; /* when a batch last ended, or was last found to be stuck */
	struct gap gaps[GAPS]; /* the latest ones, in order */
	uint64_t gap_count;
	struct {
		uint64_t estimate, used;
	} together; /* ns of batches of several streams that overlapped: their estimates, and what they took */
	struct {
		uint64_t estimate, counted, used;
	} stretch; /* ns of the batches of one stretch of work that have ended: their estimates, their union, what is charged */
	uint32_t *semaphores; /* one for each stream slot, in a page that stays for the record's life */
	CUdeviceptr semaphores_at; /* that page's address for the card; 0: not yet registered */
	bool has_no_semaphores; /* the driver has refused them */
	uint32_t drains; /* threads that wait until nothing is held */
	uint32_t held; /* batches that are held */
	uint64_t held_ns, held_launches;
	CUevent base; /* an event whose time is known */
	uint64_t base_at;
	uint64_t base_seen;
};

/* Filled in order, without gaps. The handle of a destroyed context is NULL. */
extern struct compute_context *_Atomic contexts[MOST_CONTEXTS];
extern _Atomic uint32_t contexts_generation; /* changes when a context is destroyed */

/* Returns the calling thread's context. NULL: it has none, or its card has no limit. */
struct compute_context *contexts_current(struct guard_thread *thread);

/* The same for a thread that launches nothing. NULL, at the cost of one load: no context has had accounted work. */
struct compute_context *contexts_current_if_any(struct guard_thread *thread);

/* Locks a context that may be about to be destroyed, so that no thread looks at its events. NULL: it has no record. */
struct compute_context *contexts_hold(CUcontext handle);

/* Called in a forked child: drops all records. */
void contexts_reset(void);

/*
 * Returns the stream's slot, or another stream's if all have work. The caller holds the context's lock. Inline, since
 * each launch makes this call.
 */
static inline struct stream_slot *contexts_slot(struct compute_context *context, uint64_t key)
{
	uint32_t place = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) % STREAM_SLOTS;
	struct stream_slot *idle = NULL;

	for (int i = 0; i < STREAM_SLOTS; i++) {
		struct stream_slot *at = &context->slots[(place + (uint32_t)i) % STREAM_SLOTS];
		if (at->key == key)
			return at;
		if (!at->key) {
			at->key = key;
			return at;
		}
		if (!idle && at->open < 0 && !at->has_work && !at->held)
			idle = at;
	}
	if (!idle)
		return &context->slots[place];
	*idle = (struct stream_slot){.key = key, .open = -1, .acquired = idle->acquired};
	return idle;
}

/* ---- locks: held for microseconds; a thread that spins for longer sleeps, because the clock may be virtual ---- */

static inline bool contexts_try_lock(atomic_flag *flag)
{
	return !atomic_flag_test_and_set_explicit(flag, memory_order_acquire);
}

static inline void contexts_lock(atomic_flag *flag)
{
	for (int spin = 0; !contexts_try_lock(flag); spin++)
		if (spin % SPINS == SPINS - 1)
			clock_sleep_until(clock_now() + 5 * NS_PER_US);
}

static inline void contexts_unlock(atomic_flag *flag)
{
	atomic_flag_clear_explicit(flag, memory_order_release);
}

#endif
