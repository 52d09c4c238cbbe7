/*
 * Structures of the driver's ABI that carry parameters: copies, arrays, physical memory, graphs. Written from NVIDIA's
 * published interface, like cuda/base/types.h, which has the results and the other numbers.
 */
#ifndef SIM_CUDA_STRUCTS_H
#define SIM_CUDA_STRUCTS_H

#include "cuda/base/types.h"

typedef struct sim_array *CUarray;
typedef struct sim_mipmap *CUmipmappedArray;
typedef struct sim_graph *CUgraph;
typedef struct sim_node *CUgraphNode;
typedef struct sim_exec *CUgraphExec;
typedef struct sim_physical *CUmemGenericAllocationHandle; /* a 64-bit integer for the program */
typedef void (*CUhostFn)(void *);
typedef void (*CUstreamCallback)(CUstream, CUresult, void *);

typedef struct {
	size_t Width, Height;
	int Format;
	unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch, dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *srcContext; /* used by copies between contexts; otherwise reserved */
	size_t srcPitch, srcHeight, dstXInBytes, dstY, dstZ, dstLOD;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *dstContext;
	size_t dstPitch, dstHeight, WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char compressionType, gpuDirectRDMACapable;
	unsigned short usage;
	unsigned char reserved[4];
} CUmemAllocationProp;

typedef struct {
	CUfunction func;
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams, **extra;
	void *kern; /* from here on: members of the second version */
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
	CUdeviceptr dst;
	size_t pitch;
	unsigned value, elementSize;
	size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
	CUhostFn fn;
	void *userData;
} CUDA_HOST_NODE_PARAMS;

typedef struct {
	CUmemPoolProps poolProps;
	const CUmemAccessDesc *accessDescs;
	size_t accessDescCount, bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
	unsigned long long flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
	int result;
	CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	const void *attrs;
	unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
	unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;

/* Waits for a value or writes one; the layout is the same. */
typedef union {
	int operation;
	struct {
		int operation;
		CUdeviceptr address;
		unsigned long long value; /* a 32-bit value is in the lower half */
		unsigned flags;
		CUdeviceptr alias;
	} value;
	struct {
		int operation;
		unsigned flags;
	} barrier;
	unsigned long long pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
	CUcontext ctx;
	unsigned count;
	CUstreamBatchMemOpParams *paramArray;
	unsigned flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;

typedef struct {
	struct sim_condition *handle; /* a 64-bit integer for the program */
	int type;
	unsigned size;
	CUgraph *phGraph_out; /* the node's array of `size` bodies */
	CUcontext ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;

/* Parameters of a node of any kind. */
typedef struct {
	int type, reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS kernel;
		struct {
			int flags, reserved;
			CUcontext context;
			CUDA_MEMCPY3D copy;
		} memcpy;
		CUDA_MEMSET_NODE_PARAMS memset; /* followed by its context */
		CUDA_HOST_NODE_PARAMS host;
		CUgraph graph;
		CUevent event;
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		CUdeviceptr free;
		CUDA_BATCH_MEM_OP_NODE_PARAMS memOp;
		CUDA_CONDITIONAL_NODE_PARAMS conditional;
	};
	long long reserved2;
} CUgraphNodeParams;

typedef struct {
	char reserved[64];
} CUipcMemHandle;
typedef struct {
	char reserved[64];
} CUipcEventHandle;

_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && sizeof(CUDA_MEMCPY3D) == 200 && sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40 &&
		       sizeof(CUmemAllocationProp) == 32 && sizeof(CUDA_KERNEL_NODE_PARAMS) == 72 &&
		       sizeof(CUDA_MEMSET_NODE_PARAMS) == 40 && sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120 &&
		       sizeof(CUlaunchConfig) == 56 && sizeof(CUgraphEdgeData) == 8 &&
		       sizeof(CUstreamBatchMemOpParams) == 48 && sizeof(CUgraphNodeParams) == 256,
	       "CUDA's structures");

enum { CU_MEMORYTYPE_ARRAY = 3, CU_MEMORYTYPE_UNIFIED = 4 };
enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };

enum {
	CU_GRAPH_NODE_TYPE_KERNEL,
	CU_GRAPH_NODE_TYPE_MEMCPY,
	CU_GRAPH_NODE_TYPE_MEMSET,
	CU_GRAPH_NODE_TYPE_HOST,
	CU_GRAPH_NODE_TYPE_GRAPH,
	CU_GRAPH_NODE_TYPE_EMPTY,
	CU_GRAPH_NODE_TYPE_WAIT_EVENT,
	CU_GRAPH_NODE_TYPE_EVENT_RECORD,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
	CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
	CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
};

enum { CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH = 1, CU_GRAPH_INSTANTIATE_FLAGS = 15 };
enum { CU_STREAM_CAPTURE_NONE, CU_STREAM_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_INVALIDATED };
enum {
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
	CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
};

#endif
