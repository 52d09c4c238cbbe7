/*
 * The only place that reads the time or waits. Everything in the simulator that takes time calls these functions. The
 * state determines which clock they use: the wall clock (CLOCK_MONOTONIC) or the virtual clock of state/virtual.h.
 * vgpu_sim_clock.h describes what a program must do to run under the virtual clock.
 */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <pthread.h>
#include <stdint.h>

#define SIM_NEVER UINT64_MAX

uint64_t sim_clock_now(void);         /* ns */
uint64_t sim_clock_realtime_us(void); /* since 1970; under the virtual clock a fixed day */
/* A program's time since 1970 by that clock: one that is later than now is of CLOCK_REALTIME. */
uint64_t sim_clock_stamp_us(uint64_t given);
void sim_clock_sleep_until(uint64_t time);
/* Initializes a condition for sim_clock_wait and sim_clock_signal. */
void sim_clock_condition_init(pthread_cond_t *condition);
/* Waits until the condition is signalled or the time is reached, as pthread_cond_timedwait does. */
void sim_clock_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until);
void sim_clock_signal(pthread_cond_t *condition); /* wakes all threads that wait on it */
/*
 * Like sim_clock_wait, on a word of shared memory, across processes. Returns when the word differs from `seen`, when
 * another thread wakes it, when the time is reached, or when the memory no longer exists.
 */
void sim_clock_wait_word(uint32_t *word, uint32_t seen, uint64_t until);
/*
 * Adds one to the word and wakes the threads that wait on it. The kernel does both, so that memory that no longer
 * exists does not crash the caller.
 */
void sim_clock_wake_word(uint32_t *word);

/*
 * Charges the calling thread for the cost of a call, under the virtual clock only; on the wall clock the call itself
 * takes time. The thread pays when its charges have become large, or when it next reaches a place where time may pass.
 * Never called under a lock.
 */
void sim_clock_charge(uint64_t ns);
void sim_clock_pay(uint64_t ns);

/* Registers a thread before it begins; see thread_announce in vgpu_sim_clock.h. */
uint32_t sim_clock_thread_announce(void);
void sim_clock_thread_adopt(uint32_t number);
void sim_clock_thread_withdraw(uint32_t number);
/* Makes the calling thread take part in the virtual clock and waits until it runs. */
void sim_clock_enter(void);

#endif
