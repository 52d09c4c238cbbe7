/*
 * Which processes are the container's own. NVML lists the processes of all containers on a shared card.
 *
 * The kernel decides this, not the usage region, which a tenant can write: a process is the container's own if it lives
 * in this pid namespace and in this process's cgroup. The region only lists which of them hold memory, and only for its
 * own container.
 *
 * Belongs here: this decision about a pid. Not whether a process of the region still lives (base/process.h).
 */
#ifndef VCUDA_PEERS_H
#define VCUDA_PEERS_H

#include <stdbool.h>

bool peers_is_member(unsigned int pid);

/* False: this pid namespace has no such process, so the pid must be of another namespace. */
bool peers_is_visible(unsigned int pid);

#endif
