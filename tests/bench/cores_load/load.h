/* The load generator's parts: what it launches, by whose clock, and what stands between it and the driver. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "vgpu_sim_clock.h"

#define LAUNCH_ARGUMENTS                                                                                         \
	void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **

/* The simulator's clock, or the same by CLOCK_MONOTONIC. */
extern const struct vgpu_sim_clock *load_clock;

/* A symbol of the driver that the program found; ends the program when there is none. */
void *load_symbol(const char *name);
void load_fail(const char *what, long code);
#define LOAD_CHECK(call)                                                                                         \
	do {                                                                                                     \
		long load_result = (long)(call);                                                                 \
		if (load_result)                                                                                 \
			load_fail(#call, load_result);                                                           \
	} while (0)

/* A thread that virtual time knows from now on. */
void load_thread(void *(*run)(void *), void *argument);

/* A model of somebody else's limiter, see peers.c. */
struct load_peer {
	const char *name;
	void (*start)(unsigned percent);
	void (*before_launch)(unsigned blocks);
};
const struct load_peer *load_peer_of(const char *name);

/* What it says to its neighbours that is not so, see lies.c; `from` 0: nothing. */
extern struct load_lie {
	uint64_t from, length, count, stride, each, own;
} load_lie;
void load_lies(void);

#endif
