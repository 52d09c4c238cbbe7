/*
 * The real libcuda.so.1, which the loader brought in as our dependency before us: looked up by its path, never loaded
 * here, and asked by handle, so that our own exports do not answer.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "cuda_hooks.h"
#include "log.h"
#include "trampolines.h"
#include "vgpu_limits.h"

static struct real_driver driver;

static void *handle;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void resolve(void)
{
	handle = dlopen(VGPU_REAL_DIR "/libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);

	if (!handle) {
		log_line(LOG_ERROR, "%s", dlerror());
		return;
	}
#define RESOLVE(symbol, ...) driver.symbol = (__typeof__(driver.symbol))dlsym(handle, #symbol);
	CUDA_HOOKS(RESOLVE)
	CUDA_CALLS(RESOLVE)
#undef RESOLVE
}

const struct real_driver *real_driver(void)
{
	pthread_once(&once, resolve);
	return &driver;
}

void *real_symbol(const char *name)
{
	pthread_once(&once, resolve);
	return handle ? dlsym(handle, name) : NULL;
}
