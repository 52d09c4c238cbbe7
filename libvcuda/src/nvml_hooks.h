/*
 * The one list of what libvcuda defines of libnvidia-ml.so.1, and the real functions behind it; as cuda_hooks.h.
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

#ifndef VCUDA_NVML_HOOKS_H
#define VCUDA_NVML_HOOKS_H

#include "nvml_abi.h"

/* What is called and not defined here. */
#define NVML_CALLS(CALL) CALL(nvmlDeviceGetUUID)

struct real_nvml {
#define MEMBER(symbol) __typeof__(symbol) *symbol;
	NVML_HOOKS(MEMBER)
	NVML_CALLS(MEMBER)
#undef MEMBER
};

const struct real_nvml *real_nvml(void);

/* Calls the real function, if this driver has it. */
#define REAL(symbol, ...) (real_nvml()->symbol ? real_nvml()->symbol(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)

#define EXPORT __attribute__((visibility("default")))

#endif
