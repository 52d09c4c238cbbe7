/*
 * The identity of this process in the usage region, and whether another process of the region still lives, by its pid and
 * start time.
 *
 * Belongs here: reading a process's state from /proc. Not whether it is the container's own (base/peers.h), nor what it
 * holds (shared/usage.h).
 */
#ifndef VCUDA_PROCESS_H
#define VCUDA_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu_usage.h"

/* The members are those of struct vgpu_usage_slot. */
struct process_identity {
	uint64_t owner;
	uint64_t namespaces;
	uint64_t image;
};

void process_identify(struct process_identity *self);

/* The path of `name` below /proc of the calling thread: /proc/self has no files and namespaces once its main thread ended. */
#define PROCESS_PATH 64
void process_path(char path[PROCESS_PATH], const char *name);

/*
 * PASSING checks whether the pid exists, with one system call. THOROUGH also checks whether it is still the same
 * process and no zombie, for which it reads /proc.
 */
enum look { PASSING, THOROUGH };

/*
 * Whether an owner that recorded `namespaces` has a pid of this process's namespace. 0 namespaces: it was about to
 * record them and holds nothing yet. It is then looked for in this namespace.
 */
bool process_is_judged_by_pid(const struct process_identity *self, uint64_t namespaces);

/* Whether /proc shows this process, so that start times tell processes apart. */
static inline bool process_knows_start(const struct process_identity *self)
{
	return (self->owner & ~VGPU_USAGE_REAPING) >> VGPU_USAGE_PID_BITS;
}

/* True only if `owner`, of this pid namespace, is certainly gone and holds nothing of the driver any more. */
bool process_is_dead(const struct process_identity *self, uint64_t owner, enum look look);

#endif
