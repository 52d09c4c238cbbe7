/*
 * The virtual clock of a state: one time for all processes on its cards, in the shared file.
 *
 * One thread runs, all others are blocked. Each has an entry with the time at which it is due and what may wake it
 * before that. A thread that blocks hands over to the one that is due first, in the order of (time, rank,
 * registration), and `now` becomes that time. Nothing else decides the order, so the same program gives the same
 * figures. Handing over to oneself costs no system call.
 *
 * The running thread owns `now` and all other entries. A thread that enters (registers, or comes back from outside)
 * publishes its own entry and waits. If no thread runs, it may take the word `running` itself by compare and swap.
 *
 * The running thread may be killed or wait for something outside. A thread that has waited long therefore checks it:
 * the threads of a dead process are dropped, and a running thread that sleeps in the kernel stops being the running one
 * until its next call. Real time decides when that happens, so such a run is not repeatable. The threads of a stopped
 * process (SIGSTOP) are passed over as they become due, and are due again when they go on.
 *
 * Only state/clock.c and state/virtual.c include this file. state/clock.h describes what the calls mean. All but
 * sim_virtual() need it to be true.
 */
#ifndef SIM_VIRTUAL_H
#define SIM_VIRTUAL_H

#include <stdbool.h>

#include "state/clock.h"

/* Whether there is a state and its clock is the virtual one. */
bool sim_virtual(void);
uint64_t sim_virtual_now(void);
/* Whether the calling thread is the running one. */
bool sim_virtual_runs(void);
/* Waits until the calling thread is the running one; registers the thread first if necessary. */
void sim_virtual_enter(void);
/* Lets other threads run until the time is reached or another thread wakes the key (0: no thread does). */
void sim_virtual_pass(uint64_t due, uint64_t key);
/* Lets so much time pass in which the calling thread runs. */
void sim_virtual_compute(uint64_t ns);
void sim_virtual_wake(uint64_t key);
/* Leaves the clock for an unknown time; sim_virtual_enter returns to it. */
void sim_virtual_leave(void);
/* Whether the calling thread runs, and keeps the time where it is, also while it sleeps in the kernel. */
void sim_virtual_hold(bool held);
/* The key of a private and of a shared address. */
uint64_t sim_virtual_private_key(const void *address);
uint64_t sim_virtual_shared_key(const void *address);
/* Registers a thread that is about to be created. Returns its number or SIM_MAX_THREADS. */
uint32_t sim_virtual_announce(void);
void sim_virtual_adopt(uint32_t number);
void sim_virtual_withdraw(uint32_t number);

#endif
