/*
 * Initialization: cuInit, the list of devices, the driver's version, error names and texts, and the result for each
 * status of the state. Opening the state is in state/state.c; the order of devices in cuda/base/order.c.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cuda/base/driver.h"
#include "state/clock.h"
#include "state/realtime.h"
#include "state/version.h"

struct sim_driver sim_driver = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_bool is_initialized;

__attribute__((constructor)) static void make_lock(void)
{
	sim_realtime_inherit(&sim_driver.lock);
}

static const struct {
	CUresult result;
	const char *name;
	const char *text;
} results[] = {
#define X(name, number, text) {name, #name, text},
	CUDA_RESULTS(X)
#undef X
};

CUresult sim_init_result(enum sim_status status)
{
	static const CUresult result[] = {
		[SIM_OK] = CUDA_SUCCESS,
		[SIM_MISSING] = CUDA_ERROR_NO_DEVICE,
		[SIM_DAMAGED] = CUDA_ERROR_SYSTEM_NOT_READY,
		[SIM_SYSTEM] = CUDA_ERROR_OPERATING_SYSTEM,
		[SIM_NO_MEMORY] = CUDA_ERROR_OUT_OF_MEMORY,
		[SIM_FULL] = CUDA_ERROR_DEVICE_UNAVAILABLE,
		[SIM_LOST] = CUDA_ERROR_UNKNOWN,
		[SIM_MISMATCH] = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
	};
	return result[status];
}

CUresult sim_init_ready(void)
{
	/* As with the real driver, a forked child cannot use what its parent initialized. */
	if (!atomic_load_explicit(&is_initialized, memory_order_acquire) || sim_state_forked())
		return CUDA_ERROR_NOT_INITIALIZED;
	return CUDA_SUCCESS;
}

static CUresult enumerate(void)
{
	unsigned cards[SIM_MAX_CARDS];
	enum sim_status status = sim_state_open();

	if (status == SIM_OK)
		status = sim_ledger_driver_status();
	if (status != SIM_OK)
		return sim_init_result(status);
	if (!sim_nodes_control())
		return CUDA_ERROR_NO_DEVICE;
	unsigned count = sim_order_devices(cards, sim_nodes_visible_cards(cards));
	if (count == 0)
		return CUDA_ERROR_NO_DEVICE;
	if (!sim_nodes_uvm())
		return CUDA_ERROR_UNKNOWN; /* the real driver's result without nvidia-uvm */
	for (unsigned i = 0; i < count; i++)
		sim_driver.devices[i].card = cards[i];
	sim_driver.device_count = (int)count;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuInit(unsigned flags)
{
	CUresult result = CUDA_SUCCESS;

	REJECT(flags != 0);
	if (sim_state_forked())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_driver.lock);
	if (!atomic_load(&is_initialized)) {
		result = enumerate();
		atomic_store_explicit(&is_initialized, result == CUDA_SUCCESS, memory_order_release);
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (result == CUDA_SUCCESS)
		sim_clock_enter();
	return result;
}

SIM_EXPORT CUresult cuDriverGetVersion(int *version)
{
	REJECT(!version);
	*version = sim_version_cuda;
	return CUDA_SUCCESS;
}

static CUresult describe_error(CUresult error, const char **text, bool wants_name)
{
	REJECT(!text);
	*text = NULL;
	for (size_t i = 0; i < sizeof results / sizeof *results; i++)
		if (results[i].result == error)
			*text = wants_name ? results[i].name : results[i].text;
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
	return describe_error(error, text, true);
}

SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	return describe_error(error, text, false);
}

/*
 * NVIDIA's runtime uses the private tables behind this call to check for a genuine driver, which the simulator is not.
 */
SIM_EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	REJECT(!table || !id);
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
