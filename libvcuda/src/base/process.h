/* Who this process is in the usage region, and whether another one still lives: pid and start time, not a lock. */
#ifndef VCUDA_PROCESS_H
#define VCUDA_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_identity {
	uint64_t owner;      /* these three as in struct vgpu_usage_slot */
	uint64_t namespaces;
	uint64_t image;
};

void process_identify(struct process_identity *self);

/*
 * PASSING asks whether the pid exists, one system call; THOROUGH also whether it is still the same process and no
 * zombie, which takes reading /proc.
 */
enum look { PASSING, THOROUGH };

/* True only when `owner`, who recorded `namespaces`, is certainly gone and holds nothing of the driver any more. */
bool process_is_dead(const struct process_identity *self, uint64_t owner, uint64_t namespaces, enum look look);

#endif
