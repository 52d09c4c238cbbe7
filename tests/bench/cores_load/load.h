/*
 * What the load generator's files share: options, the clock, threads, and the driver's symbols (load.c), requests of an
 * open loop (requests.c), recorded programs (replay.c), programs without work (waits.c), models of other limiters
 * (peers.c), and the malicious container (lies.c).
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "vgpu_sim_clock.h"

#define LAUNCH_ARGUMENTS \
	void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **

/* The simulator's clock, or the same interface on CLOCK_MONOTONIC. */
extern const struct vgpu_sim_clock *load_clock;

uint64_t load_wall_now(void);

/* `origin` is a time of the clock; the others are relative to it. */
extern struct load_times {
	uint64_t origin, begin, end, warm;
} load_times;

/* Finds a symbol of the driver; ends the program if there is none. */
void *load_symbol(const char *name);
void load_fail(const char *what, long code);
#define LOAD_CHECK(call) \
	do { \
		long load_result = (long)(call); \
		if (load_result) \
			load_fail(#call, load_result); \
	} while (0)

/* Starts a thread that takes part in virtual time. */
void load_thread(void *(*run)(void *), void *argument);

/* Notes the time for the report. */
void load_note_woken(void);

/* ns of CPU time, without the threads of the simulated card. */
uint64_t load_cpu_ns(void);

/* The threads of programs without work, see waits.c. The argument of the first two is an interval in ns. */
void *load_probe(void *each);
void *load_gate(void *each);
extern uint64_t load_gate_from;
void *load_burn(void *unused);

/* Requests of an open loop, see requests.c. */
struct load_request {
	uint64_t number, time;
};
void load_requests_open(const char *path);
bool load_requests_are_open(void);
/* Waits for the next request; false: there is no further one. */
bool load_requests_next(struct load_request *request);
void load_requests_done(const struct load_request *request);
void load_requests_report(void);

/* A recorded program, see replay.c. No threads: there is none. */
void load_replay_open(const char *path);
unsigned load_replay_threads(void);
void load_replay_prepare(void);
void load_replay(unsigned thread);

/* Launches a kernel of so many ns on the first card, and notes a round that began then. */
void load_launch(CUstream stream, uint64_t ns);
void load_note_round(uint64_t began);

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
int load_open_presence(void);
uint64_t load_own_byte(void); /* of the container, from the first of the card */

#endif
