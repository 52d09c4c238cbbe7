/*
 * The wrappers of libnvidia-ml.so.1 that return which processes use a card and how much. driver/nvml_table.h lists all
 * wrappers. On a shared card a container sees its own processes and their use only, never those of other containers.
 *
 * Memory figures come from the usage region, so that lists, totals and limits agree. Times are the driver's, for
 * processes that belong to the container by the kernel's account (base/peers.h). Drivers before R515 or so list the
 * host's pids in a container. No sample can be assigned to a process then, and use is NOT_SUPPORTED.
 */
#include "hooks/nvml_processes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/peers.h"
#include "driver/nvml_table.h"
#include "hooks/nvml_device.h"
#include "memory/nvml_figures.h"
#include "shared/usage.h"

enum {
	PROCESSES = 1024,       /* as many as the usage region has slots */
	FIGURES = 256,
	SAMPLES = 4096,
	RECENT = 2000000,       /* microseconds for which a sample counts as present use */
};

/* ---- the driver's figures ---- */

struct figures {
	unsigned int count;
	struct nvml_figure list[FIGURES];
};

/* *ours: the pids are of this pid namespace. Returns the driver's result. */
static nvmlReturn_t ask_driver(nvmlDevice_t device, struct figures *figures, bool *ours)
{
	nvmlProcessInfo_v1_t list[FIGURES];
	unsigned int count = FIGURES;
	nvmlReturn_t result = REAL(nvmlDeviceGetComputeRunningProcesses, device, &count, list);

	*ours = false;
	if (result != NVML_SUCCESS)
		return result;
	figures->count = count;
	for (unsigned int i = 0; i < count; i++)
		figures->list[i] = (struct nvml_figure){
			list[i].pid,
			list[i].usedGpuMemory == NVML_VALUE_NOT_AVAILABLE ? 0 : list[i].usedGpuMemory,
		};
	*ours = nvml_figures_are_ours(figures->list, figures->count);
	return result;
}

/* Adds the unaccounted overhead of each process to what it has booked. Returns the sum of the overhead. */
static uint64_t add_unaccounted(nvmlDevice_t device, struct usage_process *list, unsigned int count)
{
	struct figures figures = {.count = 0};
	uint64_t sum = 0;
	bool any = false, ours;

	for (unsigned int i = 0; i < count; i++)
		any = any || list[i].unaccounted;
	if (!any || ask_driver(device, &figures, &ours) != NVML_SUCCESS || !ours)
		return 0;
	for (unsigned int i = 0; i < count; i++) {
		uint64_t bytes = nvml_figures_unaccounted(figures.list, figures.count, &list[i]);
		list[i].held += bytes;
		sum += bytes;
	}
	return sum;
}

uint64_t nvml_processes_unbooked(nvmlDevice_t device, const uint8_t uuid[16])
{
	struct usage_process list[PROCESSES];
	unsigned int count = usage_processes(uuid, list, PROCESSES);

	return add_unaccounted(device, list, count < PROCESSES ? count : PROCESSES);
}

/* ---- lists ---- */

/* The container's processes that hold something of the share: those of the usage region that the kernel confirms. */
static unsigned int own_processes(nvmlDevice_t device, const uint8_t uuid[16], struct usage_process list[PROCESSES])
{
	unsigned int count = usage_processes(uuid, list, PROCESSES);
	unsigned int own = 0;

	if (count > PROCESSES)
		count = PROCESSES;
	for (unsigned int i = 0; i < count; i++)
		if (peers_is_member(list[i].pid))
			list[own++] = list[i];
	(void)add_unaccounted(device, list, own);
	return own;
}

struct listing {
	unsigned int count;
	unsigned int gpu_instance, compute_instance; /* of a MIG instance */
	struct usage_process list[PROCESSES];
};

/* NVML's rules for lists: on entry *count is the room for entries, on return the number of entries. */
static nvmlReturn_t fill_rules(unsigned int *count, unsigned int need, const void *room)
{
	unsigned int given = *count;

	*count = need;
	if (given < need)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	return need && !room ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

/*
 * The listing of a share, which the caller frees. NULL: the wrapper returns *result or, if that is NVML_SUCCESS, what
 * the real function returns. A share has compute processes only.
 */
static struct listing *share_listing(nvmlDevice_t device, const unsigned int *count, bool compute, nvmlReturn_t *result)
{
	struct card_limits limits;
	uint8_t uuid[16];

	*result = NVML_SUCCESS;
	if (!count || !nvml_device_guard_enter())
		return NULL;
	enum sight sight = nvml_device_sight(device, uuid, &limits);
	struct listing *listing = sight == SHARE ? calloc(1, sizeof(*listing)) : NULL;
	if (listing && compute)
		listing->count = own_processes(device, uuid, listing->list);
	if (listing && (REAL(nvmlDeviceGetGpuInstanceId, device, &listing->gpu_instance) != NVML_SUCCESS ||
			REAL(nvmlDeviceGetComputeInstanceId, device, &listing->compute_instance) != NVML_SUCCESS))
		listing->gpu_instance = listing->compute_instance = NVML_NO_INSTANCE;
	nvml_device_guard_leave();
	if (sight != WHOLE_CARD && !listing)
		*result = sight == SHARE ? NVML_ERROR_MEMORY : nvml_device_error(device);
	return listing;
}

static nvmlReturn_t list_v1(struct listing *listing, unsigned int *count, nvmlProcessInfo_v1_t *list)
{
	nvmlReturn_t result = fill_rules(count, listing->count, list);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < listing->count; i++)
		list[i] = (nvmlProcessInfo_v1_t){listing->list[i].pid, listing->list[i].held};
	free(listing);
	return result;
}

static nvmlReturn_t list_v2(struct listing *listing, unsigned int *count, nvmlProcessInfo_t *list)
{
	nvmlReturn_t result = fill_rules(count, listing->count, list);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < listing->count; i++)
		list[i] = (nvmlProcessInfo_t){listing->list[i].pid, listing->list[i].held, listing->gpu_instance,
					      listing->compute_instance};
	free(listing);
	return result;
}

/* The driver's own error, if it has one for this list: the card is lost, or the caller may not see processes. */
#define DRIVERS_ERROR(function, device) \
	({ \
		unsigned int none = 0; \
		nvmlReturn_t answered = REAL(function, device, &none, NULL); \
		answered == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : answered; \
	})

#define LIST(function, fill, type, compute) \
	EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *list) \
	{ \
		nvmlReturn_t result; \
		if (!REAL_HAS(function)) \
			return NVML_ERROR_FUNCTION_NOT_FOUND; \
		struct listing *listing = share_listing(device, count, compute, &result); \
		if (listing) { \
			result = DRIVERS_ERROR(function, device); \
			if (result == NVML_SUCCESS) \
				return fill(listing, count, list); \
			free(listing); \
			return result; \
		} \
		return result == NVML_SUCCESS ? REAL(function, device, count, list) : result; \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, list_v1, nvmlProcessInfo_v1_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, list_v2, nvmlProcessInfo_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, list_v2, nvmlProcessInfo_t, true)
LIST(nvmlDeviceGetGraphicsRunningProcesses, list_v1, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, list_v2, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, list_v2, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, list_v1, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, list_v2, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, list_v2, nvmlProcessInfo_t, false)

/* ---- time ---- */

struct samples {
	unsigned int count;
	nvmlProcessUtilizationSample_t list[SAMPLES];
};

static bool listed(unsigned int pid, const struct usage_process *list, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		if (list[i].pid == pid)
			return true;
	return false;
}

/*
 * The container's samples newer than `since`, which the caller frees. Samples of other pid namespaces have the host's
 * pids, which the driver leaves as they are where it translates its lists.
 */
static struct samples *own_samples(nvmlDevice_t device, const uint8_t uuid[16], unsigned long long since,
				   nvmlReturn_t *result)
{
	struct usage_process own_list[PROCESSES];
	struct samples *samples = calloc(1, sizeof(*samples));
	unsigned int count = SAMPLES, own = 0;
	struct figures figures;
	bool ours = true;

	*result = samples ? NVML_SUCCESS : NVML_ERROR_MEMORY;
	if (!samples)
		return NULL;
	*result = REAL(nvmlDeviceGetProcessUtilization, device, samples->list, &count, since);
	if (*result == NVML_ERROR_NOT_FOUND) {
		*result = NVML_SUCCESS;
		count = 0;
	} else if (*result == NVML_SUCCESS && count) {
		*result = ask_driver(device, &figures, &ours);
		if ((*result == NVML_SUCCESS && !ours) || *result == NVML_ERROR_INSUFFICIENT_SIZE)
			*result = NVML_ERROR_NOT_SUPPORTED;
	}
	unsigned int processes = count ? own_processes(device, uuid, own_list) : 0;
	for (unsigned int i = 0; *result == NVML_SUCCESS && i < count; i++)
		if (listed(samples->list[i].pid, own_list, processes))
			samples->list[own++] = samples->list[i];
	samples->count = own;
	return samples;
}

static unsigned int at_most_100(unsigned int percent)
{
	return percent < 100 ? percent : 100;
}

/* Sums the newest sample of each process. A process whose newest sample has values above 100, as was seen, counts 0. */
static nvmlUtilization_t sum_newest(const struct samples *samples)
{
	nvmlUtilization_t sum = {0, 0};

	for (unsigned int i = 0; i < samples->count; i++) {
		const nvmlProcessUtilizationSample_t *sample = &samples->list[i];
		bool newest = sample->smUtil <= 100 && sample->memUtil <= 100;
		for (unsigned int j = 0; newest && j < samples->count; j++)
			newest = samples->list[j].pid != sample->pid ||
				 samples->list[j].timeStamp < sample->timeStamp ||
				 (samples->list[j].timeStamp == sample->timeStamp && j >= i);
		if (newest) {
			sum.gpu += sample->smUtil;
			sum.memory += sample->memUtil;
		}
	}
	return (nvmlUtilization_t){at_most_100(sum.gpu), at_most_100(sum.memory)};
}

static unsigned long long microseconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

static nvmlReturn_t share_utilization(nvmlDevice_t device, const uint8_t uuid[16], nvmlUtilization_t *utilization)
{
	nvmlReturn_t result;
	struct samples *samples = own_samples(device, uuid, microseconds_now() - RECENT, &result);

	if (result == NVML_SUCCESS)
		*utilization = sum_newest(samples);
	free(samples);
	return result;
}

static enum sight guarded_sight(nvmlDevice_t device, uint8_t uuid[16])
{
	struct card_limits limits;

	return nvml_device_sight(device, uuid, &limits);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	uint8_t uuid[16];

	if (!nvml_device_guard_enter())
		return REAL(nvmlDeviceGetUtilizationRates, device, utilization);
	nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates, device, utilization);
	enum sight sight = result == NVML_SUCCESS ? guarded_sight(device, uuid) : WHOLE_CARD;
	if (sight == SHARE)
		result = share_utilization(device, uuid, utilization);
	nvml_device_guard_leave();
	return sight == UNKNOWN ? nvml_device_error(device) : result;
}

static nvmlReturn_t hand_out(const struct samples *samples, nvmlProcessUtilizationSample_t *list, unsigned int *count)
{
	if (!samples->count) {
		*count = 0;
		return NVML_ERROR_NOT_FOUND; /* as the driver returns for an idle card */
	}
	nvmlReturn_t result = fill_rules(count, samples->count, list);
	if (result == NVML_SUCCESS)
		memcpy(list, samples->list, samples->count * sizeof(*list));
	return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list,
						    unsigned int *count, unsigned long long since)
{
	uint8_t uuid[16];
	bool entered = count && nvml_device_guard_enter();
	enum sight sight = entered ? guarded_sight(device, uuid) : WHOLE_CARD;
	nvmlReturn_t result = NVML_SUCCESS;

	if (sight == SHARE) {
		struct samples *samples = own_samples(device, uuid, since, &result);
		if (result == NVML_SUCCESS)
			result = hand_out(samples, list, count);
		free(samples);
	} else if (sight == WHOLE_CARD) {
		result = REAL(nvmlDeviceGetProcessUtilization, device, list, count, since);
	} else {
		result = nvml_device_error(device);
	}
	if (entered)
		nvml_device_guard_leave();
	return result;
}

/* ---- functions that list all processes of a card and are not filtered: refused on a share ---- */

static nvmlReturn_t unless_share(nvmlDevice_t device)
{
	uint8_t uuid[16];

	if (!nvml_device_guard_enter())
		return NVML_SUCCESS;
	enum sight sight = guarded_sight(device, uuid);
	nvml_device_guard_leave();
	if (sight == UNKNOWN)
		return nvml_device_error(device);
	return sight == WHOLE_CARD ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, void *info)
{
	nvmlReturn_t result = unless_share(device);

	return result == NVML_SUCCESS ? REAL(nvmlDeviceGetProcessesUtilizationInfo, device, info) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, void *list)
{
	nvmlReturn_t result = unless_share(device);

	return result == NVML_SUCCESS ? REAL(nvmlDeviceGetRunningProcessDetailList, device, list) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	nvmlReturn_t result = unless_share(device);

	return result == NVML_SUCCESS ? REAL(nvmlDeviceGetAccountingPids, device, count, pids) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, void *stats)
{
	nvmlReturn_t result = unless_share(device);

	return result == NVML_SUCCESS ? REAL(nvmlDeviceGetAccountingStats, device, pid, stats) : result;
}
