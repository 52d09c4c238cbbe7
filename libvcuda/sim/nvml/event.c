/*
 * NVML events. tools/simctl.py injects them; every event set that was registered before receives them within 20 ms. The
 * counters of memory errors are in nvml/memory_errors.c.
 */
#include <stdlib.h>

#include "nvml/nvml_sim.h"
#include "state/clock.h"
#include "state/trampoline.h"

#define EVENT_TYPES 0x1full /* single and double bit ECC errors, performance state, Xid, clock */
#define POLL_NS 20000000u

typedef struct sim_event_set {
	struct sim_event_set *next;
	unsigned long long types[SIM_MAX_CARDS];
	uint32_t seen[SIM_MAX_CARDS]; /* incidents before these are not reported */
} *nvmlEventSet_t;

typedef struct {
	nvmlDevice_t device;
	unsigned long long eventType, eventData;
	unsigned gpuInstanceId, computeInstanceId; /* since the second version */
} nvmlEventData_t;

_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_event_set *sets;

static struct sim_event_set **find_set(nvmlEventSet_t set)
{
	for (struct sim_event_set **at = &sets; *at; at = &(*at)->next)
		if (*at == set)
			return at;
	return NULL;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	TRY(sim_nvml_init_ready());
	REJECT(!set);
	*set = calloc(1, sizeof **set);
	if (!*set)
		return NVML_ERROR_MEMORY;
	pthread_mutex_lock(&lock);
	(*set)->next = sets;
	sets = *set;
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	pthread_mutex_lock(&lock);
	struct sim_event_set **at = find_set(set);
	if (at)
		*at = set->next;
	pthread_mutex_unlock(&lock);
	REJECT(!at);
	free(set);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	TRY(sim_nvml_init_check(device, types));
	*types = EVENT_TYPES;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	struct sim_board board;
	nvmlReturn_t result = sim_nvml_activity_board(device, set, &board);

	if (result != NVML_SUCCESS)
		return result;
	if (types & ~EVENT_TYPES)
		return NVML_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	if (find_set(set)) {
		unsigned card = sim_nvml_init_card(device);
		if (!set->types[card])
			set->seen[card] = board.incident_count;
		set->types[card] |= types;
	} else {
		result = NVML_ERROR_INVALID_ARGUMENT;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* The oldest incident of a card that the set waits for. Incidents that were overwritten are lost. */
static bool take(nvmlEventSet_t set, unsigned card, nvmlEventData_t *data)
{
	struct sim_board board;

	if (!set->types[card] || sim_ledger_board(card, &board) != SIM_OK)
		return false;
	if (board.incident_count - set->seen[card] > SIM_MAX_INCIDENTS)
		set->seen[card] = board.incident_count - SIM_MAX_INCIDENTS;
	while (set->seen[card] != board.incident_count) {
		const struct sim_incident *incident = &board.incidents[set->seen[card]++ % SIM_MAX_INCIDENTS];
		if (!(incident->type & set->types[card]))
			continue;
		*data = (nvmlEventData_t){sim_state_card(card), incident->type, incident->data, NVML_NO_INSTANCE,
					  NVML_NO_INSTANCE};
		return true;
	}
	return false;
}

static nvmlReturn_t poll_cards(nvmlEventSet_t set, nvmlEventData_t *data)
{
	nvmlReturn_t result = NVML_ERROR_TIMEOUT;

	pthread_mutex_lock(&lock);
	if (!find_set(set))
		result = NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned card = 0; result == NVML_ERROR_TIMEOUT && card < sim_state_card_count(); card++)
		if (take(set, card, data))
			result = NVML_SUCCESS;
		else if (set->types[card] && sim_nvml_init_lost(card))
			result = NVML_ERROR_GPU_IS_LOST;
	pthread_mutex_unlock(&lock);
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	uint64_t end = sim_clock_now() + (uint64_t)timeout_ms * 1000000u;
	nvmlReturn_t result = sim_nvml_init_ready();

	if (result != NVML_SUCCESS)
		return result;
	REJECT(!data);
	for (;;) {
		result = sim_nvml_init_ready();
		if (result == NVML_SUCCESS)
			result = poll_cards(set, data);
		uint64_t now = sim_clock_now();
		if (result != NVML_ERROR_TIMEOUT || now >= end)
			return result;
		sim_clock_sleep_until(end - now < POLL_NS ? end : now + POLL_NS);
	}
}

/* The first version of the structure is shorter. */
SIM_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void *data, unsigned timeout_ms)
{
	nvmlEventData_t full;

	TRY(data ? nvmlEventSetWait_v2(set, &full, timeout_ms) : NVML_ERROR_INVALID_ARGUMENT);
	__builtin_memcpy(data, &full, offsetof(nvmlEventData_t, gpuInstanceId));
	return NVML_SUCCESS;
}
