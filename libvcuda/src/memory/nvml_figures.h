/*
 * NVML's memory figures of processes, compared with what the processes have booked: which figures can be believed in a
 * container, and how much of a process's memory is unaccounted.
 *
 * Belongs here: the judgement of figures that the caller has read. Both libraries, libcuda's side and NVML's, use it,
 * so it calls neither driver library.
 */
#ifndef VCUDA_NVML_FIGURES_H
#define VCUDA_NVML_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/usage.h"

/* One process as NVML lists it. */
struct nvml_figure {
	unsigned int pid;
	uint64_t used;
};

/*
 * Whether the listed pids are those of this pid namespace. Drivers before R515 or so list the host's pids to every
 * caller. Later ones list the pids of the caller's namespace and leave out processes that it does not have. The host's
 * pids are taken for this namespace's only if each of them, this process's included, is by chance the pid of some
 * process here.
 */
bool nvml_figures_are_ours(const struct nvml_figure *list, unsigned int count);

/* The figure of the process. False: NVML lists none, or more than one for that pid. */
bool nvml_figures_of(const struct nvml_figure *list, unsigned int count, unsigned int pid, uint64_t *used);

/* What the process holds beyond what it has booked, if its overhead is marked as unaccounted; else 0. */
uint64_t nvml_figures_unaccounted(const struct nvml_figure *list, unsigned int count,
				  const struct usage_process *process);

#endif
