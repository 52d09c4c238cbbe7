/*
 * The wrappers of cuGetProcAddress: they call the real driver first, then replace the pointer that it returns by our
 * wrapper of that function.
 *
 * The lookup goes by the pointer. So the driver chooses versions and per-thread-stream variants, and a program gets no
 * function that the driver lacks. Only a pointer that dlsym does not return for any symbol is matched by (name,
 * version, flags). The functions themselves are listed in driver/cuda_table.h.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "shared/guard.h"

enum streams { ANY, LEGACY, PER_THREAD };

struct hook {
	const char *symbol;
	const char *name;
	int since;
	enum streams streams;
	void *wrapper;
	size_t real; /* offset of the real function's address in struct cuda_table */
};

#define COUNT(...) +1
enum { HOOK_COUNT = CUDA_HOOKS(COUNT) };
#undef COUNT

enum { PLACES = 2048 };

static_assert(4 * HOOK_COUNT <= PLACES, "more than half of the places would be taken");

/*
 * Two hash tables with open addressing, half empty: by pointer and by name. Code fills them at the first call, since
 * pointers in a constant table would have to be relocated in every process.
 */
struct tables {
	struct hook hooks[HOOK_COUNT];
	const struct hook *by_pointer[PLACES];
	void *pointers[PLACES];
	const struct hook *by_name[PLACES]; /* hooks of one name follow each other, perhaps with others between */
	const char *names[PLACES];
};

static struct tables *tables; /* NULL: there was no memory */

static void fill_hooks(void)
{
	struct hook *hook = tables->hooks;

#define ROW(symbol, name, since, streams) \
	*hook++ = (struct hook){#symbol, #name, since, streams, (void *)symbol, offsetof(struct cuda_table, symbol)};
	CUDA_HOOKS(ROW)
#undef ROW
}

/* The real function; NULL: this driver lacks it. */
static void *real_of(const struct hook *hook)
{
	void **member = (void **)((char *)&cuda_table + hook->real);
	void *address = __atomic_load_n(member, __ATOMIC_RELAXED);

	if (!address)
		address = real_library_find(member, hook->symbol);
	return address == (void *)trampolines_no_such_function ? NULL : address;
}

/* ---- look-up ---- */

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

	while (pointer && tables->by_pointer[place] && tables->pointers[place] != pointer)
		place = (place + 1) % PLACES;
	if (!pointer || tables->by_pointer[place]) /* of two names of one function the first counts, as in a list */
		return;
	tables->by_pointer[place] = hook;
	tables->pointers[place] = pointer;
}

static void enter_name(const struct hook *hook, const char *name)
{
	uint32_t place = place_of_name(name);

	while (tables->by_name[place])
		place = (place + 1) % PLACES;
	tables->by_name[place] = hook;
	tables->names[place] = name;
}

static void fill_tables(void)
{
	tables = calloc(1, sizeof(*tables));
	if (!tables)
		return;
	fill_hooks();
	for (int i = 0; i < HOOK_COUNT; i++) {
		enter_pointer(&tables->hooks[i], real_of(&tables->hooks[i]));
		enter_pointer(&tables->hooks[i], tables->hooks[i].wrapper);
		enter_name(&tables->hooks[i], tables->hooks[i].name);
		if (strcmp(tables->hooks[i].symbol, tables->hooks[i].name))
			enter_name(&tables->hooks[i], tables->hooks[i].symbol);
	}
}

/* Finds a pointer to one of our wrappers too: the driver's own table may have been bound to our exports. */
static void *wrapper_of_pointer(void *found)
{
	for (uint32_t place = place_of_pointer(found); tables->by_pointer[place]; place = (place + 1) % PLACES)
		if (tables->pointers[place] == found)
			return tables->by_pointer[place]->wrapper;
	return NULL;
}

static bool means(const struct hook *hook, const char *name, int version, bool per_thread)
{
	if (strcmp(hook->name, name)) /* `name` is the symbol, version included */
		return true;
	return hook->since <= version && (hook->streams == ANY || (hook->streams == PER_THREAD) == per_thread);
}

static void *wrapper_of_name(const char *name, int version, cuuint64_t flags)
{
	const struct hook *best = NULL;
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	for (uint32_t place = place_of_name(name); tables->by_name[place]; place = (place + 1) % PLACES)
		if (!strcmp(tables->names[place], name) && means(tables->by_name[place], name, version, per_thread) &&
		    real_of(tables->by_name[place]) && (!best || tables->by_name[place]->since > best->since))
			best = tables->by_name[place];
	if (best)
		log_line(LOG_INFO, "cuGetProcAddress(%s, %d, %llu): unknown pointer, taken for %s by its name", name,
			 version, (unsigned long long)flags, best->symbol);
	return best ? best->wrapper : NULL;
}

static void substitute(const char *name, void **found, int version, cuuint64_t flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fill_tables);
	if (!tables) {
		*found = (void *)trampolines_no_such_function;
		return;
	}
	void *wrapper = wrapper_of_pointer(*found);

	if (!wrapper)
		wrapper = wrapper_of_name(name, version, flags);
	if (wrapper)
		*found = wrapper;
}

/* The driver's own calls get the driver's functions. Without limits the wrappers pass straight through. */
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
