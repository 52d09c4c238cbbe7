/* See compute/estimates.h. */
#include "compute/estimates.h"

#include "base/atomics.h"
#include "base/bounds.h"

#define REMEMBERED 50000000 /* ns of launches that count in a mean */

enum {
	PLACES = 4096,
	PROBES = 4,
	WEIGHT = ESTIMATE_SURE, /* launches that count in a mean, at least */
	MOST_REMEMBERED = 4096, /* launches that count in a mean, at most */
};

static struct estimate table[PLACES] __attribute__((aligned(64)));

static uint64_t mix(uint64_t function, uint64_t blocks)
{
	uint64_t size = blocks ? 64 - (uint64_t)__builtin_clzll(blocks) : 0;
	uint64_t key = function * 0x9e3779b97f4a7c15u ^ size * 0xbf58476d1ce4e5b9u;

	return (key ^ key >> 29) | 1;
}

uint64_t estimates_doubted_until;

static struct estimate *displace(struct estimate *place, uint64_t key)
{
	STORE(place->samples, 0);
	STORE(place->sure, 0);
	STORE(place->ns, ESTIMATE_UNKNOWN);
	STORE(place->sampled_at, 0);
	STORE(place->sure_at, 0);
	STORE(place->launched, 0);
	STORE(place->key, key);
	return place;
}

struct estimate *estimates_find(uint64_t function, uint64_t blocks)
{
	uint64_t key = mix(function, blocks);
	struct estimate *first = &table[key >> 32 & (PLACES - PROBES)];

	for (int i = 0; i < PROBES; i++) {
		uint64_t found = LOAD(first[i].key);
		if (found == key)
			return &first[i];
		if (!found)
			return displace(&first[i], key);
	}
	return displace(&first[key >> 60 & (PROBES - 1)], key);
}

void estimates_begin(uint64_t function, uint64_t blocks, uint64_t ns)
{
	struct estimate *estimate = estimates_find(function, blocks);

	(void)displace(estimate, LOAD(estimate->key));
	if (!ns)
		return;
	STORE(estimate->ns, ns);
	STORE(estimate->samples, 1);
}

/*
 * Until a sure sample comes, and when none has come of late, the least rough one counts, and those of bounds in the mean.
 * Beside other containers' work the lower third counts: most of these are of the kernel's own time, some are much longer.
 * Where all have another's work in them, as of requests beside long launches, the kernel itself took half or more, less the
 * changes of contexts.
 */
static void add_rough(struct estimate *estimate, uint64_t ns, enum estimate_sample sample, uint64_t now)
{
	uint64_t samples = LOAD(estimate->samples), known = LOAD(estimate->ns);
	bool is_beside = sample == ESTIMATE_BESIDE;

	if (is_beside && LOAD(estimate->sure) && ns > known)
		ns = bounds_max(ns * 7 / 16, known);
	STORE(estimate->samples, samples + 1);
	if (!samples || (ns < known && !LOAD(estimate->sure) && !is_beside))
		STORE(estimate->ns, ns);
	else if (estimates_fresh(estimate, now) || (ns > known && sample == ESTIMATE_AT_MOST))
		return;
	else if (ns < known)
		STORE(estimate->ns, known - bounds_min(known - ns, known / WEIGHT));
	else
		STORE(estimate->ns, known + (is_beside ? bounds_min(ns - known, known / WEIGHT / 2)
						       : bounds_min(ns - known, known) / WEIGHT));
}

static uint64_t remembered_launches(uint64_t mean)
{
	return bounds_clamp(REMEMBERED / (mean ? mean : 1), WEIGHT, MOST_REMEMBERED);
}

void estimates_add(struct estimate *estimate, uint64_t ns, uint64_t launches, enum estimate_sample sample, uint64_t now)
{
	uint64_t sure = LOAD(estimate->sure);
	int64_t mean = (int64_t)LOAD(estimate->ns), each = (int64_t)(ns / launches);

	STORE(estimate->sampled_at, now);
	STORE(estimate->launched, 0);
	if (sample != ESTIMATE_EXACT) {
		add_rough(estimate, each < 1 ? 1 : (uint64_t)each, sample, now);
		return;
	}
	STORE(estimate->sure_at, now);
	uint64_t weight = bounds_min(sure, remembered_launches((uint64_t)mean)) + launches;
	int64_t off = sure ? each - mean : 0;
	mean = sure ? mean + off * (int64_t)launches / (int64_t)weight : each;
	STORE(estimate->ns, mean < 1 ? 1 : (uint64_t)mean);
	STORE(estimate->samples, LOAD(estimate->samples) + 1);
	STORE(estimate->sure, sure + launches);
}
