/*
 * Programs without work on the card: one that waits on bare futexes, one that holds the presence lock now and then, and
 * one that keeps CPUs busy.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "load.h"
#include "vgpu_card.h"

void *load_probe(void *each)
{
	uint64_t interval = (uint64_t)(uintptr_t)each;

	prctl(PR_SET_TIMERSLACK, 1ul);
	for (;;) {
		uint32_t word = 0;
		uint64_t now = load_wall_now(), until = now - (now - load_times.origin) % interval + interval;
		struct timespec time = {.tv_sec = (time_t)(until / 1000000000u),
					.tv_nsec = (long)(until % 1000000000u)};
		syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 0, &time, NULL, FUTEX_BITSET_MATCH_ANY);
		load_note_woken();
	}
	return NULL;
}

/*
 * Uses its first presence file as libvcuda does (compute/presence.h): every container that looks finds this one at work. The
 * card's bytes begin at `load_gate_from`.
 */
uint64_t load_gate_from;

void *load_gate(void *each)
{
	struct flock lock = {.l_type = F_RDLCK, .l_start = (off_t)(load_gate_from + load_own_byte()), .l_len = 1};
	int file = load_open_presence();
	void *word = mmap(NULL, sizeof(uint32_t), PROT_READ, MAP_SHARED, file, 0);

	LOAD_CHECK(word == MAP_FAILED);
	prctl(PR_SET_TIMERSLACK, 1ul);
	for (uint64_t next = load_times.origin;; next += (uint64_t)(uintptr_t)each) {
		load_clock->sleep_until(next);
		lock.l_type = lock.l_type == F_RDLCK ? F_UNLCK : F_RDLCK;
		if (lock.l_type == F_UNLCK)
			load_note_woken();
		fcntl(file, F_OFD_SETLK, &lock);
		syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	return NULL;
}

/* Computes for ever. Only for the wall clock: virtual time would stand still. */
void *load_burn(void *unused)
{
	(void)unused;
	for (volatile uint64_t count = 0; count < UINT64_MAX; count++)
		;
	return NULL;
}
