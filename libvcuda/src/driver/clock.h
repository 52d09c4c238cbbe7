/*
 * Time and waiting for the core share: CLOCK_MONOTONIC, absolute sleeps and futexes. If the real library is the
 * simulated driver and its time is virtual (vgpu_sim_clock.h), the simulated driver's clock takes their place.
 *
 * Belongs here: the choice between the two clocks, which no other file makes. Not when or for what to wait
 * (compute/throttle.h, compute/poller.h).
 */
#ifndef VCUDA_CLOCK_H
#define VCUDA_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define NS_PER_US ((uint64_t)1000)
#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_S ((uint64_t)1000000000)

uint64_t clock_now(void);

/* The calling thread's CPU time. On the simulator's clock always 0. */
uint64_t clock_thread_time(void);

void clock_sleep_until(uint64_t time);

/* Waits until *word is not `seen`, a thread wakes the word, or it is `until`. Processes may share the word. */
void clock_wait(uint32_t *word, uint32_t seen, uint64_t until);

/* Changes the word and wakes all threads that wait on it. */
void clock_wake(uint32_t *word);

/* Wakes all threads that wait on the word, and does not change it: the word may be read-only. */
void clock_wake_all(uint32_t *word);

/*
 * The same for threads that wait with one of the bits, or with clock_wait; at most so many are woken. Returns how many
 * were. On the simulator's clock all wake, and it returns 0.
 */
void clock_wait_bits(uint32_t *word, uint32_t seen, uint32_t bits, uint64_t until);
unsigned int clock_wake_bits(uint32_t *word, uint32_t bits, unsigned int most);

/*
 * Whether the kernel, or a sandbox, has refused such a wait. Waits then last half a millisecond, and whoever waits looks
 * again.
 */
bool clock_waits_are_refused(void);

/* Starts a detached thread that gets none of the program's signals. False: it could not be started. */
bool clock_thread(void (*body)(void));

/*
 * How late this process's threads wake, in ns, a moving mean; 0: no later than on a machine that has processors to
 * spare. One thread notes it, after each sleep that was to last until `until`.
 */
void clock_note_wake(uint64_t until);
uint64_t clock_lateness(void);

#endif
