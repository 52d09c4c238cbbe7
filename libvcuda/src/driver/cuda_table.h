/*
 * The one list of the functions of libcuda.so.1 that libvcuda defines, and the real functions behind them.
 *
 * CUDA_HOOKS expands to the typed members of struct cuda_table and to the table from which cuGetProcAddress
 * substitutes (hooks/proc_address.c). The build reads it for the version script. A missing wrapper is a link error.
 *
 * Belongs here: names, and the table of the real functions. Not how they are found and called (driver/real_library.h),
 * the wrappers (hooks/), nor the functions' types (include/cuda_abi.h).
 */

/* HOOK(symbol, name for cuGetProcAddress, CUDA version since which that name means this symbol, streams) */
#define CUDA_HOOKS(HOOK) \
	HOOK(cuInit, cuInit, 2000, ANY) \
	HOOK(cuGetProcAddress, cuGetProcAddress, 11030, ANY) \
	HOOK(cuGetProcAddress_v2, cuGetProcAddress, 12000, ANY) \
	HOOK(cuDeviceTotalMem, cuDeviceTotalMem, 2000, ANY) \
	HOOK(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, ANY) \
	HOOK(cuMemGetInfo, cuMemGetInfo, 2000, ANY) \
	HOOK(cuMemGetInfo_v2, cuMemGetInfo, 3020, ANY) \
	HOOK(cuMemAlloc, cuMemAlloc, 2000, ANY) \
	HOOK(cuMemAlloc_v2, cuMemAlloc, 3020, ANY) \
	HOOK(cuMemAllocPitch, cuMemAllocPitch, 2000, ANY) \
	HOOK(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, ANY) \
	HOOK(cuMemAllocManaged, cuMemAllocManaged, 6000, ANY) \
	HOOK(cuMemFree, cuMemFree, 2000, ANY) \
	HOOK(cuMemFree_v2, cuMemFree, 3020, ANY) \
	HOOK(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, ANY) \
	HOOK(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 4010, ANY) \
	HOOK(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000, ANY) \
	HOOK(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, ANY) \
	HOOK(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, ANY) \
	HOOK(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, ANY) \
	HOOK(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020, ANY) \
	HOOK(cuMemPoolImportPointer, cuMemPoolImportPointer, 11020, ANY) \
	HOOK(cuImportExternalMemory, cuImportExternalMemory, 10000, ANY) \
	HOOK(cuDestroyExternalMemory, cuDestroyExternalMemory, 10000, ANY) \
	HOOK(cuMemAllocAsync, cuMemAllocAsync, 11020, LEGACY) \
	HOOK(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, PER_THREAD) \
	HOOK(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, LEGACY) \
	HOOK(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, PER_THREAD) \
	HOOK(cuMemFreeAsync, cuMemFreeAsync, 11020, LEGACY) \
	HOOK(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, PER_THREAD) \
	HOOK(cuMemPoolCreate, cuMemPoolCreate, 11020, ANY) \
	HOOK(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000, ANY) \
	HOOK(cuMemGetMemPool, cuMemGetMemPool, 13000, ANY) \
	HOOK(cuMemPoolDestroy, cuMemPoolDestroy, 11020, ANY) \
	HOOK(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, ANY) \
	HOOK(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, ANY) \
	HOOK(cuStreamSynchronize, cuStreamSynchronize, 2000, LEGACY) \
	HOOK(cuStreamSynchronize_ptsz, cuStreamSynchronize, 7000, PER_THREAD) \
	HOOK(cuEventSynchronize, cuEventSynchronize, 2000, ANY) \
	HOOK(cuCtxSynchronize, cuCtxSynchronize, 2000, ANY) \
	HOOK(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, ANY) \
	HOOK(cuMemCreate, cuMemCreate, 10020, ANY) \
	HOOK(cuMemRelease, cuMemRelease, 10020, ANY) \
	HOOK(cuMemMap, cuMemMap, 10020, ANY) \
	HOOK(cuMemUnmap, cuMemUnmap, 10020, ANY) \
	HOOK(cuMemMapArrayAsync, cuMemMapArrayAsync, 11010, LEGACY) \
	HOOK(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync, 11010, PER_THREAD) \
	HOOK(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, ANY) \
	HOOK(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, ANY) \
	HOOK(cuMulticastCreate, cuMulticastCreate, 12010, ANY) \
	HOOK(cuMulticastBindMem, cuMulticastBindMem, 12010, ANY) \
	HOOK(cuMulticastBindMem_v2, cuMulticastBindMem, 13010, ANY) \
	HOOK(cuMulticastBindAddr, cuMulticastBindAddr, 12010, ANY) \
	HOOK(cuMulticastBindAddr_v2, cuMulticastBindAddr, 13010, ANY) \
	HOOK(cuMulticastUnbind, cuMulticastUnbind, 12010, ANY) \
	HOOK(cuLogicalEndpointBindMem, cuLogicalEndpointBindMem, 13030, ANY) \
	HOOK(cuLogicalEndpointBindAddr, cuLogicalEndpointBindAddr, 13030, ANY) \
	HOOK(cuLogicalEndpointUnbind, cuLogicalEndpointUnbind, 13030, ANY) \
	HOOK(cuLogicalEndpointDestroy, cuLogicalEndpointDestroy, 13030, ANY) \
	HOOK(cuArrayCreate, cuArrayCreate, 2000, ANY) \
	HOOK(cuArrayCreate_v2, cuArrayCreate, 3020, ANY) \
	HOOK(cuArray3DCreate, cuArray3DCreate, 2000, ANY) \
	HOOK(cuArray3DCreate_v2, cuArray3DCreate, 3020, ANY) \
	HOOK(cuArrayDestroy, cuArrayDestroy, 2000, ANY) \
	HOOK(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, ANY) \
	HOOK(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, ANY) \
	HOOK(cuGraphInstantiate, cuGraphInstantiate, 10000, ANY) \
	HOOK(cuGraphInstantiate_v2, cuGraphInstantiate, 11000, ANY) \
	HOOK(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, ANY) \
	HOOK(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, LEGACY) \
	HOOK(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, 12000, PER_THREAD) \
	HOOK(cuGraphExecDestroy, cuGraphExecDestroy, 10000, ANY) \
	HOOK(cuGraphUpload, cuGraphUpload, 11010, LEGACY) \
	HOOK(cuGraphUpload_ptsz, cuGraphUpload, 11010, PER_THREAD) \
	HOOK(cuGraphLaunch, cuGraphLaunch, 10000, LEGACY) \
	HOOK(cuGraphLaunch_ptsz, cuGraphLaunch, 10000, PER_THREAD) \
	HOOK(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, ANY) \
	HOOK(cuCtxCreate, cuCtxCreate, 2000, ANY) \
	HOOK(cuCtxCreate_v2, cuCtxCreate, 3020, ANY) \
	HOOK(cuCtxCreate_v3, cuCtxCreate, 11040, ANY) \
	HOOK(cuCtxCreate_v4, cuCtxCreate, 12050, ANY) \
	HOOK(cuGLCtxCreate, cuGLCtxCreate, 2000, ANY) \
	HOOK(cuGLCtxCreate_v2, cuGLCtxCreate, 3020, ANY) \
	HOOK(cuVDPAUCtxCreate, cuVDPAUCtxCreate, 3010, ANY) \
	HOOK(cuVDPAUCtxCreate_v2, cuVDPAUCtxCreate, 3020, ANY) \
	HOOK(cuGreenCtxCreate, cuGreenCtxCreate, 12040, ANY) \
	HOOK(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040, ANY) \
	HOOK(cuCtxDestroy, cuCtxDestroy, 2000, ANY) \
	HOOK(cuCtxDestroy_v2, cuCtxDestroy, 4000, ANY) \
	HOOK(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, ANY) \
	HOOK(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, ANY) \
	HOOK(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, ANY) \
	HOOK(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, ANY) \
	HOOK(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, ANY) \
	HOOK(cuCtxSetLimit, cuCtxSetLimit, 3010, ANY) \
	HOOK(cuModuleLoad, cuModuleLoad, 2000, ANY) \
	HOOK(cuModuleLoadData, cuModuleLoadData, 2000, ANY) \
	HOOK(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, ANY) \
	HOOK(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, ANY) \
	HOOK(cuModuleUnload, cuModuleUnload, 2000, ANY) \
	HOOK(cuModuleGetFunction, cuModuleGetFunction, 2000, ANY) \
	HOOK(cuFuncLoad, cuFuncLoad, 12040, ANY) \
	HOOK(cuLibraryGetModule, cuLibraryGetModule, 12000, ANY) \
	HOOK(cuLibraryGetKernel, cuLibraryGetKernel, 12000, ANY) \
	HOOK(cuKernelGetFunction, cuKernelGetFunction, 12000, ANY) \
	HOOK(cuLibraryLoadData, cuLibraryLoadData, 12000, ANY) \
	HOOK(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, ANY) \
	HOOK(cuLibraryUnload, cuLibraryUnload, 12000, ANY) \
	HOOK(cuLaunchKernel, cuLaunchKernel, 4000, LEGACY) \
	HOOK(cuLaunchKernel_ptsz, cuLaunchKernel, 7000, PER_THREAD) \
	HOOK(cuLaunchKernelEx, cuLaunchKernelEx, 11060, LEGACY) \
	HOOK(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, PER_THREAD) \
	HOOK(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, LEGACY) \
	HOOK(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, PER_THREAD) \
	HOOK(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000, ANY) \
	HOOK(cuLaunch, cuLaunch, 2000, ANY) \
	HOOK(cuLaunchGrid, cuLaunchGrid, 2000, ANY) \
	HOOK(cuLaunchGridAsync, cuLaunchGridAsync, 2000, ANY) \
	HOOK(cuMemsetD8_v2, cuMemsetD8, 3020, LEGACY) \
	HOOK(cuMemsetD8_v2_ptds, cuMemsetD8, 7000, PER_THREAD) \
	HOOK(cuMemsetD8Async, cuMemsetD8Async, 3020, LEGACY) \
	HOOK(cuMemsetD8Async_ptsz, cuMemsetD8Async, 7000, PER_THREAD) \
	HOOK(cuMemsetD2D8_v2, cuMemsetD2D8, 3020, LEGACY) \
	HOOK(cuMemsetD2D8_v2_ptds, cuMemsetD2D8, 7000, PER_THREAD) \
	HOOK(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020, LEGACY) \
	HOOK(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async, 7000, PER_THREAD) \
	HOOK(cuMemsetD16_v2, cuMemsetD16, 3020, LEGACY) \
	HOOK(cuMemsetD16_v2_ptds, cuMemsetD16, 7000, PER_THREAD) \
	HOOK(cuMemsetD16Async, cuMemsetD16Async, 3020, LEGACY) \
	HOOK(cuMemsetD16Async_ptsz, cuMemsetD16Async, 7000, PER_THREAD) \
	HOOK(cuMemsetD2D16_v2, cuMemsetD2D16, 3020, LEGACY) \
	HOOK(cuMemsetD2D16_v2_ptds, cuMemsetD2D16, 7000, PER_THREAD) \
	HOOK(cuMemsetD2D16Async, cuMemsetD2D16Async, 3020, LEGACY) \
	HOOK(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async, 7000, PER_THREAD) \
	HOOK(cuMemsetD32_v2, cuMemsetD32, 3020, LEGACY) \
	HOOK(cuMemsetD32_v2_ptds, cuMemsetD32, 7000, PER_THREAD) \
	HOOK(cuMemsetD32Async, cuMemsetD32Async, 3020, LEGACY) \
	HOOK(cuMemsetD32Async_ptsz, cuMemsetD32Async, 7000, PER_THREAD) \
	HOOK(cuMemsetD2D32_v2, cuMemsetD2D32, 3020, LEGACY) \
	HOOK(cuMemsetD2D32_v2_ptds, cuMemsetD2D32, 7000, PER_THREAD) \
	HOOK(cuMemsetD2D32Async, cuMemsetD2D32Async, 3020, LEGACY) \
	HOOK(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async, 7000, PER_THREAD) \
	HOOK(cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020, LEGACY) \
	HOOK(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD, 7000, PER_THREAD) \
	HOOK(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020, LEGACY) \
	HOOK(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync, 7000, PER_THREAD) \
	HOOK(cuMemsetD8, cuMemsetD8, 2000, ANY) \
	HOOK(cuMemsetD2D8, cuMemsetD2D8, 2000, ANY) \
	HOOK(cuMemsetD16, cuMemsetD16, 2000, ANY) \
	HOOK(cuMemsetD2D16, cuMemsetD2D16, 2000, ANY) \
	HOOK(cuMemsetD32, cuMemsetD32, 2000, ANY) \
	HOOK(cuMemsetD2D32, cuMemsetD2D32, 2000, ANY) \
	HOOK(cuMemcpy, cuMemcpy, 4000, LEGACY) \
	HOOK(cuMemcpy_ptds, cuMemcpy, 7000, PER_THREAD) \
	HOOK(cuMemcpyAsync, cuMemcpyAsync, 4000, LEGACY) \
	HOOK(cuMemcpyAsync_ptsz, cuMemcpyAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpyPeer, cuMemcpyPeer, 4000, LEGACY) \
	HOOK(cuMemcpyPeer_ptds, cuMemcpyPeer, 7000, PER_THREAD) \
	HOOK(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, LEGACY) \
	HOOK(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpyDtoD, cuMemcpyDtoD, 2000, ANY) \
	HOOK(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync, 3000, ANY) \
	HOOK(cuMemcpyHtoD, cuMemcpyHtoD, 2000, ANY) \
	HOOK(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, LEGACY) \
	HOOK(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD, 7000, PER_THREAD) \
	HOOK(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync, 2000, ANY) \
	HOOK(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020, LEGACY) \
	HOOK(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpyDtoH, cuMemcpyDtoH, 2000, ANY) \
	HOOK(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, LEGACY) \
	HOOK(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH, 7000, PER_THREAD) \
	HOOK(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, 2000, ANY) \
	HOOK(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020, LEGACY) \
	HOOK(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpyDtoA, cuMemcpyDtoA, 2000, ANY) \
	HOOK(cuMemcpyDtoA_v2, cuMemcpyDtoA, 3020, LEGACY) \
	HOOK(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA, 7000, PER_THREAD) \
	HOOK(cuMemcpyAtoD, cuMemcpyAtoD, 2000, ANY) \
	HOOK(cuMemcpyAtoD_v2, cuMemcpyAtoD, 3020, LEGACY) \
	HOOK(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD, 7000, PER_THREAD) \
	HOOK(cuMemcpyAtoA, cuMemcpyAtoA, 2000, ANY) \
	HOOK(cuMemcpyAtoA_v2, cuMemcpyAtoA, 3020, LEGACY) \
	HOOK(cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, 7000, PER_THREAD) \
	HOOK(cuMemcpyHtoA, cuMemcpyHtoA, 2000, ANY) \
	HOOK(cuMemcpyHtoA_v2, cuMemcpyHtoA, 3020, LEGACY) \
	HOOK(cuMemcpyHtoA_v2_ptds, cuMemcpyHtoA, 7000, PER_THREAD) \
	HOOK(cuMemcpyAtoH, cuMemcpyAtoH, 2000, ANY) \
	HOOK(cuMemcpyAtoH_v2, cuMemcpyAtoH, 3020, LEGACY) \
	HOOK(cuMemcpyAtoH_v2_ptds, cuMemcpyAtoH, 7000, PER_THREAD) \
	HOOK(cuMemcpyHtoAAsync, cuMemcpyHtoAAsync, 2000, ANY) \
	HOOK(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync, 3020, LEGACY) \
	HOOK(cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoAAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpyAtoHAsync, cuMemcpyAtoHAsync, 2000, ANY) \
	HOOK(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync, 3020, LEGACY) \
	HOOK(cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoHAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpy2D, cuMemcpy2D, 2000, ANY) \
	HOOK(cuMemcpy2D_v2, cuMemcpy2D, 3020, LEGACY) \
	HOOK(cuMemcpy2D_v2_ptds, cuMemcpy2D, 7000, PER_THREAD) \
	HOOK(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned, 2000, ANY) \
	HOOK(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, LEGACY) \
	HOOK(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, 7000, PER_THREAD) \
	HOOK(cuMemcpy3D, cuMemcpy3D, 2000, ANY) \
	HOOK(cuMemcpy3D_v2, cuMemcpy3D, 3020, LEGACY) \
	HOOK(cuMemcpy3D_v2_ptds, cuMemcpy3D, 7000, PER_THREAD) \
	HOOK(cuMemcpy2DAsync, cuMemcpy2DAsync, 2000, ANY) \
	HOOK(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020, LEGACY) \
	HOOK(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpy3DAsync, cuMemcpy3DAsync, 2000, ANY) \
	HOOK(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, 3020, LEGACY) \
	HOOK(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpy3DPeer, cuMemcpy3DPeer, 4000, LEGACY) \
	HOOK(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer, 7000, PER_THREAD) \
	HOOK(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, 4000, LEGACY) \
	HOOK(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync, 7000, PER_THREAD) \
	HOOK(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 12080, LEGACY) \
	HOOK(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, 12080, PER_THREAD) \
	HOOK(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync, 13000, LEGACY) \
	HOOK(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync, 13000, PER_THREAD) \
	HOOK(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync, 12080, LEGACY) \
	HOOK(cuMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync, 12080, PER_THREAD) \
	HOOK(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync, 13000, LEGACY) \
	HOOK(cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync, 13000, PER_THREAD) \
	HOOK(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync, 13020, LEGACY) \
	HOOK(cuMemcpyWithAttributesAsync_ptsz, cuMemcpyWithAttributesAsync, 13020, PER_THREAD) \
	HOOK(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync, 13020, LEGACY) \
	HOOK(cuMemcpy3DWithAttributesAsync_ptsz, cuMemcpy3DWithAttributesAsync, 13020, PER_THREAD) \
	HOOK(cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig, 13020, LEGACY) \
	HOOK(cuStreamBeginCaptureToCig_ptsz, cuStreamBeginCaptureToCig, 13020, PER_THREAD) \
	HOOK(cuStreamEndCaptureToCig, cuStreamEndCaptureToCig, 13020, LEGACY) \
	HOOK(cuStreamEndCaptureToCig_ptsz, cuStreamEndCaptureToCig, 13020, PER_THREAD) \
	HOOK(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph, 13030, LEGACY) \
	HOOK(cuStreamBeginRecaptureToGraph_ptsz, cuStreamBeginRecaptureToGraph, 13030, PER_THREAD) \
	HOOK(cuLaunchHostFunc, cuLaunchHostFunc, 10000, LEGACY) \
	HOOK(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, 10000, PER_THREAD) \
	HOOK(cuLaunchHostFunc_v2, cuLaunchHostFunc, 13020, LEGACY) \
	HOOK(cuLaunchHostFunc_v2_ptsz, cuLaunchHostFunc, 13020, PER_THREAD) \
	HOOK(cuStreamAddCallback, cuStreamAddCallback, 5000, LEGACY) \
	HOOK(cuStreamAddCallback_ptsz, cuStreamAddCallback, 7000, PER_THREAD) \
	HOOK(cuStreamWaitValue32, cuStreamWaitValue32, 8000, LEGACY) \
	HOOK(cuStreamWaitValue32_ptsz, cuStreamWaitValue32, 8000, PER_THREAD) \
	HOOK(cuStreamWaitValue32_v2, cuStreamWaitValue32, 11070, LEGACY) \
	HOOK(cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue32, 11070, PER_THREAD) \
	HOOK(cuStreamWaitValue64, cuStreamWaitValue64, 8000, LEGACY) \
	HOOK(cuStreamWaitValue64_ptsz, cuStreamWaitValue64, 8000, PER_THREAD) \
	HOOK(cuStreamWaitValue64_v2, cuStreamWaitValue64, 11070, LEGACY) \
	HOOK(cuStreamWaitValue64_v2_ptsz, cuStreamWaitValue64, 11070, PER_THREAD) \
	HOOK(cuStreamBatchMemOp, cuStreamBatchMemOp, 8000, LEGACY) \
	HOOK(cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp, 8000, PER_THREAD) \
	HOOK(cuStreamBatchMemOp_v2, cuStreamBatchMemOp, 11070, LEGACY) \
	HOOK(cuStreamBatchMemOp_v2_ptsz, cuStreamBatchMemOp, 11070, PER_THREAD) \
	HOOK(cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync, 10000, LEGACY) \
	HOOK(cuWaitExternalSemaphoresAsync_ptsz, cuWaitExternalSemaphoresAsync, 10000, PER_THREAD) \
	HOOK(cuStreamWaitEvent, cuStreamWaitEvent, 3020, LEGACY) \
	HOOK(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, 7000, PER_THREAD) \
	HOOK(cuMemPrefetchAsync, cuMemPrefetchAsync, 8000, LEGACY) \
	HOOK(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync, 8000, PER_THREAD) \
	HOOK(cuMemPrefetchAsync_v2, cuMemPrefetchAsync, 12020, LEGACY) \
	HOOK(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync, 12020, PER_THREAD) \
	HOOK(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, 13000, LEGACY) \
	HOOK(cuMemPrefetchBatchAsync_ptsz, cuMemPrefetchBatchAsync, 13000, PER_THREAD) \
	HOOK(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, 13000, LEGACY) \
	HOOK(cuMemDiscardAndPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, 13000, PER_THREAD) \
	HOOK(cuStreamCreate, cuStreamCreate, 2000, ANY) \
	HOOK(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, ANY) \
	HOOK(cuStreamDestroy, cuStreamDestroy, 2000, ANY) \
	HOOK(cuStreamDestroy_v2, cuStreamDestroy, 4000, ANY) \
	HOOK(cuStreamBeginCapture, cuStreamBeginCapture, 10000, LEGACY) \
	HOOK(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, 10000, PER_THREAD) \
	HOOK(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, LEGACY) \
	HOOK(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010, PER_THREAD) \
	HOOK(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030, LEGACY) \
	HOOK(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, 12030, PER_THREAD) \
	HOOK(cuStreamEndCapture, cuStreamEndCapture, 10000, LEGACY) \
	HOOK(cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000, PER_THREAD)

#ifndef VCUDA_CUDA_TABLE_H
#define VCUDA_CUDA_TABLE_H

#include "cuda_abi.h"
#include "driver/real_library.h"

/* The functions that libvcuda calls and does not define. */
#define CUDA_CALLS(CALL) \
	CALL(cuDeviceGetUuid) \
	CALL(cuDeviceGetUuid_v2) \
	CALL(cuDeviceGetCount) \
	CALL(cuCtxGetCurrent) \
	CALL(cuCtxGetDevice) \
	CALL(cuCtxGetLimit) \
	CALL(cuDeviceGetAttribute) \
	CALL(cuCtxFromGreenCtx) \
	CALL(cuCtxPushCurrent_v2) \
	CALL(cuCtxPopCurrent_v2) \
	CALL(cuDevicePrimaryCtxGetState) \
	CALL(cuPointerGetAttribute) \
	CALL(cuMemGetAddressRange_v2) \
	CALL(cuMemGetAllocationPropertiesFromHandle) \
	CALL(cuDeviceGetDefaultMemPool) \
	CALL(cuDeviceGetMemPool) \
	CALL(cuDeviceSetMemPool) \
	CALL(cuMemPoolGetAttribute) \
	CALL(cuGraphGetNodes) \
	CALL(cuGraphNodeGetType) \
	CALL(cuGraphKernelNodeGetParams_v2) \
	CALL(cuGraphChildGraphNodeGetGraph) \
	CALL(cuGraphMemAllocNodeGetParams) \
	CALL(cuGraphMemFreeNodeGetParams) \
	CALL(cuDeviceGetGraphMemAttribute) \
	CALL(cuStreamGetCtx) \
	CALL(cuMemHostRegister_v2) \
	CALL(cuMemHostGetDevicePointer_v2) \
	CALL(cuEventCreate) \
	CALL(cuEventRecord) \
	CALL(cuEventQuery) \
	CALL(cuEventElapsedTime) \
	CALL(cuEventDestroy_v2) \
	CALL(cuStreamIsCapturing) \
	CALL(cuStreamQuery) \
	CALL(cuStreamQuery_ptsz) \
	CALL(cuThreadExchangeStreamCaptureMode)

struct cuda_table {
#define MEMBER(symbol, ...) __typeof__(symbol) *symbol;
	CUDA_HOOKS(MEMBER)
	CUDA_CALLS(MEMBER)
#undef MEMBER
};

extern struct cuda_table cuda_table;
#define REAL_TABLE cuda_table

#endif
