/* See estimates.h. */
#include "estimates.h"

enum {
	PLACES = 4096,
	PROBES = 4,
	WEIGHT = 8, /* of what is known against a new sample */
};

static struct estimate table[PLACES] __attribute__((aligned(64)));

static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static uint64_t mix(uint64_t function, uint64_t blocks)
{
	uint64_t size = blocks ? 64 - (uint64_t)__builtin_clzll(blocks) : 0;
	uint64_t key = (function ^ size << 56) * 0x9e3779b97f4a7c15u;

	return (key ^ key >> 29) | 1;
}

static struct estimate *displace(struct estimate *place, uint64_t key)
{
	store(&place->samples, 0);
	store(&place->ns, ESTIMATE_UNKNOWN);
	store(&place->sampled_at, 0);
	store(&place->key, key);
	return place;
}

struct estimate *estimates_find(uint64_t function, uint64_t blocks)
{
	uint64_t key = mix(function, blocks);
	struct estimate *first = &table[key >> 32 & (PLACES - PROBES)];

	for (int i = 0; i < PROBES; i++) {
		uint64_t found = load(&first[i].key);
		if (found == key)
			return &first[i];
		if (!found)
			return displace(&first[i], key);
	}
	return displace(&first[key >> 60 & (PROBES - 1)], key);
}

uint64_t estimates_ns(const struct estimate *estimate)
{
	return load(&estimate->ns);
}

bool estimates_known(const struct estimate *estimate)
{
	return load(&estimate->samples) != 0;
}

void estimates_add(struct estimate *estimate, uint64_t ns, bool at_most, uint64_t now)
{
	uint64_t samples = load(&estimate->samples);
	uint64_t known = load(&estimate->ns);

	store(&estimate->sampled_at, now);
	if (at_most && samples && ns >= known)
		return;
	uint64_t weight = samples < WEIGHT ? samples + 1 : WEIGHT;
	int64_t step = ((int64_t)ns - (int64_t)known) / (int64_t)weight;
	store(&estimate->ns, samples ? known + (uint64_t)step : ns);
	store(&estimate->samples, samples + 1);
}
