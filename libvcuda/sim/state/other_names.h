/*
 * The names of a library that the build took from the drivers' lists, for cuda/entry/proc_address.c.
 */
#ifndef SIM_OTHER_NAMES_H
#define SIM_OTHER_NAMES_H

#include <stddef.h>

struct sim_other_name {
	const char *name;
	int since; /* CUDA version of the first release with it */
	void (*function)(void);
};

extern const struct sim_other_name sim_other_names[];
extern const size_t sim_other_name_count;

#endif
