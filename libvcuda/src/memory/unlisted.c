/* Implements memory/unlisted.h. */
#include "memory/unlisted.h"

#include <pthread.h>
#include <stdatomic.h>

#include "shared/usage.h"
#include "vgpu_limits.h"

static _Atomic uint64_t unlisted[VGPU_LIMITS_MAX_CARDS];

/* The charges of a forked child are its parent's. */
static void unlisted_after_fork(void)
{
	for (unsigned int card = 0; card < VGPU_LIMITS_MAX_CARDS; card++)
		atomic_store(&unlisted[card], 0);
}

__attribute__((constructor)) static void unlisted_watch_forks(void)
{
	pthread_atfork(NULL, NULL, unlisted_after_fork);
}

/* Of threads that change the sum at once, the last one to show it may have read it first. */
static void show(int card)
{
	uint64_t bytes;

	do
		usage_set_unlisted(card, bytes = atomic_load(&unlisted[card]));
	while (bytes != atomic_load(&unlisted[card]));
}

void unlisted_add(int card, uint64_t bytes)
{
	atomic_fetch_add(&unlisted[card], bytes);
	show(card);
}

void unlisted_take(int card, uint64_t bytes)
{
	atomic_fetch_sub(&unlisted[card], bytes);
	show(card);
}

uint64_t unlisted_bytes(int card)
{
	return atomic_load(&unlisted[card]);
}
