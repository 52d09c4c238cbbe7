/*
 * Which processes are the container's own, for what NVML tells about the processes of a shared card.
 *
 * The kernel decides, not the usage region, which a tenant can write: a pid is own if the process lives in this pid
 * namespace and in this process's cgroup. The region only says which of them hold memory, and of that only its own
 * container's.
 */
#ifndef VCUDA_OWN_PROCESSES_H
#define VCUDA_OWN_PROCESSES_H

#include <stdbool.h>

bool process_is_own(unsigned int pid);

/* False: this pid namespace has no such process, so whoever named it counts in another namespace. */
bool process_is_known(unsigned int pid);

#endif
