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
