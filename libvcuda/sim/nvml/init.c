/*
 * Start and end of NVML, errors, values of the whole node, and device handles by index, UUID and PCI address. Handles of
 * instances by their index are in nvml/mig.c.
 * NVML ignores CUDA_VISIBLE_DEVICES. Values of one card are in the other files of nvml/.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml/nvml_sim.h"
#include "state/trampoline.h"
#include "state/version.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static unsigned visible[SIM_MAX_CARDS];
static unsigned visible_count;

SIM_TRAMPOLINE(nvmlInit, nvmlInit_v2)
SIM_TRAMPOLINE(nvmlDeviceGetCount, nvmlDeviceGetCount_v2)
SIM_TRAMPOLINE(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)
SIM_TRAMPOLINE(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2)
SIM_TRAMPOLINE(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2)

nvmlReturn_t sim_nvml_init_return(enum sim_status status)
{
	static const nvmlReturn_t result[] = {
		[SIM_OK] = NVML_SUCCESS,
		[SIM_MISSING] = NVML_ERROR_DRIVER_NOT_LOADED,
		[SIM_DAMAGED] = NVML_ERROR_UNKNOWN,
		[SIM_SYSTEM] = NVML_ERROR_OPERATING_SYSTEM,
		[SIM_NO_MEMORY] = NVML_ERROR_MEMORY,
		[SIM_FULL] = NVML_ERROR_MEMORY,
		[SIM_LOST] = NVML_ERROR_GPU_IS_LOST,
		[SIM_MISMATCH] = NVML_ERROR_LIB_RM_VERSION_MISMATCH,
	};
	return result[status];
}

static nvmlReturn_t start(void)
{
	enum sim_status status = sim_state_open();

	if (status == SIM_OK)
		status = sim_ledger_driver_status();
	if (status != SIM_OK)
		return sim_nvml_init_return(status);
	if (!sim_nodes_control())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	visible_count = sim_nodes_visible_cards(visible);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	nvmlReturn_t result = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&lock);
	if (users == 0)
		result = start();
	if (result == NVML_SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

SIM_EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&lock);
	if (users > 0) {
		users--;
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* Functions of NVML that the simulator does not implement jump here (state/other_names.c). */
nvmlReturn_t sim_nvml_init_absent(void)
{
	TRY(sim_nvml_init_ready());
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t sim_nvml_init_ready(void)
{
	pthread_mutex_lock(&lock);
	nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&lock);
	return result == NVML_SUCCESS ? sim_nvml_init_return(sim_ledger_driver_status()) : result;
}

static int position(const unsigned *entries, unsigned count, nvmlDevice_t device)
{
	for (unsigned i = 0; i < count; i++)
		if (sim_state_card(entries[i]) == device)
			return (int)i;
	return -1;
}

static bool is_instance(nvmlDevice_t device)
{
	for (unsigned i = sim_state_card_count(); i < SIM_MAX_CARDS; i++)
		if (sim_state_card(i) == device)
			return device->instance != 0;
	return false;
}

nvmlDevice_t sim_nvml_init_whole(nvmlDevice_t device)
{
	return device->instance ? sim_state_card(device->parent) : device;
}

int sim_nvml_init_index(nvmlDevice_t device)
{
	unsigned entries[SIM_MAX_CARDS];

	if (!is_instance(device))
		return position(visible, visible_count, device);
	if (position(visible, visible_count, sim_nvml_init_whole(device)) < 0)
		return -1;
	return position(entries, sim_nodes_visible_instances(device->parent, entries), device);
}

unsigned sim_nvml_init_card(nvmlDevice_t device)
{
	return (unsigned)(device - sim_state_card(0));
}

nvmlReturn_t sim_nvml_init_check_any(nvmlDevice_t device, const void *out)
{
	TRY(sim_nvml_init_ready());
	REJECT(!out || sim_nvml_init_index(device) < 0);
	return sim_nvml_init_lost(sim_nvml_init_card(device)) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t sim_nvml_init_check(nvmlDevice_t device, const void *out)
{
	TRY(sim_nvml_init_check_any(device, out));
	return device->instance ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t sim_nvml_init_check_sum(nvmlDevice_t device, const void *out)
{
	TRY(sim_nvml_init_check_any(device, out));
	if (!sim_state_mig(sim_nvml_init_card(device), false) || sim_nodes_monitor())
		return NVML_SUCCESS;
	return NVML_ERROR_NO_PERMISSION;
}

bool sim_nvml_init_lost(unsigned card)
{
	return sim_ledger_card_status(card) == SIM_LOST;
}

/* Only a card that is not lost gets a handle. */
static nvmlReturn_t give_handle(const struct sim_card *card, nvmlDevice_t *device)
{
	*device = card;
	return sim_nvml_init_check_any(card, device);
}

nvmlReturn_t sim_nvml_init_text(char *out, unsigned length, const char *text)
{
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

SIM_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
#define X(name, number, text) \
	case name: return text;
		NVML_RETURNS(X)
#undef X
	}
	return "Unknown Error";
}

static nvmlReturn_t node_text(char *out, unsigned length, const char *text)
{
	TRY(sim_nvml_init_ready());
	return out ? sim_nvml_init_text(out, length, text) : NVML_ERROR_INVALID_ARGUMENT;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	return node_text(version, length, sim_version_driver);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	return node_text(version, length, sim_version_nvml);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	REJECT(!version);
	*version = sim_version_cuda;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	char path[64], text[4096];

	TRY(sim_nvml_init_ready());
	REJECT(!name || !length);
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return NVML_ERROR_NOT_FOUND;
	size_t got = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[got] = 0;
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	TRY(sim_nvml_init_ready());
	REJECT(!count);
	*count = visible_count;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	TRY(sim_nvml_init_ready());
	REJECT(!device || index >= visible_count);
	return give_handle(sim_state_card(visible[index]), device);
}

static void uuid_text(const struct sim_card *card, char text[64])
{
	char *at = text + sprintf(text, card->instance ? "MIG-" : "GPU-");

	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", card->uuid[i]);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	char text[64];

	TRY(sim_nvml_init_check_any(device, uuid));
	uuid_text(device, text);
	return sim_nvml_init_text(uuid, length, text);
}

static bool find_uuid(const char *uuid, const unsigned *entries, unsigned count, const struct sim_card **card)
{
	char text[64];

	for (unsigned i = 0; i < count; i++) {
		*card = sim_state_card(entries[i]);
		uuid_text(*card, text);
		if (strcasecmp(uuid, text) == 0)
			return true;
	}
	return false;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	unsigned entries[SIM_MAX_CARDS];
	const struct sim_card *card;

	TRY(sim_nvml_init_ready());
	REJECT(!uuid || !device);
	bool is_found = find_uuid(uuid, visible, visible_count, &card);
	for (unsigned i = 0; !is_found && i < visible_count; i++)
		is_found = find_uuid(uuid, entries, sim_nodes_visible_instances(visible[i], entries), &card);
	return is_found ? give_handle(card, device) : NVML_ERROR_NOT_FOUND;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
	unsigned domain = 0, bus, slot;

	TRY(sim_nvml_init_ready());
	REJECT(!text || !device ||
	       (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 &&
		(domain = 0, sscanf(text, "%x:%x", &bus, &slot) != 2)));
	for (unsigned i = 0; i < visible_count; i++) {
		const struct sim_card *card = sim_state_card(visible[i]);
		if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == slot)
			return give_handle(card, device);
	}
	return NVML_ERROR_NOT_FOUND;
}
