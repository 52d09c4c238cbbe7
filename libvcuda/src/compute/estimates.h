/*
 * How long a kernel takes: the mean of the latest measurements, by function or graph and by size of the grid.
 *
 * Belongs here: one table of fixed size. Threads read it without a lock, it never allocates, and an entry that finds no
 * room displaces another. Estimates serve reservations, not the account of what was used (compute/batch.h).
 */
#ifndef VCUDA_ESTIMATES_H
#define VCUDA_ESTIMATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bounds.h"

enum {
	ESTIMATE_UNKNOWN = 100000, /* ns, for a kernel that was never measured */
	ESTIMATE_STALE = 20000000, /* ns after a measurement */
	ESTIMATE_FRESH = 3000000000u, /* ns after one without other work */
	ESTIMATE_SURE = 8,         /* launches that were measured */
};

struct estimate {
	uint64_t key; /* all words change by atomic operations */
	uint64_t ns;
	uint64_t samples;
	uint64_t sure;      /* launches in the samples that no other work disturbed */
	uint64_t sampled_at;
	uint64_t sure_at;
	uint64_t launched;  /* since the latest sample */
};

/* Returns the kernel's entry, which stays its own until another one displaces it. */
struct estimate *estimates_find(uint64_t function, uint64_t blocks);

/* A graph is new at its address. `ns`: how long it should take, by its kernels; 0: that is not known. */
void estimates_begin(uint64_t function, uint64_t blocks, uint64_t ns);

static inline uint64_t estimates_ns(const struct estimate *estimate)
{
	return __atomic_load_n(&estimate->ns, __ATOMIC_RELAXED);
}

static inline bool estimates_known(const struct estimate *estimate)
{
	return __atomic_load_n(&estimate->samples, __ATOMIC_RELAXED) != 0;
}

/*
 * Whether such a kernel may follow work under way. Until it was measured some times only few do between two measurements:
 * the first may have been a short one.
 */
static inline bool estimates_trusted(const struct estimate *estimate)
{
	uint64_t samples = __atomic_load_n(&estimate->samples, __ATOMIC_RELAXED);
	uint64_t launched = __atomic_load_n(&estimate->launched, __ATOMIC_RELAXED);

	if (samples >= ESTIMATE_SURE)
		return true;
	return samples && (launched < 1ul << samples || launched * estimates_ns(estimate) < ESTIMATE_UNKNOWN);
}

/* Whether another measurement is due, as soon as it costs little. */
static inline bool estimates_stale(const struct estimate *estimate, uint64_t now)
{
	return __atomic_load_n(&estimate->sure, __ATOMIC_RELAXED) < ESTIMATE_SURE ||
	       now - __atomic_load_n(&estimate->sampled_at, __ATOMIC_RELAXED) > ESTIMATE_STALE;
}

/* Measurements until then may have been mixed with other containers' work, unseen. */
extern uint64_t estimates_doubted_until;

static inline bool estimates_sure_for(const struct estimate *estimate, uint64_t ns, uint64_t now)
{
	uint64_t at = __atomic_load_n(&estimate->sure_at, __ATOMIC_RELAXED);

	return __atomic_load_n(&estimate->sure, __ATOMIC_RELAXED) && now - at < ns &&
	       at >= __atomic_load_n(&estimates_doubted_until, __ATOMIC_RELAXED);
}

/* Whether a long launch was measured without other work beside it, and not too long ago: 256 times its length. */
static inline bool estimates_certain(const struct estimate *estimate, uint64_t now)
{
	return estimates_sure_for(estimate, 256 * estimates_ns(estimate), now);
}

/* The same for a launch of any length, of which many follow each other. */
static inline bool estimates_fresh(const struct estimate *estimate, uint64_t now)
{
	return estimates_certain(estimate, now) || estimates_sure_for(estimate, ESTIMATE_FRESH, now);
}

/*
 * Adds a measurement: `launches` launches took `ns`. AT_MOST: other work of this process may have disturbed them. BOUND:
 * a change of contexts may be in it, and `ns` is what comes nearest to the estimate within the bounds of that. BESIDE:
 * they ran beside other containers' work.
 */
enum estimate_sample { ESTIMATE_EXACT, ESTIMATE_AT_MOST, ESTIMATE_BOUND, ESTIMATE_BESIDE };
void estimates_add(struct estimate *estimate, uint64_t ns, uint64_t launches, enum estimate_sample sample,
		   uint64_t now);

#endif
