/*
 * How long a kernel takes: the mean of late measurements by (function or graph, size of the grid). Read without a lock
 * and never allocates; what does not fit displaces something. It serves reservations, not the account: see batches.h.
 */
#ifndef VCUDA_ESTIMATES_H
#define VCUDA_ESTIMATES_H

#include <stdbool.h>
#include <stdint.h>

enum { ESTIMATE_UNKNOWN = 100000 }; /* ns, for what was never measured */

struct estimate {
	uint64_t key; /* these words change with atomic operations */
	uint64_t ns;
	uint64_t samples;
	uint64_t sure;      /* launches in those of them that nothing was in the way of */
	uint64_t deviation; /* of late, from the mean */
	uint64_t sampled_at;
	uint64_t sure_at;
};

/* Its own place, from now on until it is displaced. */
struct estimate *estimates_find(uint64_t function, uint64_t blocks);

uint64_t estimates_ns(const struct estimate *estimate);
bool estimates_known(const struct estimate *estimate);

/* Another measurement is due, as soon as it costs little. */
bool estimates_stale(const struct estimate *estimate, uint64_t now);

/* So many launches took that long. `at_most`: something else may have been in the way, so only less than known tells. */
void estimates_add(struct estimate *estimate, uint64_t ns, uint64_t launches, bool at_most, uint64_t now);

/* It takes about the same each time. */
bool estimates_steady(const struct estimate *estimate);

#endif
