/* The real libnvidia-ml.so.1, found as real_cuda.c finds its library. */
#include <dlfcn.h>
#include <pthread.h>

#include "log.h"
#include "nvml_hooks.h"
#include "trampolines.h"
#include "vgpu_limits.h"

static struct real_nvml nvml;

static void *handle;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void resolve(void)
{
	handle = dlopen(VGPU_REAL_DIR "/libnvidia-ml.so.1", RTLD_NOLOAD | RTLD_LAZY);

	if (!handle) {
		log_line(LOG_ERROR, "%s", dlerror());
		return;
	}
#define RESOLVE(symbol) nvml.symbol = (__typeof__(nvml.symbol))dlsym(handle, #symbol);
	NVML_HOOKS(RESOLVE)
	NVML_CALLS(RESOLVE)
#undef RESOLVE
}

const struct real_nvml *real_nvml(void)
{
	pthread_once(&once, resolve);
	return &nvml;
}

void *real_symbol(const char *name)
{
	pthread_once(&once, resolve);
	return handle ? dlsym(handle, name) : NULL;
}
