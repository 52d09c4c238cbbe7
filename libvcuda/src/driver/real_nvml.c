/* The real libnvidia-ml.so.1. This file finds it and its functions as driver/real_cuda.c does with libcuda.so.1. */
#include <dlfcn.h>
#include <pthread.h>

#include "base/log.h"
#include "driver/nvml_table.h"
#include "driver/trampolines.h"
#include "vgpu_limits.h"

struct nvml_table nvml_table;

static void *handle;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_library(void)
{
	handle = dlopen(VGPU_REAL_DIR "/libnvidia-ml.so.1", RTLD_NOLOAD | RTLD_LAZY);
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
