/*
 * cuGetProcAddress: looks up a function by name, version and default stream in the table of cuda/entry/entries.h. It has no
 * list of its own.
 */
#include "cuda/entry/entries.h"
#include "cuda/base/types.h"
#include "state/version.h"

#include <string.h>

/* The newest function of that name up to the caller's version, in the requested variant if there is one. */
static const struct sim_entry *find_entry(const char *base, int version, bool per_thread, bool *known)
{
	const struct sim_entry *best = NULL;

	*known = false;
	for (size_t i = 0; i < sim_entry_count; i++) {
		const struct sim_entry *entry = &sim_entries[i];
		if (strcmp(entry->base, base) != 0)
			continue;
		*known = true;
		if (entry->since > version || (entry->per_thread && !per_thread))
			continue;
		if (!best || entry->per_thread > best->per_thread ||
		    (entry->per_thread == best->per_thread && entry->since >= best->since))
			best = entry;
	}
	return best;
}

SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
                                        CUdriverProcAddressQueryResult *status)
{
	bool known;

	if (!symbol || !pfn || version > sim_version_cuda || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_entry *entry =
		find_entry(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
	*pfn = entry ? (void *)entry->function : NULL;
	if (status)
		*status = entry ? CU_GET_PROC_ADDRESS_SUCCESS
		        : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
		                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return entry ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
