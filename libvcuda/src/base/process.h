/*
 * The identity of this process in the usage region, and whether another process of the region still lives. Its pid and
 * start time decide that, not a lock.
 *
 * Belongs here: reading a process's state from /proc. Not whether it is the container's own (base/peers.h), nor what it
 * holds (shared/usage.h).
 */
#ifndef VCUDA_PROCESS_H
#define VCUDA_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* The members are those of struct vgpu_usage_slot. */
struct process_identity {
	uint64_t owner;
	uint64_t namespaces;
	uint64_t image;
};

void process_identify(struct process_identity *self);

/*
 * PASSING checks whether the pid exists, with one system call. THOROUGH also checks whether it is still the same
 * process and no zombie, for which it reads /proc.
 */
enum look { PASSING, THOROUGH };

/*
 * True only if `owner`, which recorded `namespaces`, is certainly gone and holds nothing of the driver any more. 0
 * namespaces: it was about to record them and holds nothing yet. It is then looked for in this process's namespace.
 */
bool process_is_dead(const struct process_identity *self, uint64_t owner, uint64_t namespaces, enum look look);

#endif
