/*
 * Time and waiting for the core share: CLOCK_MONOTONIC, absolute sleeps and futexes, or the simulated driver's clock
 * when the real library is that and its time is virtual (vgpu_sim_clock.h). Nothing else here knows which.
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
void clock_sleep_until(uint64_t time);

/* Until *word is not `seen`, somebody wakes it, or the time; the word may be shared with other processes. */
void clock_wait(uint32_t *word, uint32_t seen, uint64_t until);

/* Changes the word and wakes all who wait on it. */
void clock_wake(uint32_t *word);

/* Wakes all who wait on a word that does not change: it may be read-only. */
void clock_wake_all(uint32_t *word);

/* A detached thread that no signal of the program goes to; false: there is none. */
bool clock_thread(void (*body)(void));

#endif
