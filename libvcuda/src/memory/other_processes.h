/*
 * What the container's other processes hold of a card and have not booked, by the usage region and NVML's list.
 *
 * Belongs here: the question to NVML, and what the answer says of the other processes. Not here: this process's own
 * overhead, and when to look (memory/context_overhead.h). The caller serializes the calls.
 */
#ifndef VCUDA_OTHER_PROCESSES_H
#define VCUDA_OTHER_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/nvml_lists.h"

struct other_processes {
	uint64_t bytes;        /* the sum of their unaccounted overhead, in other pid namespaces by the known size */
	uint64_t least;        /* the least overhead, booked or not, that one of them shows. 0: none does */
	unsigned int creating; /* those that make a context, whose size is in no figure yet */
	uint64_t doubt; /* a mixture of the figures that may err, because a call may be under way. 0: none does */
};

/* Like nvml_lists_ask. Notes before what the container's processes have booked. */
bool other_processes_ask(const uint8_t uuid[16], struct nvml_list *figures);

/*
 * What `figures`, the answer to the last question, say. Without figures (count 0): what is booked. `is_quiet`: the caller
 * has found the same doubt for so long that no call can be under way, so that a context takes no more than the figures
 * say.
 */
struct other_processes other_processes_unaccounted(int card, const uint8_t uuid[16], const struct nvml_list *figures,
						   bool is_quiet);

#endif
