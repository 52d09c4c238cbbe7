/*
 * The part of NVML's ABI that the simulator implements, written from NVML's documentation: return codes, structures and
 * numbers. Structures that one file alone uses are in that file.
 */
#ifndef SIM_NVML_TYPES_H
#define SIM_NVML_TYPES_H

#include <stdint.h>

/* X(name, number, text) */
#define NVML_RETURNS(X) \
	X(NVML_SUCCESS, 0, "Success") \
	X(NVML_ERROR_UNINITIALIZED, 1, "Uninitialized") \
	X(NVML_ERROR_INVALID_ARGUMENT, 2, "Invalid Argument") \
	X(NVML_ERROR_NOT_SUPPORTED, 3, "Not Supported") \
	X(NVML_ERROR_NO_PERMISSION, 4, "Insufficient Permissions") \
	X(NVML_ERROR_NOT_FOUND, 6, "Not Found") \
	X(NVML_ERROR_INSUFFICIENT_SIZE, 7, "Insufficient Size") \
	X(NVML_ERROR_DRIVER_NOT_LOADED, 9, "Driver Not Loaded") \
	X(NVML_ERROR_TIMEOUT, 10, "Timeout") \
	X(NVML_ERROR_LIBRARY_NOT_FOUND, 12, "NVML Shared Library Not Found") \
	X(NVML_ERROR_FUNCTION_NOT_FOUND, 13, "Function Not Found") \
	X(NVML_ERROR_GPU_IS_LOST, 15, "GPU is lost") \
	X(NVML_ERROR_OPERATING_SYSTEM, 17, "The operating system has blocked the request.") \
	X(NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18, "Driver/library version mismatch") \
	X(NVML_ERROR_MEMORY, 20, "Insufficient Memory") \
	X(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 25, "The version of the argument is not supported") \
	X(NVML_ERROR_UNKNOWN, 999, "Unknown Error")

typedef enum {
#define X(name, number, text) name = number,
	NVML_RETURNS(X)
#undef X
} nvmlReturn_t;

/* A handle is the card's entry in the library's copy of the state. */
typedef const struct sim_card *nvmlDevice_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
	unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;
typedef struct {
	unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	char busId[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	unsigned reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

_Static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlPciInfo_v2_t) == 52 &&
		       sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_v2_t) == 24,
	       "NVML's structures");

#define NVML_MEMORY_V2 (sizeof(nvmlMemory_v2_t) | 2u << 24)
#define NVML_NO_INSTANCE 0xffffffffu

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO, NVML_CLOCK_COUNT };

enum { NVML_BRAND_TESLA = 2, NVML_BRAND_NVIDIA = 14 };

enum { NVML_P2P_CAPS_NVLINK = 2, NVML_P2P_CAPS_UNKNOWN = 5, NVML_P2P_OK = 0, NVML_P2P_NOT_SUPPORTED = 5 };

enum { NVML_NVLINK_DEVICE_GPU = 0, NVML_NVLINK_DEVICE_SWITCH = 2 };

#define SIM_EXPORT __attribute__((visibility("default")))

#endif
