/*
 * The table of entry points that cuda/entry/entries.c makes of cuda/entry/entries.def: name, CUDA version, variant and
 * address. For cuGetProcAddress (cuda/entry/proc_address.c).
 */
#ifndef CUDA_ENTRIES_H
#define CUDA_ENTRIES_H

#include <stdbool.h>
#include <stddef.h>

struct sim_entry {
	const char *base;
	int since;
	bool per_thread;
	void (*function)(void);
};

extern const struct sim_entry sim_entries[];
extern const size_t sim_entry_count;

#endif
