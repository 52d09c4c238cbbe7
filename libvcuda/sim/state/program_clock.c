/*
 * The table vgpuSimClock, by which programs use the simulator's clock (vgpu_sim_clock.h). They find it by dlsym, and
 * any of its functions may be the first call into the library. The clock itself is state/clock.c.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state/clock.h"
#include "state/state.h"
#include "state/virtual.h"
#include "vgpu_sim_clock.h"

static int clock_is_virtual(void)
{
	return sim_state_open() == SIM_OK && sim_virtual();
}

static uint64_t clock_now(void)
{
	if (clock_is_virtual())
		sim_virtual_enter();
	return sim_clock_now();
}

static void clock_sleep_until(uint64_t time)
{
	if (clock_is_virtual())
		sim_clock_pay(0);
	sim_clock_sleep_until(time);
}

static void clock_wait(uint32_t *word, uint32_t value, uint64_t deadline)
{
	if (clock_is_virtual())
		sim_clock_pay(0);
	sim_clock_wait_word(word, value, deadline);
}

/* Unlike sim_clock_wake_word it leaves the word as it is. */
static void clock_wake(uint32_t *word)
{
	if (clock_is_virtual())
		sim_virtual_wake(sim_virtual_shared_key(word));
	else
		syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void clock_block(void)
{
	if (!clock_is_virtual())
		return;
	sim_clock_pay(0);
	sim_virtual_leave();
}

static void clock_unblock(void)
{
	if (clock_is_virtual())
		sim_virtual_enter();
}

static uint32_t clock_announce(void)
{
	return clock_is_virtual() ? sim_virtual_announce() : 0;
}

static void clock_hold(int held)
{
	if (clock_is_virtual())
		sim_virtual_hold(held != 0);
}

__attribute__((visibility("default"))) const struct vgpu_sim_clock vgpuSimClock = {
	.version = VGPU_SIM_CLOCK_VERSION,
	.size = sizeof vgpuSimClock,
	.is_virtual = clock_is_virtual,
	.now = clock_now,
	.sleep_until = clock_sleep_until,
	.wait = clock_wait,
	.wake = clock_wake,
	.block = clock_block,
	.unblock = clock_unblock,
	.thread_announce = clock_announce,
	.thread_adopt = sim_clock_thread_adopt, /* after an announcement, so the state is open */
	.thread_withdraw = sim_clock_thread_withdraw,
	.charge = sim_clock_charge,
	.hold = clock_hold,
};
