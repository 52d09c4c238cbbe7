/*
 * For programs that are linked with libcuda.so.1: the functions that libvcuda's own header lacks, as libvcuda does not
 * need them. In the container their libcuda is libvcuda.
 */
#ifndef LINKED_H
#define LINKED_H

#include "cuda_abi.h"

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
			     unsigned long long flags);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle object, CUdevice device);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);

#endif
