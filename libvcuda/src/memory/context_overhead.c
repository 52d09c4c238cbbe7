/*
 * Implements memory/context_overhead.h. It loads NVML by name first. That puts libvcuda's own libnvidia-ml in the
 * loader's list before the real one, and a program that looks for the name later gets libvcuda's. Then it calls the
 * real library behind it.
 */
#include "memory/context_overhead.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "memory/nvml_figures.h"
#include "nvml_abi.h"
#include "shared/device_limits.h"
#include "shared/limits.h"
#include "shared/usage.h"
#include "vgpu_limits.h"

enum {
	PROCESSES = 256,
	LOOKS = 3,       /* tries to read a figure while other threads allocate */
	PERIOD = 5,      /* seconds between unprompted looks at NVML's figure */
};

struct nvml {
	__typeof__(nvmlInit_v2) *init;
	__typeof__(nvmlDeviceGetHandleByUUID) *by_uuid;
	__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes;
	__typeof__(nvmlDeviceGetComputeRunningProcesses) *processes_v1;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvml nvml;
static bool is_looked_for;                      /* protected by the lock */
static bool usable;                          /* protected by the lock */
static _Atomic uint64_t booked[VGPU_LIMITS_MAX_CARDS]; /* written under the lock */
static atomic_bool useless;                  /* there is no usable NVML */
static _Atomic uint32_t unaccounted;              /* a bit per card's place, as this process's in the usage region */
static _Atomic uint32_t by_least;            /* a bit per card's place: only the least possible overhead is booked */
static _Atomic time_t next_look;

static void context_overhead_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	is_looked_for = false;
	for (unsigned int card = 0; card < VGPU_LIMITS_MAX_CARDS; card++)
		booked[card] = 0;
	atomic_store(&useless, false);
	atomic_store(&unaccounted, 0);
	atomic_store(&by_least, 0);
}

static uint64_t measure_all(int card, const uint8_t uuid[16]);

static void context_overhead_set_up(void)
{
	pthread_atfork(NULL, NULL, context_overhead_after_fork);
	usage_set_lookup(measure_all);
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

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, struct nvml_figure list[PROCESSES])
{
	nvmlProcessInfo_t listed[PROCESSES];
	nvmlReturn_t result = nvml.processes(device, count, listed);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
		list[i] = (struct nvml_figure){listed[i].pid, listed[i].usedGpuMemory};
	return result;
}

/* For drivers before R470. */
static nvmlReturn_t list_processes_v1(nvmlDevice_t device, unsigned int *count, struct nvml_figure list[PROCESSES])
{
	nvmlProcessInfo_v1_t listed[PROCESSES];
	nvmlReturn_t result = nvml.processes_v1(device, count, listed);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
		list[i] = (struct nvml_figure){listed[i].pid, listed[i].usedGpuMemory};
	return result;
}

static unsigned int zero_unknown(struct nvml_figure list[PROCESSES], unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		if (list[i].used == (uint64_t)NVML_VALUE_NOT_AVAILABLE)
			list[i].used = 0;
	return count;
}

struct figures {
	bool are_the_hosts; /* the pids are the host's, so that no process of the container can be found in the list */
	unsigned int count;
	struct nvml_figure list[PROCESSES];
};

/* Reads the card's processes from NVML. False: NVML lists none, or its pids mean nothing in this pid namespace. */
static bool ask_nvml(const uint8_t uuid[16], struct figures *figures)
{
	char text[48];
	nvmlDevice_t device;

	int length = snprintf(text, sizeof(text), "GPU-");
	for (int i = 0; i < 16; i++)
		length += snprintf(text + length, sizeof(text) - (size_t)length, "%s%02x",
				   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	figures->count = PROCESSES;
	figures->are_the_hosts = false;
	if (nvml.by_uuid(text, &device) != NVML_SUCCESS)
		return false;
	nvmlReturn_t result = nvml.processes ? list_processes(device, &figures->count, figures->list)
					     : list_processes_v1(device, &figures->count, figures->list);
	if (result != NVML_SUCCESS)
		return false;
	figures->are_the_hosts = !nvml_figures_are_ours(figures->list, figures->count);
	if (figures->are_the_hosts)
		return false;
	figures->count = zero_unknown(figures->list, figures->count);
	return true;
}

static bool ready(void)
{
	if (!is_looked_for) {
		is_looked_for = true;
		usable = find_nvml();
		atomic_store(&useless, !usable);
	}
	return usable;
}

static uint64_t other_charges(int card)
{
	uint64_t own = usage_own(card);

	return own > booked[card] ? own - booked[card] : 0;
}

static bool has_context_on(const uint8_t uuid[16])
{
	struct device_limits limited;
	CUdevice device;

	return device_limits_current_device(&device) && device_limits_of(device, &limited) &&
	       !memcmp(limited.uuid, uuid, sizeof(limited.uuid));
}

/*
 * With the host's pids this process cannot find its own entry in the list. It is one of them, so its overhead is no
 * less than the least that any of them holds beyond `charges`. An earlier result stays valid: only
 * context_overhead_shrank reduces it.
 */
static uint64_t least_overhead(int card, const struct figures *figures, uint64_t charges)
{
	uint64_t bytes = UINT64_MAX;

	for (unsigned int i = 0; i < figures->count; i++) {
		uint64_t used = figures->list[i].used;
		uint64_t beyond = used != (uint64_t)NVML_VALUE_NOT_AVAILABLE && used > charges ? used - charges : 0;
		bytes = beyond < bytes ? beyond : bytes;
	}
	if (!figures->count || bytes < booked[card])
		return booked[card];
	return bytes;
}

/*
 * Returns the present overhead in *overhead. A process that NVML does not list has none. False: the overhead is not
 * known, or other threads kept allocating during all LOOKS tries.
 */
static bool measure(int card, const uint8_t uuid[16], struct figures *figures, uint64_t *overhead)
{
	for (int i = 0; i < LOOKS; i++) {
		uint64_t before = other_charges(card), used;
		bool known = ask_nvml(uuid, figures);
		if (!known && figures->are_the_hosts && has_context_on(uuid) && other_charges(card) == before) {
			*overhead = least_overhead(card, figures, before);
			atomic_fetch_or(&by_least, (uint32_t)1 << card);
			figures->count = 0; /* the caller must not look up other processes in this list */
			return true;
		}
		if (!known ||
		    (!nvml_figures_of(figures->list, figures->count, (unsigned int)getpid(), &used) &&
		     (used || !booked[card])))
			return false;
		if (other_charges(card) != before)
			continue;
		*overhead = used > before ? used - before : 0;
		return true;
	}
	return false;
}

/* The sum of the unaccounted overhead of the container's other processes. */
static uint64_t unaccounted_of_others(const uint8_t uuid[16], const struct figures *figures)
{
	struct usage_process list[PROCESSES];
	unsigned int count = usage_processes(uuid, list, PROCESSES);
	uint64_t bytes = 0;

	for (unsigned int i = 0; i < count && i < PROCESSES; i++)
		if (list[i].pid != (unsigned int)getpid())
			bytes += nvml_figures_unaccounted(figures->list, figures->count, &list[i]);
	return bytes;
}

static void clear_unaccounted(int card)
{
	atomic_fetch_and(&unaccounted, ~((uint32_t)1 << card));
	usage_set_unaccounted(card, false);
}

/*
 * Called with the lock held. `limit` NULL: books even if there is no room. False: there is no room for the overhead,
 * which is in *refused.
 */
static bool follow(int card, const uint8_t uuid[16], const struct usage_limit *limit, uint64_t *refused)
{
	struct figures figures;
	uint64_t overhead;
	bool fits = true;

	figures.are_the_hosts = false;
	if (!ready() || !measure(card, uuid, &figures, &overhead)) {
		if (!figures.are_the_hosts) /* with the host's pids, a later try with a current context may succeed */
			clear_unaccounted(card);
		return true;
	}
	if (!figures.are_the_hosts)
		usage_saw_overhead(card, overhead);
	if (overhead > booked[card]) {
		usage_set_overhead(card, overhead);
		if (limit)
			fits = usage_reserve_overhead(card, overhead - booked[card], *limit,
						      unaccounted_of_others(uuid, &figures));
		else
			usage_force(card, overhead - booked[card]);
	} else if (overhead < booked[card]) {
		usage_release(card, booked[card] - overhead);
	}
	if (fits)
		atomic_store(&booked[card], overhead);
	else
		*refused = overhead;
	if (overhead || booked[card])
		usage_set_overhead(card, booked[card]);
	clear_unaccounted(card);
	return fits;
}

static void set_next_look(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	atomic_store_explicit(&next_look, now.tv_sec + PERIOD, memory_order_relaxed);
}

/*
 * The card's place in the usage region. USAGE_NO_CARD: nothing is limited, or allocations are refused with a message.
 */
static int place_of(CUdevice device, struct device_limits *limited)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (limits_state() != LIMITS_PRESENT || !device_limits_of(device, limited))
		return USAGE_NO_CARD;
	pthread_once(&once, context_overhead_set_up);
	return usage_card(limited->uuid);
}

static bool follow_locked(int card, const uint8_t uuid[16], const struct usage_limit *limit, uint64_t *refused)
{
	pthread_mutex_lock(&lock);
	bool fits = follow(card, uuid, limit, refused);
	set_next_look();
	pthread_mutex_unlock(&lock);
	return fits;
}

/*
 * Called by usage_reserve. Books this process's overhead and returns the unaccounted overhead of the other processes.
 */
static uint64_t measure_all(int card, const uint8_t uuid[16])
{
	struct figures figures;
	uint64_t others = 0;

	if (atomic_load(&unaccounted) >> card & 1)
		(void)follow_locked(card, uuid, NULL, NULL);
	pthread_mutex_lock(&lock);
	if (usage_unaccounted_count(card) && ready() && ask_nvml(uuid, &figures))
		others = unaccounted_of_others(uuid, &figures);
	pthread_mutex_unlock(&lock);
	return others;
}

static void mark_unaccounted(int card)
{
	if (atomic_load(&useless) || atomic_load(&unaccounted) >> card & 1)
		return;
	usage_set_unaccounted(card, true);
	atomic_fetch_or(&unaccounted, (uint32_t)1 << card);
}

void context_overhead_expect(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return;
	if (!atomic_load(&unaccounted))
		set_next_look();
	mark_unaccounted(card);
}

bool context_overhead_grows(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD || usage_has_room(card, device_limits_memory(&limited)))
		return true;
	const struct usage_limit limit = device_limits_memory(&limited);
	uint64_t size = 0;
	bool fits = follow_locked(card, limited.uuid, &limit, &size);
	if (!fits)
		log_line(LOG_INFO,
			 "a context on device %d was refused: the driver takes %llu bytes for this process, %s %llu bytes",
			 device, (unsigned long long)size,
			 size > limited.memory ? "more than the container's whole share of"
					       : "and there is no room left in the container's share of",
			 (unsigned long long)limited.memory);
	return fits;
}

void context_overhead_follow(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card != USAGE_NO_CARD)
		(void)follow_locked(card, limited.uuid, NULL, NULL);
}

void context_overhead_changed(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return;
	mark_unaccounted(card);
	if (!usage_has_room(card, device_limits_memory(&limited)))
		(void)follow_locked(card, limited.uuid, NULL, NULL);
}

void context_overhead_shrank(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD || !atomic_load(&booked[card]))
		return;
	pthread_mutex_lock(&lock);
	if (atomic_load(&by_least) >> card & 1) { /* the list does not show how much was freed, nor if any is left */
		usage_release(card, booked[card]);
		atomic_store(&booked[card], 0);
		usage_set_overhead(card, 0);
		atomic_fetch_and(&by_least, ~((uint32_t)1 << card));
		atomic_store_explicit(&next_look, 0, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
	if (atomic_load(&booked[card]))
		(void)follow_locked(card, limited.uuid, NULL, NULL);
}

uint64_t context_overhead_unbooked(CUdevice device)
{
	struct device_limits limited;
	int card = place_of(device, &limited);

	if (card == USAGE_NO_CARD)
		return 0;
	context_overhead_follow_rarely(device);
	return usage_unaccounted_count(card) ? measure_all(card, limited.uuid) : 0;
}

void context_overhead_follow_rarely(CUdevice device)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec >= atomic_load_explicit(&next_look, memory_order_relaxed))
		context_overhead_follow(device);
}

bool context_overhead_is_unaccounted(void)
{
	return atomic_load_explicit(&unaccounted, memory_order_relaxed);
}
