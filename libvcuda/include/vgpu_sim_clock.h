/*
 * The simulated driver's time, for the programs that have to follow it: libvcuda, load generators, tests.
 *
 * Belongs here: the interface of this clock, and the rules for its callers. Not how libvcuda uses it (driver/clock.h).
 *
 * The simulated libcuda and libnvidia-ml export one object of this type, `vgpuSimClock`. A real driver has no such
 * symbol. Look it up with dlsym on the handle of the real library, once. NULL: time is CLOCK_MONOTONIC, wait as usual.
 * On a state with the wall clock (`is_virtual()` is 0) the functions work and mean the same, by CLOCK_MONOTONIC.
 *
 * Virtual time belongs to a simulator's state: all processes on its cards share it. It stands still while a registered
 * thread runs. It moves to the earliest deadline when all registered threads are blocked in the functions below or in
 * the simulated driver (synchronization, full queues, sleeping copies).
 *
 * - Registration. A thread's first call of cuInit, of a driver function that waits, launches or costs time, or of any
 *   function below but `is_virtual` registers it. The simulator forgets it when it ends. The simulator's own engine
 *   threads are registered. libvcuda's poller thread registers when it waits here. A launch that waits in libvcuda's
 *   throttle counts as blocked, because it waits here. Time does not wait for threads that never call. The simulator
 *   notices a killed process, and one that is stopped: time goes on without its threads until they go on.
 * - One at a time. Of all registered threads of all processes exactly one runs, until it blocks. Threads that are due
 *   at the same instant run in the order of their processes' VGPU_SIM_RANK (a number), then of their registration. So a
 *   scenario is repeatable to the nanosecond, and between two calls nothing else happens on the cards.
 * - Costs. Computing costs no time. Driver calls do (README.md of the simulator: 4 us for a launch), so another thread
 *   may run during a launch. Do not hold a lock that another registered thread takes across a launch, a synchronization
 *   or a wait. Event records and queries let time pass now and then, too, so that a loop that polls ends. `charge` adds
 *   a caller's own costs.
 * - Waiting elsewhere. A registered thread that waits in pthread_join, pthread_cond_wait, read, a contended lock or the
 *   like without a deadline calls `block` before and `unblock` after. If it forgets, the others go on after some 100 ms
 *   of real time, which is no longer repeatable. Spinning on memory without any call never ends.
 * - Start. The state may name a number of parties. Each process's first call then returns when that many processes have
 *   come.
 */
#ifndef VGPU_SIM_CLOCK_H
#define VGPU_SIM_CLOCK_H

#include <stdint.h>

#define VGPU_SIM_CLOCK_SYMBOL "vgpuSimClock"
#define VGPU_SIM_CLOCK_VERSION 1u
#define VGPU_SIM_NEVER UINT64_MAX

struct vgpu_sim_clock {
	uint32_t version; /* VGPU_SIM_CLOCK_VERSION; a change that is no addition at the end changes it */
	uint32_t size;    /* of this structure, in the library */

	/* Nonzero when time is virtual. Does not register. */
	int (*is_virtual)(void);
	/* ns. Virtual time begins at some 1,000 s, so that small differences do not underflow. */
	uint64_t (*now)(void);
	/* Returns at `time`, or at once when that is past. */
	void (*sleep_until)(uint64_t time);
	/*
	 * A futex: returns when *word is not `value` (at once, or after a wake) or at the deadline (VGPU_SIM_NEVER:
	 * there is none). The word may lie in memory shared between processes, at different addresses (of equal
	 * offset in a page). The function may also return for no reason. It sees a change of the word without a wake
	 * at the deadline only. Read-only memory will do for waiting.
	 */
	void (*wait)(uint32_t *word, uint32_t value, uint64_t deadline);
	/* Wakes all threads that wait on the word, changed or not. The caller goes on, and they run when it blocks. */
	void (*wake)(uint32_t *word);
	/* Called before and after a thread waits elsewhere. In between it calls neither this nor the driver. */
	void (*block)(void);
	void (*unblock)(void);
	/*
	 * For a thread about to be created, so that time waits for it from now on. The creator announces it, and the
	 * new thread adopts the number before its first other call. If pthread_create fails, the creator calls
	 * `thread_withdraw`.
	 */
	uint32_t (*thread_announce)(void);
	void (*thread_adopt)(uint32_t number);
	void (*thread_withdraw)(uint32_t number);
	/* The calling thread has computed for `ns`. It pays when it next launches or blocks, or when it owes much. */
	void (*charge)(uint64_t ns);
	/* 1: time stands still, also while the calling thread waits elsewhere. 0: no longer. */
	void (*hold)(int held);
};

#endif
