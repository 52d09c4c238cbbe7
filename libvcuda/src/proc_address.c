/*
 * cuGetProcAddress: the real driver answers first, then what it found is replaced by our wrapper of it.
 *
 * The pointer decides, so that versions and per-thread-stream variants come out as the driver chose them and nothing is
 * advertised that it lacks. Only a pointer that dlsym does not know is matched by (name, version, flags).
 */
#include <string.h>

#include "charge.h"
#include "cuda_hooks.h"
#include "log.h"

enum streams { ANY, LEGACY, PER_THREAD };

struct hook {
	const char *symbol;
	const char *name;
	int since;
	enum streams streams;
	void *wrapper;
	size_t real; /* offset of the real function's address in struct real_driver */
};

static const struct hook hooks[] = {
#define ROW(symbol, name, since, streams) \
	{#symbol, #name, since, streams, (void *)symbol, offsetof(struct real_driver, symbol)},
	CUDA_HOOKS(ROW)
#undef ROW
};

enum { HOOK_COUNT = sizeof(hooks) / sizeof(hooks[0]) };

static void *real_of(const struct hook *hook)
{
	void *address;

	memcpy(&address, (const char *)real_driver() + hook->real, sizeof(address));
	return address;
}

/* A pointer of ours counts too: the driver's own table may have been bound to our exports. */
static void *wrapper_of_pointer(void *found)
{
	for (int i = 0; i < HOOK_COUNT; i++)
		if (found == real_of(&hooks[i]) || found == hooks[i].wrapper)
			return hooks[i].wrapper;
	return NULL;
}

static bool means(const struct hook *hook, const char *name, int version, bool per_thread)
{
	if (!strcmp(hook->symbol, name) && strcmp(hook->symbol, hook->name))
		return true;
	return !strcmp(hook->name, name) && hook->since <= version &&
	       (hook->streams == ANY || (hook->streams == PER_THREAD) == per_thread);
}

static void *wrapper_of_name(const char *name, int version, cuuint64_t flags)
{
	const struct hook *best = NULL;

	for (int i = 0; i < HOOK_COUNT; i++)
		if (means(&hooks[i], name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) &&
		    real_of(&hooks[i]) && (!best || hooks[i].since > best->since))
			best = &hooks[i];
	if (best)
		log_line(LOG_INFO, "cuGetProcAddress(%s, %d, %llu): unknown pointer, taken for %s", name, version,
			 (unsigned long long)flags, best->symbol);
	return best ? best->wrapper : NULL;
}

static void substitute(const char *name, void **found, int version, cuuint64_t flags)
{
	void *wrapper = wrapper_of_pointer(*found);

	if (!wrapper)
		wrapper = wrapper_of_name(name, version, flags);
	if (wrapper)
		*found = wrapper;
}

/* Inside the driver its own functions are handed out as they are; without limits the wrappers pass through. */
EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, cuuint64_t flags)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuGetProcAddress, symbol, pfn, cuda_version, flags);

	if (entered && result == CUDA_SUCCESS && symbol && pfn && *pfn)
		substitute(symbol, pfn, cuda_version, flags);
	if (entered)
		guard_leave();
	return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, cuuint64_t flags,
				    CUdriverProcAddressQueryResult *status)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuGetProcAddress_v2, symbol, pfn, cuda_version, flags, status);

	if (entered && result == CUDA_SUCCESS && symbol && pfn && *pfn)
		substitute(symbol, pfn, cuda_version, flags);
	if (entered)
		guard_leave();
	return result;
}
