/*
 * The overhead of this process on a card: contexts, modules, printf and heap buffers, padding, and memory allocated by
 * ways that no hook sees (private export tables). No CUDA call returns its size. The overhead is what NVML's figure for
 * the process exceeds the process's other charges by. Booking it charges the container for all that the card gives it.
 * Not here: which of NVML's figures can be believed (memory/nvml_figures.h).
 *
 * libvcuda loads NVML and calls it only when the figure matters. While the container's limit has room for the most that
 * contexts and code may take (VGPU_USAGE_UNACCOUNTED_MOST), a bit in the usage region marks the process's overhead as
 * unaccounted. A process that finds no room, or whose program asks for the free memory, looks up the overhead of all
 * marked processes. A process that lives on looks up its own some seconds later.
 *
 * Older drivers list the host's pids. Then this process is in NVML's list but cannot find its own entry, and it books
 * the least that any listed process holds beyond this process's charges. vgpud accounts for the rest:
 * device_limits.overhead.
 */
#ifndef VCUDA_CONTEXT_OVERHEAD_H
#define VCUDA_CONTEXT_OVERHEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "vgpu_limits.h"

/* What is booked for a context while it is being made. */
struct context_booking {
	int card;
	uint64_t size;
	bool is_kept;  /* what is booked for the process's other contexts stands for it */
	bool creating; /* nothing is booked yet: other processes that look for room wait for the context */
};

/*
 * Call before a context is made on the device. Books the size of a context, as it is known, if the limit does not have
 * room for any. False: there is no room, and the context must not be made.
 */
bool context_overhead_begin(CUdevice device, struct context_booking *booking);

/* Call after it. False: the context was `made`, and the container has no room for it. Nothing more is booked then. */
bool context_overhead_end(CUdevice device, const struct context_booking *booking, bool made);

/*
 * Call when the driver may hold more of the device for this process than before. That counts even if there is no room.
 */
void context_overhead_changed(CUdevice device);

/*
 * Call when the driver may have taken up to `bytes` beside what is booked. They are looked for when they have become some
 * MiB and the limit has no room, or they may be part of what is booked.
 */
void context_overhead_drifted(CUdevice device, uint64_t bytes);

/*
 * The same for what an allocation's blocks may take beside it, less than 0 when it is freed. True:
 * context_overhead_padding_grew is to be called, with the guard held.
 */
static inline bool context_overhead_padded(int card, int64_t bytes);
void context_overhead_padding_grew(int card, CUdevice device);

/*
 * For a caller that finds no room: whether a look found less overhead than was booked, or another thread was making a
 * context, for which this waits.
 */
bool context_overhead_fell(CUdevice device);

/*
 * Whether the driver holds so much more than the limit that it must not load further code. Nobody knows the size of code
 * before it is loaded. Call it before that: the first process of a container then learns what a context without code takes.
 */
bool context_overhead_is_over(CUdevice device);

/* Call when the driver may hold less of the device for this process than before. */
void context_overhead_shrank(CUdevice device);

/* Books now what the driver holds of the device for this process, even if there is no room. */
void context_overhead_follow(CUdevice device);

/*
 * `refresh` is called before and after each look: what a figure of NVML leaves out may have changed meanwhile. If it returns
 * false, that is not known, and the look is not exact.
 */
void context_overhead_set_refresh(bool (*refresh)(void));

/* Books this process's overhead. Returns what the driver holds for other processes that have not booked theirs. */
uint64_t context_overhead_unbooked(CUdevice device);

/* Whether this process has unaccounted overhead. */
bool context_overhead_is_unaccounted(void);

/*
 * context_overhead_follow for the current device, unless that was done less than a few seconds ago. Then it takes some
 * 10 ns.
 */
void context_overhead_follow_rarely(CUdevice device);

/* ---- inline, since each allocation and each free makes this call ---- */

/* Bytes that may be held beside what is booked before a look is due, where there is no room. */
enum { CONTEXT_OVERHEAD_DRIFT = 4 << 20 };

extern _Atomic int64_t context_overhead_padding[VGPU_LIMITS_MAX_CARDS]; /* since the last look */

/* Threads that do so at once may lose some of it: it only tells when to look. */
static inline bool context_overhead_padded(int card, int64_t bytes)
{
	int64_t before = atomic_load_explicit(&context_overhead_padding[card], memory_order_relaxed);
	int64_t now = before + bytes, steps = now / CONTEXT_OVERHEAD_DRIFT;

	atomic_store_explicit(&context_overhead_padding[card], now, memory_order_relaxed);
	return steps && steps != before / CONTEXT_OVERHEAD_DRIFT && (now < 0 ? now < before : now > before);
}

#endif
