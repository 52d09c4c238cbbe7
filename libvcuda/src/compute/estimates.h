/*
 * How long a kernel takes: the mean of late measurements by (function or graph, size of the grid). Read without a lock
 * and never allocates; what does not fit displaces something. It serves reservations, not the account: see compute/batch.h.
 */
#ifndef VCUDA_ESTIMATES_H
#define VCUDA_ESTIMATES_H

#include <stdbool.h>
#include <stdint.h>

enum {
	ESTIMATE_UNKNOWN = 100000, /* ns, for what was never measured */
	ESTIMATE_STALE = 20000000, /* ns after a measurement */
	ESTIMATE_SURE = 8,         /* launches that were measured */
};

struct estimate {
	uint64_t key; /* these words change with atomic operations */
	uint64_t ns;
	uint64_t samples;
	uint64_t sure;      /* launches in those of them that nothing was in the way of */
	uint64_t sampled_at;
	uint64_t sure_at;
};

/* Its own place, from now on until it is displaced. */
struct estimate *estimates_find(uint64_t function, uint64_t blocks);

static inline uint64_t estimates_ns(const struct estimate *estimate)
{
	return __atomic_load_n(&estimate->ns, __ATOMIC_RELAXED);
}

static inline bool estimates_known(const struct estimate *estimate)
{
	return __atomic_load_n(&estimate->samples, __ATOMIC_RELAXED) != 0;
}

/* Another measurement is due, as soon as it costs little. */
static inline bool estimates_stale(const struct estimate *estimate, uint64_t now)
{
	return __atomic_load_n(&estimate->sure, __ATOMIC_RELAXED) < ESTIMATE_SURE ||
	       now - __atomic_load_n(&estimate->sampled_at, __ATOMIC_RELAXED) > ESTIMATE_STALE;
}

/* So many launches took that long. `at_most`: something else may have been in the way, so only less than known tells. */
void estimates_add(struct estimate *estimate, uint64_t ns, uint64_t launches, bool at_most, uint64_t now);

#endif
