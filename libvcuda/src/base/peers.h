/*
 * Which processes are the container's own. NVML lists the processes of all containers on a shared card.
 *
 * The kernel decides this, not the usage region, which a tenant can write: a process is the container's own if it lives
 * in this pid namespace and in this process's cgroup. The region only lists which of them hold memory, and only for its
 * own container.
 *
 * Belongs here: this decision about a pid. Not whether a process of the region still lives (base/process.h).
 */
#ifndef VCUDA_OWN_PROCESSES_H
#define VCUDA_OWN_PROCESSES_H

#include <stdbool.h>

bool process_is_own(unsigned int pid);

/* False: this pid namespace has no such process, so the pid must be of another namespace. */
bool process_is_known(unsigned int pid);

#endif
