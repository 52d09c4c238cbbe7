/*
 * What the load generator's files share: options, the clock, threads, and the driver's symbols (load.c), models of
 * other limiters (peers.c), and the malicious container (lies.c).
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "vgpu_sim_clock.h"

#define LAUNCH_ARGUMENTS                                                                                         \
	void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **

/* The simulator's clock, or the same interface on CLOCK_MONOTONIC. */
extern const struct vgpu_sim_clock *load_clock;

/* Finds a symbol of the driver; ends the program if there is none. */
void *load_symbol(const char *name);
void load_fail(const char *what, long code);
#define LOAD_CHECK(call)                                                                                         \
	do {                                                                                                     \
		long load_result = (long)(call);                                                                 \
		if (load_result)                                                                                 \
			load_fail(#call, load_result);                                                           \
	} while (0)

/* Starts a thread that takes part in virtual time. */
void load_thread(void *(*run)(void *), void *argument);

/* A model of another system's limiter, see peers.c. */
struct load_peer {
	const char *name;
	void (*start)(unsigned percent);
	void (*before_launch)(unsigned blocks);
};
const struct load_peer *load_peer_of(const char *name);

/* The false locks that a malicious container takes, see lies.c; `from` 0: none. */
extern struct load_lie {
	uint64_t from, length, count, stride, each, own;
} load_lie;
void load_lies(void);

#endif
