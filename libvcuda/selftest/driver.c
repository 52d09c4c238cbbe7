#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include "driver.h"

struct driver_functions cu;
struct driver_card driver_card;

static const struct vgpu_sim_clock *simulated;

static CUresult no_function(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

struct name {
	const char *name;
	size_t member;
};

#define FUNCTION(function) {#function, offsetof(struct driver_functions, function)},
static const struct name cuda_names[] = {
#define ONLY_CUDA
#include "functions.def"
#undef ONLY_CUDA
};
static const struct name nvml_names[] = {
#define ONLY_NVML
#include "functions.def"
#undef ONLY_NVML
};
#undef FUNCTION

static void resolve(void *library, const struct name *names, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		void *found = dlsym(library, names[i].name);
		*(void **)((char *)&cu + names[i].member) = found ? found : (void *)no_function;
	}
}

const char *driver_open(const char *library)
{
	void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!opened)
		return dlerror();
	resolve(opened, cuda_names, sizeof cuda_names / sizeof *cuda_names);
	const struct vgpu_sim_clock *found = dlsym(opened, VGPU_SIM_CLOCK_SYMBOL);
	if (found && found->version == VGPU_SIM_CLOCK_VERSION)
		simulated = found;
	return NULL;
}

bool driver_open_nvml(void)
{
	void *opened = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!opened)
		return false;
	resolve(opened, nvml_names, sizeof nvml_names / sizeof *nvml_names);
	return cu.nvmlInit_v2() == NVML_SUCCESS;
}

uint64_t driver_now(void)
{
	struct timespec time;

	if (simulated)
		return simulated->now();
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void driver_sleep_until(uint64_t time)
{
	struct timespec until = {.tv_sec = (time_t)(time / 1000000000u), .tv_nsec = (long)(time % 1000000000u)};

	if (simulated)
		simulated->sleep_until(time);
	else
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
			;
}

bool driver_clock_is_virtual(void)
{
	return simulated && simulated->is_virtual();
}

/* The kernel's run delay of a thread, 0 where it counts none: the second number of schedstat. */
static uint64_t run_delay(const char *thread)
{
	char path[320];
	uint64_t delay = 0;

	snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", thread);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%*u %" SCNu64, &delay) != 1)
		delay = 0;
	fclose(file);
	return delay;
}

uint64_t driver_lost(void)
{
	uint64_t sum = 0;
	DIR *threads = driver_clock_is_virtual() ? NULL : opendir("/proc/self/task");

	for (struct dirent *thread; threads && (thread = readdir(threads));)
		if (thread->d_name[0] != '.')
			sum += run_delay(thread->d_name);
	if (threads)
		closedir(threads);
	return sum;
}

void driver_waits(bool waits)
{
	if (!simulated)
		return;
	if (waits)
		simulated->block();
	else
		simulated->unblock();
}
