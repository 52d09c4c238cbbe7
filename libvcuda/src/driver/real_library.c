/*
 * Implements driver/real_library.h. This file finds the library by its path and never loads it. It looks functions up
 * by the library's handle, so that it does not find libvcuda's own exports. Each of the two libraries has this file,
 * compiled with the name of the real one as VCUDA_REAL_LIBRARY.
 */
#include "driver/real_library.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/log.h"
#include "driver/trampolines.h"
#include "vgpu_limits.h"

static void *handle;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_library(void)
{
	handle = dlopen(VGPU_REAL_DIR "/" VCUDA_REAL_LIBRARY, RTLD_NOLOAD | RTLD_LAZY);
	if (!handle)
		log_line(LOG_ERROR, "%s", dlerror());
}

void *real_library_symbol(const char *name)
{
	pthread_once(&once, find_library);
	return handle ? dlsym(handle, name) : NULL;
}

void *real_library_find(void *member, const char *name)
{
	void *address = real_library_symbol(name);

	if (!address)
		address = (void *)trampolines_no_such_function;
	__atomic_store_n((void **)member, address, __ATOMIC_RELAXED);
	return address;
}
