/*
 * The virtual clock of a state: one line of time for all processes on its cards, in the shared file.
 *
 * One thread runs, all others are blocked: each has an entry with the time at which it is due and what may wake it
 * before that. Who blocks hands over to the one that is due first, in the order of (time, rank, registration), and
 * `now` becomes that time; nothing is decided anywhere else, so the same program gives the same figures. Handing over
 * to oneself costs no system call.
 *
 * Who runs owns `now` and all other entries. A thread that enters (registers, comes back from outside) publishes its
 * own entry and waits; when nobody runs it may take the word `running` itself, by compare and swap.
 *
 * Nobody can rely on the one who runs: it may have been killed, or wait for something outside. Who waits for long
 * looks after it: a dead process' threads are dropped, a runner that sleeps in the kernel loses its turn and asks
 * for it again at its next call. Real time decides when, so that such a run is not repeatable.
 *
 * Included by state/clock.c only, which says what the calls mean; all need sim_virtual() to be true.
 */
#ifndef SIM_VIRTUAL_H
#define SIM_VIRTUAL_H

#include <stdbool.h>

#include "state/clock.h"


/* Is there a state, and is its clock the virtual one? */
bool sim_virtual(void);
uint64_t sim_virtual_now(void);
/* Is it the calling thread that runs? */
bool sim_virtual_runs(void);
/* Be the one who runs: registers the thread where that has not been done. */
void sim_virtual_enter(void);
/* Let others run until the time, or until somebody wakes the key (0: nobody does). */
void sim_virtual_pass(uint64_t due, uint64_t key);
void sim_virtual_wake(uint64_t key);
/* Leave the line without an end, and the way back is sim_virtual_enter. */
void sim_virtual_leave(void);
/* What the key of a private or a shared address is. */
uint64_t sim_virtual_private_key(const void *address);
uint64_t sim_virtual_shared_key(const void *address);
/* A thread that is about to be created: its number, or SIM_MAX_THREADS. */
uint32_t sim_virtual_announce(void);
void sim_virtual_adopt(uint32_t number);
void sim_virtual_withdraw(uint32_t number);
/* In the child: it inherited its parent's identity. */
void sim_virtual_forked(void);

#endif
