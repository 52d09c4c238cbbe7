/*
 * Functions of the runtime that pass their arguments on to a function of the driver as they are. An argument is a word,
 * whatever its type; more words than a function takes do no harm.
 */
#include "cudart.h"

typedef int words(long, long, long, long, long, long, long, long);

#define FORWARD(prepare, runtime, driver) \
	EXPORT int runtime(long a, long b, long c, long d, long e, long f, long g, long h) \
	{ \
		static words *function; \
		int result = prepare(); \
		if (!function && !result) \
			function = (words *)cudart_driver(driver); \
		return cudart_result(result ? result : function(a, b, c, d, e, f, g, h)); \
	}
#define EARLY(runtime, driver) FORWARD(cudart_init, runtime, driver)
#define CALL(runtime, driver) FORWARD(cudart_context, runtime, driver)

EARLY(cudaDeviceCanAccessPeer, "cuDeviceCanAccessPeer")
EARLY(cudaDeviceGetAttribute, "cuDeviceGetAttribute")
EARLY(cudaDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool")
EARLY(cudaDeviceGetPCIBusId, "cuDeviceGetPCIBusId")
CALL(cudaDeviceGetStreamPriorityRange, "cuCtxGetStreamPriorityRange")
CALL(cudaDeviceSynchronize, "cuCtxSynchronize")

CALL(cudaFreeAsync, "cuMemFreeAsync")
CALL(cudaHostAlloc, "cuMemHostAlloc")
CALL(cudaHostGetDevicePointer, "cuMemHostGetDevicePointer")
CALL(cudaHostRegister, "cuMemHostRegister")
CALL(cudaHostUnregister, "cuMemHostUnregister")
CALL(cudaIpcCloseMemHandle, "cuIpcCloseMemHandle")
CALL(cudaIpcGetEventHandle, "cuIpcGetEventHandle")
CALL(cudaIpcGetMemHandle, "cuIpcGetMemHandle")
CALL(cudaMallocAsync, "cuMemAllocAsync")
CALL(cudaMallocManaged, "cuMemAllocManaged")
CALL(cudaMemGetInfo, "cuMemGetInfo")
CALL(cudaMemPoolGetAttribute, "cuMemPoolGetAttribute")
CALL(cudaMemPoolSetAccess, "cuMemPoolSetAccess")
CALL(cudaMemPoolSetAttribute, "cuMemPoolSetAttribute")
CALL(cudaMemPoolTrimTo, "cuMemPoolTrimTo")

CALL(cudaEventCreateWithFlags, "cuEventCreate")
CALL(cudaEventDestroy, "cuEventDestroy")
CALL(cudaEventElapsedTime, "cuEventElapsedTime")
CALL(cudaEventQuery, "cuEventQuery")
CALL(cudaEventRecord, "cuEventRecord")
CALL(cudaEventSynchronize, "cuEventSynchronize")
CALL(cudaLaunchHostFunc, "cuLaunchHostFunc")
CALL(cudaStreamAddCallback, "cuStreamAddCallback")
CALL(cudaStreamBeginCapture, "cuStreamBeginCapture")
CALL(cudaStreamCreateWithFlags, "cuStreamCreate")
CALL(cudaStreamCreateWithPriority, "cuStreamCreateWithPriority")
CALL(cudaStreamDestroy, "cuStreamDestroy")
CALL(cudaStreamEndCapture, "cuStreamEndCapture")
CALL(cudaStreamGetCaptureInfo_v2, "cuStreamGetCaptureInfo")
CALL(cudaStreamGetPriority, "cuStreamGetPriority")
CALL(cudaStreamIsCapturing, "cuStreamIsCapturing")
CALL(cudaStreamQuery, "cuStreamQuery")
CALL(cudaStreamSynchronize, "cuStreamSynchronize")
CALL(cudaStreamWaitEvent, "cuStreamWaitEvent")
CALL(cudaThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode")

CALL(cudaGraphDestroy, "cuGraphDestroy")
CALL(cudaGraphExecDestroy, "cuGraphExecDestroy")
CALL(cudaGraphGetNodes, "cuGraphGetNodes")
CALL(cudaGraphInstantiate, "cuGraphInstantiateWithFlags")
CALL(cudaGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")
CALL(cudaGraphLaunch, "cuGraphLaunch")
CALL(cudaProfilerStart, "cuProfilerStart")
CALL(cudaProfilerStop, "cuProfilerStop")
