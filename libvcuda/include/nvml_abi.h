/*
 * The part of NVML's binary interface that libvcuda speaks: types, values and prototypes by exported name.
 *
 * Written from the documented interface; only what is needed stands here.
 */
#ifndef VCUDA_NVML_ABI_H
#define VCUDA_NVML_ABI_H

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

#define NVML_DEVICE_UUID_V2_BUFFER_SIZE 96

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;      /* the driver's own reserve included */
} nvmlMemory_t;

typedef struct {
	unsigned int version;         /* in: sizeof | 2 << 24 */
	unsigned long long total;
	unsigned long long reserved;  /* by driver and firmware */
	unsigned long long free;
	unsigned long long used;      /* the reserve not included */
} nvmlMemory_v2_t;

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

#endif
