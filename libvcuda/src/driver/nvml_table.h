/*
 * The one list of the functions of libnvidia-ml.so.1 that libvcuda defines, and the real functions behind them. The
 * build reads it for the version script, and a missing wrapper is a link error, as with driver/cuda_table.h.
 *
 * Belongs here: names, and calls of the real functions. Not the wrappers (hooks/), nor the functions' types
 * (include/nvml_abi.h).
 */

#define NVML_HOOKS(HOOK) \
	HOOK(nvmlDeviceGetMemoryInfo) \
	HOOK(nvmlDeviceGetMemoryInfo_v2) \
	HOOK(nvmlDeviceGetComputeRunningProcesses) \
	HOOK(nvmlDeviceGetComputeRunningProcesses_v2) \
	HOOK(nvmlDeviceGetComputeRunningProcesses_v3) \
	HOOK(nvmlDeviceGetGraphicsRunningProcesses) \
	HOOK(nvmlDeviceGetGraphicsRunningProcesses_v2) \
	HOOK(nvmlDeviceGetGraphicsRunningProcesses_v3) \
	HOOK(nvmlDeviceGetMPSComputeRunningProcesses) \
	HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
	HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
	HOOK(nvmlDeviceGetUtilizationRates) \
	HOOK(nvmlDeviceGetProcessUtilization) \
	HOOK(nvmlDeviceGetProcessesUtilizationInfo) \
	HOOK(nvmlDeviceGetRunningProcessDetailList) \
	HOOK(nvmlDeviceGetAccountingPids) \
	HOOK(nvmlDeviceGetAccountingStats)

#ifndef VCUDA_NVML_TABLE_H
#define VCUDA_NVML_TABLE_H

#include "driver/trampolines.h"
#include "nvml_abi.h"

/* The functions that libvcuda calls and does not define. */
#define NVML_CALLS(CALL) CALL(nvmlDeviceGetUUID)

struct nvml_table {
#define MEMBER(symbol) __typeof__(symbol) *symbol;
	NVML_HOOKS(MEMBER)
	NVML_CALLS(MEMBER)
#undef MEMBER
};

extern struct nvml_table nvml_table;

/* Finds the function at its first call and keeps it in *member: a process pays only for the functions that it uses. */
void *real_library_find(void *member, const char *name);

#define REAL_ADDRESS(symbol)                                                                      \
	({                                                                                        \
		void *address_ = (void *)__atomic_load_n(&nvml_table.symbol, __ATOMIC_RELAXED); \
		address_ ? address_ : real_library_find(&nvml_table.symbol, #symbol);                   \
	})

/* Calls the real function. If this driver lacks it, the result is the API's error for that. */
#define REAL(symbol, ...) (((__typeof__(symbol) *)REAL_ADDRESS(symbol))(__VA_ARGS__))

/* Whether this driver has the function. */
#define REAL_HAS(symbol) (REAL_ADDRESS(symbol) != (void *)trampolines_no_such_function)

#define EXPORT __attribute__((visibility("default")))

#endif
