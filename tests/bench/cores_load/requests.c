/*
 * Requests that come whether or not the program is ready for them (an open loop): their intended times are read from a
 * file (cores_traces.py), and the latency of a request counts from its intended time. A request that finds the program
 * busy waits in the program, and that wait is part of its latency.
 *
 * The file is a list of 64-bit numbers, ns after the origin, in ascending order.
 */
#include <stdio.h>
#include <stdlib.h>

#include "load.h"

#define GROWTH 65536u

static uint64_t *intended, *latency; /* latency 0: not done */
static uint64_t count, next;

void load_requests_open(const char *path)
{
	FILE *file = fopen(path, "rb");
	size_t got = 0;

	if (!file)
		load_fail(path, 0);
	do {
		intended = realloc(intended, (count + GROWTH) * sizeof *intended);
		if (!intended)
			load_fail(path, (long)count);
		got = fread(intended + count, sizeof *intended, GROWTH, file);
		count += got;
	} while (got);
	fclose(file);
	latency = calloc(count + 1, sizeof *latency);
	if (!latency)
		load_fail(path, (long)count);
}

bool load_requests_are_open(void)
{
	return latency != NULL;
}

bool load_requests_next(struct load_request *request)
{
	request->number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
	if (request->number >= count)
		return false;
	request->time = load_times.origin + intended[request->number];
	load_clock->sleep_until(request->time);
	return true;
}

void load_requests_done(const struct load_request *request)
{
	uint64_t took = load_clock->now() - request->time;

	__atomic_store_n(&latency[request->number], took ? took : 1, __ATOMIC_RELAXED);
}

/* A request that is not done counts with the time that it has waited: at least so long does it take. */
void load_requests_report(void)
{
	uint64_t unfinished = 0;
	const char *separator = "";

	printf(", \"latency_ns\": [");
	for (uint64_t i = 0; i < count; i++) {
		if (intended[i] < load_times.warm || intended[i] >= load_times.end)
			continue;
		unfinished += !latency[i];
		printf("%s%lu", separator, (unsigned long)(latency[i] ? latency[i] : load_times.end - intended[i]));
		separator = ", ";
	}
	printf("], \"unfinished\": %lu", (unsigned long)unfinished);
}
