/*
 * The one list of the functions of libnvidia-ml.so.1 that libvcuda defines, and the real functions behind them. The
 * build reads it for the version script, and a missing wrapper is a link error, as with driver/cuda_table.h.
 *
 * Belongs here: names, and the table of the real functions. Not how they are found and called (driver/real_library.h),
 * the wrappers (hooks/), nor the functions' types (include/nvml_abi.h).
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

#include "driver/real_library.h"
#include "nvml_abi.h"

/* The functions that libvcuda calls and does not define. */
#define NVML_CALLS(CALL) \
	CALL(nvmlDeviceGetUUID) \
	CALL(nvmlDeviceGetGpuInstanceId) \
	CALL(nvmlDeviceGetComputeInstanceId)

struct nvml_table {
#define MEMBER(symbol) __typeof__(symbol) *symbol;
	NVML_HOOKS(MEMBER)
	NVML_CALLS(MEMBER)
#undef MEMBER
};

extern struct nvml_table nvml_table;
#define REAL_TABLE nvml_table

#endif
