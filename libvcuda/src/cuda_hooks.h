/*
 * The one list of what libvcuda defines of libcuda.so.1, and the real functions behind it.
 *
 * CUDA_HOOKS expands to the typed members of struct real_driver, to the resolver (real_cuda.c), to the table that
 * cuGetProcAddress substitutes from (proc_address.c) and to the version script (cuda.map.in): a missing wrapper is a
 * link error. A driver that lacks a function leaves its member NULL.
 */

/* HOOK(symbol, name asked of cuGetProcAddress, CUDA version since which that name means this symbol, streams) */
#define CUDA_HOOKS(HOOK)                                                          \
	HOOK(cuInit, cuInit, 2000, ANY)                                           \
	HOOK(cuGetProcAddress, cuGetProcAddress, 11030, ANY)                      \
	HOOK(cuGetProcAddress_v2, cuGetProcAddress, 12000, ANY)                   \
	HOOK(cuDeviceTotalMem, cuDeviceTotalMem, 2000, ANY)                       \
	HOOK(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, ANY)                    \
	HOOK(cuMemGetInfo, cuMemGetInfo, 2000, ANY)                               \
	HOOK(cuMemGetInfo_v2, cuMemGetInfo, 3020, ANY)                            \
	HOOK(cuMemAlloc, cuMemAlloc, 2000, ANY)                                   \
	HOOK(cuMemAlloc_v2, cuMemAlloc, 3020, ANY)                                \
	HOOK(cuMemAllocPitch, cuMemAllocPitch, 2000, ANY)                         \
	HOOK(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, ANY)                      \
	HOOK(cuMemAllocManaged, cuMemAllocManaged, 6000, ANY)                     \
	HOOK(cuMemAllocAsync, cuMemAllocAsync, 11020, LEGACY)                     \
	HOOK(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, PER_THREAD)            \
	HOOK(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, LEGACY)     \
	HOOK(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, PER_THREAD) \
	HOOK(cuMemFree, cuMemFree, 2000, ANY)                                     \
	HOOK(cuMemFree_v2, cuMemFree, 3020, ANY)                                  \
	HOOK(cuMemFreeAsync, cuMemFreeAsync, 11020, LEGACY)                       \
	HOOK(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, PER_THREAD)              \
	HOOK(cuCtxDestroy, cuCtxDestroy, 2000, ANY)                               \
	HOOK(cuCtxDestroy_v2, cuCtxDestroy, 4000, ANY)                            \
	HOOK(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, ANY)     \
	HOOK(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, ANY) \
	HOOK(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, ANY)         \
	HOOK(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, ANY)

#ifndef VCUDA_EXPORTS_ONLY
#ifndef VCUDA_CUDA_HOOKS_H
#define VCUDA_CUDA_HOOKS_H

#include "cuda_abi.h"

/* What is called and not defined here. */
#define CUDA_CALLS(CALL)                 \
	CALL(cuDeviceGetUuid)            \
	CALL(cuDeviceGetUuid_v2)         \
	CALL(cuCtxGetCurrent)            \
	CALL(cuCtxGetDevice)             \
	CALL(cuDevicePrimaryCtxRetain)   \
	CALL(cuDevicePrimaryCtxGetState) \
	CALL(cuPointerGetAttribute)

struct real_driver {
#define MEMBER(symbol, ...) __typeof__(symbol) *symbol;
	CUDA_HOOKS(MEMBER)
	CUDA_CALLS(MEMBER)
#undef MEMBER
};

const struct real_driver *real_driver(void);

/* Calls the real function, if this driver has it. */
#define REAL(symbol, ...) (real_driver()->symbol ? real_driver()->symbol(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED)

#define EXPORT __attribute__((visibility("default")))

#endif
#endif
