/*
 * cuGetProcAddress: looks up a function by name, version and default stream in the table of cuda/entry/entries.h. Functions that the
 * simulator does not implement are in that of state/other_names.h.
 */
#include "cuda/entry/entries.h"
#include "cuda/base/types.h"
#include "state/other_names.h"
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

/* Whether the name is the base, with or without a version and a variant. */
static bool is_of_base(const char *name, const char *base, bool *per_thread)
{
	size_t length = strlen(name);

	*per_thread = length > 5 && (!strcmp(name + length - 5, "_ptsz") || !strcmp(name + length - 5, "_ptds"));
	length -= *per_thread ? 5 : 0;
	if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v')
		length -= 3;
	return length == strlen(base) && strncmp(name, base, length) == 0;
}

/* The same among the functions that are not implemented; of one base, later names are newer. */
static const struct sim_other_name *find_other(const char *base, int version, bool per_thread, bool *known)
{
	const struct sim_other_name *best = NULL;
	bool best_is_thread = false, is_thread;

	for (size_t i = 0; i < sim_other_name_count; i++) {
		const struct sim_other_name *other = &sim_other_names[i];
		if (!is_of_base(other->name, base, &is_thread))
			continue;
		*known = true;
		if (other->since > version || (is_thread && !per_thread) || (best && best_is_thread > is_thread))
			continue;
		best = other;
		best_is_thread = is_thread;
	}
	return best;
}

SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
					CUdriverProcAddressQueryResult *status)
{
	bool known;

	REJECT(!symbol || !pfn || version > sim_version_cuda || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	bool per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	const struct sim_entry *entry = find_entry(symbol, version, per_thread, &known);
	const struct sim_other_name *other = known ? NULL : find_other(symbol, version, per_thread, &known);
	void (*function)(void) = entry ? entry->function : other ? other->function : NULL;
	*pfn = (void *)function;
	if (status)
		*status = function ? CU_GET_PROC_ADDRESS_SUCCESS
			  : known  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
				   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
