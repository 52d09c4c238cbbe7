/*
 * The simulated driver's time, for those who have to follow it: libvcuda, load generators, tests.
 *
 * The simulated libcuda and libnvidia-ml export one object of this type, `vgpuSimClock`; a real driver has no such
 * symbol. Look it up with dlsym on the handle of the real library, once; NULL: time is CLOCK_MONOTONIC, wait as usual.
 * On a state with the wall clock (`is_virtual()` is 0) the functions work and mean the same, by CLOCK_MONOTONIC.
 *
 * Virtual time. It belongs to a simulator's state: all processes on its cards share it. It stands still while a
 * registered thread runs, and moves to the earliest deadline when all of them are blocked in the functions below or in
 * the simulated driver (synchronization, full queues, sleeping copies).
 *
 * - Who counts. A thread is registered by its first call of cuInit, of a driver function that waits, launches or
 *   costs time, or of anything below but `is_virtual`, and is forgotten when it ends. The simulator's own engine
 *   threads are registered. A poller thread of libvcuda registers (by waiting here); waiting in a gate counts as
 *   blocked because it is done here. Threads that never call are not waited for. A killed process is noticed.
 * - One at a time. Of all registered threads of all processes exactly one runs; it goes on until it blocks. Who is
 *   due at the same instant runs in the order of the processes' VGPU_SIM_RANK (a number), then of registration. So a
 *   scenario is repeatable to the nanosecond, and between two calls nothing else happens on the cards.
 * - What costs time. Computing costs none. Driver calls do (README.md of the simulator: 4 us for a launch), so
 *   launching is a place where another thread may run: do not hold a lock that another registered thread takes across
 *   a launch, a synchronization or a wait. Event records and queries let time pass now and then, too: a loop that
 *   polls ends. `charge` adds own costs.
 * - Waiting elsewhere. A registered thread that waits in pthread_join, pthread_cond_wait, read, a contended lock
 *   without deadline ... says so with `block` and `unblock` around it. When it forgets, the others go on after some
 *   100 ms of real time, which is no longer repeatable. Spinning on memory without any call never ends.
 * - Start. The state may name a number of parties: each process' first call returns when as many processes have come.
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
	/* Returns at the time, at once when that is past. */
	void (*sleep_until)(uint64_t time);
	/*
	 * A futex: returns when *word is not `value` (at once, or after a wake) or at the deadline, VGPU_SIM_NEVER for
	 * none. The word may lie in memory shared between processes, at different addresses (of equal offset in a page).
	 * It may also return for no reason. A change of the word without a wake is seen at the deadline only. Read-only
	 * memory will do for waiting.
	 */
	void (*wait)(uint32_t *word, uint32_t value, uint64_t deadline);
	/* Wakes all who wait on the word, changed or not. The caller goes on; they run when it blocks. */
	void (*wake)(uint32_t *word);
	/* The calling thread is about to wait elsewhere, and is back. No other call of this or the driver in between. */
	void (*block)(void);
	void (*unblock)(void);
	/*
	 * For a thread about to be created, so that time waits for it from now on: the creator announces it, the new
	 * thread adopts the number before its first other call. Not adopted (pthread_create failed): `thread_withdraw`.
	 */
	uint32_t (*thread_announce)(void);
	void (*thread_adopt)(uint32_t number);
	void (*thread_withdraw)(uint32_t number);
	/* The calling thread has computed for so long. Paid when it next launches or blocks, or when it becomes much. */
	void (*charge)(uint64_t ns);
};

#endif
