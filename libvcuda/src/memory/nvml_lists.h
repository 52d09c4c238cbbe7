/*
 * NVML's list of a card's processes, as this process needs it for its own accounts: from the real library, loaded with
 * the first look.
 *
 * Belongs here: loading NVML and reading the list in each driver's form. Not here: which of its figures can be believed
 * (memory/nvml_figures.h), what follows from them (memory/context_overhead.h), nor what programs see
 * (hooks/nvml_processes.c). The caller serializes the calls.
 */
#ifndef VCUDA_NVML_LISTS_H
#define VCUDA_NVML_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/nvml_figures.h"

enum { NVML_LIST_PROCESSES = 256 };

struct nvml_list {
	bool are_the_hosts; /* the pids are the host's, so that no process of the container can be found in the list */
	unsigned int count;
	struct nvml_figure list[NVML_LIST_PROCESSES];
};

/* Loads NVML with the first call. False: there is none that can be used. */
bool nvml_lists_are_ready(void);

/* Whether a call has found that. May be called without serialization. */
bool nvml_lists_are_useless(void);

/* Reads the card's processes. False: NVML lists none, or its pids mean nothing in this pid namespace. */
bool nvml_lists_ask(const uint8_t uuid[16], struct nvml_list *figures);

/* In a forked child: it has to load NVML again. */
void nvml_lists_reset(void);

#endif
