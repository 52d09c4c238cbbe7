/*
 * cuGetProcAddress: the real driver answers first, then what it found is replaced by our wrapper of it.
 *
 * The pointer decides, so that versions and per-thread-stream variants come out as the driver chose them and nothing is
 * advertised that it lacks. Only a pointer that dlsym does not know is matched by (name, version, flags).
 */
#include <assert.h>
#include <pthread.h>
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

/* The real function; NULL: this driver lacks it. */
static void *real_of(const struct hook *hook)
{
	void **member = (void **)((char *)&real_driver + hook->real);
	void *address = __atomic_load_n(member, __ATOMIC_RELAXED);

	if (!address)
		address = real_find(member, hook->symbol);
	return address == (void *)no_such_function ? NULL : address;
}

/* ---- the hooks by pointer and by name: open addressing, half empty ---- */

enum { PLACES = 1024 };

static_assert(4 * HOOK_COUNT <= PLACES, "more than half of the places would be taken");

static const struct hook *by_pointer[PLACES];
static void *pointers[PLACES];
static const struct hook *by_name[PLACES]; /* hooks of one name or symbol follow each other, with others between */
static const char *names[PLACES];

static uint32_t place_of_pointer(const void *pointer)
{
	return (uint32_t)(((uint64_t)(uintptr_t)pointer * 0x9e3779b97f4a7c15u) >> 32) % PLACES;
}

static uint32_t place_of_name(const char *name)
{
	uint32_t hash = 2166136261u;

	while (*name)
		hash = (hash ^ (unsigned char)*name++) * 16777619u;
	return (hash ^ hash >> 16) % PLACES;
}

static void enter_pointer(const struct hook *hook, void *pointer)
{
	uint32_t place = place_of_pointer(pointer);

	while (pointer && by_pointer[place] && pointers[place] != pointer)
		place = (place + 1) % PLACES;
	if (!pointer || by_pointer[place]) /* two names of one function: the first, as a list would */
		return;
	by_pointer[place] = hook;
	pointers[place] = pointer;
}

static void enter_name(const struct hook *hook, const char *name)
{
	uint32_t place = place_of_name(name);

	while (by_name[place])
		place = (place + 1) % PLACES;
	by_name[place] = hook;
	names[place] = name;
}

static void fill_tables(void)
{
	for (int i = 0; i < HOOK_COUNT; i++) {
		enter_pointer(&hooks[i], real_of(&hooks[i]));
		enter_pointer(&hooks[i], hooks[i].wrapper);
		enter_name(&hooks[i], hooks[i].name);
		if (strcmp(hooks[i].symbol, hooks[i].name))
			enter_name(&hooks[i], hooks[i].symbol);
	}
}

/* A pointer of ours counts too: the driver's own table may have been bound to our exports. */
static void *wrapper_of_pointer(void *found)
{
	for (uint32_t place = place_of_pointer(found); by_pointer[place]; place = (place + 1) % PLACES)
		if (pointers[place] == found)
			return by_pointer[place]->wrapper;
	return NULL;
}

static bool means(const struct hook *hook, const char *name, int version, bool per_thread)
{
	if (strcmp(hook->name, name)) /* it is the symbol */
		return true;
	return hook->since <= version && (hook->streams == ANY || (hook->streams == PER_THREAD) == per_thread);
}

static void *wrapper_of_name(const char *name, int version, cuuint64_t flags)
{
	const struct hook *best = NULL;
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	for (uint32_t place = place_of_name(name); by_name[place]; place = (place + 1) % PLACES)
		if (!strcmp(names[place], name) && means(by_name[place], name, version, per_thread) &&
		    real_of(by_name[place]) && (!best || by_name[place]->since > best->since))
			best = by_name[place];
	if (best)
		log_line(LOG_INFO, "cuGetProcAddress(%s, %d, %llu): unknown pointer, taken for %s", name, version,
			 (unsigned long long)flags, best->symbol);
	return best ? best->wrapper : NULL;
}

static void substitute(const char *name, void **found, int version, cuuint64_t flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fill_tables);
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
