/*
 * The one place that knows what time it is and how to wait. Everything that takes time in the simulator goes through
 * these. By the state, time is the wall's (CLOCK_MONOTONIC) or virtual: see state/virtual.h, and vgpu_sim_clock.h for
 * what that asks of a program.
 */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <pthread.h>
#include <stdint.h>

#define SIM_NEVER UINT64_MAX

uint64_t sim_now(void);         /* ns */
uint64_t sim_realtime_us(void); /* since 1970; virtual time goes by a day that is always the same */
void sim_sleep_until(uint64_t time);
/* Conditions for sim_wait and sim_signal are initialized by this. */
void sim_condition_init(pthread_cond_t *condition);
/* Wait until signalled or until the time, as pthread_cond_wait does. */
void sim_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until);
void sim_signal(pthread_cond_t *condition); /* all who wait for it */
/*
 * The same on a word of shared memory, across processes: returns when the word is not `seen`, is woken, at the time,
 * or when the memory is gone.
 */
void sim_wait_word(uint32_t *word, uint32_t seen, uint64_t until);
/* Add one to the word and wake who waits on it. Both are done by the kernel: memory that is gone is no crash. */
void sim_wake_word(uint32_t *word);

/*
 * What a call costs the thread that makes it, in virtual time only: the wall's passes by itself. A charge is paid
 * when it has become much; a place where time may pass pays at once. Never under a lock.
 */
void sim_charge(uint64_t ns);
void sim_pay(uint64_t ns);

/* Threads: known before they begin, see thread_announce in vgpu_sim_clock.h. */
uint32_t sim_thread_announce(void);
void sim_thread_adopt(uint32_t number);
void sim_thread_withdraw(uint32_t number);
/* The calling thread takes part, and runs. */
void sim_clock_enter(void);
/* Called in a forked child. */
void sim_clock_forked(void);

#endif
