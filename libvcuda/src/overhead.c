/*
 * See overhead.h. NVML is loaded by name first, so that the loader's list has libvcuda's own before the real one and a
 * program that looks for it later gets the former; then the real one behind it is asked.
 */
#include "overhead.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cards.h"
#include "limits_file.h"
#include "log.h"
#include "nvml_abi.h"
#include "usage.h"
#include "vgpu_limits.h"

enum {
	PROCESSES = 256,
	LOOKS = 3,       /* at a figure while other threads allocate */
	PERIOD = 5,      /* seconds between unprompted looks */
};

struct nvml {
	__typeof__(nvmlInit_v2) *init;
	__typeof__(nvmlDeviceGetHandleByUUID) *by_uuid;
	__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes;
	__typeof__(nvmlDeviceGetComputeRunningProcesses) *processes_v1;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvml nvml;
static bool looked_for;                      /* under the lock, as the next two are */
static bool usable;
static uint64_t booked[VGPU_LIMITS_MAX_CARDS];
static enum trust { UNSEEN, OURS, NOT_OURS } trust[VGPU_LIMITS_MAX_CARDS];
static _Atomic time_t next_look;

static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	looked_for = false;
	for (unsigned int card = 0; card < VGPU_LIMITS_MAX_CARDS; card++) {
		booked[card] = 0;
		trust[card] = UNSEEN;
	}
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static bool find_nvml(void)
{
	if (!dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL))
		return false;
	void *real = dlopen(VGPU_REAL_DIR "/libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!real)
		return false;
	nvml.init = (__typeof__(nvml.init))dlsym(real, "nvmlInit_v2");
	nvml.by_uuid = (__typeof__(nvml.by_uuid))dlsym(real, "nvmlDeviceGetHandleByUUID");
	nvml.processes = (__typeof__(nvml.processes))dlsym(real, "nvmlDeviceGetComputeRunningProcesses_v3");
	if (!nvml.processes)
		nvml.processes = (__typeof__(nvml.processes))dlsym(real, "nvmlDeviceGetComputeRunningProcesses_v2");
	nvml.processes_v1 = (__typeof__(nvml.processes_v1))dlsym(real, "nvmlDeviceGetComputeRunningProcesses");
	return nvml.init && nvml.by_uuid && (nvml.processes || nvml.processes_v1) && nvml.init() == NVML_SUCCESS;
}

/* Of drivers before R470. */
static nvmlReturn_t list_processes_v1(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t list[PROCESSES])
{
	nvmlProcessInfo_v1_t old[PROCESSES];
	nvmlReturn_t result = nvml.processes_v1(device, count, old);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
		list[i] = (nvmlProcessInfo_t){.pid = old[i].pid, .usedGpuMemory = old[i].usedGpuMemory};
	return result;
}

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t list[PROCESSES])
{
	*count = PROCESSES;
	return nvml.processes ? nvml.processes(device, count, list) : list_processes_v1(device, count, list);
}

enum answer { UNKNOWN, NOT_LISTED, LISTED };

/* What NVML says this process uses of the card. */
static enum answer used_by_self(const uint8_t uuid[16], uint64_t *used)
{
	nvmlProcessInfo_t list[PROCESSES];
	char text[48];
	nvmlDevice_t device;
	unsigned int count;
	unsigned int entries = 0;

	int length = snprintf(text, sizeof(text), "GPU-");
	for (int i = 0; i < 16; i++)
		length += snprintf(text + length, sizeof(text) - (size_t)length, "%s%02x",
				   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	if (nvml.by_uuid(text, &device) != NVML_SUCCESS || list_processes(device, &count, list) != NVML_SUCCESS)
		return UNKNOWN;
	*used = 0;
	for (unsigned int i = 0; i < count; i++) {
		if (list[i].pid != (unsigned int)getpid() || list[i].usedGpuMemory == NVML_VALUE_NOT_AVAILABLE)
			continue;
		*used += list[i].usedGpuMemory;
		entries++;
	}
	if (entries > 1)
		return UNKNOWN; /* one of them lives in another pid namespace, where it has this number too */
	return entries ? LISTED : NOT_LISTED;
}

/* In the initial pid namespace a pid in NVML's list is that process. */
static bool pids_are_the_hosts(void)
{
	static const char initial[] = "pid:[4026531836]"; /* PROC_PID_INIT_INO; stat(2) would want a newer glibc */
	char name[sizeof(initial) + 16];

	return readlink("/proc/self/ns/pid", name, sizeof(name)) == (ssize_t)sizeof(initial) - 1 &&
	       memcmp(name, initial, sizeof(initial) - 1) == 0;
}

static bool ready(void)
{
	if (!looked_for) {
		looked_for = true;
		usable = find_nvml();
	}
	return usable;
}

static uint64_t other_charges(int card)
{
	uint64_t own = usage_own(card);

	return own > booked[card] ? own - booked[card] : 0;
}

/* The overhead now; false: not known, or other threads allocate all the time. A process not listed holds nothing. */
static bool look(int card, const uint8_t uuid[16], uint64_t *overhead)
{
	for (int i = 0; i < LOOKS; i++) {
		uint64_t before = other_charges(card), used = 0;
		enum answer answer = used_by_self(uuid, &used);
		if (answer == UNKNOWN || (answer == NOT_LISTED && !booked[card]))
			return false;
		if (other_charges(card) != before)
			continue;
		*overhead = used > before ? used - before : 0;
		return true;
	}
	return false;
}

static bool follow(const struct limited_card *limited, bool force)
{
	int card = usage_card(limited->uuid);
	uint64_t overhead;

	if (card == USAGE_NO_CARD)
		return true; /* allocations are refused, with a message */
	if (!ready() || (trust[card] != OURS && !pids_are_the_hosts()) || !look(card, limited->uuid, &overhead))
		return true;
	if (overhead < booked[card]) {
		usage_release(card, booked[card] - overhead);
	} else if (overhead > booked[card] && !usage_reserve(card, overhead - booked[card], limited->memory)) {
		if (!force) {
			log_line(LOG_INFO, "the driver's own %llu bytes for this process exceed the container's limit of %llu",
				 (unsigned long long)overhead, (unsigned long long)limited->memory);
			return false;
		}
		usage_force(card, overhead - booked[card]);
	}
	booked[card] = overhead;
	return true;
}

static void set_next_look(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	atomic_store_explicit(&next_look, now.tv_sec + PERIOD, memory_order_relaxed);
}

static bool followed(CUdevice device, bool force)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct limited_card limited;

	if (limits_state() != LIMITS_PRESENT || !card_of_device(device, &limited))
		return true;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	bool fits = follow(&limited, force);
	set_next_look();
	pthread_mutex_unlock(&lock);
	return fits;
}

/*
 * A container's pids are its own, and NVML's list may hold a process of the host or of another container under the
 * same number. Who is listed before this process has a context is not this process.
 */
void overhead_expect(CUdevice device)
{
	struct limited_card limited;
	uint64_t used;

	if (limits_state() != LIMITS_PRESENT || !card_of_device(device, &limited))
		return;
	int card = usage_card(limited.uuid);
	if (card == USAGE_NO_CARD)
		return;
	pthread_mutex_lock(&lock);
	if (trust[card] == UNSEEN && !pids_are_the_hosts() && ready())
		trust[card] = used_by_self(limited.uuid, &used) == NOT_LISTED ? OURS : NOT_OURS;
	pthread_mutex_unlock(&lock);
}

bool overhead_grows(CUdevice device)
{
	return followed(device, false);
}

void overhead_follow(CUdevice device)
{
	(void)followed(device, true);
}

void overhead_follow_rarely(CUdevice device)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec >= atomic_load_explicit(&next_look, memory_order_relaxed))
		overhead_follow(device);
}
