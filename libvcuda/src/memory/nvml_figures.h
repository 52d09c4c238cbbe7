/*
 * What NVML says of processes, against what they have booked: which of its figures can be believed in a container, and
 * what a process holds beyond its bookings. Used by both libraries; neither driver library is called here.
 */
#ifndef VCUDA_UNSEEN_H
#define VCUDA_UNSEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/usage.h"

struct figure { /* of one process, as NVML lists it */
	unsigned int pid;
	uint64_t used;
};

/*
 * Whether the pids are this namespace's. Drivers name the host's pids to everybody (before R515 or so) or to each asker
 * those of its namespace, leaving out whom it has not. With the former, this process and all others on the card would
 * have to have the number of some process here.
 */
bool figures_are_ours(const struct figure *list, unsigned int count);

/* The process's figure; false: it has none, or one that cannot be its own alone. */
bool figure_of(const struct figure *list, unsigned int count, unsigned int pid, uint64_t *used);

/* What the process holds beyond what it has booked, if it has not looked itself. */
uint64_t unseen_bytes(const struct figure *list, unsigned int count, const struct usage_process *process);

#endif
