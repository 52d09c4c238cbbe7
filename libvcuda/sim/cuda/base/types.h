/*
 * The part of the CUDA driver's ABI that the simulator implements: names and numbers of the published interface,
 * written from its documentation. libvcuda has its own declarations of the same interface. Neither is derived from the
 * other, so that each checks the other.
 */
#ifndef SIM_CUDA_TYPES_H
#define SIM_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* X(name, number, text) */
#define CUDA_RESULTS(X) \
	X(CUDA_SUCCESS, 0, "no error") \
	X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument") \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory") \
	X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error") \
	X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down") \
	X(CUDA_ERROR_PROFILER_DISABLED, 5, "profiler disabled while using external profiling tool") \
	X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6, "profiler is not initialized (deprecated)") \
	X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7, "profiler is already started (deprecated)") \
	X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8, "profiler is already stopped (deprecated)") \
	X(CUDA_ERROR_STUB_LIBRARY, 34, "CUDA driver is a stub library") \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device(s) is/are busy or unavailable") \
	X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected") \
	X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal") \
	X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102, "device doesn't have valid Grid license") \
	X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid") \
	X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context") \
	X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202, "context already current") \
	X(CUDA_ERROR_MAP_FAILED, 205, "mapping of buffer object failed") \
	X(CUDA_ERROR_UNMAP_FAILED, 206, "unmapping of buffer object failed") \
	X(CUDA_ERROR_ARRAY_IS_MAPPED, 207, "array is mapped") \
	X(CUDA_ERROR_ALREADY_MAPPED, 208, "resource already mapped") \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
	X(CUDA_ERROR_ALREADY_ACQUIRED, 210, "resource already acquired") \
	X(CUDA_ERROR_NOT_MAPPED, 211, "resource not mapped") \
	X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212, "resource not mapped as array") \
	X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213, "resource not mapped as pointer") \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered") \
	X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported on this architecture") \
	X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "exclusive-thread device already in use by a different thread") \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices") \
	X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed") \
	X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219, "invalid OpenGL or DirectX context") \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error detected during the execution") \
	X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221, "PTX JIT compiler library not found") \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the provided PTX was compiled with an unsupported toolchain.") \
	X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223, "PTX JIT compilation was disabled") \
	X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "the provided execution affinity is not supported") \
	X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225, \
	  "the provided PTX contains unsupported call to cudaDeviceSynchronize") \
	X(CUDA_ERROR_INVALID_SOURCE, 300, "device kernel image is invalid") \
	X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found") \
	X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "shared object symbol not found") \
	X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303, "shared object initialization failed") \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS") \
	X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle") \
	X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state") \
	X(CUDA_ERROR_LOSSY_QUERY, 402, "attempted introspection would be semantically lossy") \
	X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found") \
	X(CUDA_ERROR_NOT_READY, 600, "device not ready") \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered") \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated") \
	X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703, "launch uses incompatible texturing mode") \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled") \
	X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled") \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "cannot set while device is active in this process") \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed") \
	X(CUDA_ERROR_ASSERT, 710, "device-side assert triggered") \
	X(CUDA_ERROR_TOO_MANY_PEERS, 711, "peer mapping resources exhausted") \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, \
	  "part or all of the requested memory range is already mapped") \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region") \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error") \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered") \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address") \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "operation not supported on global/shared address space") \
	X(CUDA_ERROR_INVALID_PC, 718, "invalid program counter") \
	X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure") \
	X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "too many blocks in cooperative launch") \
	X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted") \
	X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported") \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized") \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "system has unsupported display driver / cuda driver combination") \
	X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "forward compatibility was attempted on non supported HW") \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805, \
	  "MPS client failed to connect to the MPS control daemon or the MPS server") \
	X(CUDA_ERROR_MPS_RPC_FAILURE, 806, \
	  "the remote procedural call between the MPS server and the MPS client failed") \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807, "MPS server is not ready to accept new MPS client requests") \
	X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808, \
	  "the hardware resources required to create MPS client have been exhausted") \
	X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, \
	  "the hardware resources required to support device connections have been exhausted") \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810, "the MPS client has been terminated by the server") \
	X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811, \
	  "the module is using CUDA Dynamic Parallelism, which is not supported in this configuration") \
	X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812, \
	  "the module contains an unsupported interaction between different versions of CUDA Dynamic Parallelism") \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "operation would result in a merge of separate capture sequences") \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the same stream as it began") \
	X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work") \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream") \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, \
	  "operation would make the legacy stream depend on a capturing blocking stream") \
	X(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream") \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, \
	  "attempt to terminate a thread-local capture sequence from another thread") \
	X(CUDA_ERROR_TIMEOUT, 909, "wait operation timed out") \
	X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, \
	  "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update") \
	X(CUDA_ERROR_EXTERNAL_DEVICE, 911, "an async error has occurred in external entity outside of CUDA") \
	X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912, "a kernel launch error has occurred due to cluster misconfiguration") \
	X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913, "the function is not loaded") \
	X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type") \
	X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration") \
	X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

typedef enum {
#define X(name, number, text) name = number,
	CUDA_RESULTS(X)
#undef X
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct sim_context *CUcontext;
typedef struct sim_stream *CUstream;
typedef struct sim_event *CUevent;
typedef struct sim_module *CUmodule;
typedef struct sim_function *CUfunction;
typedef struct sim_pool *CUmemoryPool;
typedef struct {
	char bytes[16];
} CUuuid;

typedef int CUlimit;
typedef int CUfunction_attribute;
typedef int CUpointer_attribute;
typedef int CUmemPool_attribute;
typedef int CUdriverProcAddressQueryResult;

/* Stream handles that are not objects. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

#define CU_CTX_SCHED_MASK 0x07u
#define CU_CTX_FLAGS_MASK 0xffu
#define CU_CTX_MAP_HOST 0x08u

#define CU_EVENT_DISABLE_TIMING 0x2u
#define CU_EVENT_INTERPROCESS 0x4u

#define CU_GET_PROC_ADDRESS_LEGACY_STREAM 1ull
#define CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 2ull
#define CU_GET_PROC_ADDRESS_SUCCESS 0
#define CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND 1
#define CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT 2

enum {
	CU_LIMIT_STACK_SIZE = 0,
	CU_LIMIT_PRINTF_FIFO_SIZE = 1,
	CU_LIMIT_MALLOC_HEAP_SIZE = 2,
	CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
	CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
	CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
	CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
	SIM_LIMITS
};

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };

enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
	CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_MAPPED = 13,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
	CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
	CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
};

enum {
	CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};

enum {
	CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
	CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	CU_FUNC_ATTRIBUTE_MAX = 16,
};

enum { CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST = 2 };
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2 };

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int allocType;
	int handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");

/* Leaves the calling function with the call's result unless it is CUDA_SUCCESS. Not under a lock. */
#define TRY(call) \
	do { \
		CUresult tried = (call); \
		if (tried != CUDA_SUCCESS) \
			return tried; \
	} while (0)

/* Leaves it with CUDA_ERROR_INVALID_VALUE if the condition holds. */
#define REJECT(condition) TRY((condition) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)

#define SIM_EXPORT __attribute__((visibility("default")))

#endif
