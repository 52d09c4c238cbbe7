/*
 * The one place that knows what time it is and how to wait. Everything that takes time in the simulator goes through
 * these: a virtual clock has to replace no more than them.
 */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <pthread.h>
#include <stdint.h>

#define SIM_NEVER UINT64_MAX

uint64_t sim_now(void); /* ns, CLOCK_MONOTONIC */
void sim_sleep_until(uint64_t time);
/* Conditions for sim_wait are initialized by this. */
void sim_condition_init(pthread_cond_t *condition);
/* Wait until signalled or until the time, as pthread_cond_wait does. */
void sim_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until);
/*
 * The same on a word of shared memory, across processes: returns when the word is not `seen`, is woken, at the time,
 * or when the memory is gone.
 */
void sim_wait_word(uint32_t *word, uint32_t seen, uint64_t until);
/* Add one to the word and wake who waits on it. Both are done by the kernel: memory that is gone is no crash. */
void sim_wake_word(uint32_t *word);

#endif
