/*
 * Two threads that do one call each at the same time, again and again: `thread_race KIND ROUNDS SIZE`. KIND is
 *   opens    both open the same handle of a child's memory. One closes it and the child frees the memory; the other one's
 *            address keeps it on the card.
 *   guesses  one makes memory and releases it, and the other one maps it meanwhile by the handle that it will have.
 * There are more rounds until the threads have met once. After each round the free memory has to be what is left beside
 * the memory that is held. It prints in how many rounds the threads met, and in how many memory was held that nobody is
 * charged for.
 *
 * `thread_race waits ROUNDS SIZE` is another question: one thread makes memory and releases it while others map
 * and unmap some. It prints how many calls that make memory were passed by more than two turns of each of the others.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "linked.h"

typedef unsigned long long memory;

static const CUmemAllocationProp on_card = {1, 1, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0}};

static CUcontext context;
static size_t size, most; /* of one piece of memory; free when nothing is held */
static pthread_barrier_t barrier;
static atomic_bool is_over, is_made;
static CUipcMemHandle shared;
static memory address;
static _Atomic memory guess;
static atomic_long met;
static atomic_bool is_mapped;

static void check(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %d\n", what, result);
	exit(1);
}

static void begin(void)
{
	check(cuInit(0), "cuInit");
	check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static size_t left(void)
{
	size_t available, all;

	check(cuMemGetInfo_v2(&available, &all), "cuMemGetInfo");
	return available;
}

/* ---- opens ---- */

/* The child: a handle of new memory for each byte that it reads, which it frees at the next byte. */
static void export(int from, int to)
{
	CUipcMemHandle made;
	memory pointer;
	char byte;

	begin();
	while (read(from, &byte, 1) == 1) {
		check(cuMemAlloc_v2(&pointer, size), "cuMemAlloc");
		check(cuIpcGetMemHandle(&made, pointer), "cuIpcGetMemHandle");
		check(write(to, &made, sizeof(made)) != sizeof(made), "write");
		check(read(from, &byte, 1) != 1, "read");
		check(cuMemFree_v2(pointer), "cuMemFree");
		check(write(to, &byte, 1) != 1, "write");
	}
	_exit(0);
}

static void *opener(void *argument)
{
	memory opened;

	(void)argument;
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	for (;;) {
		pthread_barrier_wait(&barrier);
		if (is_over)
			return NULL;
		check(cuIpcOpenMemHandle_v2(&opened, shared, 1), "cuIpcOpenMemHandle");
		address = opened;
		pthread_barrier_wait(&barrier);
	}
}

static long open_together(long rounds, int from, int to)
{
	long lost = 0;
	char byte = 0;

	for (long round = 0; round < rounds || !met; round++) {
		check(write(to, &byte, 1) != 1, "write");
		check(read(from, &shared, sizeof(shared)) != sizeof(shared), "read");
		pthread_barrier_wait(&barrier);
		memory opened;
		check(cuIpcOpenMemHandle_v2(&opened, shared, 1), "cuIpcOpenMemHandle");
		pthread_barrier_wait(&barrier);
		met += opened == address;
		check(cuIpcCloseMemHandle(opened), "cuIpcCloseMemHandle");
		check(write(to, &byte, 1) != 1, "write");
		check(read(from, &byte, 1) != 1, "read");
		lost += left() != most - size;
		check(cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle");
		check(left() != most, "memory left");
	}
	return lost;
}

/* ---- guesses ---- */

static void *mapper(void *argument)
{
	(void)argument;
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	for (;;) {
		pthread_barrier_wait(&barrier);
		if (is_over)
			return NULL;
		bool mapped = false;
		while (!mapped && !is_made)
			mapped = !cuMemMap(address, size, 0, guess, 0);
		is_mapped = mapped;
		pthread_barrier_wait(&barrier);
	}
}

/* Handles that are given out one after the other differ by the same amount. */
static long make_and_map(long rounds)
{
	memory made, last;
	long lost = 0;

	check(cuMemAddressReserve(&address, size, 0, 0, 0), "cuMemAddressReserve");
	check(cuMemCreate(&last, size, &on_card, 0), "cuMemCreate");
	check(cuMemRelease(last), "cuMemRelease");
	check(cuMemCreate(&made, size, &on_card, 0), "cuMemCreate");
	check(cuMemRelease(made), "cuMemRelease");
	for (long round = 0; round < rounds || !met; round++) {
		guess = made + (made - last);
		last = made;
		is_made = false;
		pthread_barrier_wait(&barrier);
		check(cuMemCreate(&made, size, &on_card, 0), "cuMemCreate");
		is_made = true;
		pthread_barrier_wait(&barrier);
		check(cuMemRelease(made), "cuMemRelease");
		met += is_mapped;
		lost += left() != (is_mapped ? most - size : most);
		if (is_mapped)
			check(cuMemUnmap(address, size), "cuMemUnmap");
		check(left() != most, "memory left");
	}
	return lost;
}

/* ---- waits ---- */

enum { MAPPERS = 6 };

static atomic_long maps;

static void *map_all_the_time(void *argument)
{
	memory place, made;

	(void)argument;
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuMemAddressReserve(&place, size, 0, 0, 0), "cuMemAddressReserve");
	check(cuMemCreate(&made, size, &on_card, 0), "cuMemCreate");
	pthread_barrier_wait(&barrier);
	while (!is_over) {
		check(cuMemMap(place, size, 0, made, 0), "cuMemMap");
		check(cuMemUnmap(place, size), "cuMemUnmap");
		maps++;
	}
	check(cuMemRelease(made), "cuMemRelease");
	return NULL;
}

static long make_among_mappers(long rounds)
{
	pthread_t mappers[MAPPERS];
	memory made;
	long overtaken = 0;

	pthread_barrier_init(&barrier, NULL, MAPPERS + 1);
	for (int i = 0; i < MAPPERS; i++)
		pthread_create(&mappers[i], NULL, map_all_the_time, NULL);
	pthread_barrier_wait(&barrier);
	for (long round = 0; round < rounds; round++) {
		long before = maps;
		check(cuMemCreate(&made, size, &on_card, 0), "cuMemCreate");
		overtaken += maps - before > 2 * MAPPERS;
		check(cuMemRelease(made), "cuMemRelease");
	}
	is_over = true;
	for (int i = 0; i < MAPPERS; i++)
		pthread_join(mappers[i], NULL);
	return overtaken;
}

int main(int argc, char **argv)
{
	int to_child[2], from_child[2];
	pthread_t other;
	long lost;

	if (argc != 4 || pipe(to_child) || pipe(from_child))
		return 1;
	bool opens = !strcmp(argv[1], "opens");
	size = (size_t)atol(argv[3]);
	if (opens && !fork()) {
		close(to_child[1]);
		export(to_child[0], from_child[1]);
	}
	begin();
	if (opens) { /* once, so that the child has its context */
		check(write(to_child[1], "", 1) != 1 || read(from_child[0], &shared, sizeof(shared)) != sizeof(shared),
		      "child");
		check(write(to_child[1], "", 1) != 1 || read(from_child[0], &lost, 1) != 1, "child");
	}
	most = left();
	if (!strcmp(argv[1], "waits")) {
		printf("%ld\n", make_among_mappers(atol(argv[2])));
		return left() != most;
	}
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&other, NULL, opens ? opener : mapper, NULL);
	lost = opens ? open_together(atol(argv[2]), from_child[0], to_child[1]) : make_and_map(atol(argv[2]));
	is_over = true;
	pthread_barrier_wait(&barrier);
	pthread_join(other, NULL);
	close(to_child[1]);
	printf("%ld %ld\n", (long)met, lost);
	return opens && wait(NULL) < 0;
}
