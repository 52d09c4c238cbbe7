/* See estimates.h. */
#include "estimates.h"

#define STALE 20000000 /* ns */

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
	store(&place->sure, 0);
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

bool estimates_stale(const struct estimate *estimate, uint64_t now)
{
	return load(&estimate->sure) < WEIGHT || now - load(&estimate->sampled_at) > STALE;
}

/* Rough samples are the least of them, until a sure one comes. */
static uint64_t roughly(const struct estimate *estimate, uint64_t ns)
{
	uint64_t known = load(&estimate->ns);

	return load(&estimate->samples) && known < ns ? known : ns;
}

void estimates_add(struct estimate *estimate, uint64_t ns, bool at_most, uint64_t now)
{
	uint64_t sure = load(&estimate->sure), known = load(&estimate->ns);
	int64_t weight = sure < WEIGHT ? (int64_t)sure + 1 : WEIGHT;
	uint64_t mean = (uint64_t)((int64_t)known + ((int64_t)ns - (int64_t)known) / weight);

	store(&estimate->sampled_at, now);
	if (at_most && sure && ns >= known)
		return;
	store(&estimate->ns, sure ? mean : at_most ? roughly(estimate, ns) : ns);
	store(&estimate->samples, load(&estimate->samples) + 1);
	if (!at_most)
		store(&estimate->sure, sure + 1);
}
