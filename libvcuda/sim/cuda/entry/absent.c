/*
 * Functions of the driver that the simulator does not implement, or that have no effect on a card that computes
 * nothing. Each is exported at an address of its own. The names are those that state/other_names.c adds, and the
 * ACCEPTED lines of cuda/entry/entries.def.
 */
#include "cuda/base/driver.h"

CUresult sim_absent(void);
CUresult sim_absent_accepted(void);

CUresult sim_absent(void)
{
	TRY(sim_init_ready());
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* Caches, profiler, advice, arguments of the oldest launches: a setting is not kept, because no function returns it. */
CUresult sim_absent_accepted(void)
{
	return sim_init_ready();
}
